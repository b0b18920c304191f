//! The samples of one node as they are stored: one document for the node and everything on it.
//!
//! JSON with short member names, so that it can be read with SQL, grows by members that older readers pass over,
//! and packs well. How old a sample was is written beside it, since the row as a whole is as old as its newest.
//! What cannot be read is as if it were not there: samples come again every few seconds.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Before, FRESH, Measured, Sample};

/// Something measured, and how long before the row was written its newest sample had been received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aged {
    pub measured: Measured,
    pub age: Duration,
}

/// An Application on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppUsage {
    pub uid: Uuid,
    pub namespace: String,
    pub name: String,
    pub usage: Aged,
}

/// Everything that is known of a node's usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUsage {
    pub node: Option<Aged>,
    pub apps: Vec<AppUsage>,
}

#[derive(Serialize, Deserialize)]
struct Row<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<Numbers>,
    #[serde(borrow)]
    apps: Vec<Named<'a>>,
}

#[derive(Serialize, Deserialize)]
struct Named<'a> {
    ns: &'a str,
    name: &'a str,
    uid: Uuid,
    usage: Numbers,
}

#[derive(Serialize, Deserialize)]
struct Numbers {
    /// Milliseconds.
    age: u64,
    at: i64,
    cpu: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    throttled: i64,
    memory: i64,
    peak: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pids: i64,
    #[serde(default, skip_serializing_if = "is_zero")]
    oom: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before_cpu: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before_at: Option<i64>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Numbers {
    fn of(aged: &Aged) -> Numbers {
        let Measured { now, before } = aged.measured;
        Numbers {
            age: u64::try_from(aged.age.as_millis()).unwrap_or(u64::MAX),
            at: now.at,
            cpu: now.cpu_usec,
            throttled: now.cpu_throttled_usec,
            memory: now.memory_bytes,
            peak: now.memory_peak_bytes,
            pids: now.pids,
            oom: now.oom_kills,
            before_cpu: before.map(|before| before.cpu_usec),
            before_at: before.map(|before| before.at),
        }
    }

    /// What is still fresh in a row that is `older` than when it was written.
    fn aged(self, older: Duration) -> Option<Aged> {
        let age = Duration::from_millis(self.age).checked_add(older).filter(|age| *age <= FRESH)?;
        let before = self.before_cpu.zip(self.before_at);
        let measured = Measured {
            now: Sample {
                cpu_usec: self.cpu,
                cpu_throttled_usec: self.throttled,
                memory_bytes: self.memory,
                memory_peak_bytes: self.peak,
                pids: self.pids,
                oom_kills: self.oom,
                at: self.at,
            },
            before: before.map(|(cpu_usec, at)| Before { cpu_usec, at }),
        };
        Some(Aged { measured, age })
    }
}

impl NodeUsage {
    /// The document. Ages are as of now.
    pub fn encode(&self) -> Vec<u8> {
        let apps = self.apps.iter().map(|app| Named {
            ns: &app.namespace,
            name: &app.name,
            uid: app.uid,
            usage: Numbers::of(&app.usage),
        });
        let row = Row { node: self.node.as_ref().map(Numbers::of), apps: apps.collect() };
        serde_json::to_vec(&row).unwrap_or_default()
    }

    /// What is fresh in a document that was written `older` ago. Ages are as of now.
    pub fn decode(document: &[u8], older: Duration) -> NodeUsage {
        let Ok(row) = serde_json::from_slice::<Row<'_>>(document) else { return NodeUsage::default() };
        let apps = row.apps.into_iter().filter_map(|app| {
            Some(AppUsage {
                uid: app.uid,
                namespace: app.ns.to_owned(),
                name: app.name.to_owned(),
                usage: app.usage.aged(older)?,
            })
        });
        NodeUsage { node: row.node.and_then(|numbers| numbers.aged(older)), apps: apps.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn sample(number: i64) -> Sample {
        Sample {
            cpu_usec: number,
            cpu_throttled_usec: number + 1,
            memory_bytes: number + 2,
            memory_peak_bytes: number + 3,
            pids: number + 4,
            oom_kills: number + 5,
            at: number + 6,
        }
    }

    fn app(name: &str, age: u64) -> AppUsage {
        let measured = Measured { now: sample(7), before: Some(Before { cpu_usec: 1, at: 2 }) };
        AppUsage {
            uid: Uuid::from_u128(7),
            namespace: "team".into(),
            name: name.into(),
            usage: Aged { measured, age: secs(age) },
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let written = NodeUsage {
            node: Some(Aged { measured: Measured::first(Sample::default()), age: Duration::ZERO }),
            apps: vec![app("web", 0), app("api", 3)],
        };
        assert_eq!(NodeUsage::decode(&written.encode(), Duration::ZERO), written);
        assert_eq!(NodeUsage::decode(&NodeUsage::default().encode(), Duration::ZERO), NodeUsage::default());
    }

    #[test]
    fn each_sample_goes_stale_by_itself() {
        let written = NodeUsage {
            node: Some(Aged { measured: Measured::first(sample(1)), age: secs(60) }),
            apps: vec![app("new", 0), app("old", 119)],
        };
        for (older, node, names) in [
            (0, Some(60), vec!["new", "old"]),
            (1, Some(61), vec!["new", "old"]),
            (2, Some(62), vec!["new"]),
            (61, None, vec!["new"]),
            (120, None, vec!["new"]),
            (121, None, vec![]),
            (u64::MAX / 2, None, vec![]),
        ] {
            let read = NodeUsage::decode(&written.encode(), secs(older));
            assert_eq!(read.node.map(|aged| aged.age.as_secs()), node, "after {older} s");
            assert_eq!(
                read.apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>(),
                names,
                "after {older} s"
            );
        }
    }

    #[test]
    fn what_others_have_written_is_read_as_far_as_it_goes() {
        for unreadable in ["", "{", "[]", "null", r#"{"apps":[{"ns":"t"}]}"#, r#"{"apps":7}"#] {
            assert_eq!(
                NodeUsage::decode(unreadable.as_bytes(), Duration::ZERO),
                NodeUsage::default(),
                "{unreadable}"
            );
        }
        let newer = r#"{"node":{"age":0,"at":1,"cpu":2,"memory":3,"peak":4,"more":[]},"apps":[],"more":{}}"#;
        let read = NodeUsage::decode(newer.as_bytes(), Duration::ZERO);
        assert_eq!(read.node.map(|aged| aged.measured.now.memory_bytes), Some(3));
    }

    #[test]
    fn twenty_workloads_take_little_room() {
        let apps = (0..20).map(|number| app(&format!("workload-with-a-name-{number}"), 5)).collect();
        let size = NodeUsage { node: None, apps }.encode().len();
        assert!(size < 6_000, "{size} bytes");
    }
}

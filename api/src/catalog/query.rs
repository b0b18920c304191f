//! The parameters of a question.
//!
//! Those of Consul that mean nothing here are ignored, as clients send them with every request: `dc` (there is one
//! datacenter, whatever a client calls it), `node-meta`, `partition`, `peer`. What would narrow an answer and cannot
//! be understood is a 400, so that nobody gets more than was asked for without noticing.

use std::time::Duration;

use horchestra_core::status::Status;
use horchestra_store::Revision;

use super::filter::{Filter, Shape};
use crate::http::query::{Query, duration};

/// The longest time, and what a client gets that says none or nonsense.
pub const LONGEST: Duration = Duration::from_secs(300);

/// What part of the time is added at random at most, so that those who began together do not end together.
const JITTER: u32 = 16;

/// How a question is asked.
#[derive(Debug)]
pub struct Asked {
    /// The client knows the answer at this index and wants to hear of a change; zero: it wants an answer now.
    pub index: Revision,
    pub wait: Duration,
    /// What this replica knows is good enough, be it current or not.
    pub stale: bool,
    /// All of these have to be among the tags.
    pub tags: Vec<String>,
    pub passing: bool,
    /// The node that the client is near; empty: none.
    pub near: String,
    pub filter: Option<Filter>,
}

/// Whether the query makes a request one that may wait.
pub fn is_blocking(query: &Query) -> bool {
    index(query) > 0
}

fn index(query: &Query) -> Revision {
    query.text("index").parse().unwrap_or(0).max(0)
}

/// The namespace that is asked about; `usual`: when none is named.
pub fn namespace<'a>(query: &'a Query, usual: &'a str) -> &'a str {
    query.get("ns").filter(|namespace| !namespace.is_empty()).unwrap_or(usual)
}

impl Asked {
    /// Reads the parameters of a question whose answer has items of this shape.
    pub fn of(query: &Query, shape: Shape) -> Result<Asked, Status> {
        let wait = duration(query.text("wait")).filter(|wait| !wait.is_zero()).unwrap_or(LONGEST);
        let filter = query.get("filter").filter(|text| !text.trim().is_empty());
        let filter = filter.map(|text| Filter::parse(text, shape)).transpose();
        Ok(Asked {
            index: index(query),
            wait: wait.min(LONGEST),
            stale: query.get("stale").or(query.get("cached")).is_some() && query.get("consistent").is_none(),
            tags: query.all("tag").filter(|tag| !tag.is_empty()).map(str::to_owned).collect(),
            passing: flag(query, "passing")?,
            near: query.text("near").to_owned(),
            filter: filter.map_err(|why| Status::bad_request(format!("filter: {why}")))?,
        })
    }

    /// How long it waits, with its share of chance (`0..=u32::MAX`).
    pub fn patience(&self, chance: u32) -> Duration {
        self.wait + self.wait / JITTER * (chance >> 16) / (1 << 16)
    }
}

/// On when it is there, unless it says otherwise.
fn flag(query: &Query, name: &str) -> Result<bool, Status> {
    match query.get(name) {
        None | Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(false),
        Some("" | "1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(true),
        Some(other) => Err(Status::bad_request(format!("{name}: {other:?} is neither true nor false"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::filter::ENTRY;
    use super::*;

    fn asked(raw: &str) -> Asked {
        Asked::of(&Query::parse(Some(raw)), ENTRY).unwrap()
    }

    #[test]
    fn what_cannot_be_waited_for_is_waited_for_five_minutes() {
        for (raw, millis) in [
            ("wait=10s", 10_000),
            ("wait=1m30s", 90_000),
            ("wait=60000ms", 60_000),
            ("wait=4m59s", 299_000),
            ("wait=5m", 300_000),
            ("wait=10m", 300_000),
            ("wait=0s", 300_000),
            ("wait=-1s", 300_000),
            ("wait=soon", 300_000),
            ("wait=10", 300_000),
            ("", 300_000),
        ] {
            assert_eq!(asked(raw).wait.as_millis(), millis, "{raw}");
        }
    }

    #[test]
    fn up_to_a_sixteenth_is_added() {
        let asked = asked("wait=16s");
        assert_eq!(asked.patience(0), Duration::from_secs(16));
        assert!(asked.patience(u32::MAX) > Duration::from_millis(16_990));
        assert!(asked.patience(u32::MAX) <= Duration::from_secs(17));
    }

    #[test]
    fn an_index_that_is_none_asks_for_an_answer_now() {
        for (raw, index) in
            [("", 0), ("index=", 0), ("index=0", 0), ("index=x", 0), ("index=-3", 0), ("index=7", 7)]
        {
            assert_eq!(asked(raw).index, index, "{raw}");
            assert_eq!(is_blocking(&Query::parse(Some(raw))), index > 0, "{raw}");
        }
    }

    #[test]
    fn parameters_are_read_as_consul_reads_them() {
        for (raw, stale) in [("", false), ("stale=", true), ("cached", true), ("consistent=&stale", false)] {
            assert_eq!(asked(raw).stale, stale, "{raw}");
        }
        for (raw, passing) in [("", false), ("passing", true), ("passing=1", true), ("passing=false", false)]
        {
            assert_eq!(asked(raw).passing, passing, "{raw}");
        }
        assert_eq!(asked("tag=a%3Db&tag=c&tag=").tags, ["a=b", "c"]);
        for (raw, name) in [("", "default"), ("ns=", "default"), ("ns=*", "*"), ("ns=a&ns=b", "a")] {
            assert_eq!(namespace(&Query::parse(Some(raw)), "default"), name, "{raw}");
        }
        for raw in ["passing=maybe", "filter=Nonsense", "filter=ServiceName+%3D%3D"] {
            let refused = Asked::of(&Query::parse(Some(raw)), ENTRY).unwrap_err();
            assert_eq!(refused.code(), 400, "{raw}");
        }
    }
}

//! The fleet as a page of metrics: what nodes have measured of themselves and of the Applications on them.
//!
//! The page grows with the fleet, so it is never in memory as a whole. A [`Fleet`] holds names and numbers, some
//! two hundred bytes for each Application; it is taken when somebody asks and good for [`KEPT`], so scrapers that
//! come together share one. The text is made piece by piece as it is taken ([`Fleet::write`]). Order is stable: families
//! as listed, in them namespace and name. What was measured more than two minutes ago is not there, and neither is
//! what only a wrong node speaks of, or what is not stored any more.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_core::status::Status;
use horchestra_core::usage::Sample;
use horchestra_store::{Snapshot, Store};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::usage::{Known, Usage};

/// How long a fleet that was taken is good for. Rows of samples may be as old as [`crate::usage::KEPT`] then already:
/// together five seconds.
const KEPT: Duration = Duration::from_secs(3);
/// How long a scraper waits for those before it.
const TURN: Duration = Duration::from_secs(10);
/// Scrapes that run at a time; each may hold a fleet of its own.
const SCRAPES: usize = 16;

/// A thing that was measured.
struct Shown {
    /// `a="b",c="d"`
    labels: Box<str>,
    sample: Sample,
    /// When it says nothing any more.
    until: Instant,
}

/// What was measured of everything, at one moment.
pub struct Fleet {
    taken: Instant,
    apps: Vec<Shown>,
    nodes: Vec<Shown>,
}

/// What a family is about.
#[derive(Clone, Copy)]
enum Of {
    Applications,
    Nodes,
}

struct Family {
    name: &'static str,
    help: &'static str,
    sort: &'static str,
    of: Of,
    value: fn(&Sample) -> i64,
}

const fn app(
    name: &'static str,
    sort: &'static str,
    help: &'static str,
    value: fn(&Sample) -> i64,
) -> Family {
    Family { name, help, sort, of: Of::Applications, value }
}

const fn node(
    name: &'static str,
    sort: &'static str,
    help: &'static str,
    value: fn(&Sample) -> i64,
) -> Family {
    Family { name, help, sort, of: Of::Nodes, value }
}

const FAMILIES: [Family; 9] = [
    app(
        "horchestra_application_cpu_usec_total",
        "counter",
        "CPU time that the Application has used since it was started, in microseconds.",
        |sample| sample.cpu_usec,
    ),
    app(
        "horchestra_application_cpu_throttled_usec_total",
        "counter",
        "Time that the Application was kept from the CPU by its limit, in microseconds.",
        |sample| sample.cpu_throttled_usec,
    ),
    app("horchestra_application_memory_bytes", "gauge", "Memory of the Application.", |sample| {
        sample.memory_bytes
    }),
    app(
        "horchestra_application_memory_peak_bytes",
        "gauge",
        "The most memory that the Application has had since it was started.",
        |sample| sample.memory_peak_bytes,
    ),
    app("horchestra_application_pids", "gauge", "Processes and threads of the Application.", |sample| {
        sample.pids
    }),
    app(
        "horchestra_application_oom_kills_total",
        "counter",
        "Processes of the Application that were killed for want of memory.",
        |sample| sample.oom_kills,
    ),
    node(
        "horchestra_node_cpu_usec_total",
        "counter",
        "CPU time of all cores of the node that was used, in microseconds.",
        |sample| sample.cpu_usec,
    ),
    node(
        "horchestra_node_memory_used_bytes",
        "gauge",
        "Memory of the node that is not available.",
        |sample| sample.memory_bytes,
    ),
    node("horchestra_node_memory_total_bytes", "gauge", "Memory of the node.", |sample| {
        sample.memory_peak_bytes
    }),
];

/// How far a page was written. The head of a family is its first line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    family: usize,
    line: usize,
}

impl Fleet {
    /// The order of the store's lists is that of the page.
    fn of(snapshot: &Snapshot, known: &Known) -> Fleet {
        let apps = snapshot.list(Kind::Application, None).filter_map(|entry| {
            let node = entry.columns.node.as_deref().filter(|node| !node.is_empty())?;
            let (measured, until) = known.app_until(node, entry.uid)?;
            let labels = [
                ("namespace", entry.key.namespace.as_ref()),
                ("application", entry.key.name.as_ref()),
                ("node", node),
            ];
            Some(Shown { labels: labelled(&labels), sample: measured.now, until })
        });
        let nodes = snapshot.list(Kind::Node, None).filter_map(|entry| {
            let (measured, until) = known.node_until(&entry.key.name)?;
            Some(Shown {
                labels: labelled(&[("node", entry.key.name.as_ref())]),
                sample: measured.now,
                until,
            })
        });
        Fleet { taken: Instant::now(), apps: apps.collect(), nodes: nodes.collect() }
    }

    /// So many Applications with names of a usual length.
    #[cfg(test)]
    pub fn of_size(applications: usize) -> Fleet {
        let now = Instant::now();
        let until = now + Duration::from_secs(3600);
        let app = |number: usize| {
            let name = format!("application-with-a-name-{number:05}");
            let labels = [("namespace", "team-with-a-name"), ("application", &*name), ("node", "node-1")];
            Shown {
                labels: labelled(&labels),
                sample: Sample { cpu_usec: 1 << 40, ..Sample::default() },
                until,
            }
        };
        Fleet { taken: now, apps: (0..applications).map(app).collect(), nodes: Vec::new() }
    }

    /// Appends to `page` what follows `place`, at least `size` bytes of it where there is so much; moves `place` on.
    /// False: that was the end. `now` has to be the same throughout a page, so that what goes stale meanwhile is in
    /// all families or in none.
    pub fn write(&self, page: &mut String, size: usize, place: &mut Place, now: Instant) -> bool {
        while let Some(family) = FAMILIES.get(place.family) {
            let shown = match family.of {
                Of::Applications => &self.apps,
                Of::Nodes => &self.nodes,
            };
            if place.line == 0 {
                let Family { name, help, sort, .. } = family;
                let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {sort}\n");
                place.line = 1;
            }
            for shown in shown.iter().skip(place.line - 1) {
                if page.len() >= size {
                    return true;
                }
                place.line += 1;
                if shown.until >= now {
                    let _ = writeln!(
                        page,
                        "{}{{{}}} {}",
                        family.name,
                        shown.labels,
                        (family.value)(&shown.sample)
                    );
                }
            }
            *place = Place { family: place.family + 1, line: 0 };
        }
        false
    }
}

/// Names hold nothing that would have to be escaped, unless somebody has imported them.
fn labelled(labels: &[(&str, &str)]) -> Box<str> {
    let mut text =
        String::with_capacity(labels.iter().map(|(name, value)| name.len() + value.len() + 4).sum());
    for (name, value) in labels {
        if !text.is_empty() {
            text.push(',');
        }
        let _ = write!(text, "{name}=\"");
        for c in value.chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                _ => text.push(c),
            }
        }
        text.push('"');
    }
    text.into()
}

/// Takes fleets, and holds the last one for a moment.
pub struct Fleets {
    latest: Mutex<Option<Arc<Fleet>>>,
    scrapes: Arc<Semaphore>,
}

impl Default for Fleets {
    fn default() -> Fleets {
        Fleets { latest: Mutex::default(), scrapes: Arc::new(Semaphore::new(SCRAPES)) }
    }
}

impl Fleets {
    /// A place among the scrapes that run; 429 when there is none.
    pub fn enter(&self) -> Result<OwnedSemaphorePermit, Status> {
        let refused = |_| Status::too_many_requests("the page is being read by too many already", 1);
        Arc::clone(&self.scrapes).try_acquire_owned().map_err(refused)
    }

    /// The fleet as it is, or was a moment ago. 503 while that is not known.
    pub async fn now(&self, store: &Store, usage: &Usage) -> Result<Arc<Fleet>, Status> {
        let away = || Status::unavailable("what was measured cannot be read now", 2);
        let mut latest = tokio::time::timeout(TURN, self.latest.lock()).await.map_err(|_| away())?;
        if let Some(fleet) = latest.as_ref().filter(|fleet| fleet.taken.elapsed() < KEPT) {
            return Ok(Arc::clone(fleet));
        }
        *latest = None;
        if !store.health().loaded {
            return Err(away());
        }
        let snapshot = store.snapshot();
        let of_nodes = snapshot.list(Kind::Node, None).map(|entry| &*entry.key.name);
        let of_apps =
            snapshot.list(Kind::Application, None).filter_map(|entry| entry.columns.node.as_deref());
        let nodes: BTreeSet<&str> = of_nodes.chain(of_apps).filter(|node| !node.is_empty()).collect();
        let known = usage.of(nodes).await?;
        // A fleet is long enough to hold up the other requests of this thread.
        let taken = tokio::task::spawn_blocking(move || Fleet::of(&snapshot, &known)).await;
        let fleet = Arc::new(taken.map_err(|_| Status::internal("the fleet could not be looked at"))?);
        *latest = Some(Arc::clone(&fleet));
        Ok(fleet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 64 * 1024;

    fn shown(labels: &[(&str, &str)], number: i64, until: Instant) -> Shown {
        let sample = Sample {
            cpu_usec: number,
            cpu_throttled_usec: number + 1,
            memory_bytes: number + 2,
            memory_peak_bytes: number + 3,
            pids: number + 4,
            oom_kills: number + 5,
            at: 0,
        };
        Shown { labels: labelled(labels), sample, until }
    }

    fn pieces(fleet: &Fleet, size: usize, now: Instant) -> Vec<String> {
        let (mut place, mut pieces) = (Place::default(), Vec::new());
        loop {
            let mut piece = String::new();
            let more = fleet.write(&mut piece, size, &mut place, now);
            pieces.push(piece);
            if !more {
                return pieces;
            }
        }
    }

    #[tokio::test]
    async fn the_page_is_the_same_in_pieces_of_any_size() {
        let now = Instant::now();
        let app = |name, number, until| {
            shown(&[("namespace", "t"), ("application", name), ("node", "n")], number, until)
        };
        let fleet = Fleet {
            taken: now,
            apps: vec![app("a", 10, now), app("b", 20, now), app("c", 30, now + Duration::from_secs(1))],
            nodes: vec![shown(&[("node", "a\"b\\c\nd")], 100, now + Duration::from_secs(1))],
        };
        let whole = pieces(&fleet, usize::MAX, now).concat();
        for size in [1, 50, 51, 400] {
            assert_eq!(pieces(&fleet, size, now).concat(), whole, "{size}");
        }
        let lines: Vec<&str> = whole.lines().collect();
        assert_eq!(lines.len(), 9 * 2 + 6 * 3 + 3);
        assert_eq!(
            lines[..5],
            [
                "# HELP horchestra_application_cpu_usec_total CPU time that the Application has used since it was \
                 started, in microseconds.",
                "# TYPE horchestra_application_cpu_usec_total counter",
                r#"horchestra_application_cpu_usec_total{namespace="t",application="a",node="n"} 10"#,
                r#"horchestra_application_cpu_usec_total{namespace="t",application="b",node="n"} 20"#,
                r#"horchestra_application_cpu_usec_total{namespace="t",application="c",node="n"} 30"#,
            ]
        );
        assert_eq!(lines.last(), Some(&r#"horchestra_node_memory_total_bytes{node="a\"b\\c\nd"} 103"#));

        let later = pieces(&fleet, 100, now + Duration::from_millis(1)).concat();
        assert_eq!(later.lines().count(), 9 * 2 + 6 + 3, "a and b have gone stale");
        let nothing = Fleet { taken: now, apps: Vec::new(), nodes: Vec::new() };
        assert_eq!(pieces(&nothing, 100, now).concat().lines().count(), 9 * 2, "families without samples");
    }

    #[tokio::test(start_paused = true)]
    async fn scrapers_that_come_together_share_a_fleet() {
        let store = Store::memory();
        store.ready().await;
        let (fleets, usage) = (Fleets::default(), Usage::new(store.clone()));
        let (first, second) = tokio::join!(fleets.now(&store, &usage), fleets.now(&store, &usage));
        let (first, second) = (first.unwrap(), second.unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        tokio::time::advance(KEPT).await;
        let later = fleets.now(&store, &usage).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &later), "it is old by now");
        let places: Vec<_> = (0..SCRAPES).map(|_| fleets.enter().unwrap()).collect();
        assert_eq!(fleets.enter().err().map(|status| status.code()), Some(429));
        drop(places);
        assert!(fleets.enter().is_ok());
    }

    #[tokio::test]
    async fn a_large_fleet_is_written_in_pieces_that_stay_small() {
        let fleet = Fleet::of_size(20_000);
        let pieces = pieces(&fleet, CHUNK, Instant::now());
        assert!(pieces.iter().all(|piece| piece.len() < CHUNK + 400));
        let lines: usize = pieces.iter().map(|piece| piece.lines().count()).sum();
        assert_eq!(lines, 9 * 2 + 6 * 20_000);
    }
}

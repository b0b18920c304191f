//! What nodes measure, on its way to the database.
//!
//! A sample counts only if it is about an Application that this session has sent and that is placed on the
//! reporting node, and if it can be true; anything else is counted and forgotten. Of each thing the newest sample
//! waits, with what rates need of an earlier one, so a slow database costs freshness and never memory. Every few
//! seconds everything that has changed is kept with one statement for all nodes (several, if it is a lot); the
//! samples of a node are one row, whose session is checked as it is written. A new session takes over from that row
//! what an earlier one measured, wherever that was, so a node that comes back has rates with its first sample.
//!
//! What is *not* guaranteed is that any one sample is kept. Samples that nobody renews for two minutes are left out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::usage::row::{Aged, AppUsage, NodeUsage as Row};
use horchestra_core::usage::{FRESH, Measured, Sample};
use horchestra_proto::node::v1::{AppMetrics, NodeUsage};
use horchestra_store::Samples;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::gate::Gate;
use crate::session::Session;
use crate::session::inbox::AppName;

/// Largest statement: nodes, and bytes of what is kept of them.
const STATEMENT_NODES: usize = 5_000;
const STATEMENT_BYTES: usize = 4 << 20;

/// Why a sample does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It does not say what it is about.
    Nameless,
    /// It is not about what this session has sent under that name.
    NotSent,
    /// The Application is not placed on the reporter.
    NotPinnedHere,
    /// It cannot be true.
    Impossible,
}

impl Why {
    pub fn text(self) -> &'static str {
        match self {
            Why::Nameless => "nameless",
            Why::NotSent => "not_sent",
            Why::NotPinnedHere => "not_pinned_here",
            Why::Impossible => "impossible",
        }
    }
}

struct Held {
    measured: Measured,
    received: Instant,
}

impl Held {
    fn take(held: &mut Option<Held>, sample: Sample) {
        let received = Instant::now();
        match held {
            Some(held) if received.duration_since(held.received) <= FRESH => {
                held.measured.take(sample);
                held.received = received;
            }
            _ => *held = Some(Held { measured: Measured::first(sample), received }),
        }
    }

    fn recall(held: &mut Option<Held>, earlier: &Aged) {
        match held {
            Some(held) => held.measured.recall(&earlier.measured),
            None => {
                *held = Instant::now()
                    .checked_sub(earlier.age)
                    .map(|received| Held { measured: earlier.measured, received });
            }
        }
    }

    fn aged(&self, now: Instant) -> Option<Aged> {
        let age = now.duration_since(self.received);
        (age <= FRESH).then_some(Aged { measured: self.measured, age })
    }
}

struct App {
    name: AppName,
    held: Option<Held>,
}

#[derive(Default)]
struct State {
    node: Option<Held>,
    apps: HashMap<Uuid, App>,
    /// Since when something waits to be kept.
    changed: Option<Instant>,
    /// The agent has closed its pass, so nothing more comes soon.
    closed: bool,
    /// What an earlier session measured has been taken over.
    recalled: bool,
}

/// What was measured in one session.
#[derive(Default)]
pub struct SessionSamples {
    state: Mutex<State>,
}

impl SessionSamples {
    fn app(&self, uid: Uuid, name: AppName, sample: Sample) {
        let mut state = self.state.lock();
        let app = state.apps.entry(uid).or_insert_with(|| App { name, held: None });
        Held::take(&mut app.held, sample);
        state.changed.get_or_insert_with(Instant::now);
        state.closed = false;
    }

    fn node(&self, sample: Sample) {
        let mut state = self.state.lock();
        Held::take(&mut state.node, sample);
        state.changed.get_or_insert_with(Instant::now);
        state.closed = true;
    }

    fn is_recalled(&self) -> bool {
        self.state.lock().recalled
    }

    /// Takes over what was measured before, which may be nothing.
    fn recall(&self, earlier: &Row) {
        let mut state = self.state.lock();
        state.recalled = true;
        if let Some(node) = &earlier.node {
            Held::recall(&mut state.node, node);
        }
        for app in &earlier.apps {
            let name = (app.namespace.clone(), app.name.clone());
            let entry = state.apps.entry(app.uid).or_insert_with(|| App { name, held: None });
            Held::recall(&mut entry.held, &app.usage);
        }
    }

    /// What is to be kept now, if anything: not in the middle of a pass that is just coming in, and not before it
    /// is known what was measured earlier.
    fn take_due(&self, quiet: Duration) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        let now = Instant::now();
        let since = state.changed.filter(|_| state.recalled)?;
        if !state.closed && now.duration_since(since) < quiet {
            return None;
        }
        state.changed = None;
        state.apps.retain(|_, app| app.held.as_ref().is_some_and(|held| held.aged(now).is_some()));
        let apps = state.apps.iter().filter_map(|(uid, app)| {
            let (namespace, name) = app.name.clone();
            Some(AppUsage { uid: *uid, namespace, name, usage: app.held.as_ref()?.aged(now)? })
        });
        let mut apps: Vec<AppUsage> = apps.collect();
        apps.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let node = state.node.as_ref().and_then(|held| held.aged(now));
        drop(state);
        Some(Row { node, apps }.encode())
    }

    /// It could not be kept.
    fn put_back(&self) {
        self.state.lock().changed.get_or_insert_with(Instant::now);
    }
}

impl Gate {
    /// Takes in a sample of an Application; says why not.
    pub fn take_app_sample(&self, session: &Session, sample: AppMetrics) -> Result<(), Why> {
        let seen = Sample {
            cpu_usec: sample.cpu_usec,
            cpu_throttled_usec: sample.cpu_throttled_usec,
            memory_bytes: sample.memory_bytes,
            memory_peak_bytes: sample.memory_peak_bytes,
            pids: sample.pids,
            oom_kills: sample.oom_kills,
            at: sample.timestamp_unix_nano,
        };
        let name: AppName = (sample.namespace, sample.name);
        if name.0.is_empty() || name.1.is_empty() {
            return Err(Why::Nameless);
        }
        let sent = session.sent.get(&name).ok_or(Why::NotSent)?;
        let key = Key::namespaced(Kind::Application, name.0.as_str(), name.1.as_str());
        let stored = self.store.snapshot().get(&key).filter(|stored| stored.uid == sent.uid);
        let stored = stored.ok_or(Why::NotSent)?;
        if stored.columns.node.as_deref() != Some(session.node.as_str()) {
            return Err(Why::NotPinnedHere);
        }
        let seen = seen.believed(now_unix_nano()).ok_or(Why::Impossible)?;
        session.samples.app(sent.uid, name, seen);
        Ok(())
    }

    /// Takes in a sample of the node as a whole; says why not.
    pub fn take_node_sample(&self, session: &Session, usage: &NodeUsage) -> Result<(), Why> {
        let possible = usage.memory_total_bytes > 0 && usage.memory_used_bytes <= usage.memory_total_bytes;
        let sample = Sample {
            cpu_usec: usage.cpu_usec,
            memory_bytes: usage.memory_used_bytes,
            memory_peak_bytes: usage.memory_total_bytes,
            at: usage.timestamp_unix_nano,
            ..Sample::default()
        };
        let sample = Some(sample).filter(|_| possible).and_then(|sample| sample.believed(now_unix_nano()));
        session.samples.node(sample.ok_or(Why::Impossible)?);
        Ok(())
    }
}

fn now_unix_nano() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// Keeps samples until `stop`.
pub async fn run(gate: Arc<Gate>, stop: CancellationToken) {
    let mut tick = interval(gate.settings.sample_every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => {
                if gate.term.in_force() && recall(&gate).await {
                    keep(&gate).await;
                }
            }
        }
    }
}

/// Gives new sessions what was measured before; says whether that worked.
async fn recall(gate: &Gate) -> bool {
    let new: Vec<Arc<Session>> =
        gate.sessions.all().into_iter().filter(|session| !session.samples.is_recalled()).collect();
    for some in new.chunks(STATEMENT_NODES) {
        let names: Vec<String> = some.iter().map(|session| session.node.clone()).collect();
        let rows = match gate.store.samples(&names, FRESH).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::debug!(%error, "earlier samples could not be read");
                return false;
            }
        };
        let rows: HashMap<String, Row> =
            rows.into_iter().map(|row| (row.node, Row::decode(&row.body, row.age))).collect();
        for session in some {
            session.samples.recall(rows.get(&session.node).unwrap_or(&Row::default()));
        }
    }
    true
}

/// Keeps what has changed.
async fn keep(gate: &Gate) {
    let mut sessions = gate.sessions.all().into_iter();
    loop {
        let (mut taken, mut samples, mut bytes) = (Vec::new(), Vec::new(), 0);
        for session in sessions.by_ref() {
            let Some(body) = session.samples.take_due(gate.settings.sample_every) else { continue };
            bytes += body.len();
            let (node, grant) = (session.node.clone(), session.grant.clone());
            samples.push(Samples { node, grant, body: body.into() });
            taken.push(session);
            if samples.len() >= STATEMENT_NODES || bytes >= STATEMENT_BYTES {
                break;
            }
        }
        if samples.is_empty() {
            return;
        }
        if let Err(error) = gate.store.record_samples(&samples).await {
            tracing::debug!(%error, "samples could not be kept");
            taken.iter().for_each(|session| session.samples.put_back());
            return;
        }
        gate.metrics.samples_kept.inc_by(samples.len() as u64);
    }
}

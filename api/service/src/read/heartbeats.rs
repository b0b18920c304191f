//! Heartbeats shown on Nodes.
//!
//! A heartbeat is no change of an object, so it is never stored in one. Gets and lists of Nodes show it all
//! the same, from a copy of the heartbeat table that is refreshed when somebody looks and the copy is older
//! than a second. A database that does not answer leaves the old copy in place: a read from the cache must
//! not wait for it. The shown object keeps its resourceVersion, and what is shown never comes back in with
//! a write.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use horchestra_core::kind::Kind;
use horchestra_core::quantity::Quantity;
use horchestra_store::store::HeartbeatRow;
use horchestra_store::{Draft, Entry};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::Mutex;

use crate::admission;
use crate::clock;
use crate::conditions;
use crate::service::Inner;

/// How long a read waits for the refreshed copy.
const PATIENCE: Duration = Duration::from_millis(500);

/// The copy, and what was last made of it.
#[derive(Default)]
pub(crate) struct Heartbeats {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    refreshed: Option<Instant>,
    rows: HashMap<String, HeartbeatRow>,
    shown: HashMap<String, Shown>,
}

struct Shown {
    of: Arc<Entry>,
    at: i64,
    entry: Arc<Entry>,
}

impl Heartbeats {
    /// The entries as clients see them; only Nodes differ.
    pub(crate) async fn show(&self, inner: &Inner, entries: Vec<Arc<Entry>>) -> Vec<Arc<Entry>> {
        if entries.first().is_none_or(|entry| entry.key.kind != Kind::Node) {
            return entries;
        }
        let mut state = self.state.lock().await;
        state.refresh(inner).await;
        entries.into_iter().map(|entry| state.show(entry)).collect()
    }
}

impl State {
    async fn refresh(&mut self, inner: &Inner) {
        let due = self.refreshed.is_none_or(|then| then.elapsed() >= inner.config.heartbeat_refresh);
        if !due {
            return;
        }
        // A failed attempt counts as one: the next reader does not wait for the same silence again.
        self.refreshed = Some(Instant::now());
        match tokio::time::timeout(PATIENCE, inner.store.heartbeats()).await {
            Ok(Ok(rows)) => {
                self.rows = rows.into_iter().map(|row| (row.heartbeat.node.clone(), row)).collect();
                let rows = &self.rows;
                self.shown.retain(|node, _| rows.contains_key(node));
            }
            Ok(Err(error)) => tracing::debug!(%error, "heartbeats could not be read"),
            Err(_) => tracing::debug!("heartbeats could not be read in time"),
        }
    }

    fn show(&mut self, entry: Arc<Entry>) -> Arc<Entry> {
        let name = &entry.key.name;
        let Some(row) = self.rows.get(name) else {
            return entry;
        };
        if let Some(shown) = self.shown.get(name)
            && shown.at == row.at
            && Arc::ptr_eq(&shown.of, &entry)
        {
            return Arc::clone(&shown.entry);
        }
        let Some(overlaid) = overlay(&entry, row) else {
            return entry;
        };
        let overlaid = Arc::new(overlaid);
        let shown = Shown { of: Arc::clone(&entry), at: row.at, entry: Arc::clone(&overlaid) };
        self.shown.insert(name.clone(), shown);
        overlaid
    }
}

fn overlay(entry: &Entry, row: &HeartbeatRow) -> Option<Entry> {
    let mut object = entry.object().ok()?;
    admission::ensure_node_status(&mut object);
    let status = conditions::status_mut(&mut object);
    let at = Timestamp::from_microsecond(row.at).ok()?;
    status.insert("heartbeat".to_owned(), clock::stamp(at).into());
    let mut allocated = serde_json::Map::new();
    if row.heartbeat.allocated_cpu > 0 {
        allocated
            .insert("cpu".to_owned(), Quantity::from_nano(row.heartbeat.allocated_cpu).to_string().into());
    }
    if row.heartbeat.allocated_memory > 0 {
        let memory = Quantity::from_bytes(row.heartbeat.allocated_memory);
        allocated.insert("memory".to_owned(), memory.to_string().into());
    }
    status.insert("allocated".to_owned(), json!(allocated));
    let draft = Draft {
        key: entry.key.clone(),
        uid: entry.uid,
        generation: entry.generation,
        deleting: entry.deleting,
        body: horchestra_core::object::encode(entry.key.kind, &object),
        managed: entry.managed.clone(),
        index: (*entry.index).clone(),
        columns: (*entry.columns).clone(),
        edges: Vec::new(),
    };
    Some(Entry::new(draft, entry.revision, entry.core_revision))
}

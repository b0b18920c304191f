//! What was measured, as this replica has read it lately.
//!
//! Gateways keep the samples of each node in one row. Rows are read when somebody asks, those of all nodes that the
//! question is about with one statement, and are good for [`KEPT`]: however many clients ask, a row is read once in
//! that time, and what is held is what was asked for within it. How old a sample is counts from when its gateway
//! received it, the time here included, so nothing is shown longer than it is fresh.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use horchestra_core::status::Status;
use horchestra_core::usage::row::{Aged, NodeUsage};
use horchestra_core::usage::{FRESH, Measured};
use horchestra_store::Store;
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

/// How long a row that was read is good for.
pub const KEPT: Duration = Duration::from_secs(2);

/// Rows that are read at a time, so that reading them never keeps a thread for long.
const ROWS: usize = 500;

/// How long a question waits for those before it.
const TURN: Duration = Duration::from_secs(10);

/// A row, or that there is none.
#[derive(Clone)]
struct Read {
    at: Instant,
    node: Option<Aged>,
    apps: Arc<HashMap<Uuid, Aged>>,
}

/// Reads samples, and holds them for a moment.
pub struct Usage {
    store: Store,
    rows: Mutex<HashMap<String, Read>>,
}

/// The samples of some nodes.
pub struct Known(HashMap<String, Read>);

impl Usage {
    pub fn new(store: Store) -> Usage {
        Usage { store, rows: Mutex::default() }
    }

    /// What is known of these nodes and of what is on them. 503 while the database cannot be asked.
    pub async fn of(&self, nodes: BTreeSet<&str>) -> Result<Known, Status> {
        let away = || Status::unavailable("what was measured cannot be read now", 2);
        // Whoever comes while rows are being read waits for them instead of reading them again.
        let mut rows = tokio::time::timeout(TURN, self.rows.lock()).await.map_err(|_| away())?;
        rows.retain(|_, read| read.at.elapsed() < KEPT);
        let missing: Vec<String> =
            nodes.iter().filter(|node| !rows.contains_key(**node)).map(ToString::to_string).collect();
        for some in missing.chunks(ROWS) {
            let found = self.store.samples(some, FRESH).await.map_err(|error| {
                tracing::debug!(%error, "samples could not be read");
                away()
            })?;
            let at = Instant::now();
            rows.extend(
                some.iter().map(|node| (node.clone(), Read { at, node: None, apps: Arc::default() })),
            );
            for row in found {
                let usage = NodeUsage::decode(&row.body, row.age);
                let apps = usage.apps.into_iter().map(|app| (app.uid, app.usage)).collect();
                rows.insert(row.node, Read { at, node: usage.node, apps: Arc::new(apps) });
            }
        }
        Ok(Known(
            nodes.into_iter().filter_map(|node| Some((node.to_owned(), rows.get(node)?.clone()))).collect(),
        ))
    }
}

impl Known {
    /// What was measured of a node.
    pub fn node(&self, node: &str) -> Option<&Measured> {
        self.node_until(node).map(|(measured, _)| measured)
    }

    /// The same, and until when it says anything.
    pub fn node_until(&self, node: &str) -> Option<(&Measured, Instant)> {
        let read = self.0.get(node)?;
        fresh(read, read.node.as_ref()?)
    }

    /// What was measured of an Application on the node that it is placed on; nobody else's word counts.
    pub fn app(&self, node: &str, uid: Uuid) -> Option<&Measured> {
        self.app_until(node, uid).map(|(measured, _)| measured)
    }

    /// The same, and until when it says anything.
    pub fn app_until(&self, node: &str, uid: Uuid) -> Option<(&Measured, Instant)> {
        let read = self.0.get(node)?;
        fresh(read, read.apps.get(&uid)?)
    }
}

fn fresh<'a>(read: &Read, aged: &'a Aged) -> Option<(&'a Measured, Instant)> {
    let until = read.at + FRESH.checked_sub(aged.age)?;
    (Instant::now() <= until).then_some((&aged.measured, until))
}

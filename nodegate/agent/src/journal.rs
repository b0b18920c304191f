//! What nodes do, written down as it happens: for those who judge a control plane by what became of its nodes.
//!
//! A line of JSON for each event, with the moment in microseconds since the epoch and the node. Only what is new is
//! written: an application when it comes in a generation that this node has not been sent yet, a report when it says
//! something else than the one before. Deployed agents have nothing of the kind; nothing that a node does depends
//! on it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use horchestra_proto::node::v1::AppStatus;
use parking_lot::Mutex;
use serde::Serialize;
use uuid::Uuid;

use crate::desired::Desired;
use crate::units::now_unix_nano;

/// Why a unit was stopped for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Stopped {
    /// Its Application is being deleted.
    Deleting,
    /// No push names it.
    Unwanted,
}

/// Something that happened on a node.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase")]
enum Event<'a> {
    /// A heartbeat is about to be sent.
    Beat,
    /// A push came with this in it.
    Received {
        uid: Uuid,
        generation: i64,
    },
    Stopped {
        uid: Uuid,
        why: Stopped,
    },
    /// Data of a volume that is gone.
    VolumeGone {
        volume: &'a str,
        kept: bool,
    },
    Reported {
        uid: Uuid,
        phase: &'a str,
        generation: i64,
        address: &'a str,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    /// Microseconds since the epoch.
    at: i64,
    node: &'a str,
    #[serde(flatten)]
    event: Event<'a>,
}

/// The file that all nodes of a process write to.
#[derive(Debug)]
pub struct Journal {
    file: Mutex<File>,
}

impl Journal {
    /// Adds to this file.
    pub fn open(path: &Path) -> io::Result<Arc<Self>> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Arc::new(Self { file: Mutex::new(file) }))
    }
}

/// The same for one node, which may write none.
#[derive(Debug, Default)]
pub struct NodeJournal {
    journal: Option<Arc<Journal>>,
    node: String,
    received: Mutex<HashMap<Uuid, i64>>,
    reported: Mutex<HashMap<Uuid, AppStatus>>,
}

impl NodeJournal {
    /// Of the node of this name.
    pub fn new(journal: Option<Arc<Journal>>, node: &str) -> Self {
        Self { journal, node: node.to_owned(), ..Self::default() }
    }

    pub(crate) fn beat(&self) {
        self.write(Event::Beat);
    }

    /// A push has come at this moment (nanoseconds since the epoch).
    pub(crate) fn received(&self, at_unix_nano: i64, desired: &Desired) {
        if self.journal.is_none() {
            return;
        }
        let mut received = self.received.lock();
        for app in &desired.apps {
            if received.insert(app.uid, app.generation) != Some(app.generation) {
                self.write_at(at_unix_nano, Event::Received { uid: app.uid, generation: app.generation });
            }
        }
    }

    pub(crate) fn stopped(&self, uid: Uuid, why: Stopped) {
        self.write(Event::Stopped { uid, why });
    }

    pub(crate) fn volume_gone(&self, volume: &str, kept: bool) {
        self.write(Event::VolumeGone { volume, kept });
    }

    pub(crate) fn reported(&self, uid: Uuid, status: &AppStatus) {
        if self.journal.is_none() {
            return;
        }
        if self.reported.lock().insert(uid, status.clone()).as_ref() != Some(status) {
            let AppStatus { phase, observed_generation, address, .. } = status;
            self.write(Event::Reported { uid, phase, generation: *observed_generation, address });
        }
    }

    fn write(&self, event: Event<'_>) {
        self.write_at(now_unix_nano(), event);
    }

    fn write_at(&self, at_unix_nano: i64, event: Event<'_>) {
        let Some(journal) = &self.journal else { return };
        let line = Line { at: at_unix_nano / 1000, node: &self.node, event };
        let Ok(mut text) = serde_json::to_vec(&line) else { return };
        text.push(b'\n');
        // In one piece, so that whoever reads along sees whole lines.
        if let Err(error) = journal.file.lock().write_all(&text) {
            tracing::error!(%error, "the journal cannot be written");
        }
    }
}

#[cfg(test)]
mod tests {
    use horchestra_proto::node::v1::DesiredState;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_what_is_new_is_written() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("journal");
        let node = NodeJournal::new(Some(Journal::open(&path).expect("opens")), "n1");
        let uid = Uuid::from_u128(7);
        let push = |generation: i64| {
            let app = json!({"metadata": {"uid": uid, "name": "web", "generation": generation},
                             "spec": {"placement": {"nodeName": "n1"}}});
            let state =
                DesiredState { applications: vec![app.to_string().into()], ..DesiredState::default() };
            Desired::read(&state, "n1")
        };
        let report = |phase: &str| AppStatus { phase: phase.to_owned(), ..AppStatus::default() };
        for generation in [1, 1, 2] {
            node.received(5_000, &push(generation));
            node.reported(uid, &report("Running"));
        }
        node.reported(uid, &report("Failed"));
        node.stopped(uid, Stopped::Unwanted);
        node.volume_gone("shop_v", true);
        let text = std::fs::read_to_string(&path).expect("reads");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let said = |line: &Value, of: &str| line[of].as_str().unwrap_or_default().to_owned();
        let events: Vec<(String, String)> =
            lines.iter().map(|line| (said(line, "event"), said(line, "phase"))).collect();
        let expected = [
            ("received", ""),
            ("reported", "Running"),
            ("received", ""),
            ("reported", "Failed"),
            ("stopped", ""),
            ("volumeGone", ""),
        ];
        assert_eq!(events, expected.map(|(event, phase)| (event.to_owned(), phase.to_owned())));
        assert_eq!(
            (&lines[0]["at"], &lines[0]["node"], &lines[2]["generation"]),
            (&json!(5), &json!("n1"), &json!(2))
        );
        assert_eq!(lines[4]["why"], "unwanted");
    }
}

//! Records of pushes, and holds.

use imbl::{OrdMap, OrdSet};
use uuid::Uuid;

use crate::backend::Identity;
use crate::presence::SessionGrant;
use crate::pushes::{Hold, Holding, Holds, Loss, PushChange, PushRecord};
use crate::types::Revision;

#[derive(Clone, Default)]
pub(super) struct Pushes {
    records: OrdMap<String, Record>,
    holds: OrdMap<String, Hold>,
    released: OrdSet<String>,
    /// Histories that were known further.
    losses: Vec<Identity>,
}

#[derive(Clone)]
struct Record {
    revision: Revision,
    at: i64,
    holdings: OrdSet<Holding>,
}

impl Pushes {
    pub fn records(&self, nodes: &[String]) -> Vec<PushRecord> {
        let record = |node: &String| match self.records.get(node) {
            None => PushRecord::default(),
            Some(record) => PushRecord {
                revision: Some(record.revision),
                holdings: record.holdings.iter().cloned().collect(),
            },
        };
        nodes.iter().map(record).collect()
    }

    pub fn record(
        &mut self,
        changes: &[PushChange],
        is_session: impl Fn(&str, &SessionGrant) -> bool,
        now: i64,
    ) -> Vec<String> {
        let mut lost = Vec::new();
        for change in changes {
            if !is_session(&change.node, &change.grant) {
                lost.push(change.node.clone());
                continue;
            }
            let fresh = Record { revision: 0, at: 0, holdings: OrdSet::new() };
            let mut record = self.records.get(&change.node).cloned().unwrap_or(fresh);
            record.revision = change.revision;
            record.at = now;
            for held in &change.remove {
                record.holdings = record.holdings.into_iter().filter(|other| !is_same(other, held)).collect();
            }
            for held in &change.add {
                if !record.holdings.iter().any(|other| is_same(other, held)) {
                    record.holdings.insert(held.clone());
                }
            }
            self.records.insert(change.node.clone(), record);
        }
        lost
    }

    /// Whether anybody may hold what this was.
    pub fn names(&self, uid: Uuid) -> bool {
        self.records.values().any(|record| record.holdings.iter().any(|held| held.uid == uid))
    }

    /// Drops records of nodes that are no more. `known`: whether there is a Node of the name.
    pub fn prune(&mut self, horizon: i64, known: impl Fn(&str) -> bool) {
        let records = std::mem::take(&mut self.records);
        self.records =
            records.into_iter().filter(|(node, record)| record.at >= horizon || known(node)).collect();
    }

    pub fn holds(&self) -> Holds {
        Holds {
            cluster: self.holds.get("").cloned(),
            released: self.released.iter().cloned().collect(),
            nodes: self
                .holds
                .iter()
                .filter(|(node, _)| !node.is_empty())
                .map(|(node, hold)| (node.clone(), hold.clone()))
                .collect(),
        }
    }

    pub fn engage(&mut self, node: Option<&str>, reason: &str, message: &str, now: i64) {
        let node = node.unwrap_or("");
        let before = self.holds.get(node).filter(|_| !node.is_empty());
        let (id, since) = before.map_or((Uuid::new_v4(), now), |hold| (hold.id, hold.since));
        let hold = Hold { id, since, reason: reason.to_owned(), message: message.to_owned() };
        self.holds.insert(node.to_owned(), hold);
        if node.is_empty() {
            self.released = OrdSet::new();
        }
    }

    /// `explained`: there is such an object, or a tombstone of it.
    /// `head`: of the database.
    pub fn release(
        &mut self,
        node: Option<&str>,
        (head, now): (Revision, i64),
        explained: impl Fn(&Holding) -> bool,
    ) -> bool {
        let records = std::mem::take(&mut self.records);
        self.records = records
            .into_iter()
            .map(|(name, mut record)| {
                if node.is_none_or(|node| node == name) {
                    record.holdings = record.holdings.into_iter().filter(&explained).collect();
                    record.revision = record.revision.min(head);
                }
                (name, record)
            })
            .collect();
        let released: Vec<String> = match node {
            Some(node) => vec![node.to_owned()],
            None => self.holds.keys().cloned().collect(),
        };
        for node in released.into_iter().filter(|node| !node.is_empty()) {
            let record = Record { revision: 0, at: now, holdings: OrdSet::new() };
            self.records.entry(node).or_insert(record);
        }
        let Some(node) = node else {
            let held = !self.holds.is_empty();
            self.holds = OrdMap::new();
            self.released = OrdSet::new();
            return held;
        };
        let own = !node.is_empty() && self.holds.remove(node).is_some();
        let newly = self.holds.contains_key("") && self.released.insert(node.to_owned()).is_none();
        own || newly
    }

    pub fn show(&mut self, loss: &Loss, now: i64) {
        if !self.losses.contains(&loss.known) {
            self.losses.push(loss.known.clone());
            self.engage(None, loss.reason(), &loss.message(), now);
        }
    }
}

fn is_same(a: &Holding, b: &Holding) -> bool {
    (a.key.kind, a.uid) == (b.key.kind, b.uid)
}

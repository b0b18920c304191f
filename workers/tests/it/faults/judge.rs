//! What has to be true at every revision, whoever believes to lead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::certificate_signing_request::CertificateSigningRequest;
use horchestra_core::kinds::node::Node;
use horchestra_store::backend::LogRow;
use horchestra_store::{ChangeKind, Entry};
use serde_json::Value;
use uuid::Uuid;

use super::plane::{Plane, node};
use crate::sets::model::Checker;

/// Follows the log, change by change.
#[derive(Default)]
pub struct Judge {
    objects: BTreeMap<Key, Arc<Entry>>,
    seen: i64,
    sets: Checker,
    /// Applications that were bound, by uid.
    bound: BTreeSet<Uuid>,
    /// Certificates that were given out, by the request.
    issued: BTreeMap<Uuid, Vec<u8>>,
    /// Verdicts on each node, one after the other.
    pub verdicts: BTreeMap<String, Vec<String>>,
    /// How many children, bindings, certificates and collected objects were judged.
    pub judged: BTreeMap<&'static str, usize>,
}

impl Judge {
    pub async fn follow(&mut self, plane: &Plane) {
        let rows = plane.log(self.seen).await;
        self.sets.take(rows.clone());
        self.judged.insert("budget", self.sets.judged);
        for row in rows {
            self.seen = row.change.revision;
            self.judge(&row);
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.judged.entry(what).or_default() += 1;
    }

    fn judge(&mut self, row: &LogRow) {
        let (key, after) = (row.change.key().clone(), Arc::clone(&row.change.entry));
        let before = match row.change.kind {
            ChangeKind::Deleted => self.objects.remove(&key),
            _ => self.objects.insert(key.clone(), Arc::clone(&after)),
        };
        let gone = row.change.kind == ChangeKind::Deleted;
        let at = format!("revision {}, {} {key}", row.change.revision, row.who.verb);
        match row.who.user.as_str() {
            "system:loop:garbage-collection" => {
                self.judge_collection(&key, before.as_deref(), &after, gone, &at);
            }
            "system:loop:applicationset" if row.change.kind == ChangeKind::Added => {
                // A name has one holder at a time: two of one set would be two objects, one after the other.
                self.count("children");
            }
            _ => {}
        }
        match key.kind {
            Kind::Application if !gone => self.judge_application(row, before.as_deref(), &after, &at),
            Kind::CertificateSigningRequest if !gone => self.judge_certificate(&after, &at),
            Kind::Node if !gone => self.judge_node(&key, &after),
            _ => {}
        }
    }

    fn judge_application(&mut self, row: &LogRow, before: Option<&Entry>, after: &Entry, at: &str) {
        let placed_before = before.and_then(|before| before.columns.node.clone());
        if row.who.verb == "bind" {
            assert!(placed_before.is_none() && after.columns.node.is_some(), "{at}: it had a node");
            assert!(self.bound.insert(after.uid), "{at}: bound twice");
            self.count("bindings");
        } else if let Some(node) = &placed_before {
            let same = before.is_some_and(|before| before.uid == after.uid);
            assert!(!same || after.columns.node.as_ref() == Some(node), "{at}: it was moved");
        }
        let Some(name) = &after.columns.node else { return };
        let Some(node) = self.objects.get(&node(name)) else { return };
        let on = |entry: &&Arc<Entry>| entry.columns.node.as_ref() == Some(name);
        let apps = self.objects.values().filter(|entry| entry.key.kind == Kind::Application);
        let used: i64 = apps.filter(on).map(|entry| entry.columns.cpu).sum();
        assert!(used <= node.columns.cpu, "{at}: {used} of {} on {name}", node.columns.cpu);
    }

    fn judge_certificate(&mut self, after: &Entry, at: &str) {
        let request = after.typed::<CertificateSigningRequest>().unwrap();
        let certificate = request.status.certificate.0.clone();
        assert_eq!(
            request.status.phase == "Approved",
            !certificate.is_empty(),
            "{at}: one without the other"
        );
        if certificate.is_empty() {
            return;
        }
        let first = self.issued.entry(after.uid).or_insert_with(|| certificate.clone());
        assert_eq!(*first, certificate, "{at}: another certificate");
        self.count("certificates");
    }

    fn judge_node(&mut self, key: &Key, after: &Entry) {
        let node = after.typed::<Node>().unwrap();
        let Some(verdict) = node.ready() else { return };
        let verdicts = self.verdicts.entry(key.name.clone()).or_default();
        let verdict = format!("{verdict:?}");
        if verdicts.last() != Some(&verdict) {
            verdicts.push(verdict);
        }
    }

    /// Nothing is collected that has an owner which stays.
    fn judge_collection(&mut self, key: &Key, before: Option<&Entry>, after: &Entry, gone: bool, at: &str) {
        let marked = after.deleting && before.is_some_and(|before| !before.deleting);
        if !gone && !marked {
            return;
        }
        let tree: Value = serde_json::from_slice(&after.encoded()).unwrap();
        for owner in tree["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            let owning = self.objects.values().find(|entry| owner["uid"] == entry.uid.to_string());
            assert!(owning.is_none_or(|entry| entry.deleting), "{at}: {key} has an owner: {owner}");
        }
        self.count("collected");
    }

    /// The certificate of a request.
    pub fn certificates(&self) -> usize {
        self.issued.len()
    }
}

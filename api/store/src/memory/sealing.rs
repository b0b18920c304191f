//! Sealed bodies: listing them, and putting others in their place.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use horchestra_core::kind::Kind;
use horchestra_core::sealed::Seal;

use super::tables::{Stored, Tables};
use crate::sealing::{KeyUse, Place, Resealed, SealedBody, SealedStretch};
use crate::types::{Entry, Revision};

fn sealed(entry: &Entry, place: Place, revision: Revision) -> SealedBody {
    let (key, body) = (entry.key.clone(), entry.body.clone());
    SealedBody { place, revision, key, uid: entry.uid, body }
}

fn again(entry: &Entry, body: &Bytes) -> Arc<Entry> {
    Arc::new(entry.with_body(body.clone(), entry.managed.clone()))
}

impl Tables {
    pub fn sealed_heads(&self, kind: Kind, after: (&str, &str), limit: usize) -> Vec<SealedBody> {
        self.objects
            .values()
            .map(|stored| &stored.entry)
            .filter(|entry| entry.key.kind == kind)
            .filter(|entry| (entry.key.namespace.as_str(), entry.key.name.as_str()) > after)
            .take(limit)
            .map(|entry| sealed(entry, Place::Head, entry.revision))
            .collect()
    }

    pub fn sealed_log(&self, kind: Kind, after: Revision, limit: usize) -> SealedStretch {
        let mut bodies = Vec::new();
        let rows = self.log.iter().skip(self.position(after));
        let rows: Vec<_> =
            rows.filter(|logged| logged.row.change.object_kind() == kind).take(limit).collect();
        for logged in &rows {
            let revision = logged.row.change.revision;
            bodies.push(sealed(&logged.row.change.entry, Place::Log, revision));
            let before = logged.previous.as_ref();
            bodies.extend(before.map(|entry| sealed(entry, Place::Before, revision)));
        }
        let upto = match rows.last() {
            Some(last) if rows.len() >= limit => last.row.change.revision,
            _ => self.revision.max(after),
        };
        SealedStretch { bodies, upto }
    }

    /// Whether the body was still what it was, and was replaced.
    pub fn reseal(&mut self, resealed: &Resealed) -> bool {
        let Resealed { old, body } = resealed;
        if old.place == Place::Head {
            let Some(stored) = self.objects.get(&old.key) else { return false };
            if stored.entry.revision != old.revision || stored.entry.body != old.body {
                return false;
            }
            let stored = Stored { entry: again(&stored.entry, body), edges: stored.edges.clone() };
            self.objects.insert(old.key.clone(), Arc::new(stored));
            return true;
        }
        let Some(at) = self.position(old.revision).checked_sub(1) else { return false };
        let Some(logged) = self.log.get_mut(at) else { return false };
        if logged.row.change.revision != old.revision {
            return false;
        }
        let entry = if old.place == Place::Log {
            Some(&mut logged.row.change.entry)
        } else {
            logged.previous.as_mut()
        };
        match entry {
            Some(entry) if entry.body == old.body => {
                *entry = again(entry, body);
                true
            }
            _ => false,
        }
    }

    pub fn key_use(&self) -> Vec<KeyUse> {
        let mut keys: BTreeMap<String, u64> = BTreeMap::new();
        for stored in self.objects.values().filter(|stored| stored.entry.key.kind.is_sealed()) {
            if let Some(seal) = Seal::of(&stored.entry.body) {
                *keys.entry(seal.key).or_default() += 1;
            }
        }
        keys.into_iter().map(|(key_id, objects)| KeyUse { key_id, objects }).collect()
    }
}

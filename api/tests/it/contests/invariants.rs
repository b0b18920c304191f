//! What has to be true at every revision, checked while the log is read.
//!
//! The state is put together change by change. An item of several changes is one moment, so what concerns
//! several objects is checked when all changes of the item are in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::kinds::namespace::{Namespace, UID_RANGE_ANNOTATION};
use horchestra_core::kinds::persistent_volume::PersistentVolume;
use horchestra_core::kinds::rbac::{
    BindingSpec, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding,
};
use horchestra_core::kinds::service::Service;
use horchestra_core::ranges::IdBlock;
use horchestra_store::{Attribution, Change, ChangeKind, Entry};
use serde_json::Value;
use uuid::Uuid;

#[derive(Default)]
pub struct State {
    heads: BTreeMap<Key, Arc<Entry>>,
    /// The item whose changes are coming in, and these with what they replaced.
    item: Option<Uuid>,
    changed: Vec<(Change, Option<Arc<Entry>>, String)>,
    /// Applications by what they mount, and by the node that they are on.
    mounts: BTreeMap<Key, BTreeSet<Key>>,
    placed: BTreeMap<String, BTreeSet<Key>>,
    addresses: BTreeMap<String, BTreeSet<Key>>,
    blocks: BTreeMap<i64, (IdBlock, Key)>,
    users: BTreeMap<(String, i64), BTreeSet<Key>>,
    /// Changes that were judged.
    pub checked: usize,
}

impl State {
    pub fn take(&mut self, change: &Change, who: &Attribution) {
        if self.item != Some(who.audit_id) {
            self.end_of_item();
            self.item = Some(who.audit_id);
        }
        let key = change.key().clone();
        let before = match change.kind {
            ChangeKind::Deleted => self.heads.remove(&key),
            _ => self.heads.insert(key, Arc::clone(&change.entry)),
        };
        let was_there = change.kind != ChangeKind::Added;
        assert_eq!(before.is_some(), was_there, "revision {}, {}", change.revision, change.key());
        if let Some(before) = &before {
            self.index(before, false);
        }
        if change.kind != ChangeKind::Deleted {
            self.index(&change.entry, true);
        }
        self.changed.push((change.clone(), before, who.user.clone()));
    }

    /// Judges what the item did.
    pub fn end_of_item(&mut self) {
        for (change, before, user) in std::mem::take(&mut self.changed) {
            self.judge(&change, before.as_deref());
            if user == super::GRANTER {
                self.judge_grant(&change);
            }
            self.checked += 1;
        }
    }

    fn index(&mut self, entry: &Entry, there: bool) {
        fn put<K: Ord>(map: &mut BTreeMap<K, BTreeSet<Key>>, at: K, key: &Key, there: bool) {
            let set = map.entry(at).or_default();
            if there {
                set.insert(key.clone())
            } else {
                set.remove(key)
            };
        }
        let key = &entry.key;
        match key.kind {
            Kind::Application => {
                for volume in volumes(entry) {
                    put(&mut self.mounts, volume, key, there);
                }
                if let Some(node) = &entry.columns.node {
                    put(&mut self.placed, node.clone(), key, there);
                }
                if let Some(id) = user(entry) {
                    put(&mut self.users, (key.namespace.clone(), id), key, there);
                }
            }
            Kind::Service => {
                if let Some(address) = address(entry) {
                    put(&mut self.addresses, address, key, there);
                }
            }
            Kind::Namespace => {
                if let Some(block) = block(entry) {
                    if there {
                        self.blocks.insert(block.first(), (block, key.clone()));
                    } else {
                        self.blocks.remove(&block.first());
                    }
                }
            }
            _ => {}
        }
    }

    fn is_there(&self, key: &Key) -> bool {
        self.heads.contains_key(key)
    }

    fn judge(&self, change: &Change, before: Option<&Entry>) {
        let (entry, key) = (&change.entry, change.key());
        let at = |what: &str| format!("revision {}, {key}: {what}", change.revision);
        if change.kind == ChangeKind::Deleted {
            self.judge_deletion(key, before, &at);
            return;
        }
        if !key.namespace.is_empty() {
            let namespace = Key::cluster(Kind::Namespace, key.namespace.as_str());
            assert!(self.is_there(&namespace), "{}", at("no namespace"));
        }
        match key.kind {
            Kind::Application => self.judge_application(entry, before, &at),
            Kind::PersistentVolume => {
                let users = self.mounts.get(key).map_or(0, BTreeSet::len);
                assert!(is_shared(entry) || users <= 1, "{}", at("several users, and not shared"));
            }
            Kind::Service => {
                let owners = address(entry).and_then(|address| self.addresses.get(&address));
                assert!(owners.is_none_or(|owners| owners.len() == 1), "{}", at(&format!("{owners:?}")));
                let node = Key::cluster(Kind::Node, key.name.as_str());
                let new = before.is_none();
                assert!(!new || !self.is_there(&node), "{}", at("the name of a node"));
            }
            Kind::Namespace => {
                let block = block(entry);
                let overlapping = block.iter().flat_map(|block| {
                    self.blocks.values().filter(|(other, owner)| owner != key && other.overlaps(*block))
                });
                assert_eq!(overlapping.count(), 0, "{}", at("its block overlaps another"));
                let kept = before.and_then(self::block).is_none_or(|before| Some(before) == block);
                assert!(kept, "{}", at("its block changed"));
            }
            _ => {}
        }
    }

    fn judge_deletion(&self, key: &Key, before: Option<&Entry>, at: &dyn Fn(&str) -> String) {
        match key.kind {
            Kind::Application => {
                // The release of the last hold and the erasure are one change, so what was before is held still.
                let entry = before.unwrap();
                assert!(
                    entry.columns.node.is_none() || entry.deleting,
                    "{}",
                    at("erased where it was placed")
                );
            }
            Kind::Namespace => {
                let inside = self.heads.keys().filter(|other| other.namespace == key.name);
                assert_eq!(inside.count(), 0, "{}", at("deleted with something in it"));
            }
            Kind::PersistentVolume => {
                let users = self.mounts.get(key).map_or(0, BTreeSet::len);
                assert_eq!(users, 0, "{}", at("deleted while mounted"));
            }
            Kind::Secret | Kind::Service => {
                let users = self.heads.values().filter(|other| {
                    other.key.kind == Kind::Application
                        && other.key.namespace == key.namespace
                        && refers(other, key)
                });
                assert_eq!(users.count(), 0, "{}", at("deleted while in use"));
            }
            _ => {}
        }
    }

    fn judge_application(&self, entry: &Entry, before: Option<&Entry>, at: &dyn Fn(&str) -> String) {
        let application = entry.typed::<Application>().unwrap();
        let namespace = entry.key.namespace.as_str();
        for volume in volumes(entry) {
            let shared = self.heads.get(&volume).is_some_and(|volume| is_shared(volume));
            assert!(shared || self.mounts[&volume].len() == 1, "{}", at("one of several users of a volume"));
        }
        for (secret, optional) in application.spec.secrets() {
            let key = Key::namespaced(Kind::Secret, namespace, secret);
            assert!(optional || self.is_there(&key), "{}", at("a Secret that it needs is missing"));
        }
        let service = &application.spec.service_name;
        let key = Key::namespaced(Kind::Service, namespace, service.as_str());
        assert!(service.is_empty() || self.is_there(&key), "{}", at("its Service is missing"));
        if let Some(node) = &entry.columns.node {
            let node_key = Key::cluster(Kind::Node, node.as_str());
            let found = self.heads.get(&node_key);
            let new = before.is_none_or(|before| before.columns.node.as_ref() != Some(node));
            assert!(!new || found.is_some(), "{}", at("placed on a node that is not there"));
            if let Some(found) = found.filter(|node| node.columns.cpu > 0) {
                let used: i64 = self.placed[node].iter().map(|key| self.heads[key].columns.cpu).sum();
                assert!(used <= found.columns.cpu, "{}", at("more than its node has"));
            }
        }
        let frozen = |entry: &Entry| entry.typed::<Application>().unwrap().spec.frozen;
        let thawed = before.is_some_and(frozen) && !frozen(entry);
        assert!(!thawed, "{}", at("thawed by a write that is none of the door's"));
        let (user, group) = (user(entry).unwrap(), group(entry).unwrap());
        let namespace = &self.heads[&Key::cluster(Kind::Namespace, namespace)];
        let block = block(namespace).unwrap();
        assert!(block.contains(user) && block.contains(group), "{}", at("ids of another block"));
        if before.is_none() && is_chosen(entry) {
            let users = &self.users[&(entry.key.namespace.clone(), user)];
            assert_eq!(users.len(), 1, "{}", at(&format!("the user id that was chosen is of {users:?}")));
        }
    }

    /// Who hands out a right holds it at that very moment.
    fn judge_grant(&self, change: &Change) {
        let (entry, key) = (&change.entry, change.key());
        let at = |what: &str| format!("revision {}, {key}: {what}", change.revision);
        let handed_out = match key.kind {
            Kind::Role => entry.typed::<Role>().unwrap().spec.rules.clone(),
            Kind::ClusterRole => entry.typed::<ClusterRole>().unwrap().spec.rules.clone(),
            Kind::RoleBinding => self.bound(key, &entry.typed::<RoleBinding>().unwrap().spec),
            Kind::ClusterRoleBinding => self.bound(key, &entry.typed::<ClusterRoleBinding>().unwrap().spec),
            _ => return,
        };
        let held = self.rights_of_granter(&key.namespace);
        for rule in &handed_out {
            assert!(
                held.iter().any(|own| covers(own, rule)),
                "{}",
                at(&format!("not held: {rule:?} {held:?}"))
            );
        }
    }

    /// What a binding in this place binds.
    fn bound(&self, binding: &Key, spec: &BindingSpec) -> Vec<PolicyRule> {
        let name = spec.role_ref.name.as_str();
        if spec.role_ref.kind == "Role" {
            let role = self.heads.get(&Key::namespaced(Kind::Role, binding.namespace.as_str(), name));
            return role.map(|role| role.typed::<Role>().unwrap().spec.rules.clone()).unwrap_or_default();
        }
        let role = self.heads.get(&Key::cluster(Kind::ClusterRole, name));
        role.map(|role| role.typed::<ClusterRole>().unwrap().spec.rules.clone()).unwrap_or_default()
    }

    fn rights_of_granter(&self, namespace: &str) -> Vec<PolicyRule> {
        let names = |spec: &BindingSpec| spec.subjects.iter().any(|subject| subject.name == super::GRANTER);
        let of = |key: &Key, spec: &BindingSpec| if names(spec) { self.bound(key, spec) } else { Vec::new() };
        self.heads
            .iter()
            .flat_map(|(key, entry)| match key.kind {
                Kind::RoleBinding if key.namespace == namespace => {
                    of(key, &entry.typed::<RoleBinding>().unwrap().spec)
                }
                Kind::ClusterRoleBinding => of(key, &entry.typed::<ClusterRoleBinding>().unwrap().spec),
                _ => Vec::new(),
            })
            .collect()
    }
}

/// Whether one rule grants all that another does: to the letter, which is enough for the rules of these contests.
fn covers(own: &PolicyRule, rule: &PolicyRule) -> bool {
    let all = |of: &[String], within: &[String]| of.iter().all(|one| within.contains(one));
    all(&rule.verbs, &own.verbs)
        && all(&rule.api_groups, &own.api_groups)
        && all(&rule.resources, &own.resources)
        && (own.resource_names.is_empty()
            || (!rule.resource_names.is_empty() && all(&rule.resource_names, &own.resource_names)))
}

fn volumes(entry: &Entry) -> Vec<Key> {
    let application = entry.typed::<Application>().unwrap();
    let named = |name: &str| Key::namespaced(Kind::PersistentVolume, entry.key.namespace.as_str(), name);
    application.volume_names().into_iter().map(named).collect()
}

fn refers(application: &Entry, key: &Key) -> bool {
    let application = application.typed::<Application>().unwrap();
    match key.kind {
        Kind::Secret => application.spec.secrets().contains_key(key.name.as_str()),
        _ => application.spec.service_name == key.name,
    }
}

fn user(entry: &Entry) -> Option<i64> {
    entry.typed::<Application>().unwrap().spec.security_context.as_ref()?.run_as_user
}

fn group(entry: &Entry) -> Option<i64> {
    entry.typed::<Application>().unwrap().spec.security_context.as_ref()?.run_as_group
}

/// Whether the server chose the user id.
fn is_chosen(entry: &Entry) -> bool {
    let managed: Value = serde_json::from_slice(entry.managed.as_deref().unwrap_or(b"[]")).unwrap();
    let server = |entry: &&Value| entry["manager"] == "horchestra-api";
    managed
        .as_array()
        .into_iter()
        .flatten()
        .filter(server)
        .any(|entry| !entry["fieldsV1"]["f:spec"]["f:securityContext"]["f:runAsUser"].is_null())
}

fn address(entry: &Entry) -> Option<String> {
    let service = entry.typed::<Service>().unwrap();
    (!service.spec.cluster_ip.is_empty()).then(|| service.spec.cluster_ip.clone())
}

fn block(entry: &Entry) -> Option<IdBlock> {
    let namespace = entry.typed::<Namespace>().unwrap();
    namespace.metadata.annotations.get(UID_RANGE_ANNOTATION).map(|text| text.parse().unwrap())
}

fn is_shared(entry: &Entry) -> bool {
    entry.typed::<PersistentVolume>().unwrap().spec.shared
}

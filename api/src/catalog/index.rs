//! The catalog as it follows from the objects, kept up to date change by change.
//!
//! [`Index::put`] and [`Index::remove`] take one change of one object and do again what depends on it: an
//! Application's own instances, those of the members of a Service, those of the Applications on a node. Nothing
//! walks the fleet, and an answer about one service looks at that service's instances alone. What comes out
//! depends on the objects only, not on the order in which they came.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_store::Entry;

use super::facts::{AppFacts, NodeFacts, ServiceFacts};
use super::instance::{Instance, Place, instances};
use super::topics::Topic;

/// Namespace and name.
type Address = (Arc<str>, Arc<str>);

/// Everything that is listed.
#[derive(Debug, Default)]
pub struct Index {
    spaces: HashMap<Arc<str>, Space>,
    nodes: BTreeMap<Arc<str>, Arc<NodeFacts>>,
    /// What is placed on a node.
    placed: HashMap<Arc<str>, BTreeSet<Address>>,
}

/// The name that an instance is listed under, and its place there.
type At = (Arc<str>, Place);

/// A namespace.
#[derive(Debug, Default)]
struct Space {
    services: HashMap<Arc<str>, Arc<ServiceFacts>>,
    apps: HashMap<Arc<str>, Arc<AppFacts>>,
    /// The Applications that join a Service, which need not be there.
    members: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
    /// By the name that they are listed under.
    groups: BTreeMap<Arc<str>, Group>,
    /// Where the instances of an Application are in `groups`.
    listed: HashMap<Arc<str>, Vec<At>>,
    /// How many instances are on each node.
    used: BTreeMap<Arc<str>, usize>,
}

/// What is listed under a name.
#[derive(Debug, Default)]
struct Group {
    instances: BTreeMap<Place, Arc<Instance>>,
    /// How many instances have each tag.
    tags: BTreeMap<String, usize>,
}

/// The topics that a change touched.
pub type Touched = HashSet<Topic>;

impl Index {
    /// Takes over an object as it is now. What cannot be read is as if it were not there.
    pub fn put(&mut self, entry: &Entry, touched: &mut Touched) {
        let key = &entry.key;
        match key.kind {
            Kind::Application => self.set_app(key, AppFacts::of(entry), touched),
            Kind::Service => self.set_service(key, ServiceFacts::of(entry), touched),
            Kind::Node => self.set_node(key, NodeFacts::of(entry), touched),
            _ => {}
        }
    }

    /// An object is gone.
    pub fn remove(&mut self, key: &Key, touched: &mut Touched) {
        match key.kind {
            Kind::Application => self.set_app(key, None, touched),
            Kind::Service => self.set_service(key, None, touched),
            Kind::Node => self.set_node(key, None, touched),
            _ => {}
        }
    }

    fn set_app(&mut self, key: &Key, facts: Option<AppFacts>, touched: &mut Touched) {
        let namespace: Arc<str> = key.namespace.as_str().into();
        let name: Arc<str> = key.name.as_str().into();
        let known = self.spaces.get(&namespace).and_then(|space| space.apps.get(&name)).cloned();
        if known.as_deref() == facts.as_ref() {
            return;
        }
        let space = self.spaces.entry(Arc::clone(&namespace)).or_default();
        if let Some(known) = known {
            space.apps.remove(&name);
            take(&mut space.members, &known.service, &name);
            take(&mut self.placed, &known.node, &(Arc::clone(&namespace), Arc::clone(&name)));
        }
        if let Some(facts) = facts {
            if !facts.service.is_empty() {
                space.members.entry(Arc::clone(&facts.service)).or_default().insert(Arc::clone(&name));
            }
            let here = self.placed.entry(Arc::clone(&facts.node)).or_default();
            here.insert((Arc::clone(&namespace), Arc::clone(&name)));
            space.apps.insert(Arc::clone(&name), Arc::new(facts));
        }
        self.list(&namespace, &name, touched);
    }

    fn set_service(&mut self, key: &Key, facts: Option<ServiceFacts>, touched: &mut Touched) {
        let namespace: Arc<str> = key.namespace.as_str().into();
        let known = self.spaces.get(&namespace).and_then(|space| space.services.get(key.name.as_str()));
        if known.map(|known| &**known) == facts.as_ref() {
            return;
        }
        let space = self.spaces.entry(Arc::clone(&namespace)).or_default();
        match facts {
            Some(facts) => drop(space.services.insert(Arc::clone(&facts.name), Arc::new(facts))),
            None => drop(space.services.remove(key.name.as_str())),
        }
        let members: Vec<Arc<str>> =
            space.members.get(key.name.as_str()).into_iter().flatten().cloned().collect();
        for member in members {
            self.list(&namespace, &member, touched);
        }
        self.forget_empty(&namespace);
    }

    fn set_node(&mut self, key: &Key, facts: Option<NodeFacts>, touched: &mut Touched) {
        let name: Arc<str> = key.name.as_str().into();
        let known = self.nodes.get(&name);
        if known.map(|known| &**known) == facts.as_ref() {
            return;
        }
        let alike = known.zip(facts.as_ref()).is_some_and(|(known, facts)| known.looks_like(facts));
        if !alike {
            touched.insert(Topic::Nodes);
            touched.insert(Topic::Node(Arc::clone(&name)));
        }
        match facts {
            Some(facts) => drop(self.nodes.insert(Arc::clone(&name), Arc::new(facts))),
            None => drop(self.nodes.remove(&name)),
        }
        let placed: Vec<_> = self.placed.get(&name).into_iter().flatten().cloned().collect();
        for (namespace, app) in placed {
            self.list(&namespace, &app, touched);
        }
    }

    /// Lists an Application anew.
    fn list(&mut self, namespace: &Arc<str>, name: &Arc<str>, touched: &mut Touched) {
        let Some(space) = self.spaces.get_mut(namespace) else { return };
        let now = match space.apps.get(name) {
            Some(app) => {
                let node = match self.nodes.get(&app.node) {
                    Some(node) => Arc::clone(node),
                    None => Arc::new(NodeFacts::missing(&app.node)),
                };
                instances(app, space.services.get(&app.service), &node)
            }
            None => Vec::new(),
        };
        let mut before: BTreeSet<At> = space.listed.remove(name).into_iter().flatten().collect();
        let mut listed = Vec::with_capacity(now.len());
        for (group, instance) in now {
            let at = (group, instance.place());
            before.remove(&at);
            space.insert(namespace, &at, instance, touched);
            listed.push(at);
        }
        for at in &before {
            space.take(namespace, at, touched);
        }
        if !listed.is_empty() {
            space.listed.insert(Arc::clone(name), listed);
        }
        self.forget_empty(namespace);
    }

    fn forget_empty(&mut self, namespace: &Arc<str>) {
        let empty = |space: &Space| space.apps.is_empty() && space.services.is_empty();
        if self.spaces.get(namespace).is_some_and(empty) {
            self.spaces.remove(namespace);
        }
    }

    /// The names in a namespace with their tags, in order.
    pub fn services(&self, namespace: &str) -> impl Iterator<Item = (&str, impl Iterator<Item = &str>)> {
        let groups = self.spaces.get(namespace).into_iter().flat_map(|space| &space.groups);
        groups.map(|(name, group)| (&**name, group.tags.keys().map(String::as_str)))
    }

    /// The instances under a name, in order.
    pub fn service(&self, namespace: &str, name: &str) -> impl Iterator<Item = &Arc<Instance>> {
        let group = self.spaces.get(namespace).and_then(|space| space.groups.get(name));
        group.into_iter().flat_map(|group| group.instances.values())
    }

    /// Everything in a namespace with the name that it is listed under, in order.
    pub fn all(&self, namespace: &str) -> impl Iterator<Item = (&Arc<str>, &Arc<Instance>)> {
        let groups = self.spaces.get(namespace).into_iter().flat_map(|space| &space.groups);
        groups.flat_map(|(name, group)| group.instances.values().map(move |instance| (name, instance)))
    }

    /// The instances of a namespace on a node with the names that they are listed under, in order.
    pub fn on_node(&self, namespace: &str, node: &str) -> Vec<(Arc<str>, Arc<Instance>)> {
        let Some(space) = self.spaces.get(namespace) else { return Vec::new() };
        let apps = self.placed.get(node).into_iter().flatten().filter(|(found, _)| &**found == namespace);
        let places = apps.filter_map(|(_, app)| space.listed.get(app)).flatten();
        let found: BTreeMap<_, _> =
            places.filter_map(|at| Some((at, space.groups.get(&at.0)?.instances.get(&at.1)?))).collect();
        found.into_iter().map(|(at, instance)| (Arc::clone(&at.0), Arc::clone(instance))).collect()
    }

    pub fn node(&self, name: &str) -> Option<&Arc<NodeFacts>> {
        self.nodes.get(name)
    }

    /// All nodes, in order.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<NodeFacts>> {
        self.nodes.values()
    }

    /// Whether a namespace has instances on a node.
    pub fn uses(&self, namespace: &str, node: &str) -> bool {
        self.spaces.get(namespace).is_some_and(|space| space.used.contains_key(node))
    }
}

impl Space {
    fn insert(&mut self, namespace: &Arc<str>, at: &At, instance: Instance, touched: &mut Touched) {
        let (name, place) = at;
        let known = self.groups.get(name).and_then(|group| group.instances.get(place));
        if let Some(known) = known.filter(|known| known.looks_like(&instance, namespace)) {
            if known.health() != instance.health() {
                touched.insert(Topic::Health(Arc::clone(namespace), Arc::clone(name)));
                touched.insert(Topic::Checks(Arc::clone(namespace)));
            }
            if let Some(group) = self.groups.get_mut(name) {
                group.instances.insert(place.clone(), Arc::new(instance));
            }
            return;
        }
        // What comes is counted before what goes, so that nothing seems to be gone in between.
        let group = self.groups.entry(Arc::clone(name)).or_default();
        let mut new = false;
        for tag in instance.tags(namespace) {
            new |= more(&mut group.tags, tag);
        }
        if new {
            touched.insert(Topic::Services(Arc::clone(namespace)));
        }
        if more(&mut self.used, Arc::clone(&instance.node.name)) {
            touched.insert(Topic::Used(Arc::clone(namespace)));
        }
        touch(namespace, name, &instance, touched);
        if let Some(known) = group.instances.insert(place.clone(), Arc::new(instance)) {
            self.uncount(namespace, name, &known, touched);
        }
    }

    fn take(&mut self, namespace: &Arc<str>, (name, place): &At, touched: &mut Touched) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let Some(instance) = group.instances.remove(place) else { return };
        self.uncount(namespace, name, &instance, touched);
        if self.groups.get(name).is_some_and(|group| group.instances.is_empty()) {
            self.groups.remove(name);
        }
    }

    fn uncount(&mut self, namespace: &Arc<str>, name: &Arc<str>, gone: &Instance, touched: &mut Touched) {
        let Some(group) = self.groups.get_mut(name) else { return };
        let mut last = false;
        for tag in gone.tags(namespace) {
            last |= less(&mut group.tags, tag.as_str());
        }
        if last {
            touched.insert(Topic::Services(Arc::clone(namespace)));
        }
        if less(&mut self.used, &*gone.node.name) {
            touched.insert(Topic::Used(Arc::clone(namespace)));
        }
        touch(namespace, name, gone, touched);
    }
}

/// One more; whether that is the first.
fn more<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) -> bool {
    let count = counts.entry(key).or_default();
    *count += 1;
    *count == 1
}

/// An instance has come, has gone or is shown otherwise.
fn touch(namespace: &Arc<str>, name: &Arc<str>, instance: &Instance, touched: &mut Touched) {
    touched.insert(Topic::Instances(Arc::clone(namespace), Arc::clone(name)));
    touched.insert(Topic::Health(Arc::clone(namespace), Arc::clone(name)));
    touched.insert(Topic::Checks(Arc::clone(namespace)));
    touched.insert(Topic::Placed(Arc::clone(namespace), Arc::clone(&instance.node.name)));
}

/// One less; whether that was the last.
fn less<K, Q>(counts: &mut BTreeMap<K, usize>, key: &Q) -> bool
where
    K: Ord + std::borrow::Borrow<Q>,
    Q: Ord + ?Sized,
{
    let Some(count) = counts.get_mut(key) else { return false };
    *count = count.saturating_sub(1);
    let last = *count == 0;
    if last {
        counts.remove(key);
    }
    last
}

/// Takes a value out of the set of a key.
fn take<V: Ord>(sets: &mut HashMap<Arc<str>, BTreeSet<V>>, key: &Arc<str>, value: &V) {
    if let Some(set) = sets.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            sets.remove(key);
        }
    }
}

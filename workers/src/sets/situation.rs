//! What a plan is made from: one set, what it owns, and what is around it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use horchestra_core::kind::Kind;
use horchestra_core::kinds::application::{Application, CONDITION_READY};
use horchestra_core::kinds::application_set::{ApplicationSet, SpreadNode};
use horchestra_core::kinds::meta::{ConditionStatus, ObjectMeta, condition};
use horchestra_core::kinds::node::Node;
use horchestra_core::kinds::service::Service;
use horchestra_core::object::Object;
use horchestra_store::{Entry, Revision, Snapshot};
use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;

/// A node, as far as sets look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    pub revision: Revision,
    /// The one verdict on it; as it says itself while nobody has judged it.
    pub ready: bool,
}

/// The nodes that there are.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    pub by_name: HashMap<String, NodeView>,
    /// In list order.
    pub spread: Vec<SpreadNode>,
}

/// A child of the set.
#[derive(Clone, Debug)]
pub struct Child {
    pub entry: Arc<Entry>,
    pub app: Arc<Application>,
}

/// A Service of the namespace.
#[derive(Clone, Debug)]
pub struct ServiceView {
    pub entry: Arc<Entry>,
    pub service: Arc<Service>,
    /// Whether it belongs to the set.
    pub owned: bool,
}

/// One set and what concerns it.
#[derive(Clone, Debug)]
pub struct Situation {
    pub entry: Arc<Entry>,
    pub set: Arc<ApplicationSet>,
    /// The set as a tree.
    pub object: Object,
    pub nodes: Arc<Nodes>,
    /// What it owns, by name.
    pub children: BTreeMap<String, Child>,
    /// The Services of its namespace, by name.
    pub services: BTreeMap<String, ServiceView>,
    /// Names of Services that an Application of the namespace says it is a member of.
    pub joined: BTreeSet<String>,
    pub now: Timestamp,
}

impl Child {
    pub fn node(&self) -> &str {
        self.app.node_name()
    }

    /// Whether it is to be left alone.
    pub fn frozen(&self) -> bool {
        self.app.spec.frozen
    }

    /// Whether the node says that it runs this very generation.
    pub fn runs(&self) -> bool {
        self.app.status.phase == "Running"
            && self.app.status.observed_generation == self.app.metadata.generation
    }

    /// Since when it is ready in this generation.
    fn ready_since(&self) -> Option<Timestamp> {
        let ready = condition(&self.app.status.conditions, CONDITION_READY)?;
        (ready.status == ConditionStatus::True).then_some(())?;
        Some(ready.last_transition_time?.timestamp())
    }
}

/// Whether, and for how long still not, a child counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Does not run, or its node is not ready, or it is on its way out.
    Down,
    /// Runs, and will count after this time.
    Maturing(SignedDuration),
    Available,
}

impl Situation {
    /// How a child stands.
    pub fn standing(&self, child: &Child) -> Standing {
        let on_ready_node = self.nodes.by_name.get(child.node()).is_some_and(|node| node.ready);
        if child.entry.deleting || !child.runs() || !on_ready_node {
            return Standing::Down;
        }
        let least = SignedDuration::from_secs(self.set.spec.rollout().min_ready_seconds.into());
        if least.is_zero() {
            return Standing::Available;
        }
        // Without a word on since when, it has just begun.
        let ready_for =
            child.ready_since().map_or(SignedDuration::ZERO, |since| self.now.duration_since(since));
        let left = least - ready_for;
        if left.is_positive() { Standing::Maturing(left) } else { Standing::Available }
    }

    /// Whether a child of this name is there and available.
    pub fn is_available(&self, name: &str) -> bool {
        self.children.get(name).is_some_and(|child| self.standing(child) == Standing::Available)
    }

    /// The Services that belong to the set.
    pub fn own_services(&self) -> impl Iterator<Item = (&String, &ServiceView)> {
        self.services.iter().filter(|(_, service)| service.owned)
    }
}

/// The ApplicationSet that runs an object: its name and uid.
pub fn owner(metadata: &ObjectMeta) -> Option<(&str, &str)> {
    let kind = Kind::ApplicationSet;
    let owner = metadata.owner_references.iter().find(|owner| {
        owner.controller == Some(true) && owner.kind == kind.name() && owner.api_version == kind.api_version()
    })?;
    Some((&owner.name, &owner.uid))
}

/// Whether the object belongs to this very set.
pub fn is_owned(metadata: &ObjectMeta, set: &Entry) -> bool {
    metadata.namespace == set.key.namespace
        && owner(metadata).is_some_and(|(name, uid)| name == set.key.name && uid == set.uid.to_string())
}

/// An object that cannot be read holds nobody else up.
pub fn readable<T: DeserializeOwned + Send + Sync + 'static>(entry: &Entry) -> Option<Arc<T>> {
    entry
        .typed::<T>()
        .inspect_err(|error| tracing::warn!(object = %entry.key, %error, "cannot be read; passed over"))
        .ok()
}

/// What matters of a node.
pub fn node_print(node: &Node) -> u64 {
    print_of((is_ready(node), node.scheduling_labels()))
}

fn print_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn is_ready(node: &Node) -> bool {
    node.ready().map_or(node.status.ready, |verdict| verdict == ConditionStatus::True)
}

/// An object as it is stored, and as it is read.
type Stored<T> = (Arc<Entry>, Arc<T>);

/// What is stored, sorted by who it concerns.
pub struct Survey {
    nodes: Arc<Nodes>,
    /// By name: what matters of each node.
    pub node_prints: HashMap<String, u64>,
    /// What matters of all nodes.
    nodes_print: u64,
    /// By namespace: what matters of its Services and of who joins them.
    service_prints: HashMap<String, u64>,
    /// By namespace, and name and uid of the owner.
    children: HashMap<String, HashMap<(String, String), Vec<Child>>>,
    /// By namespace.
    joined: HashMap<String, BTreeSet<String>>,
    services: HashMap<String, Vec<Stored<Service>>>,
    /// By namespace: which Applications there are, whoever they belong to.
    crowds: HashMap<String, u64>,
}

impl Survey {
    pub fn of(snapshot: &Snapshot) -> Survey {
        let mut survey = Survey {
            nodes: Arc::default(),
            node_prints: HashMap::new(),
            nodes_print: 0,
            service_prints: HashMap::new(),
            children: HashMap::new(),
            joined: HashMap::new(),
            services: HashMap::new(),
            crowds: HashMap::new(),
        };
        let mut nodes = Nodes::default();
        for entry in snapshot.list(Kind::Node, None) {
            let Some(node) = readable::<Node>(entry) else { continue };
            let view = NodeView { revision: entry.revision, ready: is_ready(&node) };
            nodes.spread.push(SpreadNode::from(&*node));
            nodes.by_name.insert(entry.key.name.clone(), view);
            survey.node_prints.insert(entry.key.name.clone(), node_print(&node));
        }
        survey.nodes = Arc::new(nodes);
        for entry in snapshot.list(Kind::Application, None) {
            let crowd = survey.crowds.entry(entry.key.namespace.clone()).or_default();
            *crowd = crowd.wrapping_add(print_of(entry.uid));
            let Some(app) = readable::<Application>(entry) else { continue };
            if !app.spec.service_name.is_empty() {
                let joined = survey.joined.entry(entry.key.namespace.clone()).or_default();
                joined.insert(app.spec.service_name.clone());
            }
            if let Some((name, uid)) = owner(&app.metadata) {
                let key = (name.to_owned(), uid.to_owned());
                let child = Child { entry: Arc::clone(entry), app: Arc::clone(&app) };
                let of_namespace = survey.children.entry(entry.key.namespace.clone()).or_default();
                of_namespace.entry(key).or_default().push(child);
            }
        }
        for entry in snapshot.list(Kind::Service, None) {
            let Some(service) = readable::<Service>(entry) else { continue };
            let of_namespace = survey.services.entry(entry.key.namespace.clone()).or_default();
            of_namespace.push((Arc::clone(entry), service));
        }
        let nodes = survey.nodes.spread.iter().map(|node| (&node.name, survey.node_prints.get(&node.name)));
        survey.nodes_print = print_of(nodes.collect::<Vec<_>>());
        let namespaces: BTreeSet<&String> = survey.joined.keys().chain(survey.services.keys()).collect();
        survey.service_prints = namespaces
            .into_iter()
            .map(|namespace| {
                let services = survey.services.get(namespace).into_iter().flatten();
                let services: Vec<_> = services.map(|(entry, _)| (entry.uid, entry.revision)).collect();
                (namespace.clone(), print_of((services, survey.joined.get(namespace))))
            })
            .collect();
        survey
    }

    fn children_of(&self, set: &Entry) -> &[Child] {
        let owner = (set.key.name.clone(), set.uid.to_string());
        let children = self.children.get(&set.key.namespace).and_then(|owners| owners.get(&owner));
        children.map_or(&[], Vec::as_slice)
    }

    /// Two surveys in which this is the same lead to the same plan, but for the time.
    pub fn print(&self, set: &Entry) -> u64 {
        let children: Vec<_> =
            self.children_of(set).iter().map(|child| (child.entry.uid, child.entry.revision)).collect();
        let services = self.service_prints.get(&set.key.namespace);
        print_of((set.uid, set.revision, children, services, self.nodes_print))
    }

    /// What may stand in a set's way: differs whenever an Application of its namespace comes or goes.
    pub fn crowd(&self, set: &Entry) -> u64 {
        self.crowds.get(&set.key.namespace).copied().unwrap_or_default()
    }

    /// All that concerns one set; `None` when it cannot be read.
    pub fn situation(&self, set: &Arc<Entry>, now: Timestamp) -> Option<Situation> {
        let namespace = &set.key.namespace;
        let services = self.services.get(namespace).into_iter().flatten().map(|(entry, service)| {
            let (entry, service) = (Arc::clone(entry), Arc::clone(service));
            let owned = is_owned(&service.metadata, set);
            (entry.key.name.clone(), ServiceView { entry, service, owned })
        });
        Some(Situation {
            entry: Arc::clone(set),
            set: readable::<ApplicationSet>(set)?,
            object: set.object().ok()?,
            nodes: Arc::clone(&self.nodes),
            children: self
                .children_of(set)
                .iter()
                .map(|child| (child.entry.key.name.clone(), child.clone()))
                .collect(),
            services: services.collect(),
            joined: self.joined.get(namespace).cloned().unwrap_or_default(),
            now,
        })
    }
}

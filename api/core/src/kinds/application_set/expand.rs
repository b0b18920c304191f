//! From a set to what it makes: its children and the Services for them.
//!
//! [`expand()`] is a pure function of the set and of the nodes that there are. Admission asks it whether a set
//! can be expanded at all, the loop that keeps sets asks it what there should be; so both always mean the
//! same. It works on the JSON tree, so that members of a newer version reach the children.
//!
//! Guarantees: names are unique, children are at most [`MAX_CHILDREN`], and nothing is made before that is
//! known (a set may ask for two thousand million replicas). The digest of a child depends on the spec that is
//! rendered for it and on nothing else: not on its number, not on whether the set is frozen, not on what
//! admission or the scheduler add later.
//!
//! Not done here: pinning children to the node of the first one (that needs to know where it is), holding
//! them back while others have not finished, and everything about other objects.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::super::application::EnvVar;
use super::super::node::Node;
use super::{ApplicationSet, COMPONENT_LABEL, Component, HASH_ANNOTATION, NodeSpread, SET_LABEL};
use crate::kind::Kind;
use crate::object::Object;

/// Most children of one set.
pub const MAX_CHILDREN: usize = 500;
/// Longest name of an object.
const MAX_NAME: usize = 253;
/// Hex digits that tell shortened names apart.
const SUFFIX: usize = 8;

/// A node that children may be spread to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpreadNode {
    pub name: String,
    /// The labels that placement looks at.
    pub labels: BTreeMap<String, String>,
}

impl From<&Node> for SpreadNode {
    fn from(node: &Node) -> SpreadNode {
        SpreadNode { name: node.metadata.name.clone(), labels: node.scheduling_labels() }
    }
}

/// What a set makes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expansion {
    /// In the order of the components, then of their numbers or nodes.
    pub children: Vec<Child>,
    /// In the order of the components.
    pub services: Vec<RenderedService>,
}

/// One Application of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct Child {
    /// Position of the component.
    pub component: usize,
    /// Whether it runs to its end, and what is kept running waits for it.
    pub init: bool,
    /// Digest of the rendered spec, as in the annotation.
    pub hash: String,
    /// As it is to be created.
    pub object: Object,
}

/// The Service of a component.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderedService {
    /// Position of the component.
    pub component: usize,
    /// As it is to be created, without an address.
    pub object: Object,
}

impl Child {
    pub fn name(&self) -> &str {
        self.object.name()
    }

    /// The node that the set names; empty when the scheduler is to choose.
    pub fn node_name(&self) -> &str {
        self.object.str_at(&["spec", "placement", "nodeName"])
    }
}

impl RenderedService {
    pub fn name(&self) -> &str {
        self.object.name()
    }
}

/// Why a set cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    #[error("the set cannot be read: {0}")]
    Unreadable(String),
    #[error("the set has no components")]
    NoComponents,
    #[error("two children would be called {0:?}")]
    DuplicateChild(String),
    #[error("the set would have {0} children, at most {MAX_CHILDREN} are possible")]
    TooManyChildren(usize),
}

/// What the set makes on these nodes, which are taken in their order.
pub fn expand(set: &Object, nodes: &[SpreadNode]) -> Result<Expansion, ExpandError> {
    let typed: ApplicationSet = set.read().map_err(|error| ExpandError::Unreadable(error.to_string()))?;
    let components = &typed.spec.applications;
    if components.is_empty() {
        return Err(ExpandError::NoComponents);
    }
    let spreads: Vec<Spread<'_>> = components.iter().map(|component| Spread::of(component, nodes)).collect();
    let count = spreads.iter().fold(0usize, |sum, spread| sum.saturating_add(spread.count()));
    if count > MAX_CHILDREN {
        return Err(ExpandError::TooManyChildren(count));
    }
    let trees = set.at(&["spec", "applications"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let renderer = Renderer { set, name: set.name(), common: set.at(&["spec", "common"]) };
    let mut expansion = Expansion::default();
    let mut names = HashSet::new();
    for (at, ((component, spread), tree)) in components.iter().zip(&spreads).zip(trees).enumerate() {
        let service = component.has_rendered_service().then(|| renderer.service_name(component));
        let spec = renderer.spec(component, tree, service.as_deref());
        for place in spread.places() {
            let child = renderer.child(at, component, tree, &spec, &place);
            if !names.insert(child.name().to_owned()) {
                return Err(ExpandError::DuplicateChild(child.name().to_owned()));
            }
            expansion.children.push(child);
        }
        if let Some(service) = service {
            let object = renderer.service(component, tree, &service);
            expansion.services.push(RenderedService { component: at, object });
        }
    }
    Ok(expansion)
}

/// The spec of the children of one component, whatever their number or node; empty when there is no such
/// component.
pub(super) fn rendered_spec(set: &Object, component: &Component, at: usize) -> Map<String, Value> {
    let renderer = Renderer { set, name: set.name(), common: set.at(&["spec", "common"]) };
    let trees = set.at(&["spec", "applications"]).and_then(Value::as_array);
    let service = component.has_rendered_service().then(|| renderer.service_name(component));
    trees
        .and_then(|trees| trees.get(at))
        .map(|tree| renderer.spec(component, tree, service.as_deref()))
        .unwrap_or_default()
}

/// How the children of a component differ.
enum Spread<'a> {
    /// There is one.
    Single,
    Numbered(usize),
    Nodes(Vec<&'a str>),
}

/// What tells one child from its siblings.
enum Place<'a> {
    Single,
    Number(usize),
    Node(&'a str),
}

impl<'a> Spread<'a> {
    fn of(component: &Component, nodes: &'a [SpreadNode]) -> Spread<'a> {
        match (component.node_spread(), component.replicas()) {
            (Some(spread), _) => Spread::Nodes(
                nodes.iter().filter(|node| selects(spread, node)).map(|node| node.name.as_str()).collect(),
            ),
            (None, Some(replicas)) => Spread::Numbered(usize::try_from(replicas).unwrap_or(0)),
            (None, None) => Spread::Single,
        }
    }

    fn count(&self) -> usize {
        match self {
            Spread::Single => 1,
            Spread::Numbered(count) => *count,
            Spread::Nodes(nodes) => nodes.len(),
        }
    }

    fn places(&self) -> Vec<Place<'a>> {
        match self {
            Spread::Single => vec![Place::Single],
            Spread::Numbered(count) => (0..*count).map(Place::Number).collect(),
            Spread::Nodes(nodes) => nodes.iter().map(|node| Place::Node(node)).collect(),
        }
    }
}

fn selects(spread: &NodeSpread, node: &SpreadNode) -> bool {
    spread.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value))
}

struct Renderer<'a> {
    set: &'a Object,
    name: &'a str,
    /// `spec.common`.
    common: Option<&'a Value>,
}

impl Renderer<'_> {
    fn service_name(&self, component: &Component) -> String {
        object_name(&format!("{}-{}", self.name, component.name))
    }

    /// The component's own spec with what is common and the Service put in.
    fn spec(&self, component: &Component, tree: &Value, service: Option<&str>) -> Map<String, Value> {
        let mut spec = tree.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
        // Freezing a set is no other state to reach.
        spec.remove("frozen");
        self.add_env(component, &mut spec);
        self.add_volumes(component, &mut spec);
        if let Some(service) = service {
            spec.insert("serviceName".to_owned(), Value::from(service));
        }
        spec
    }

    /// Common variables stand behind the component's own, where it has none of the same identity.
    fn add_env(&self, component: &Component, spec: &mut Map<String, Value>) {
        let mut seen: HashSet<_> = component.spec.env.iter().filter_map(owned_identity).collect();
        let added: Vec<Value> = self
            .common_list("env")
            .filter(|entry| {
                let entry: EnvVar = serde_json::from_value((*entry).clone()).unwrap_or_default();
                owned_identity(&entry).is_none_or(|identity| seen.insert(identity))
            })
            .cloned()
            .collect();
        append(spec, "env", added);
    }

    /// Common volumes stand behind the component's own, where it mounts nothing at their path.
    fn add_volumes(&self, component: &Component, spec: &mut Map<String, Value>) {
        let taken: HashSet<&str> =
            component.spec.volumes.iter().map(|mount| mount.mount_path.as_str()).collect();
        let added: Vec<Value> = self
            .common_list("volumes")
            .filter(|mount| !mount["mountPath"].as_str().is_some_and(|path| taken.contains(path)))
            .cloned()
            .collect();
        append(spec, "volumes", added);
    }

    fn common_list(&self, member: &str) -> impl Iterator<Item = &Value> {
        let list = self.common.and_then(|common| common.get(member)).and_then(Value::as_array);
        list.into_iter().flatten()
    }

    fn child(
        &self,
        at: usize,
        component: &Component,
        tree: &Value,
        spec: &Map<String, Value>,
        place: &Place<'_>,
    ) -> Child {
        let stem = format!("{}-{}", self.name, component.name);
        let mut spec = spec.clone();
        let name = match place {
            Place::Single => stem,
            Place::Number(number) => format!("{stem}-{number}"),
            Place::Node(node) => {
                let placement = spec.entry("placement").or_insert_with(|| Value::Object(Map::new()));
                if let Some(placement) = placement.as_object_mut() {
                    placement.insert("nodeName".to_owned(), Value::from(*node));
                }
                format!("{stem}-{node}")
            }
        };
        let spec = Value::Object(spec);
        let hash = digest(&spec);
        let mut labels = self.merged("labels", tree);
        self.mark(&mut labels, component);
        let mut annotations = self.merged("annotations", tree);
        annotations.insert(HASH_ANNOTATION.to_owned(), Value::from(hash.as_str()));
        let mut object = self.object(Kind::Application, &object_name(&name), labels);
        object.set_metadata("annotations", Value::Object(annotations));
        object.0.insert("spec".to_owned(), spec);
        Child { component: at, init: component.is_init(), hash, object }
    }

    fn service(&self, component: &Component, tree: &Value, name: &str) -> Object {
        let mut labels = Map::new();
        self.mark(&mut labels, component);
        let ports: Vec<Value> = tree
            .pointer("/spec/ports")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|port| match port["name"].as_str() {
                None | Some("") => json!({"port": port["port"]}),
                Some(name) => json!({"name": name, "port": port["port"]}),
            })
            .collect();
        let mut object = self.object(Kind::Service, name, labels);
        object.0.insert("spec".to_owned(), json!({ "ports": ports }));
        object
    }

    /// What is common, overlaid by what the component says.
    fn merged(&self, member: &str, tree: &Value) -> Map<String, Value> {
        let mut merged =
            self.common.and_then(|common| common[member].as_object()).cloned().unwrap_or_default();
        if let Some(own) = tree["metadata"][member].as_object() {
            merged.extend(own.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        merged
    }

    /// The marks of what a set makes; nobody else's value stands against them.
    fn mark(&self, labels: &mut Map<String, Value>, component: &Component) {
        labels.insert(SET_LABEL.to_owned(), Value::from(self.name));
        labels.insert(COMPONENT_LABEL.to_owned(), Value::from(component.name.as_str()));
    }

    /// An object that the set owns.
    fn object(&self, kind: Kind, name: &str, labels: Map<String, Value>) -> Object {
        let set = Kind::ApplicationSet;
        let owner = json!({
            "apiVersion": set.api_version(),
            "kind": set.name(),
            "name": self.name,
            "uid": self.set.uid(),
            "controller": true,
        });
        let mut object = Object(Map::new());
        object.0.insert("apiVersion".to_owned(), Value::from(kind.api_version()));
        object.0.insert("kind".to_owned(), Value::from(kind.name()));
        object.set_metadata("name", name);
        object.set_metadata("namespace", self.set.namespace());
        object.set_metadata("labels", Value::Object(labels));
        object.set_metadata("ownerReferences", Value::Array(vec![owner]));
        object
    }
}

type OwnedIdentity = (String, Option<(String, String)>);

fn owned_identity(entry: &EnvVar) -> Option<OwnedIdentity> {
    let (name, source) = entry.identity()?;
    Some((name.to_owned(), source.map(|(secret, prefix)| (secret.to_owned(), prefix.to_owned()))))
}

fn append(spec: &mut Map<String, Value>, member: &str, added: Vec<Value>) {
    if added.is_empty() {
        return;
    }
    let list = spec.entry(member).or_insert_with(|| Value::Array(Vec::new()));
    match list {
        Value::Array(list) => list.extend(added),
        other => *other = Value::Array(added),
    }
}

/// SHA-256 of the compact JSON, members in byte order.
fn digest(spec: &Value) -> String {
    hex(&Sha256::digest(spec.to_string().as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A text as the name of an object. One that is too long is cut, and told apart from others with the same
/// beginning by a digest of the whole.
pub(super) fn object_name(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|c| c.to_ascii_lowercase())
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.') { c } else { '-' })
        .collect();
    let name = plain.trim_matches(['-', '.']);
    if name.len() <= MAX_NAME {
        return name.to_owned();
    }
    let whole = hex(&Sha256::digest(name.as_bytes()));
    let kept = name[..MAX_NAME - SUFFIX - 1].trim_end_matches('.');
    format!("{kept}-{}", &whole[..SUFFIX])
}

#[cfg(test)]
mod tests;

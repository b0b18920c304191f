//! Answers: taken out of the catalog quickly, written later.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use super::answers::{Check, Entry, HealthEntry, Node, NodeServices, Service};
use super::facts::NodeFacts;
use super::filter::Filter;
use super::follow::State;
use super::instance::{Health, Instance};
use super::query::Asked;
use super::question::Question;

/// Instances, each with the name that it is listed under.
type Listed = Vec<(Arc<str>, Arc<Instance>)>;

/// What an answer is made of, taken out of the state; to be written once nobody waits for that.
#[derive(Debug)]
pub struct Body {
    question: Question,
    namespace: String,
    found: Found,
}

#[derive(Debug)]
enum Found {
    Services(BTreeMap<String, Vec<String>>),
    Instances(Listed),
    Nodes(Vec<Arc<NodeFacts>>),
    Node(Option<Arc<NodeFacts>>, Listed),
}

/// Takes what the question is about out of the state.
pub(super) fn body(state: &State, question: &Question, namespace: &str, asked: &Asked) -> Body {
    let index = &state.index;
    let found = match question {
        // Tags and filters choose among instances.
        Question::Services if asked.filter.is_some() || !asked.tags.is_empty() => Found::Instances(
            index.all(namespace).map(|(name, it)| (Arc::clone(name), Arc::clone(it))).collect(),
        ),
        Question::Services => Found::Services(
            index
                .services(namespace)
                .map(|(name, tags)| (name.to_owned(), tags.map(str::to_owned).collect()))
                .collect(),
        ),
        Question::Service(name) | Question::Health(name) => {
            let name: Arc<str> = name.as_str().into();
            let found = index.service(namespace, &name);
            Found::Instances(found.map(|it| (Arc::clone(&name), Arc::clone(it))).collect())
        }
        Question::State(_) => Found::Instances(
            index.all(namespace).map(|(name, it)| (Arc::clone(name), Arc::clone(it))).collect(),
        ),
        Question::Nodes { all } => Found::Nodes(
            index.nodes().filter(|node| *all || index.uses(namespace, &node.name)).cloned().collect(),
        ),
        Question::Node { name, any } => {
            let listed = index.on_node(namespace, name);
            let known = index.node(name).filter(|_| *any || !listed.is_empty()).cloned();
            let node = known.or_else(|| listed.first().map(|(_, instance)| Arc::clone(&instance.node)));
            Found::Node(node, listed)
        }
    };
    Body { question: question.clone(), namespace: namespace.to_owned(), found }
}

impl Body {
    /// How much there is to write.
    pub fn len(&self) -> usize {
        match &self.found {
            Found::Services(services) => services.len(),
            Found::Instances(listed) | Found::Node(_, listed) => listed.len(),
            Found::Nodes(nodes) => nodes.len(),
        }
    }

    /// The answer as JSON.
    pub fn write(self, asked: &Asked) -> Result<Bytes, serde_json::Error> {
        let Body { question, namespace, found } = self;
        let namespace = namespace.as_str();
        let filter = asked.filter.as_ref();
        match (question, found) {
            (_, Found::Services(services)) => json(&services),
            (Question::Services, Found::Instances(listed)) => {
                let mut services: BTreeMap<String, Vec<String>> = BTreeMap::new();
                for (name, instance) in choose(listed, namespace, asked) {
                    let entry = Entry::of(namespace, &name, &instance);
                    if keeps(filter, &entry)? {
                        services.entry(entry.service_name).or_default().extend(entry.service_tags);
                    }
                }
                for tags in services.values_mut() {
                    tags.sort_unstable();
                    tags.dedup();
                }
                json(&services)
            }
            (Question::Health(_), Found::Instances(listed)) => {
                let listed = choose(listed, namespace, asked)
                    .filter(|(_, it)| !asked.passing || it.health().0 == Health::Passing);
                list(filter, listed.map(|(name, it)| HealthEntry::of(namespace, &name, &it)))
            }
            (Question::State(wanted), Found::Instances(listed)) => {
                let listed = choose(listed, namespace, asked)
                    .filter(|(_, it)| wanted == "any" || it.health().0.word() == wanted);
                list(filter, listed.map(|(name, it)| Check::of(namespace, &name, &it)))
            }
            (_, Found::Instances(listed)) => {
                let listed = choose(listed, namespace, asked);
                list(filter, listed.map(|(name, it)| Entry::of(namespace, &name, &it)))
            }
            (_, Found::Nodes(mut nodes)) => {
                nodes.sort_by_key(|node| *node.name != *asked.near);
                list(filter, nodes.iter().map(|node| Node::of(node)))
            }
            (_, Found::Node(None, _)) => json(&Value::Null),
            (_, Found::Node(Some(node), listed)) => {
                let mut kept = Vec::new();
                for (name, instance) in listed {
                    if keeps(filter, &Service::of(namespace, &name, &instance))? {
                        kept.push((name, instance));
                    }
                }
                let kept = kept.iter().map(|(name, instance)| (&**name, &**instance));
                json(&NodeServices::of(namespace, &node, kept))
            }
        }
    }
}

/// Those that have the tags, near ones first.
fn choose(
    mut listed: Listed,
    namespace: &str,
    asked: &Asked,
) -> impl Iterator<Item = (Arc<str>, Arc<Instance>)> {
    if !asked.tags.is_empty() {
        listed.retain(|(_, instance)| {
            let tags = instance.tags(namespace);
            asked.tags.iter().all(|tag| tags.contains(tag))
        });
    }
    if !asked.near.is_empty() {
        listed.sort_by_key(|(_, instance)| *instance.node.name != *asked.near);
    }
    listed.into_iter()
}

fn keeps(filter: Option<&Filter>, item: &impl Serialize) -> Result<bool, serde_json::Error> {
    filter.map_or(Ok(true), |filter| Ok(filter.chooses(&serde_json::to_value(item)?)))
}

fn list<T: Serialize>(
    filter: Option<&Filter>,
    items: impl Iterator<Item = T>,
) -> Result<Bytes, serde_json::Error> {
    let mut kept = Vec::new();
    for item in items {
        if keeps(filter, &item)? {
            kept.push(item);
        }
    }
    json(&kept)
}

fn json(value: &impl Serialize) -> Result<Bytes, serde_json::Error> {
    serde_json::to_vec(value).map(Bytes::from)
}

//! What can be asked.

use std::sync::Arc;

use super::filter::{self, Shape};
use super::topics::Topic;

/// What is asked, of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Names with their tags.
    Services,
    /// What is listed under a name.
    Service(String),
    /// The same with health.
    Health(String),
    /// The health of everything that is `passing`, `warning`, `critical`, or (`any`) whatever.
    State(String),
    /// The nodes that the namespace has instances on, or all.
    Nodes { all: bool },
    /// A node and what the namespace has on it; `any`: also if that is nothing.
    Node { name: String, any: bool },
}

impl Question {
    /// The shape of what a filter chooses from.
    pub fn shape(&self) -> Shape {
        match self {
            Question::Services | Question::Service(_) => filter::ENTRY,
            Question::Health(_) => filter::HEALTH,
            Question::State(_) => filter::CHECK,
            Question::Nodes { .. } => filter::NODE,
            Question::Node { .. } => filter::SERVICE,
        }
    }

    /// What the answer depends on.
    pub(super) fn topics(&self, namespace: &str) -> Vec<Topic> {
        let namespace: Arc<str> = namespace.into();
        match self {
            Question::Services => vec![Topic::Services(namespace)],
            Question::Service(name) => vec![Topic::Instances(namespace, name.as_str().into())],
            Question::Health(name) => vec![Topic::Health(namespace, name.as_str().into())],
            Question::State(_) => vec![Topic::Checks(namespace)],
            Question::Nodes { all: true } => vec![Topic::Nodes],
            Question::Nodes { all: false } => vec![Topic::Nodes, Topic::Used(namespace)],
            Question::Node { name, .. } => {
                let name: Arc<str> = name.as_str().into();
                vec![Topic::Node(Arc::clone(&name)), Topic::Placed(namespace, name)]
            }
        }
    }
}

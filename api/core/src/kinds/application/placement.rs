//! Where an Application runs.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::null_as_default;

/// Where the workload runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    /// The node. Set by the author, who then overrules everything else here, or by the scheduler. The node
    /// must exist.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub node_name: String,
    /// Labels that the node must have, all of them.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Rules and wishes about the node and about neighbours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Higher numbers are placed first. Nothing is evicted for them. Absent: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

/// Rules and wishes about the node and about neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Affinity {
    /// Which nodes are suitable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<NodeAffinity>,
    /// Which Applications to be near.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_affinity: Option<WorkloadAffinity>,
    /// Which Applications to keep away from. Required terms also bind those others when they are placed
    /// later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload_anti_affinity: Option<WorkloadAffinity>,
}

/// Which nodes are suitable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAffinity {
    /// The node must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_during_scheduling: Option<NodeSelector>,
    /// The node had better match.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub preferred_during_scheduling: Vec<PreferredNode>,
}

/// A wish about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreferredNode {
    /// How much the wish counts, by convention from 1 to 100.
    pub weight: i32,
    /// The nodes that are wished for.
    pub preference: NodeSelector,
}

/// A choice of nodes by their labels. An empty one matches every node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    /// Labels with exactly these values, all of them.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Conditions on labels, all of them.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<NodeSelectorRequirement>,
}

/// A condition on one label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelectorRequirement {
    /// Key of the label.
    pub key: String,
    /// `In`: the value is one of those listed. `NotIn`: it is not, or there is no such label. `Exists` and
    /// `DoesNotExist` look at the key alone.
    pub operator: NodeSelectorOperator,
    /// Values for `In` and `NotIn`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// How a label is judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum NodeSelectorOperator {
    #[default]
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl NodeSelector {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl NodeSelectorRequirement {
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            NodeSelectorOperator::In => value.is_some_and(|value| self.values.contains(value)),
            NodeSelectorOperator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            NodeSelectorOperator::Exists => value.is_some(),
            NodeSelectorOperator::DoesNotExist => value.is_none(),
        }
    }
}

/// Which other Applications matter for placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadAffinity {
    /// Terms that must hold.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub required_during_scheduling: Vec<WorkloadAffinityTerm>,
    /// Terms that had better hold.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub preferred_during_scheduling: Vec<WeightedWorkloadTerm>,
}

/// A wish about neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeightedWorkloadTerm {
    /// How much the wish counts.
    pub weight: i32,
    /// The neighbours.
    pub term: WorkloadAffinityTerm,
}

/// Applications of the same namespace within the same domain of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadAffinityTerm {
    /// Labels of the other Applications, all of them. Empty matches every one.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub label_selector: BTreeMap<String, String>,
    /// Label of the nodes whose value names the domain. A node without it is a domain of its own.
    pub topology_key: String,
}

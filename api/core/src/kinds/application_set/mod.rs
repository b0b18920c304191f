//! ApplicationSet: Applications that belong together, kept as one.

mod columns;
mod entry;
mod expand;
mod validate;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use expand::{Child, ExpandError, Expansion, MAX_CHILDREN, RenderedService, SpreadNode, expand};

use super::application::{ApplicationSpec, EnvVar, VolumeMount};
use super::meta::{Condition, ObjectMeta};
use super::null_as_default;
use crate::time::Time;

/// Label of what a set makes: the name of the set.
pub const SET_LABEL: &str = "horchestra.io/application-set";
/// Label of what a set makes: the name of the component.
pub const COMPONENT_LABEL: &str = "horchestra.io/component";
/// Annotation of a child: the digest of the spec that the set rendered.
pub const HASH_ANNOTATION: &str = "horchestra.io/appset-spec-hash";
/// Finalizer of a set: its children must be gone first.
pub const CHILD_TEARDOWN_FINALIZER: &str = "horchestra.io/child-teardown";

/// Whether the set could be expanded.
pub const CONDITION_RENDERED: &str = "Rendered";
/// Whether the children are as the set says.
pub const CONDITION_CONVERGED: &str = "Converged";
/// Whether the components that run to their end have done so.
pub const CONDITION_INITIALIZED: &str = "Initialized";
/// Whether everything that the set makes could be stored.
pub const CONDITION_APPLIED: &str = "Applied";
/// Whether enough children are available.
pub const CONDITION_AVAILABLE: &str = "Available";
/// Whether a change of the set gets through to its children.
pub const CONDITION_PROGRESSING: &str = "Progressing";

/// An ApplicationSet is a list of components that are run and rolled out together: each is an Application
/// spelled out in full, of which the set makes one child, several numbered ones, or one on each of several
/// nodes. Components that run to their end (`restartPolicy: Never`) come first, one after the other, before
/// anything that is kept running. For a component with ports the set also makes a Service. What the set has
/// made is changed through the set alone, and goes with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationSet {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// What the set is made of.
    pub spec: ApplicationSetSpec,
    /// How far the set has come.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: ApplicationSetStatus,
}

/// What a set is made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationSetSpec {
    /// The components, at least one. Together they may make up to 500 children.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub applications: Vec<Component>,
    /// What every child gets besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub common: Option<Common>,
    /// Where the children run in relation to each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<SetPlacement>,
    /// How changes reach the children.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Whether the control plane leaves the children as they are. Set and cleared by the `freeze` and `thaw`
    /// actions; other writes keep the stored value.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
}

/// One component of a set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// Name of the component, unique in the set: lower-case letters, digits and `-`, beginning and ending
    /// with a letter or digit. Children are called `<set>-<component>`, with a number or the name of a node
    /// behind it where the component has a `scale`.
    pub name: String,
    /// Labels and annotations of the children. They win over those in `spec.common`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ComponentMetadata>,
    /// The Application.
    pub spec: ApplicationSpec,
    /// How many children there are. Absent: one, without a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Scale>,
}

/// Labels and annotations of the children of a component.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ComponentMetadata {
    /// Labels. The two under `horchestra.io/` that mark children are set by the set.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// How many children a component has: a number of them, or one on each of several nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Scale {
    /// Number of children, at least 1, which are numbered from 0. Not together with `nodeSpread`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub replicas: Option<i32>,
    /// One child on each matching node, whatever its state. The component must not name a node itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_spread: Option<NodeSpread>,
}

/// The nodes that get a child.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSpread {
    /// Labels that a node must have, all of them. Empty: every node.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
}

/// What every child of a set gets besides what its component says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Common {
    /// Labels, where the component has none of the same key.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, where the component has none of the same key.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Environment variables, behind those of the component, where it has none of the same name.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Volumes, where the component mounts nothing at the same path.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"]))]
    pub volumes: Vec<VolumeMount>,
}

/// Where the children of a set run in relation to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SetPlacement {
    /// Empty: each child is placed on its own. `sameNode`: all of them on the node on which the first one is
    /// placed; not together with a component that is spread over nodes.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "PlacementMode::is_unset")]
    pub mode: PlacementMode,
}

/// How the places of children depend on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum PlacementMode {
    #[default]
    #[serde(rename = "")]
    Unset,
    #[serde(rename = "sameNode")]
    SameNode,
}

impl PlacementMode {
    fn is_unset(&self) -> bool {
        *self == PlacementMode::Unset
    }
}

/// How changes of a set reach its children.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rollout {
    /// How many children may be unavailable because of an update at the same time. Children that are down
    /// anyway are updated at once. 0 or absent: any number.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub max_unavailable: i32,
    /// Whether children and Services that the set does not say any more are deleted. Absent: `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prune: Option<bool>,
    /// Whether children stay as they are for the time being. New ones are made, and those that the set does
    /// not say any more go, all the same.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Seconds that a child must have been running before it counts as available. 0 or absent: none.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: i32,
    /// Seconds without any progress after which the condition `Progressing` becomes `False`; nothing is undone.
    /// More than `minReadySeconds`. Absent: any time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: Option<i32>,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

fn is_none(count: &i64) -> bool {
    *count == 0
}

/// How far a set has come. Components that run to their end are not counted, only listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationSetStatus {
    /// `Ready`, `Progressing`, `Terminating`, `Frozen`, or the reason why it does not go on: `RenderError`,
    /// `NameConflict`, `Refused`, `AwaitingAnchor`, `RolloutPaused`, `RolloutHeld`, `Initializing`, `InitFailed`,
    /// `ProgressDeadlineExceeded`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Not used.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub observed_resource_version: String,
    /// Children that there should be.
    #[serde(default, deserialize_with = "null_as_default")]
    pub desired: i64,
    /// Children that there are.
    #[serde(default, deserialize_with = "null_as_default")]
    pub current: i64,
    /// Children that have a node.
    #[serde(default, deserialize_with = "null_as_default")]
    pub scheduled: i64,
    /// Children that run what they were last told, on a node that is ready.
    #[serde(default, deserialize_with = "null_as_default")]
    pub running: i64,
    /// Children that are as the set says now, whether they run yet or not.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_none")]
    pub updated: i64,
    /// Children that have been running for long enough to count on.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_none")]
    pub available: i64,
    /// When a rollout with a deadline last got on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_progress_time: Option<Time>,
    /// The children one by one.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub children: Vec<ChildStatus>,
    /// Verdicts about the set: `Rendered`, `Applied`, `Converged`, `Initialized`, `Available`, `Progressing`
    /// and others.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How far one child has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChildStatus {
    /// Name of the Application.
    pub name: String,
    /// The node that it is bound to.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// `Pending`, `Scheduled` or `Running`; of a component that runs to its end the phase of the
    /// Application.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub phase: String,
}

impl ApplicationSetSpec {
    /// Whether all children go to one node.
    pub fn same_node(&self) -> bool {
        self.placement.as_ref().is_some_and(|placement| placement.mode == PlacementMode::SameNode)
    }

    /// How many children an update may take down at the same time; `None` for any number.
    pub fn max_unavailable(&self) -> Option<usize> {
        let most = self.rollout.as_ref().map_or(0, |rollout| rollout.max_unavailable);
        usize::try_from(most).ok().filter(|most| *most > 0)
    }

    /// How changes reach the children.
    pub fn rollout(&self) -> Rollout {
        self.rollout.clone().unwrap_or_default()
    }

    /// Whether what the set does not say any more is deleted.
    pub fn prunes(&self) -> bool {
        self.rollout.as_ref().and_then(|rollout| rollout.prune).unwrap_or(true)
    }
}

impl Component {
    /// Whether the component runs to its end and everything that is kept running waits for it.
    pub fn is_init(&self) -> bool {
        self.spec.is_job()
    }

    pub fn node_spread(&self) -> Option<&NodeSpread> {
        self.scale.as_ref()?.node_spread.as_ref()
    }

    pub fn replicas(&self) -> Option<i32> {
        self.scale.as_ref()?.replicas
    }

    /// Whether the set makes a Service for the component.
    pub fn has_rendered_service(&self) -> bool {
        !self.spec.ports.is_empty() && self.spec.service_name.is_empty() && !self.is_init()
    }
}

pub(crate) use entry::SPEC;

//! PersistentVolume: a folder on the disk of one node that outlives the workloads which mount it.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::meta::ObjectMeta;
use super::null_as_default;
use crate::kind::Kind;
use crate::quantity::Quantity;
use crate::registry::{KindSpec, Selectable};
use crate::schema::{self, Schema};
use crate::table::{AGE, Column, NAME, text_at};

/// A PersistentVolume is a folder on the disk of one node. It keeps its content when the Applications that
/// mount it come and go, and Applications that mount it run on its node. It is made by hand, or by the
/// scheduler for an Application that names one which does not exist. It cannot be deleted while an
/// Application of its namespace mounts it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PersistentVolume {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// What the volume is like and where it lies.
    pub spec: PersistentVolumeSpec,
}

/// What the volume is like and where it lies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-numeric-guard" = true))]
pub struct PersistentVolumeSpec {
    /// How large the volume is meant to be, such as `10Gi`. For people and for planning: nothing enforces
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// The node on whose disk the volume lies. Absent: the scheduler fills it in with the node of the first
    /// Application that mounts the volume. Whether there is such a node is not checked.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Permission bits of the folder when it is made, as octal digits in a text, such as `"0750"`. The node
    /// keeps the bits of owner and group and the sticky bit; what it cannot read means `0770`. A workload
    /// that mounts the volume is given access through its group, which changes the bits.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// What becomes of the content when the volume is deleted. `Delete`: it is removed. `Retain`: it stays
    /// on the node. Absent: `Delete`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_policy: Option<ReclaimPolicy>,
    /// Whether several Applications may mount the volume at the same time. Otherwise the first one that
    /// mounts it has it for itself. Cannot be taken back while more than one mounts it.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// What becomes of the content of a deleted volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ReclaimPolicy {
    #[default]
    Delete,
    Retain,
}

impl PersistentVolume {
    pub fn reclaim_policy(&self) -> ReclaimPolicy {
        self.spec.reclaim_policy.unwrap_or_default()
    }
}

/// Empty texts mean the same as none, and node agents cannot read them.
fn defaults(object: &mut Map<String, Value>) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        for member in ["node", "mode"] {
            if spec.get(member).and_then(Value::as_str) == Some("") {
                spec.remove(member);
            }
        }
    }
}

const COLUMNS: &[Column] = &[
    NAME,
    Column::text("SIZE", "How large the volume is meant to be.", |object, _| {
        text_at(object, &["spec", "size"])
    }),
    Column::text("NODE", "Node on whose disk the volume lies.", |object, _| {
        text_at(object, &["spec", "node"])
    }),
    AGE,
];

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<PersistentVolume>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["pv"],
    columns: COLUMNS,
    selectable: &[Selectable { field: "spec.node", path: &["spec", "node"], absent: "" }],
    defaults,
    ..KindSpec::base(Kind::PersistentVolume, "persistentvolume", "PersistentVolumeList", schema)
};

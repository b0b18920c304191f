//! Node: a machine that runs workloads, as its agent reports it and as operators label it.

use std::sync::LazyLock;

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::meta::{Condition, ConditionStatus, ObjectMeta, condition};
use super::null_as_default;
use crate::kind::Kind;
use crate::object::Object;
use crate::quantity::Quantity;
use crate::registry::{Facts, KindSpec, Selectable};
use crate::schema::{self, Schema};
use crate::table::{AGE, Column, NAME, text_at};
use crate::time::Time;

/// Labels under this prefix are derived from the node's report, never written by operators.
pub const RESERVED_LABEL_PREFIX: &str = "horchestra.io/";
pub const LABEL_HOSTNAME: &str = "horchestra.io/hostname";
pub const LABEL_OS: &str = "horchestra.io/os";
pub const LABEL_ARCH: &str = "horchestra.io/arch";

/// Condition set by the one judge of readiness.
pub const CONDITION_READY: &str = "Ready";
/// Reason of an unknown readiness that has been unknown for so long that nobody should count on the node.
pub const REASON_LOST: &str = "NodeLost";
/// Condition that says whether the node is sent desired state.
pub const CONDITION_ADMITTED: &str = "Admitted";

/// Condition that is there while nothing is sent to the node until an operator admits it.
pub const CONDITION_HELD: &str = "Held";

/// A Node is a machine that runs workloads. Its agent registers it, cordoned; an operator uncordons it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Standard metadata of the object. Labels that begin with `horchestra.io/` are reserved.
    pub metadata: ObjectMeta,
    /// What operators want of the node.
    pub spec: NodeSpec,
    /// What the node reports and what the control plane makes of it.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: NodeStatus,
}

/// What operators want of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSpec {
    /// Whether the node takes no new workloads. What runs on it stays.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub unschedulable: bool,
}

/// What a node reports, and what the control plane makes of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// What the machine has for workloads.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(required)]
    pub capacity: ResourceList,
    /// What the workloads on the node have asked for.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(required)]
    pub allocated: ResourceList,
    /// Distribution, kernel and architecture, for people.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub os: String,
    /// Address from which the node reaches the control plane.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Whether the node says of itself that it is ready. The verdict is the condition `Ready`.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(required)]
    pub ready: bool,
    /// When the control plane last heard of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Time>,
    /// Runtime classes that the node offers.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub runtimes: Vec<String>,
    /// Operating system and processor architecture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Whether the node can give a workload a network of its own.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub routed_network: bool,
    /// Labels that the control plane derives from the report; they win over labels of the same key in the
    /// metadata.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Verdicts about the node: `Ready`, `Admitted` and, while there is one, `Held`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Amounts of CPU and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-numeric-guard" = true))]
pub struct ResourceList {
    /// Processor cores: `2`, or `250m` for a quarter of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Bytes of memory: `512Mi`, `2Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

impl ResourceList {
    /// Zero when absent.
    pub fn cpu(&self) -> Quantity {
        self.cpu.unwrap_or_default()
    }

    /// Zero when absent.
    pub fn memory(&self) -> Quantity {
        self.memory.unwrap_or_default()
    }
}

/// Operating system and processor architecture of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Platform {
    /// Operating system, such as `linux`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub os: String,
    /// Processor architecture, such as `amd64`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub arch: String,
}

impl Node {
    /// The verdict `Ready`, `None` while nobody has judged the node.
    pub fn ready(&self) -> Option<ConditionStatus> {
        condition(&self.status.conditions, CONDITION_READY).map(|condition| condition.status)
    }

    /// Whether the node has been silent for long.
    pub fn is_lost(&self) -> bool {
        condition(&self.status.conditions, CONDITION_READY).is_some_and(|condition| {
            condition.status == ConditionStatus::Unknown && condition.reason == REASON_LOST
        })
    }

    /// Whether the node has been admitted.
    pub fn admitted(&self) -> bool {
        condition(&self.status.conditions, CONDITION_ADMITTED)
            .is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    /// Whether nothing is sent to it until an operator admits it.
    pub fn held(&self) -> bool {
        condition(&self.status.conditions, CONDITION_HELD)
            .is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    /// The labels that placement looks at: the operator's, overlaid by the derived ones.
    pub fn scheduling_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.metadata.labels.clone();
        labels.extend(self.status.labels.iter().map(|(key, value)| (key.clone(), value.clone())));
        labels
    }
}

/// The labels that the control plane derives from a report.
pub fn derived_labels(name: &str, platform: Option<&Platform>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([(LABEL_HOSTNAME.to_owned(), name.to_owned())]);
    if let Some(platform) = platform {
        for (key, value) in [(LABEL_OS, &platform.os), (LABEL_ARCH, &platform.arch)] {
            if !value.is_empty() {
                labels.insert(key.to_owned(), value.clone());
            }
        }
    }
    labels
}

fn facts(object: &Object) -> Facts {
    let Ok(node) = object.read::<Node>() else { return Facts::default() };
    Facts {
        node: String::new(),
        phase: String::new(),
        cpu_nano: node.status.capacity.cpu().nano(),
        memory_bytes: node.status.capacity.memory().int(),
    }
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<Node>);
    &SCHEMA
}

const COLUMNS: &[Column] = &[
    NAME,
    Column::text("Status", "Ready or NotReady, as the control plane judges the node.", |object, now| {
        let ready = if is_ready(object, now) { "Ready" } else { "NotReady" };
        Value::from(format!("{ready}{}", held_suffix(object)))
    }),
    Column::text(
        "CPU",
        "Cores asked for by the workloads on the node, and cores that it has.",
        |object, _| {
            let amount = |of: &str| amount(object, of, "cpu");
            Value::from(format!("{}/{}", amount("allocated"), amount("capacity")))
        },
    ),
    Column::text(
        "MEM",
        "Memory asked for by the workloads on the node, and memory that it has.",
        |object, _| {
            let amount = |of: &str| gibibytes(amount(object, of, "memory"));
            Value::from(format!("{}/{}Gi", amount("allocated"), amount("capacity")))
        },
    ),
    Column::wide("IP", "Address of the node.", |object, _| text_at(object, &["status", "ip"])),
    Column::wide("OS", "Operating system of the node.", |object, _| text_at(object, &["status", "os"])),
    AGE,
];

/// What the status of a node that is held ends with.
pub(crate) fn held_suffix(object: &Object) -> &'static str {
    let conditions = object.at(&["status", "conditions"]).and_then(Value::as_array);
    let held = |condition: &Value| condition["type"] == CONDITION_HELD && condition["status"] == "True";
    if conditions.into_iter().flatten().any(held) { ",Held" } else { "" }
}

/// Seconds after which a node that nobody has judged yet counts as silent.
const UNJUDGED_TIMEOUT: i64 = 45;

/// The verdict of the condition `Ready`; of a node without one, whether it says it is ready and was heard of
/// lately.
pub fn is_ready(object: &Object, now: Timestamp) -> bool {
    let conditions = object.at(&["status", "conditions"]).and_then(Value::as_array);
    let verdict = conditions.into_iter().flatten().find(|condition| condition["type"] == CONDITION_READY);
    if let Some(verdict) = verdict {
        return verdict["status"] == "True";
    }
    let heard = object.str_at(&["status", "heartbeat"]).parse::<Timestamp>();
    object.at(&["status", "ready"]) == Some(&Value::Bool(true))
        && heard.is_ok_and(|heard| now.as_second() - heard.as_second() <= UNJUDGED_TIMEOUT)
}

/// An amount in the status of a node; zero when it is missing or no quantity.
fn amount(object: &Object, of: &str, resource: &str) -> Quantity {
    match object.at(&["status", of, resource]) {
        Some(value) => serde_json::from_value(value.clone()).unwrap_or_default(),
        None => Quantity::ZERO,
    }
}

/// Whole numbers without a fraction, everything else with one digit of it.
fn gibibytes(amount: Quantity) -> String {
    const GIB: i64 = 1 << 30;
    let bytes = amount.int();
    if bytes % GIB == 0 {
        (bytes / GIB).to_string()
    } else {
        #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
        let gib = bytes as f64 / GIB as f64;
        format!("{gib:.1}")
    }
}

/// A status that somebody began (a verdict on a node that never reported, say) is completed with what a
/// report always has.
fn defaults(object: &mut Map<String, Value>) {
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        for member in ["allocated", "capacity"] {
            status.entry(member).or_insert_with(|| Value::Object(Map::new()));
        }
        status.entry("ready").or_insert(Value::Bool(false));
    }
}

pub(crate) static SPEC: KindSpec = KindSpec {
    defaults,
    short_names: &["no"],
    columns: COLUMNS,
    selectable: &[Selectable {
        field: "spec.unschedulable",
        path: &["spec", "unschedulable"],
        absent: "false",
    }],
    facts,
    ..KindSpec::base(Kind::Node, "node", "NodeList", schema)
};

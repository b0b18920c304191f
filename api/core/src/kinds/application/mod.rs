//! Application: one process on one node.

mod columns;
mod entry;
mod oddities;
mod placement;
mod validate;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use columns::{address, status};
pub use placement::*;
pub use validate::{MAX_ENV, MAX_VOLUMES, env_faults, exec_faults, process_faults, violations};
pub use volumes::*;

use super::meta::{Condition, ConditionStatus, ObjectMeta, condition};
use super::node::ResourceList;
use super::null_as_default;
use crate::quantity::Quantity;
use crate::time::Time;

/// Finalizer of a placed Application: its node must let go of it first.
pub const NODE_TEARDOWN_FINALIZER: &str = "horchestra.io/node-teardown";
/// Condition set by the scheduler.
pub const CONDITION_SCHEDULED: &str = "Scheduled";
/// Condition set from the node's report.
pub const CONDITION_READY: &str = "Ready";
/// Condition that says how far freezing has come.
pub const CONDITION_FROZEN: &str = "Frozen";

/// An Application is one process that runs on one node: a service that is kept running, or a job that runs
/// to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Application {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// What is to run, and how.
    pub spec: ApplicationSpec,
    /// What the node reports of the workload, and what the control plane makes of it.
    #[serde(default, deserialize_with = "null_as_default")]
    pub status: ApplicationStatus,
}

/// What is to run, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationSpec {
    /// Reference of the container image, with a tag or a digest.
    #[schemars(length(min = 1))]
    pub image: String,
    /// Program and first arguments, taken literally: no shell, no interpolation. Absent: the image's
    /// entrypoint. Setting it also drops the image's default arguments.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub command: Vec<String>,
    /// Arguments after the command, taken literally. Absent: the image's default arguments.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub args: Vec<String>,
    /// Environment variables, after those of the image and in this order. At most 256.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = MAX_ENV),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub env: Vec<EnvVar>,
    /// Ports that the workload listens on: a declaration for the service catalog, without effect on the
    /// node.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["port"]))]
    pub ports: Vec<ApplicationPort>,
    /// CPU and memory that the workload is counted with and held to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Whether the workload is a service or a job, and how it is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Where the workload runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// `true` or absent: the workload uses the node's network. `false`: it gets a network and an address of
    /// its own, on nodes that can give one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
    /// Service of the same namespace that the workload is a member of. The Service must exist.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub service_name: String,
    /// Runtime class to run under. Only nodes that offer it are considered. Absent: the node's default.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub runtime_class_name: String,
    /// User and group that the process runs as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<SecurityContext>,
    /// What is mounted into the workload's file system. At most 64.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = MAX_VOLUMES),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["mountPath"])
    )]
    pub volumes: Vec<VolumeMount>,
    /// Anything the author wants to keep with the workload. The control plane does not look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::free_form", extend("x-kubernetes-map-type" = "atomic"))]
    pub values: Option<serde_json::Map<String, serde_json::Value>>,
    /// Whether the control plane leaves the workload as it is. Set and cleared by the `freeze` and `thaw`
    /// actions; other writes keep the stored value.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
}

/// One environment variable, or all keys of one Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnvVar {
    /// Name of the variable: letters, digits and `_`, not beginning with a digit. Left out exactly when
    /// `secretRef.key` is `*`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Literal value, without line breaks. Not together with `secretRef`.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Takes the value from a Secret of the same namespace, when the process starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretEnvSource>,
}

/// Where in a Secret the value of a variable lies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretEnvSource {
    /// Name of the Secret.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Key in the Secret; `*` makes one variable of every key.
    #[schemars(length(min = 1))]
    pub key: String,
    /// Put before the key to name the variable, with `*` only.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Whether the workload starts without the variable when Secret or key is missing. Otherwise it waits,
    /// and the Secret must exist when the Application is written.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// A port that the workload listens on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApplicationPort {
    /// Name of the port, free text.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Number of the port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i64,
}

/// CPU and memory that the workload is counted with and held to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Resources {
    /// What is set aside on the node. Zero or absent: the limit counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceList>,
    /// What the node enforces: memory as a hard cap, CPU as a quota. Zero or absent: no cap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
}

/// Whether the workload is a service or a job, and how it is stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Lifecycle {
    /// `Always` and `OnFailure` make a service, which is kept running; `Never` makes a job, which runs to
    /// its end.
    #[schemars(extend("x-default" = "Always"))]
    #[serde(deserialize_with = "null_as_default")]
    pub restart_policy: RestartPolicy,
    /// Seconds between asking the process to stop and killing it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("x-default" = 30))]
    pub termination_grace_period_seconds: Option<i64>,
    /// Seconds that a job may take from start to exit. Absent: any time. Jobs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,
    /// How often a failed job is run again. Absent: not at all. Jobs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub backoff_limit: Option<i32>,
}

/// What happens when the process ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum RestartPolicy {
    #[default]
    Always,
    OnFailure,
    Never,
}

/// User and group that the process runs as. Everything else about confinement is fixed: no new privileges,
/// no capabilities, a read-only root file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityContext {
    /// User id, within the block of the namespace. Absent: the lowest free one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as_user: Option<i64>,
    /// Group id, within the block of the namespace. Absent: the first id of the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as_group: Option<i64>,
}

/// What the node reports of the workload, and what the control plane makes of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ApplicationStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Terminating`, `Terminated` or `Frozen`. Absent: not
    /// reported yet.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Why the workload is not placed, or why it failed.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The generation that the node runs.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    pub observed_generation: i64,
    /// Address of a running workload that has a network of its own, with prefix length.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    pub address: String,
    /// Exit code of the last run of a job that has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// When a job ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// How often a job has been started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i32>,
    /// Verdicts about the workload: `Scheduled`, `Ready` and others.
    #[serde(deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Application {
    /// The node that the Application is bound to; empty when it is not.
    pub fn node_name(&self) -> &str {
        self.spec.placement.as_ref().map_or("", |placement| &placement.node_name)
    }

    /// Whether it runs to its end instead of being kept running.
    pub fn is_job(&self) -> bool {
        self.spec.is_job()
    }

    /// Names of the PersistentVolumes that are mounted, each once, in byte order. A volume without a name is
    /// called like the Application.
    pub fn volume_names(&self) -> BTreeSet<&str> {
        self.volume_mounts().collect()
    }

    /// Whether the PersistentVolume of this name is mounted.
    pub fn mounts(&self, volume: &str) -> bool {
        self.volume_mounts().any(|name| name == volume)
    }

    fn volume_mounts(&self) -> impl Iterator<Item = &str> {
        let own = self.metadata.name.as_str();
        let volumes = self.spec.volumes.iter().map(|mount| &mount.volume);
        volumes
            .filter(|volume| volume.type_ == VolumeType::Pv)
            .map(move |volume| if volume.name.is_empty() { own } else { volume.name.as_str() })
    }

    /// Whether what the status reports is an end: success, or a failed job without retries left.
    pub fn is_terminal(&self) -> bool {
        match self.status.phase.as_str() {
            "Succeeded" => true,
            "Failed" => self.is_job() && self.status.attempts.unwrap_or(0).max(1) > self.spec.retries(),
            _ => false,
        }
    }

    /// Whether this very generation has come to its end. Such an Application takes no capacity and is not
    /// sent to its node.
    pub fn is_finished(&self) -> bool {
        self.is_terminal() && self.status.observed_generation == self.metadata.generation
    }

    /// The condition `Ready` holds.
    pub fn is_ready(&self) -> bool {
        condition(&self.status.conditions, CONDITION_READY)
            .is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    /// What it counts with in capacity sums: nothing once finished.
    pub fn counted_request(&self) -> Amounts {
        if self.is_finished() { Amounts::default() } else { self.spec.effective_request() }
    }
}

impl ApplicationSpec {
    pub fn is_job(&self) -> bool {
        self.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.restart_policy == RestartPolicy::Never)
    }

    /// How often a failed job is run again.
    pub fn retries(&self) -> i32 {
        self.lifecycle.as_ref().and_then(|lifecycle| lifecycle.backoff_limit).unwrap_or(0).max(0)
    }

    /// Per resource the request, or the limit where the request is zero or absent.
    pub fn effective_request(&self) -> Amounts {
        let Some(resources) = &self.resources else { return Amounts::default() };
        let of = |pick: fn(&ResourceList) -> Quantity| {
            let request = resources.requests.as_ref().map(pick).unwrap_or_default();
            if request.is_zero() { resources.limits.as_ref().map(pick).unwrap_or_default() } else { request }
        };
        Amounts { cpu: of(ResourceList::cpu), memory: of(ResourceList::memory) }
    }

    /// Names of the Secrets that are read, with whether the workload starts without them. A Secret that is
    /// needed in one place and optional in another is needed.
    pub fn secrets(&self) -> BTreeMap<&str, bool> {
        let from_env = self
            .env
            .iter()
            .filter_map(|env| env.secret_ref.as_ref().map(|secret| (secret.name.as_str(), secret.optional)));
        let from_volumes = self
            .volumes
            .iter()
            .filter(|mount| mount.volume.type_ == VolumeType::Secret)
            .map(|mount| (mount.volume.name.as_str(), mount.volume.optional));
        let mut secrets = BTreeMap::new();
        for (name, optional) in from_env.chain(from_volumes).filter(|(name, _)| !name.is_empty()) {
            *secrets.entry(name).or_insert(true) &= optional;
        }
        secrets
    }
}

/// CPU and memory together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Cores.
    pub cpu: Quantity,
    /// Bytes.
    pub memory: Quantity,
}

impl Amounts {
    pub fn of(list: &ResourceList) -> Amounts {
        Amounts { cpu: list.cpu(), memory: list.memory() }
    }

    #[must_use]
    pub fn plus(&self, other: &Amounts) -> Amounts {
        Amounts { cpu: self.cpu.plus(&other.cpu), memory: self.memory.plus(&other.memory) }
    }
}

/// Whether a used amount is more than there is. A capacity of zero means "not reported": it counts as
/// boundless when `zero_unconstrained` (admission), as room for nothing otherwise (the scheduler).
pub fn over(used: &Quantity, capacity: &Quantity, zero_unconstrained: bool) -> bool {
    if capacity.is_zero() { !zero_unconstrained && !used.is_zero() } else { used > capacity }
}

pub(crate) use entry::{SPEC, spec_defaults, volume_defaults};
pub(crate) use oddities::volume_oddities;

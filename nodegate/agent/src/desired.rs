//! What a push says, read the way deployed agents read it.
//!
//! Reading is lenient where those agents are and strict where they are: unknown
//! keys are ignored, the case of keys does not matter, null means absent, the last
//! of several equal keys wins. But a member of the wrong type, or a number that is
//! absurdly written, makes the whole element unreadable, and an unreadable element
//! is skipped without a word. What is skipped is not wanted, so a gateway that
//! sends such an element has its workload torn down; nothing here softens that.
//!
//! Elements are judged one by one: a bad one never spoils its neighbours.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use horchestra_core::quantity::Quantity;
use horchestra_proto::netd::v1::{Route, ServiceRule};
use horchestra_proto::node::v1::DesiredState;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::lenient::{
    Object, Read, Unreadable, flag, guard, id, object, objects, parse, quantity, section, small, text, texts,
    whole,
};

/// When a workload is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RestartPolicy {
    /// Whenever it ends.
    #[default]
    Always,
    /// When it fails.
    OnFailure,
    /// It is a job: only as often as its budget says.
    Never,
}

/// CPU and memory; zero where nothing was said.
#[derive(Debug, Clone, Copy, Default)]
pub struct Amounts {
    /// Cores.
    pub cpu: Quantity,
    /// Bytes.
    pub memory: Quantity,
}

impl Amounts {
    /// Both, added up.
    pub fn plus(&self, other: &Amounts) -> Amounts {
        Amounts { cpu: self.cpu.plus(&other.cpu), memory: self.memory.plus(&other.memory) }
    }
}

/// One variable, or several from a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Env {
    /// Name and value as written.
    Literal(String, String),
    /// One key of a Secret.
    Key {
        /// Variable.
        name: String,
        /// Secret.
        secret: String,
        /// Key in it.
        key: String,
        /// Absence is fine.
        optional: bool,
    },
    /// Every key of a Secret.
    All {
        /// Secret.
        secret: String,
        /// Put before each key.
        prefix: String,
        /// Absence is fine.
        optional: bool,
    },
}

/// What is mounted where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Absolute path in the eyes of the workload.
    pub path: String,
    /// What.
    pub source: Source,
}

/// What a mount shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A PersistentVolume of the same namespace.
    Volume {
        /// Its name.
        name: String,
        /// Path inside it.
        sub_path: String,
    },
    /// Scratch space.
    Scratch,
    /// Files with the keys of a Secret.
    Secret {
        /// Its name.
        name: String,
        /// Key and relative path; empty = all keys under their own names.
        items: Vec<(String, String)>,
        /// Absence is fine.
        optional: bool,
    },
    /// A token for this audience.
    Token {
        /// Whom the token is for.
        audience: String,
    },
}

/// An Application that this node should run, or stop.
#[derive(Debug, Clone)]
pub struct App {
    /// metadata.uid.
    pub uid: Uuid,
    /// metadata.namespace.
    pub namespace: String,
    /// metadata.name.
    pub name: String,
    /// metadata.generation.
    pub generation: i64,
    /// It carries a deletion timestamp.
    pub deleting: bool,
    /// status.attempts as the control plane knows it.
    pub pushed_attempts: i32,
    /// spec.image.
    pub image: String,
    /// spec.command.
    pub command: Vec<String>,
    /// spec.args.
    pub args: Vec<String>,
    /// spec.env.
    pub env: Vec<Env>,
    /// spec.volumes.
    pub mounts: Vec<Mount>,
    /// Requests, or limits where no request was made.
    pub effective: Amounts,
    /// spec.resources.limits.
    pub limits: Amounts,
    /// spec.lifecycle.restartPolicy.
    pub restart: RestartPolicy,
    /// spec.lifecycle.terminationGracePeriodSeconds as written; `None` when absent.
    pub grace_seconds: Option<i64>,
    /// spec.lifecycle.activeDeadlineSeconds.
    pub deadline_seconds: Option<u64>,
    /// Retries that a job has.
    pub backoff_limit: i32,
    /// It has a network of its own.
    pub isolated: bool,
    /// spec.securityContext.runAsUser.
    pub user: Option<u32>,
    /// spec.securityContext.runAsGroup.
    pub group: Option<u32>,
    /// spec.frozen.
    pub frozen: bool,
}

impl App {
    /// A run-to-completion workload.
    pub fn is_job(&self) -> bool {
        self.restart == RestartPolicy::Never
    }
}

/// A volume of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// `<namespace>_<name>`.
    pub id: String,
    /// Data outlives the object.
    pub retain: bool,
}

/// What a Secret holds, by key.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// A push, read.
#[derive(Default)]
pub struct Desired {
    /// Applications of this node.
    pub apps: Vec<Arc<App>>,
    /// Volumes of this node.
    pub volumes: Vec<Volume>,
    /// Ids of all volumes anywhere.
    pub volume_ids: HashSet<String>,
    /// Data of each Secret, by namespace and name.
    pub secrets: HashMap<(String, String), SecretData>,
    /// Address of each workload that has its own network.
    pub addresses: HashMap<Uuid, String>,
    /// Token by workload and audience.
    pub tokens: HashMap<(Uuid, String), String>,
    /// Where workloads of all nodes are, as sent.
    pub routes: Vec<Route>,
    /// What is behind the addresses of Services, as sent.
    pub services: Vec<ServiceRule>,
}

impl std::fmt::Debug for Desired {
    /// Without what is secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desired")
            .field("apps", &self.apps)
            .field("volumes", &self.volumes)
            .field("secrets", &self.secrets.keys())
            .field("tokens", &self.tokens.keys())
            .finish_non_exhaustive()
    }
}

/// The identity of a volume on a node.
pub fn volume_id(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}_{name}") }
}

impl Desired {
    /// Reads a push for the node of this name.
    pub fn read(state: &DesiredState, node: &str) -> Self {
        let mut desired = Desired::default();
        for body in &state.applications {
            match parse(body).and_then(|object| read_app(&object, node)) {
                Ok(Some(app)) => desired.apps.push(Arc::new(app)),
                Ok(None) => {}
                Err(Unreadable) => tracing::debug!("skipped an application that does not decode"),
            }
        }
        for body in &state.persistent_volumes {
            let Ok((volume, own)) = parse(body).and_then(|object| read_volume(&object, node)) else {
                continue;
            };
            desired.volume_ids.insert(volume.id.clone());
            if own {
                desired.volumes.push(volume);
            }
        }
        for body in &state.secrets {
            let Ok((key, data)) = parse(body).and_then(|object| read_secret(&object)) else { continue };
            desired.secrets.insert(key, data);
        }
        for network in &state.workload_networks {
            if let Ok(uid) = Uuid::parse_str(&network.workload) {
                desired.addresses.insert(uid, network.address.clone());
            }
        }
        for token in &state.workload_tokens {
            if let Ok(uid) = Uuid::parse_str(&token.workload) {
                desired.tokens.insert((uid, token.audience.clone()), token.token.clone());
            }
        }
        desired.routes.clone_from(&state.routes);
        desired.services.clone_from(&state.services);
        desired
    }
}

fn read_app(object: &Object, node: &str) -> Read<Option<App>> {
    let metadata = section(object, "metadata")?;
    let spec = section(object, "spec")?;
    let status = section(object, "status")?;
    let lifecycle = section(spec, "lifecycle")?;
    let security = section(spec, "securityContext")?;
    let resources = section(spec, "resources")?;

    let name = text(metadata, "name")?;
    let requests = amounts(section(resources, "requests")?)?;
    let limits = amounts(section(resources, "limits")?)?;
    let uid = text(metadata, "uid")?;
    let app = App {
        uid: Uuid::nil(),
        namespace: text(metadata, "namespace")?,
        generation: whole(metadata, "generation")?.unwrap_or(0),
        deleting: !text(metadata, "deletionTimestamp")?.is_empty(),
        pushed_attempts: small(status, "attempts")?.unwrap_or(0),
        image: text(spec, "image")?,
        command: texts(spec, "command")?,
        args: texts(spec, "args")?,
        env: objects(spec, "env")?.into_iter().map(read_env).collect::<Read<_>>()?,
        mounts: objects(spec, "volumes")?
            .into_iter()
            .map(|mount| read_mount(mount, &name))
            .collect::<Read<_>>()?,
        effective: Amounts {
            cpu: if requests.cpu.is_zero() { limits.cpu } else { requests.cpu },
            memory: if requests.memory.is_zero() { limits.memory } else { requests.memory },
        },
        limits,
        restart: match text(lifecycle, "restartPolicy")?.as_str() {
            "Never" => RestartPolicy::Never,
            "OnFailure" => RestartPolicy::OnFailure,
            _ => RestartPolicy::Always,
        },
        grace_seconds: whole(lifecycle, "terminationGracePeriodSeconds")?,
        deadline_seconds: whole(lifecycle, "activeDeadlineSeconds")?
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|seconds| *seconds > 0),
        backoff_limit: small(lifecycle, "backoffLimit")?.unwrap_or(0).max(0),
        isolated: flag(spec, "hostNetwork")? == Some(false),
        user: id(security, "runAsUser")?,
        group: id(security, "runAsGroup")?,
        frozen: flag(spec, "frozen")?.unwrap_or(false),
        name,
    };
    if text(section(spec, "placement")?, "nodeName")? != node {
        return Ok(None);
    }
    match Uuid::parse_str(&uid) {
        Ok(parsed) if uid.len() == 36 => Ok(Some(App { uid: parsed, ..app })),
        _ => {
            tracing::warn!(
                namespace = app.namespace,
                name = app.name,
                uid,
                "ignored an application without a uid"
            );
            Ok(None)
        }
    }
}

fn amounts(parent: &Object) -> Read<Amounts> {
    guard(parent)?;
    Ok(Amounts { cpu: quantity(parent, "cpu")?, memory: quantity(parent, "memory")? })
}

fn read_env(entry: &Object) -> Read<Env> {
    let name = text(entry, "name")?;
    let Some(reference) = object(entry, "secretRef")? else {
        return Ok(Env::Literal(name, text(entry, "value")?));
    };
    let secret = text(reference, "name")?;
    let key = text(reference, "key")?;
    let optional = flag(reference, "optional")?.unwrap_or(false);
    if key == "*" {
        return Ok(Env::All { secret, prefix: text(reference, "prefix")?, optional });
    }
    Ok(Env::Key { name, secret, key, optional })
}

fn read_mount(entry: &Object, app: &str) -> Read<Mount> {
    let volume = section(entry, "volume")?;
    guard(volume)?;
    quantity(volume, "size")?;
    let name = text(volume, "name")?;
    let source = match text(volume, "type")?.as_str() {
        "pv" => Source::Volume {
            name: if name.is_empty() { app.to_owned() } else { name },
            sub_path: text(entry, "subPath")?,
        },
        "tmpfs" => Source::Scratch,
        "secret" => Source::Secret {
            name,
            items: objects(volume, "items")?
                .into_iter()
                .map(|item| Ok((text(item, "key")?, text(item, "path")?)))
                .collect::<Read<_>>()?,
            optional: flag(volume, "optional")?.unwrap_or(false),
        },
        "token" => {
            let audience = text(volume, "audience")?;
            Source::Token { audience: if audience.is_empty() { "horchestra".into() } else { audience } }
        }
        _ => return Err(Unreadable),
    };
    Ok(Mount { path: text(entry, "mountPath")?, source })
}

fn read_volume(object: &Object, node: &str) -> Read<(Volume, bool)> {
    let metadata = section(object, "metadata")?;
    let spec = section(object, "spec")?;
    guard(spec)?;
    quantity(spec, "size")?;
    let id = volume_id(&text(metadata, "namespace")?, &text(metadata, "name")?);
    let own = text(spec, "node")? == node;
    Ok((Volume { id, retain: text(spec, "reclaimPolicy")? == "Retain" }, own))
}

fn read_secret(object: &Object) -> Read<((String, String), SecretData)> {
    let metadata = section(object, "metadata")?;
    let key = (text(metadata, "namespace")?, text(metadata, "name")?);
    let mut data = SecretData::new();
    for (name, value) in section(object, "data")? {
        let value = match value {
            Value::Null => Vec::new(),
            Value::String(encoded) => STANDARD.decode(encoded).map_err(|_| Unreadable)?,
            _ => return Err(Unreadable),
        };
        data.insert(name.clone(), value);
    }
    Ok((key, data))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const UID: &str = "6f1c0c2e-9a3b-4f6e-8a55-0d6f4f1f2a01";

    fn app(spec: Value) -> Value {
        let mut spec = spec;
        spec["placement"] = json!({"nodeName": "n1"});
        json!({"metadata": {"uid": UID, "name": "web", "namespace": "shop", "generation": 3}, "spec": spec})
    }

    fn read(apps: &[Value]) -> Desired {
        let applications = apps.iter().map(|app| app.to_string().into()).collect();
        Desired::read(&DesiredState { applications, ..DesiredState::default() }, "n1")
    }

    #[test]
    fn everything_that_matters_is_read() {
        let mut body = app(json!({
            "image": "i", "command": ["a"], "args": ["b"], "surprise": {"x": 1}, "values": {"n": 1e300},
            "env": [{"name": "A", "value": "1"}, {"name": "B", "secretRef": {"name": "s", "key": "k"}},
                    {"secretRef": {"name": "s", "key": "*", "prefix": "P_", "optional": true}}],
            "resources": {"requests": {"cpu": "250m"}, "limits": {"cpu": 2, "memory": "1Gi"}},
            "lifecycle": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
                          "activeDeadlineSeconds": 9, "backoffLimit": 2},
            "hostNetwork": false, "securityContext": {"runAsUser": 4294967294_u32, "runAsGroup": 5},
            "volumes": [{"mountPath": "/d", "subPath": "x", "volume": {"type": "pv"}},
                        {"mountPath": "/t", "volume": {"type": "token"}}],
            "frozen": true,
        }));
        body["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        body["status"] = json!({"attempts": 2});
        let desired = read(&[body]);
        let app = &desired.apps[0];
        assert_eq!((app.uid.to_string().as_str(), app.generation, app.pushed_attempts), (UID, 3, 2));
        assert!(app.deleting && app.is_job() && app.isolated && app.frozen);
        assert_eq!((app.grace_seconds, app.deadline_seconds, app.backoff_limit), (Some(0), Some(9), 2));
        assert_eq!((app.user, app.group), (Some(4294967294), Some(5)));
        assert_eq!((app.effective.cpu.milli(), app.effective.memory.int()), (250, 1 << 30));
        assert_eq!(app.env[0], Env::Literal("A".into(), "1".into()));
        assert_eq!(app.env[2], Env::All { secret: "s".into(), prefix: "P_".into(), optional: true });
        assert_eq!(
            app.mounts[0],
            Mount { path: "/d".into(), source: Source::Volume { name: "web".into(), sub_path: "x".into() } }
        );
        assert_eq!(app.mounts[1].source, Source::Token { audience: "horchestra".into() });
    }

    #[test]
    fn the_case_of_keys_does_not_matter_and_null_is_absent() {
        let text = format!(
            r#"{{"METADATA":{{"Uid":"{UID}","NAME":"web"}},
                "spec":{{"Placement":{{"nodename":"n1"}},"IMAGE":"a","image":null,"lifecycle":null}}}}"#
        );
        let state = DesiredState { applications: vec![text.into()], ..DesiredState::default() };
        let desired = Desired::read(&state, "n1");
        assert_eq!(desired.apps[0].name, "web");
        assert_eq!(desired.apps[0].restart, RestartPolicy::Always);

        let twice = format!(
            r#"{{"metadata":{{"uid":"{UID}","name":"a","name":"b"}},"spec":{{"placement":{{"nodeName":"n1"}}}}}}"#
        );
        let state = DesiredState { applications: vec![twice.into()], ..DesiredState::default() };
        assert_eq!(Desired::read(&state, "n1").apps[0].name, "b");
    }

    #[test]
    fn what_is_skipped_takes_nothing_else_with_it() {
        let absurd = "9".repeat(33);
        let cases = [
            ("wrong type", app(json!({"image": 5}))),
            ("wrong element", app(json!({"command": [1]}))),
            ("long literal", app(json!({"resources": {"requests": {"cpu": absurd}}}))),
            ("large exponent", app(json!({"resources": {"limits": {"other": "1e31"}}}))),
            ("no quantity", app(json!({"resources": {"limits": {"cpu": "many"}}}))),
            ("volume literal", app(json!({"volumes": [{"volume": {"type": "pv", "name": "1e-99"}}]}))),
            ("id out of range", app(json!({"securityContext": {"runAsUser": -1}}))),
            ("another node", json!({"metadata": {"uid": UID}, "spec": {"placement": {"nodeName": "n2"}}})),
            ("no uid", json!({"metadata": {}, "spec": {"placement": {"nodeName": "n1"}}})),
            (
                "odd uid",
                json!({"metadata": {"uid": UID.replace('-', "")}, "spec": {"placement": {"nodeName": "n1"}}}),
            ),
            ("no object", json!([1])),
        ];
        for (what, bad) in cases {
            let desired = read(&[bad, app(json!({"image": "good"}))]);
            assert_eq!(desired.apps.len(), 1, "{what}");
            assert_eq!(desired.apps[0].image, "good", "{what}");
        }
    }

    #[test]
    fn volumes_secrets_networks_and_tokens() {
        let volume = |name: &str, spec: Value| {
            json!({"metadata": {"namespace": "shop", "name": name}, "spec": spec}).to_string().into()
        };
        let state = DesiredState {
            persistent_volumes: vec![
                volume("mine", json!({"node": "n1", "reclaimPolicy": "Retain"})),
                volume("theirs", json!({})),
                volume("absurd", json!({"node": "n1", "size": "1e99"})),
            ],
            secrets: vec![
                json!({"metadata": {"namespace": "shop", "name": "s"}, "data": {"k": "djE=", "K": ""}})
                    .to_string()
                    .into(),
                json!({"metadata": {"namespace": "shop", "name": "bad"}, "data": {"k": "%"}})
                    .to_string()
                    .into(),
            ],
            workload_networks: vec![horchestra_proto::node::v1::WorkloadNetwork {
                workload: UID.into(),
                address: "10.0.0.1/32".into(),
                ..Default::default()
            }],
            ..DesiredState::default()
        };
        let desired = Desired::read(&state, "n1");
        assert_eq!(desired.volumes, [Volume { id: "shop_mine".into(), retain: true }]);
        assert_eq!(desired.volume_ids.len(), 2);
        assert_eq!(desired.secrets.len(), 1);
        assert_eq!(desired.secrets[&("shop".into(), "s".into())]["k"], b"v1");
        assert_eq!(desired.addresses[&Uuid::parse_str(UID).expect("a uid")], "10.0.0.1/32");
    }
}

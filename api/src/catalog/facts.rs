//! What the catalog needs to know of each object, and nothing more: where nothing of this differs, nothing that
//! the catalog says can differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use horchestra_core::kinds::application::Application;
use horchestra_core::kinds::application_set::{COMPONENT_LABEL, SET_LABEL};
use horchestra_core::kinds::meta::ConditionStatus;
use horchestra_core::kinds::node::Node;
use horchestra_core::kinds::service::{Service, ServicePort};
use horchestra_store::Entry;
use serde::de::DeserializeOwned;
use uuid::Uuid;

/// What kubectl keeps for itself in an annotation; no business of those who look for services.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: Arc<str>,
    /// `None`: there is no such Node.
    pub id: Option<Uuid>,
    /// Empty: it has not said one.
    pub address: String,
    pub verdict: Verdict,
}

/// What is thought of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ready,
    /// It says itself that it is not ready.
    NotReady,
    /// Nobody has judged it yet.
    Unjudged,
    Silent,
    /// Silent for so long that nobody counts on it.
    Lost,
    /// There is no such Node.
    Missing,
}

/// An Application that is placed and can be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppFacts {
    pub name: Arc<str>,
    pub node: Arc<str>,
    /// The Service that it joins; empty: none.
    pub service: Arc<str>,
    /// Name and number.
    pub ports: Vec<(String, i64)>,
    pub network: Network,
    pub set: Option<String>,
    pub component: Option<String>,
    pub workload: Workload,
}

/// Where a workload is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Network {
    /// At the address of its node.
    OfNode,
    /// At an address of its own, if that is known.
    Own(Option<String>),
}

/// How a workload is doing, as far as its node has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    Running,
    Starting,
    Failed,
    Finished,
    Frozen,
    /// It is on its way out.
    Leaving,
}

/// A Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFacts {
    pub name: Arc<str>,
    pub cluster_ip: String,
    pub ports: Vec<ServicePort>,
    pub annotations: BTreeMap<String, String>,
}

/// The object of an entry. Not kept with the entry: what the catalog keeps of it is far smaller.
fn read<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.body)
        .inspect_err(
            |error| tracing::error!(object = %entry.key, %error, "unreadable, so the catalog goes without"),
        )
        .ok()
}

impl NodeFacts {
    /// `None`: it cannot be read.
    pub fn of(entry: &Entry) -> Option<NodeFacts> {
        let node: Node = read(entry)?;
        let verdict = match node.ready() {
            Some(ConditionStatus::True) => Verdict::Ready,
            Some(ConditionStatus::False) => Verdict::NotReady,
            Some(ConditionStatus::Unknown) if node.is_lost() => Verdict::Lost,
            Some(ConditionStatus::Unknown) => Verdict::Silent,
            None => Verdict::Unjudged,
        };
        Some(NodeFacts {
            name: entry.key.name.as_str().into(),
            id: Some(entry.uid),
            address: node.status.ip,
            verdict,
        })
    }

    /// Of a node that something is placed on though there is no Node of that name.
    pub fn missing(name: &Arc<str>) -> NodeFacts {
        NodeFacts { name: Arc::clone(name), id: None, address: String::new(), verdict: Verdict::Missing }
    }

    /// Whether it would be shown alike.
    pub fn looks_like(&self, other: &NodeFacts) -> bool {
        self.id == other.id && self.address == other.address
    }
}

impl AppFacts {
    /// `None`: it is not listed (or cannot be read), since it is placed nowhere or neither has a port nor joins a
    /// Service.
    pub fn of(entry: &Entry) -> Option<AppFacts> {
        let node = entry.columns.node.as_deref().filter(|node| !node.is_empty())?;
        let app: Application = read(entry)?;
        let spec = &app.spec;
        if spec.service_name.is_empty() && spec.ports.is_empty() {
            return None;
        }
        let label = |key: &str| app.metadata.labels.get(key).filter(|value| !value.is_empty()).cloned();
        let own = app.status.address.split('/').next().filter(|address| !address.is_empty());
        Some(AppFacts {
            name: entry.key.name.as_str().into(),
            node: node.into(),
            service: spec.service_name.as_str().into(),
            ports: spec.ports.iter().map(|port| (port.name.clone(), port.port)).collect(),
            network: match spec.host_network {
                Some(false) => Network::Own(own.map(str::to_owned)),
                _ => Network::OfNode,
            },
            set: label(SET_LABEL),
            component: label(COMPONENT_LABEL),
            workload: workload(&app, entry.deleting),
        })
    }
}

fn workload(app: &Application, deleting: bool) -> Workload {
    match app.status.phase.as_str() {
        _ if deleting => Workload::Leaving,
        _ if app.is_finished() => Workload::Finished,
        "Running" => Workload::Running,
        "Failed" => Workload::Failed,
        "Succeeded" => Workload::Finished,
        "Frozen" => Workload::Frozen,
        "Terminating" | "Terminated" => Workload::Leaving,
        _ => Workload::Starting,
    }
}

impl ServiceFacts {
    /// `None`: it cannot be read.
    pub fn of(entry: &Entry) -> Option<ServiceFacts> {
        let mut service: Service = read(entry)?;
        service.metadata.annotations.remove(LAST_APPLIED);
        Some(ServiceFacts {
            name: entry.key.name.as_str().into(),
            cluster_ip: service.spec.cluster_ip,
            ports: service.spec.ports,
            annotations: service.metadata.annotations,
        })
    }
}

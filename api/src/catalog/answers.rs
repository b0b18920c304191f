//! What clients are shown, in the spelling of Consul's HTTP API.

use std::collections::BTreeMap;

use serde::Serialize;
use uuid::Uuid;

use super::facts::NodeFacts;
use super::instance::Instance;

/// There is one datacenter, and this is its name.
pub const DATACENTER: &str = "horchestra";
/// What the control plane calls itself.
pub const SELF: &str = "horchestra-controller";
/// The name of the one check that every instance has. It speaks for the workload and its node together.
const CHECK: &str = "serfHealth";

/// An entry of `catalog/service/<name>`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Entry {
    #[serde(rename = "ID")]
    pub id: String,
    pub node: String,
    pub address: String,
    pub datacenter: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(rename = "ServiceID")]
    pub service_id: String,
    pub service_name: String,
    pub service_address: String,
    pub service_port: i64,
    pub service_tags: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub service_meta: BTreeMap<String, String>,
}

/// A node, as it is shown everywhere but in [`Entry`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Node {
    /// The uid of the Node. Clients tell instances apart by this and the id of the service.
    #[serde(rename = "ID")]
    pub id: String,
    pub node: String,
    pub address: String,
    pub datacenter: &'static str,
}

/// An instance, as it is shown beside its node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Service {
    #[serde(rename = "ID")]
    pub id: String,
    pub service: String,
    pub tags: Vec<String>,
    pub address: String,
    pub port: i64,
    pub meta: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// The health of an instance.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Check {
    pub node: String,
    #[serde(rename = "CheckID")]
    pub check_id: &'static str,
    pub name: &'static str,
    pub status: &'static str,
    pub notes: &'static str,
    /// Why it is not better.
    pub output: &'static str,
    #[serde(rename = "ServiceID")]
    pub service_id: String,
    pub service_name: String,
    pub service_tags: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
}

/// An entry of `health/service/<name>`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HealthEntry {
    pub node: Node,
    pub service: Service,
    pub checks: [Check; 1],
}

/// `catalog/node/<name>`
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct NodeServices {
    pub node: Node,
    pub services: BTreeMap<String, Service>,
}

fn id(id: Option<Uuid>) -> String {
    id.map(|id| id.to_string()).unwrap_or_default()
}

impl Node {
    pub fn of(node: &NodeFacts) -> Node {
        Node {
            id: id(node.id),
            node: node.name.to_string(),
            address: node.address.clone(),
            datacenter: DATACENTER,
        }
    }
}

impl Entry {
    /// An instance of a namespace that is listed under this name.
    pub fn of(namespace: &str, name: &str, instance: &Instance) -> Entry {
        let Node { id, node, address, datacenter } = Node::of(&instance.node);
        let service = Service::of(namespace, name, instance);
        Entry {
            id,
            node,
            address,
            datacenter,
            namespace: service.namespace,
            service_id: service.id,
            service_name: service.service,
            service_address: service.address,
            service_port: service.port,
            service_tags: service.tags,
            service_meta: service.meta,
        }
    }
}

impl Service {
    pub fn of(namespace: &str, name: &str, instance: &Instance) -> Service {
        Service {
            id: instance.id.to_string(),
            service: name.to_owned(),
            tags: instance.tags(namespace),
            address: instance.address().to_owned(),
            port: instance.port,
            meta: instance.meta(),
            namespace: namespace.to_owned(),
        }
    }
}

impl Check {
    pub fn of(namespace: &str, name: &str, instance: &Instance) -> Check {
        let (health, why) = instance.health();
        Check {
            node: instance.node.name.to_string(),
            check_id: CHECK,
            name: "node",
            status: health.word(),
            notes: "",
            output: why,
            service_id: instance.id.to_string(),
            service_name: name.to_owned(),
            service_tags: instance.tags(namespace),
            namespace: namespace.to_owned(),
        }
    }
}

impl HealthEntry {
    pub fn of(namespace: &str, name: &str, instance: &Instance) -> HealthEntry {
        HealthEntry {
            node: Node::of(&instance.node),
            service: Service::of(namespace, name, instance),
            checks: [Check::of(namespace, name, instance)],
        }
    }
}

impl NodeServices {
    /// The instances of a namespace on a node, each with the name that it is listed under.
    pub fn of<'a>(
        namespace: &str,
        node: &NodeFacts,
        instances: impl Iterator<Item = (&'a str, &'a Instance)>,
    ) -> NodeServices {
        let mut services = BTreeMap::new();
        for (name, instance) in instances {
            let service = Service::of(namespace, name, instance);
            // An Application that is listed twice may have one id under both names.
            let key = match services.contains_key(&service.id) {
                true => format!("{name}/{}", service.id),
                false => service.id.clone(),
            };
            services.insert(key, service);
        }
        NodeServices { node: Node::of(node), services }
    }
}

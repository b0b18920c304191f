//! One instance: what an Application, its node and perhaps its Service make of it.
//!
//! Pure functions. An Application is listed under the names of the ports of its Service (one instance per port),
//! and, if it uses its node's network and declares ports, under the name of its node (one per declared port), so
//! that what runs on a machine can be found without a Service.

use std::collections::BTreeMap;
use std::sync::Arc;

use horchestra_core::kinds::service::Protocol;

use super::facts::{AppFacts, Network, NodeFacts, ServiceFacts, Verdict, Workload};

/// One address and port under one name.
#[derive(Clone, Debug)]
pub struct Instance {
    pub id: Arc<str>,
    pub app: Arc<AppFacts>,
    pub node: Arc<NodeFacts>,
    /// Why it is listed.
    pub by: By,
    /// Number of the port.
    pub port: i64,
}

/// Why an instance is listed.
#[derive(Clone, Debug)]
pub enum By {
    /// The Service lists it with its port at this place.
    Service(Arc<ServiceFacts>, usize),
    /// The node lists the port of the Application at this place.
    Node(usize),
}

/// The health of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Passing,
    Warning,
    Critical,
}

impl Health {
    pub const fn word(self) -> &'static str {
        match self {
            Health::Passing => "passing",
            Health::Warning => "warning",
            Health::Critical => "critical",
        }
    }
}

/// The instances of an Application, each with the name that it is listed under.
pub fn instances(
    app: &Arc<AppFacts>,
    service: Option<&Arc<ServiceFacts>>,
    node: &Arc<NodeFacts>,
) -> Vec<(Arc<str>, Instance)> {
    let instance = |id: String, by, port| Instance {
        id: id.into(),
        app: Arc::clone(app),
        node: Arc::clone(node),
        by,
        port,
    };
    let mut found = Vec::new();
    if let Some(service) = service {
        for (place, port) in service.ports.iter().enumerate() {
            let suffix = if port.name.is_empty() { "tcp" } else { &port.name };
            let number = port.target(app.ports.iter().map(|(name, port)| (name.as_str(), *port)));
            let by = By::Service(Arc::clone(service), place);
            let name = port.catalog_name(&service.name);
            found.push((name.into(), instance(format!("{}-{suffix}", app.name), by, number)));
        }
    }
    if app.network == Network::OfNode && !node.address.is_empty() {
        for (place, (name, number)) in app.ports.iter().enumerate() {
            // Names of an Application's ports are free texts, and may be there twice.
            let named = !name.is_empty() && app.ports[..place].iter().all(|(other, _)| other != name);
            let suffix = if named { name.clone() } else { number.to_string() };
            let id = format!("{}-{suffix}", app.name);
            found.push((Arc::clone(&node.name), instance(id, By::Node(place), *number)));
        }
    }
    found
}

impl Instance {
    /// The address at which it is reached; empty: none is known.
    pub fn address(&self) -> &str {
        match &self.app.network {
            Network::OfNode => &self.node.address,
            Network::Own(address) => address.as_deref().unwrap_or(""),
        }
    }

    /// Health, and why it is not better.
    pub fn health(&self) -> (Health, &'static str) {
        let critical = |why| (Health::Critical, why);
        match self.app.workload {
            Workload::Leaving => return critical("the workload is being taken away"),
            Workload::Finished => return critical("the workload has come to its end"),
            Workload::Failed => return critical("the workload has failed"),
            Workload::Frozen => return critical("the workload is held still"),
            Workload::Starting => return critical("the workload has not started"),
            Workload::Running => {}
        }
        match self.node.verdict {
            Verdict::Missing => critical("its node is not known"),
            Verdict::Lost => critical("its node has been silent for long"),
            _ if self.address().is_empty() => critical("no address is known at which it is reached"),
            Verdict::Ready => (Health::Passing, ""),
            Verdict::NotReady => (Health::Warning, "its node says that it is not ready"),
            Verdict::Silent => (Health::Warning, "its node is silent"),
            Verdict::Unjudged => (Health::Warning, "its node has not been judged yet"),
        }
    }

    /// The tags, in order. All are derived; nobody writes any.
    pub fn tags(&self, namespace: &str) -> Vec<String> {
        let mut tags = vec![format!("namespace={namespace}")];
        let mut tag = |key: &str, value: &str| tags.push(format!("{key}={value}"));
        match &self.by {
            By::Service(service, place) => {
                tag("service", &service.name);
                if let Some(port) = service.ports.get(*place) {
                    tag("protocol", if port.protocol == Protocol::Udp { "udp" } else { "tcp" });
                    if !port.name.is_empty() {
                        tag("port", &port.name);
                    }
                }
            }
            By::Node(place) => {
                tag("node", &self.node.name);
                tag("application", &self.app.name);
                tag("protocol", "tcp");
                if let Some((name, _)) = self.app.ports.get(*place).filter(|(name, _)| !name.is_empty()) {
                    tag("port", name);
                }
                if !self.app.service.is_empty() {
                    tag("service", &self.app.service);
                }
            }
        }
        if let Some(set) = &self.app.set {
            tag("applicationset", set);
        }
        if let Some(component) = &self.app.component {
            tag("component", component);
        }
        tags.sort_unstable();
        tags
    }

    /// The metadata: of a Service its annotations, which win.
    pub fn meta(&self) -> BTreeMap<String, String> {
        let mut meta = BTreeMap::from([("application".to_owned(), self.app.name.to_string())]);
        match &self.by {
            By::Service(service, _) => {
                if !service.cluster_ip.is_empty() {
                    meta.insert("clusterIP".to_owned(), service.cluster_ip.clone());
                }
                meta.extend(service.annotations.clone());
            }
            By::Node(_) => {
                meta.insert("clusterIP".to_owned(), self.node.address.clone());
                meta.insert("node".to_owned(), self.node.name.to_string());
            }
        }
        meta
    }

    /// Whether all but health would be shown alike.
    pub fn looks_like(&self, other: &Instance, namespace: &str) -> bool {
        self.port == other.port
            && self.node.name == other.node.name
            && self.node.looks_like(&other.node)
            && self.address() == other.address()
            && self.tags(namespace) == other.tags(namespace)
            && self.meta() == other.meta()
    }

    /// Where it stands among those of its name. Two Services may list under one name, so an id alone does not say
    /// which it is.
    pub fn place(&self) -> Place {
        let (service, port) = match &self.by {
            By::Service(service, _) => (Arc::clone(&service.name), 0),
            By::Node(_) => ("".into(), self.port),
        };
        Place { id: Arc::clone(&self.id), app: Arc::clone(&self.app.name), service, port }
    }
}

/// The order of instances under a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    id: Arc<str>,
    app: Arc<str>,
    service: Arc<str>,
    port: i64,
}

//! The paths of the catalog: those of Consul's HTTP API below a prefix, and without it for clients that know none.

use std::borrow::Cow;

/// Where the catalog is, for permissions: rules name these paths, whichever a client uses.
pub const PREFIX: &str = "/servicediscovery/v1";

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `catalog/datacenters`
    Datacenters,
    /// `agent/self`
    Agent,
    /// `status/leader`
    Leader,
    /// `catalog/services`
    Services,
    /// `catalog/service/<name>`
    Service(String),
    /// `catalog/nodes`
    Nodes,
    /// `catalog/node/<name>`
    Node(String),
    /// `health/service/<name>`
    Health(String),
    /// `health/state/<state>`
    State(String),
}

impl Endpoint {
    /// The endpoint of a path behind its prefix.
    pub fn of(segments: &[&str]) -> Option<Endpoint> {
        Some(match segments {
            ["catalog", "datacenters"] => Endpoint::Datacenters,
            ["agent", "self"] => Endpoint::Agent,
            ["status", "leader"] => Endpoint::Leader,
            ["catalog", "services"] => Endpoint::Services,
            ["catalog", "service", name] => Endpoint::Service((*name).to_owned()),
            ["catalog", "nodes"] => Endpoint::Nodes,
            ["catalog", "node", name] => Endpoint::Node((*name).to_owned()),
            ["health", "service", name] => Endpoint::Health((*name).to_owned()),
            ["health", "state", state] => Endpoint::State((*state).to_owned()),
            _ => return None,
        })
    }

    /// The path that permissions are judged on.
    pub fn path(&self) -> String {
        let rest: Cow<'_, str> = match self {
            Endpoint::Datacenters => "catalog/datacenters".into(),
            Endpoint::Agent => "agent/self".into(),
            Endpoint::Leader => "status/leader".into(),
            Endpoint::Services => "catalog/services".into(),
            Endpoint::Service(name) => format!("catalog/service/{name}").into(),
            Endpoint::Nodes => "catalog/nodes".into(),
            Endpoint::Node(name) => format!("catalog/node/{name}").into(),
            Endpoint::Health(name) => format!("health/service/{name}").into(),
            Endpoint::State(state) => format!("health/state/{state}").into(),
        };
        format!("{PREFIX}/{rest}")
    }

    /// The name in the path.
    pub fn name(&self) -> &str {
        match self {
            Endpoint::Service(name)
            | Endpoint::Node(name)
            | Endpoint::Health(name)
            | Endpoint::State(name) => name,
            _ => "",
        }
    }

    /// Whether it is about the objects of a namespace, and may wait for a change of them.
    pub fn is_data(&self) -> bool {
        !matches!(self, Endpoint::Datacenters | Endpoint::Agent | Endpoint::Leader)
    }

    /// A short name for logs and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Endpoint::Datacenters => "catalog/datacenters",
            Endpoint::Agent => "catalog/agent",
            Endpoint::Leader => "catalog/leader",
            Endpoint::Services => "catalog/services",
            Endpoint::Service(_) => "catalog/service",
            Endpoint::Nodes => "catalog/nodes",
            Endpoint::Node(_) => "catalog/node",
            Endpoint::Health(_) => "catalog/health",
            Endpoint::State(_) => "catalog/state",
        }
    }
}

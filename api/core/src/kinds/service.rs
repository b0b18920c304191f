//! Service: a name in the catalog, the ports behind it, and perhaps an address.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::meta::ObjectMeta;
use super::null_as_default;
use crate::kind::Kind;
use crate::object::Object;
use crate::registry::KindSpec;
use crate::schema::{self, Schema};
use crate::status::Cause;
use crate::table::{AGE, Column, NAME};
use crate::values::component_name_fault;

/// A Service is a name under which the catalog lists a group of Applications, with the ports that they can
/// be reached on. It selects nobody: an Application joins by naming the Service in `spec.serviceName`. While
/// one does, the Service cannot be deleted. Annotations are published in the catalog as metadata.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// Standard metadata of the object.
    pub metadata: ObjectMeta,
    /// Ports and address.
    pub spec: ServiceSpec,
}

/// Ports and address of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceSpec {
    /// Address under which nodes reach the members, whichever node they run on. No other Service of any
    /// namespace and no node may have it. Only IPv4 addresses that are not local to a machine take effect.
    /// Absent: none, or one of the range that the cluster is configured with.
    #[serde(
        rename = "clusterIP",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub cluster_ip: String,
    /// Ports, at least one. Their numbers differ, and if there are several each has a name.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["port", "protocol"]))]
    pub ports: Vec<ServicePort>,
}

/// A port of a Service, and which port of a member stands behind it: `targetPort`, or else the member's port
/// that is called `targetName`, or else the one with the same number as the Service's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Name of the port: lower-case letters, digits and `-`. The catalog lists a named port as
    /// `<service>-<name>`, an unnamed one as the Service.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub name: String,
    /// Number under which clients reach the Service.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Name of a port in `spec.ports` of the members. Not together with `targetPort`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub target_name: String,
    /// Number of the port of the members. Absent or 0: not set.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0, max = 65535))]
    pub target_port: i32,
    /// Protocol that is spoken on the port.
    #[serde(default, deserialize_with = "null_as_default")]
    #[schemars(extend("x-default" = "TCP"))]
    pub protocol: Protocol,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Protocol of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Protocol {
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    #[serde(rename = "UDP")]
    Udp,
}

impl Protocol {
    pub const fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
        }
    }
}

impl ServicePort {
    /// The name under which the catalog lists the port of the Service of this name.
    pub fn catalog_name(&self, service: &str) -> String {
        if self.name.is_empty() { service.to_owned() } else { format!("{service}-{}", self.name) }
    }

    /// The port of a member that declares these ports (name and number).
    pub fn target<'a>(&self, ports: impl IntoIterator<Item = (&'a str, i64)>) -> i64 {
        if self.target_port != 0 {
            return i64::from(self.target_port);
        }
        let named = |(name, _): &(&str, i64)| !self.target_name.is_empty() && *name == self.target_name;
        ports.into_iter().find(named).map_or(i64::from(self.port), |(_, port)| port)
    }
}

/// The ports of a stored or rendered Service; none when it cannot be read.
pub fn ports_of(object: &Object) -> Vec<ServicePort> {
    object.read::<Service>().map(|service| service.spec.ports).unwrap_or_default()
}

/// An address as addresses are compared: IPv4 in either spelling is the same.
pub fn folded(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// What is wrong with an address as the address of a Service, by itself.
pub fn address_fault(text: &str) -> Option<&'static str> {
    let Ok(address) = text.parse::<IpAddr>() else { return Some("is not an IP address") };
    let address = folded(address);
    if address.is_unspecified() {
        Some("is the unspecified address")
    } else if address.is_multicast() {
        Some("is a multicast address")
    } else {
        None
    }
}

/// Whether nodes can route to the Service by this address. They know IPv4 only, and what is local to a
/// machine or a link means another place on each of them.
pub fn is_routable(text: &str) -> bool {
    text.parse::<Ipv4Addr>().is_ok_and(|address| {
        !address.is_loopback()
            && !address.is_link_local()
            && !address.is_unspecified()
            && !address.is_multicast()
            && !address.is_broadcast()
    })
}

/// Every violation of a Service, in the order of its fields.
fn violations(object: &Object) -> Vec<Cause> {
    match object.read::<Service>() {
        Ok(service) => port_violations(&service.spec.ports, "spec.ports"),
        // The schema lets nothing through that does not read.
        Err(error) => vec![Cause::invalid("spec", "null", error)],
    }
}

/// Every violation among the ports of a Service, the list being found at `path`.
pub fn port_violations(ports: &[ServicePort], path: &str) -> Vec<Cause> {
    if ports.is_empty() {
        return vec![Cause::new(
            "FieldValueRequired",
            path,
            "Required value: a Service has at least one port",
        )];
    }
    let mut causes = Vec::new();
    let (mut names, mut numbers) = (HashSet::new(), HashSet::new());
    for (index, port) in ports.iter().enumerate() {
        let at = format!("{path}[{index}]");
        if port.name.is_empty() {
            if ports.len() > 1 {
                let why = "Required value: each of several ports needs a name";
                causes.push(Cause::new("FieldValueRequired", format!("{at}.name"), why));
            }
        } else if let Some(fault) = component_name_fault(&port.name) {
            causes.push(Cause::invalid(format!("{at}.name"), &format!("{:?}", port.name), fault));
        } else if !names.insert(port.name.as_str()) {
            causes.push(duplicate(format!("{at}.name"), &format!("{:?}", port.name)));
        }
        if !numbers.insert(port.port) {
            causes.push(duplicate(format!("{at}.port"), &port.port.to_string()));
        }
        if !port.target_name.is_empty() && port.target_port != 0 {
            let why = "Forbidden: may not be set together with targetName";
            causes.push(Cause::new("FieldValueForbidden", format!("{at}.targetPort"), why));
        }
    }
    causes
}

fn duplicate(field: String, shown: &str) -> Cause {
    Cause::new("FieldValueDuplicate", field, format!("Duplicate value: {shown}"))
}

/// One text per port, joined by commas.
fn of_ports(object: &Object, text: impl Fn(&ServicePort) -> String) -> Value {
    let ports = object.at(&["spec", "ports"]).and_then(Value::as_array);
    let texts: Vec<String> = ports
        .into_iter()
        .flatten()
        .filter_map(|port| ServicePort::deserialize(port).ok())
        .map(|port| text(&port))
        .collect();
    Value::from(texts.join(","))
}

const COLUMNS: &[Column] = &[
    NAME,
    Column::text("Cluster-IP", "Address under which nodes reach the members.", |object, _| {
        let address = object.str_at(&["spec", "clusterIP"]);
        Value::from(if address.is_empty() { "<none>" } else { address })
    }),
    Column::text("Ports", "Ports that clients use.", |object, _| {
        of_ports(object, |port| format!("{}/{}", port.port, port.protocol.as_str()))
    }),
    Column::wide("Targets", "Ports of the members, by name or number.", |object, _| {
        of_ports(object, |port| match (&*port.target_name, port.target_port) {
            ("", 0) => port.port.to_string(),
            ("", number) => number.to_string(),
            (name, _) => name.to_owned(),
        })
    }),
    Column::wide("Catalog", "Names under which the catalog lists the ports.", |object, _| {
        of_ports(object, |port| port.catalog_name(object.name()))
    }),
    AGE,
];

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<Service>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["svc"],
    categories: &["all"],
    columns: COLUMNS,
    validate: violations,
    ..KindSpec::base(Kind::Service, "service", "ServiceList", schema)
};

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(ports: Value) -> Vec<String> {
        let ports: Vec<ServicePort> = serde_json::from_value(ports).unwrap();
        port_violations(&ports, "spec.ports").into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn ports_of_a_service() {
        for good in [
            json!([{"port": 80}]),
            json!([{"name": "a", "port": 80}, {"name": "b", "port": 81, "targetName": "web"}]),
            json!([{"port": 80, "targetName": "web", "targetPort": 0}]),
        ] {
            assert!(fields(good.clone()).is_empty(), "{good}");
        }
        for (what, ports, expected) in [
            ("no ports", json!([]), &["spec.ports"][..]),
            (
                "an unnamed one of two",
                json!([{"name": "a", "port": 1}, {"port": 2}]),
                &["spec.ports[1].name"],
            ),
            ("a bad name", json!([{"name": "HTTP_Main", "port": 1}]), &["spec.ports[0].name"]),
            (
                "a name twice",
                json!([{"name": "a", "port": 1}, {"name": "a", "port": 2}]),
                &["spec.ports[1].name"],
            ),
            (
                "a number twice",
                json!([{"name": "a", "port": 1}, {"name": "b", "port": 1, "protocol": "UDP"}]),
                &["spec.ports[1].port"],
            ),
            (
                "two targets",
                json!([{"port": 1, "targetName": "web", "targetPort": 8080}]),
                &["spec.ports[0].targetPort"],
            ),
            (
                "everything at once",
                json!([{"port": 1}, {"name": "-", "port": 1, "targetName": "x", "targetPort": 1}]),
                &[
                    "spec.ports[0].name",
                    "spec.ports[1].name",
                    "spec.ports[1].port",
                    "spec.ports[1].targetPort",
                ],
            ),
        ] {
            assert_eq!(fields(ports), expected, "{what}");
        }
    }

    #[test]
    fn addresses_of_services() {
        for good in ["10.243.0.1", "172.20.4.9", "fd00::1", "::ffff:10.0.0.1", "127.0.0.1", "169.254.1.1"] {
            assert_eq!(address_fault(good), None, "{good}");
        }
        for bad in [
            "cache.example.com",
            "10.0.0.256",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "ff02::1",
            "::ffff:0.0.0.0",
            "",
            " 10.0.0.1",
        ] {
            assert!(address_fault(bad).is_some(), "{bad}");
        }
        assert!(is_routable("10.243.0.1"));
        for odd in ["fd00::1", "::ffff:10.0.0.1", "127.0.0.1", "169.254.1.1", "", "255.255.255.255"] {
            assert!(!is_routable(odd), "{odd}");
        }
        assert_eq!(folded("::ffff:10.0.0.1".parse().unwrap()), folded("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn which_port_of_a_member_is_meant() {
        let member = [("web", 8081), ("grpc", 9090)];
        let target = |port: Value| serde_json::from_value::<ServicePort>(port).unwrap().target(member);
        assert_eq!(target(json!({"port": 80, "targetName": "web"})), 8081);
        assert_eq!(target(json!({"port": 80, "targetPort": 8080})), 8080);
        assert_eq!(target(json!({"port": 50051, "targetName": "nosuch"})), 50051);
        assert_eq!(
            target(json!({"name": "grpc", "port": 50051})),
            50051,
            "a port is not found by its own name"
        );
    }
}

//! What a node says about itself, reduced to what is believed.
//!
//! A node is trusted with its own machine and with nothing else. Of its report only the status is taken,
//! and of the status only what a machine can know about itself: labels are derived here, the heartbeat is
//! the database's clock, amounts are capped, texts are cut, an address that can be nobody's is left out.
//! A report that is wrong as a whole (not decodable, another node's name, a namespace, negative amounts) is
//! dropped, and the session goes on: the next one may be right, and ending a session cures nothing.

use std::net::IpAddr;

use horchestra_core::kinds::node::{NodeStatus, Platform, ResourceList, derived_labels};
use horchestra_core::quantity::Quantity;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

/// Largest report that is looked at, in bytes.
pub const REPORT_LIMIT: usize = 256 << 10;
/// Largest believable machine: cores, in nano-cores.
const CPU_CEILING_NANO: i64 = 4096 * 1_000_000_000;
/// Largest believable machine: 64 TiB.
const MEMORY_CEILING: i64 = 1 << 46;
/// Longest text that is kept, in bytes.
const TEXT_LIMIT: usize = 256;
/// Runtime classes that are kept.
const RUNTIMES_LIMIT: usize = 16;
/// Units that are looked at.
const UNITS_LIMIT: usize = 4096;

/// A report, cleaned.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeReport {
    /// What is stored: neither heartbeat nor allocation, which change all the time, nor conditions, which
    /// are the control plane's.
    pub status: Value,
    /// Nano-cores.
    pub allocated_cpu: i64,
    /// Bytes.
    pub allocated_memory: i64,
    /// What the node holds, as some agents say before they are told anything.
    pub units: Vec<Uuid>,
}

/// Why a report was dropped.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Dropped {
    #[error("a report of {0} bytes is too large")]
    TooLarge(usize),
    #[error("the report does not decode: {0}")]
    Undecodable(String),
    #[error("the report is about node {0:?}")]
    OtherNode(String),
    #[error("the report names a namespace")]
    Namespaced,
    #[error("{0} is negative")]
    Negative(&'static str),
}

#[derive(Deserialize)]
struct Reported {
    metadata: ReportedMetadata,
    #[serde(default)]
    status: ReportedStatus,
}

/// The members that a node may speak about; the rest of its status is not even read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReportedStatus {
    capacity: ResourceList,
    allocated: ResourceList,
    os: Option<String>,
    ip: Option<String>,
    ready: bool,
    runtimes: Option<Vec<String>>,
    platform: Option<Platform>,
    routed_network: bool,
    units: Value,
}

/// Everything else in the metadata is not even read.
#[derive(Deserialize)]
struct ReportedMetadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: Option<String>,
}

/// Cleans the report of node `name`, whose connection comes from `peer`.
pub fn sanitise(name: &str, peer: IpAddr, json: &[u8]) -> Result<NodeReport, Dropped> {
    if json.len() > REPORT_LIMIT {
        return Err(Dropped::TooLarge(json.len()));
    }
    let reported: Reported =
        serde_json::from_slice(json).map_err(|error| Dropped::Undecodable(error.to_string()))?;
    if reported.metadata.name != name {
        return Err(Dropped::OtherNode(cut(&reported.metadata.name)));
    }
    if reported.metadata.namespace.is_some_and(|namespace| !namespace.is_empty()) {
        return Err(Dropped::Namespaced);
    }
    let status = reported.status;
    let status_units = status.units;
    not_negative(&status.capacity, "status.capacity")?;
    not_negative(&status.allocated, "status.allocated")?;
    let allocated_cpu = status.allocated.cpu().nano();
    let allocated_memory = status.allocated.memory().int();
    let platform = status.platform.map(|platform| Platform {
        os: kept_label_value(platform.os),
        arch: kept_label_value(platform.arch),
    });
    let mut runtimes: Vec<String> =
        status.runtimes.unwrap_or_default().into_iter().filter(|runtime| is_dns_label(runtime)).collect();
    runtimes.truncate(RUNTIMES_LIMIT);
    let clean = NodeStatus {
        capacity: capped(status.capacity),
        os: cut(&status.os.unwrap_or_default()),
        ip: believable_address(&status.ip.unwrap_or_default(), peer).unwrap_or_default(),
        ready: status.ready,
        runtimes,
        labels: derived_labels(name, platform.as_ref()),
        platform,
        routed_network: status.routed_network,
        ..NodeStatus::default()
    };
    let mut status = serde_json::to_value(&clean).map_err(|error| Dropped::Undecodable(error.to_string()))?;
    if let Some(members) = status.as_object_mut() {
        members.remove("allocated");
    }
    Ok(NodeReport { status, allocated_cpu, allocated_memory, units: units(&status_units) })
}

/// What is no uid is nothing that was ever sent.
fn units(reported: &Value) -> Vec<Uuid> {
    let listed = reported.as_array().into_iter().flatten();
    listed.filter_map(|unit| unit.as_str()?.parse().ok()).take(UNITS_LIMIT).collect()
}

fn not_negative(amounts: &ResourceList, what: &'static str) -> Result<(), Dropped> {
    if amounts.cpu().is_negative() || amounts.memory().is_negative() {
        return Err(Dropped::Negative(what));
    }
    Ok(())
}

/// Amounts above the ceilings are lowered to them; zero is as good as absent.
fn capped(amounts: ResourceList) -> ResourceList {
    let cap = |amount: Option<Quantity>, ceiling: Quantity| {
        amount.filter(|amount| !amount.is_zero()).map(|amount| amount.min(ceiling))
    };
    ResourceList {
        cpu: cap(amounts.cpu, Quantity::from_nano(CPU_CEILING_NANO)),
        memory: cap(amounts.memory, Quantity::from_bytes(MEMORY_CEILING)),
    }
}

/// Left out: what is no address and what can be no machine's own. Loopback is believed of a node that is
/// connected over loopback itself, since then the whole stack runs on one machine.
fn believable_address(ip: &str, peer: IpAddr) -> Option<String> {
    let address: IpAddr = ip.parse().ok()?;
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let refused = address.is_unspecified()
        || address.is_multicast()
        || link_local
        || (address.is_loopback() && !peer.to_canonical().is_loopback());
    (!refused).then(|| address.to_string())
}

fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace('\0', "")
}

/// These become label values, so one that is far from any platform's name is dropped instead of cut.
fn kept_label_value(text: String) -> String {
    let fits = text.len() <= 63 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if fits { text } else { String::new() }
}

fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|&b| alphanumeric(b) || b == b'-')
        && alphanumeric(bytes[0])
        && alphanumeric(bytes[bytes.len() - 1])
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use serde_json::json;

    use super::*;

    const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));

    fn report(status: Value) -> Result<NodeReport, Dropped> {
        let node = json!({"kind": "Node", "metadata": {"name": "n1"}, "spec": {}, "status": status});
        sanitise("n1", FAR, node.to_string().as_bytes())
    }

    fn base() -> Value {
        json!({
            "capacity": {"cpu": "4", "memory": "16Gi"}, "allocated": {}, "os": "Debian", "ip": "10.0.0.9",
            "ready": true, "heartbeat": "2031-01-01T00:00:00Z", "runtimes": ["userns"],
            "platform": {"os": "linux", "arch": "amd64"},
        })
    }

    fn with(member: &str, value: Value) -> Value {
        let mut status = base();
        status[member] = value;
        status
    }

    #[test]
    fn an_ordinary_report_keeps_what_a_machine_knows_about_itself() {
        let clean = report(with("allocated", json!({"cpu": "1500m", "memory": "1Ki"}))).unwrap();
        assert_eq!(
            clean.status,
            json!({
                "capacity": {"cpu": "4", "memory": "16Gi"}, "os": "Debian", "ip": "10.0.0.9", "ready": true,
                "runtimes": ["userns"], "platform": {"os": "linux", "arch": "amd64"},
                "labels": {
                    "horchestra.io/hostname": "n1", "horchestra.io/os": "linux", "horchestra.io/arch": "amd64",
                },
            })
        );
        assert_eq!((clean.allocated_cpu, clean.allocated_memory), (1_500_000_000, 1024));
    }

    #[test]
    fn what_is_not_the_nodes_to_say_is_replaced_or_left_out() {
        let cases: [(&str, Value, &str, Value); 13] = [
            (
                "labels",
                json!({"arch": "gpu", "tier": "secure"}),
                "/labels",
                json!({"horchestra.io/hostname": "n1", "horchestra.io/os": "linux", "horchestra.io/arch": "amd64"}),
            ),
            (
                "platform",
                json!({"os": "linux", "arch": "arm64"}),
                "/labels/horchestra.io~1arch",
                json!("arm64"),
            ),
            ("platform", Value::Null, "/labels", json!({"horchestra.io/hostname": "n1"})),
            (
                "platform",
                json!({"os": "", "arch": "a b"}),
                "/labels",
                json!({"horchestra.io/hostname": "n1"}),
            ),
            ("capacity", json!({"cpu": "100000", "memory": "1Pi"}), "/capacity/cpu", json!("4096")),
            ("capacity", json!({"cpu": "100000", "memory": "1Pi"}), "/capacity/memory", json!("64Ti")),
            ("conditions", json!([{"type": "Admitted", "status": "True"}]), "/conditions", Value::Null),
            ("heartbeat", json!("2099-01-01T00:00:00Z"), "/heartbeat", Value::Null),
            ("ip", json!("127.0.0.1"), "/ip", Value::Null),
            ("ip", json!("169.254.0.7"), "/ip", Value::Null),
            ("ip", json!("not an address"), "/ip", Value::Null),
            ("runtimes", json!(["userns", "Bad Name", ""]), "/runtimes", json!(["userns"])),
            ("somethingNew", json!({"a": 1}), "/somethingNew", Value::Null),
        ];
        for (member, value, path, expected) in cases {
            let clean = report(with(member, value.clone())).unwrap();
            let found = clean.status.pointer(path).cloned().unwrap_or_default();
            assert_eq!(found, expected, "{member} = {value}");
        }
        assert_eq!(
            report(with("os", json!("ä".repeat(300)))).unwrap().status["os"],
            json!("ä".repeat(128)),
            "cut between characters"
        );
    }

    #[test]
    fn loopback_is_believed_of_a_peer_on_loopback() {
        let node = json!({"metadata": {"name": "n1"}, "status": with("ip", json!("127.0.0.1"))});
        let local = sanitise("n1", Ipv4Addr::LOCALHOST.into(), node.to_string().as_bytes()).unwrap();
        assert_eq!(local.status["ip"], "127.0.0.1");
    }

    #[test]
    fn a_report_that_is_wrong_as_a_whole_is_dropped() {
        let capacity = |cpu: &str| report(with("capacity", json!({"cpu": cpu})));
        assert!(matches!(capacity(""), Err(Dropped::Undecodable(_))), "an empty amount is no amount");
        assert!(matches!(capacity("1e-100000000"), Err(Dropped::Undecodable(_))));
        assert_eq!(capacity("-1"), Err(Dropped::Negative("status.capacity")));
        let raw = |json: &str| sanitise("n1", FAR, json.as_bytes());
        assert!(matches!(raw("{"), Err(Dropped::Undecodable(_))));
        let status = base();
        for (metadata, expected) in [
            (json!({"name": "n2"}), Dropped::OtherNode("n2".to_owned())),
            (json!({}), Dropped::OtherNode(String::new())),
            (json!({"name": "n1", "namespace": "team"}), Dropped::Namespaced),
        ] {
            let node = json!({"metadata": metadata, "status": status}).to_string();
            assert_eq!(raw(&node), Err(expected));
        }
        let large = format!(r#"{{"metadata":{{"name":"n1"}},"x":"{}"}}"#, "y".repeat(REPORT_LIMIT));
        assert!(matches!(raw(&large), Err(Dropped::TooLarge(_))));
    }
}

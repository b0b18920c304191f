//! What the tables of the fleet need to know of each object.

use std::net::{IpAddr, Ipv4Addr};

use horchestra_core::kinds::application::Application;
use horchestra_core::kinds::node::Node;
use horchestra_core::kinds::service::{Service, ServicePort, is_routable};
use horchestra_store::Entry;

/// An Application that is placed, and has an address of its own or is to be reached through a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub node: String,
    /// The Service that it joins; empty: none.
    pub service: String,
    /// It has a network of its own.
    pub isolated: bool,
    /// Its own address, where the node has reported one.
    pub address: Option<Ipv4Addr>,
    /// What was reported instead of an address.
    pub odd_address: Option<String>,
    /// It has neither ended nor is it to end.
    pub serves: bool,
    /// Name and number.
    pub ports: Vec<(String, i64)>,
}

/// The address of a single host, with or without prefix length. It must be one that can be routed to.
pub fn host_address(text: &str) -> Option<Ipv4Addr> {
    let bare = text.strip_suffix("/32").unwrap_or(text);
    bare.parse().ok().filter(|_| is_routable(bare))
}

/// `None`: it plays no part.
pub(super) fn member(entry: &Entry) -> Option<Member> {
    let node = entry.columns.node.clone().filter(|node| !node.is_empty())?;
    let application = entry.typed::<Application>().ok()?;
    let isolated = application.spec.host_network == Some(false);
    let service = application.spec.service_name.clone();
    if service.is_empty() && !isolated {
        return None;
    }
    let reported = application.status.address.as_str();
    let address = host_address(reported).filter(|_| isolated);
    Some(Member {
        node,
        isolated,
        address,
        odd_address: (isolated && address.is_none() && !reported.is_empty()).then(|| reported.to_owned()),
        serves: !entry.deleting && !application.is_finished(),
        ports: match service.is_empty() {
            true => Vec::new(),
            false => application.spec.ports.iter().map(|port| (port.name.clone(), port.port)).collect(),
        },
        service,
    })
}

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It has not said so.
    Unknown,
    At(Ipv4Addr),
    /// Where other nodes cannot reach it.
    Odd(String),
}

impl Place {
    pub fn address(&self) -> Option<Ipv4Addr> {
        match self {
            Place::At(address) => Some(*address),
            Place::Unknown | Place::Odd(_) => None,
        }
    }
}

pub(super) fn place(entry: &Entry) -> Place {
    let Ok(node) = entry.decoded::<Node>() else { return Place::Unknown };
    match node.status.ip.parse::<IpAddr>() {
        _ if node.status.ip.is_empty() => Place::Unknown,
        Ok(IpAddr::V4(address)) if !address.is_unspecified() => Place::At(address),
        _ => Place::Odd(node.status.ip),
    }
}

/// A Service with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Virtual {
    pub text: String,
    /// `None`: nodes cannot take it.
    pub address: Option<Ipv4Addr>,
    pub ports: Vec<ServicePort>,
}

/// `None`: it has no address.
pub(super) fn virtual_of(entry: &Entry) -> Option<Virtual> {
    let service = entry.typed::<Service>().ok()?;
    let text = service.spec.cluster_ip.clone();
    let address = text.parse().ok().filter(|_| is_routable(&text));
    (!text.is_empty()).then(|| Virtual { text, address, ports: service.spec.ports.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_both_spellings_and_nothing_else() {
        for (text, good) in [
            ("10.244.0.7/32", true),
            ("10.244.0.7", true),
            ("", false),
            ("10.244.0.7/32/32", false),
            ("10.244.0.7/24", false),
            ("10.244.0.07", false),
            (" 10.244.0.7", false),
            ("fd00::7", false),
            ("::ffff:10.244.0.7", false),
            ("127.0.0.1", false),
            ("169.254.1.1", false),
            ("0.0.0.0", false),
            ("garbage", false),
        ] {
            assert_eq!(host_address(text).is_some(), good, "{text:?}");
        }
    }
}

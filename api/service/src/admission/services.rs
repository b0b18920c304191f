//! Services: names in the catalog and addresses.
//!
//! That no two Services have one address holds against races: an address is a claim of the Service in the
//! store. Names and addresses of nodes are looked at from this side only, since a node is never turned away:
//! one that comes later with the name of a Service, or with its address, is let in. So what is refused here
//! is a Service that would clash with a node that is there.

use std::net::IpAddr;

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::node::Node;
use horchestra_core::kinds::service::{Service, ServicePort, address_fault, folded, is_routable, ports_of};
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_store::{Guard, Snapshot};
use uuid::Uuid;

use super::{Attributes, Denial, Verdict};

/// Addresses that Services have.
pub(super) const ADDRESSES: &str = "service-address";
/// Most names of nodes that one commit looks up again. A Service with more ports than this is judged by what
/// this process knows of nodes alone.
const MOST_LOOKED_UP: usize = 256;

/// The names under which the catalog would list the Service, without repetition.
fn catalog_names(service: &str, ports: &[ServicePort]) -> Vec<String> {
    let mut names: Vec<String> = ports.iter().map(|port| port.catalog_name(service)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The first name that a node has as well.
pub(super) fn name_of_node(view: &Snapshot, service: &str, ports: &[ServicePort]) -> Option<String> {
    let taken = |name: &String| view.get(&Key::cluster(Kind::Node, name.as_str())).is_some();
    catalog_names(service, ports).into_iter().find(taken)
}

pub(super) fn clash(service: &str, name: &str) -> String {
    format!("service \"{service}\" would be listed in the catalog as \"{name}\", which is the name of a node")
}

/// No name in the catalog is a node's.
pub(super) fn check_names(
    attributes: &Attributes<'_>,
    object: &Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let key = attributes.key;
    if key.kind != Kind::Service || attributes.is_deleting() {
        return Ok(());
    }
    let before = attributes.old.map(ports_of).unwrap_or_default();
    let before = catalog_names(&key.name, &before);
    let mut ports = ports_of(object);
    ports.retain(|port| !before.contains(&port.catalog_name(&key.name)));
    if let Some(name) = name_of_node(attributes.view, &key.name, &ports) {
        return Err(Denial::Forbidden(clash(&key.name, &name)));
    }
    for name in catalog_names(&key.name, &ports).into_iter().take(MOST_LOOKED_UP) {
        let refusal = Status::forbidden(key.kind, &key.name, clash(&key.name, &name));
        verdict.demand(Guard::Unchanged(Key::cluster(Kind::Node, name), 0), refusal);
    }
    Ok(())
}

pub(super) fn address_of(object: &Object) -> Option<IpAddr> {
    object.str_at(&["spec", "clusterIP"]).parse().ok().map(folded)
}

/// An address that an author names is one, is nobody's, and can be had.
pub(super) fn check_address(
    attributes: &Attributes<'_>,
    object: &Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let key = attributes.key;
    if key.kind != Kind::Service {
        return Ok(());
    }
    let text = object.str_at(&["spec", "clusterIP"]);
    let stored = attributes.old.map_or("", |old| old.str_at(&["spec", "clusterIP"]));
    if text == stored {
        return Ok(());
    }
    let owner = Uuid::parse_str(object.uid())
        .map_err(|_| Denial::Status(Status::internal("the object has no proper uid")))?;
    let held = attributes.old.and_then(address_of);
    if held.is_some() && text.is_empty() {
        verdict.release(ADDRESSES, owner);
    }
    if text.is_empty() {
        return Ok(());
    }
    let refusal = |why: &str| format!("spec.clusterIP {text:?} {why}");
    if let Some(fault) = address_fault(text) {
        return Err(Denial::Forbidden(refusal(fault)));
    }
    let Some(address) = address_of(object) else { return Ok(()) };
    if let Some(node) = node_with(attributes.view, address) {
        return Err(Denial::Forbidden(refusal(&format!("is the address of node \"{node}\""))));
    }
    // Which Service has it may be none of the author's business.
    let taken = refusal("is in use");
    if is_taken(attributes, address) {
        return Err(Denial::Forbidden(taken));
    }
    if !is_routable(text) {
        verdict.warn(format!(
            "spec.clusterIP: {text} takes no effect, nodes only route to IPv4 addresses that are not local"
        ));
    }
    if held != Some(address) {
        if held.is_some() {
            verdict.release(ADDRESSES, owner);
        }
        let refusal = Status::forbidden(key.kind, &key.name, taken);
        verdict.claim(ADDRESSES, address.to_string(), owner, refusal);
    }
    Ok(())
}

fn node_with(view: &Snapshot, address: IpAddr) -> Option<String> {
    view.list(Kind::Node, None)
        .find(|entry| {
            let node = entry.typed::<Node>();
            node.is_ok_and(|node| node.status.ip.parse().is_ok_and(|ip| folded(ip) == address))
        })
        .map(|entry| entry.key.name.clone())
}

fn is_taken(attributes: &Attributes<'_>, address: IpAddr) -> bool {
    attributes.view.list(Kind::Service, None).any(|entry| {
        let service = entry.typed::<Service>();
        entry.key != *attributes.key
            && service.is_ok_and(|it| it.spec.cluster_ip.parse().is_ok_and(|ip| folded(ip) == address))
    })
}

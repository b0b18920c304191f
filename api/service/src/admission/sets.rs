//! ApplicationSets: a set that is stored can be expanded.
//!
//! What a set makes is judged when the set is written, as far as it can be told then: on the nodes that there
//! are, by the rules of an Application alone and of a Service alone. Rules about other objects (capacity, a
//! Secret that must exist, who mounts what) are judged when a child is made, since by then things have moved
//! on anyway; a node that joins later can make a set clash with itself, which its status then tells.
//!
//! Only a changed spec is judged. The loop must be able to let go of a set whose nodes have changed under it.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application_set::{ApplicationSet, RenderedService, SpreadNode, expand};
use horchestra_core::kinds::node::Node;
use horchestra_core::kinds::service::ports_of;
use horchestra_core::object::Object;

use super::{Attributes, Denial, Verdict, floor, services};

pub(super) fn check(
    attributes: &Attributes<'_>,
    object: &Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let unchanged = attributes.old.is_some_and(|old| old.get("spec") == object.get("spec"));
    if attributes.key.kind != Kind::ApplicationSet || unchanged || attributes.is_deleting() {
        return Ok(());
    }
    let nodes: Vec<SpreadNode> = attributes
        .view
        .list(Kind::Node, None)
        .filter_map(|entry| entry.typed::<Node>().ok())
        .map(|node| SpreadNode::from(&*node))
        .collect();
    let expansion = expand(object, &nodes).map_err(|error| Denial::Invalid(error.to_string()))?;
    check_components(object)?;
    for service in &expansion.services {
        check_service(attributes, object, service, verdict)?;
    }
    Ok(())
}

/// The floor under every child. It is the same for all children of a component.
fn check_components(object: &Object) -> Result<(), Denial> {
    let Ok(set) = object.read::<ApplicationSet>() else { return Ok(()) };
    for (at, component) in set.spec.applications.iter().enumerate() {
        floor::check_component(&component.spec, &format!("spec.applications[{at}].spec"))?;
    }
    Ok(())
}

fn check_service(
    attributes: &Attributes<'_>,
    set: &Object,
    service: &RenderedService,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let name = service.name();
    if let Some(clash) = services::name_of_node(attributes.view, name, &ports_of(&service.object)) {
        return Err(Denial::Forbidden(services::clash(name, &clash)));
    }
    let key = Key::namespaced(Kind::Service, &*attributes.key.namespace, name);
    if let Some(entry) = attributes.view.get(&key)
        && entry.object().is_ok_and(|stored| !is_owned_by(&stored, set.uid()))
    {
        verdict.warn(format!(
            "service \"{name}\" exists and does not belong to the set: children join it as it is"
        ));
    }
    Ok(())
}

fn is_owned_by(object: &Object, uid: &str) -> bool {
    let owners = object.at(&["metadata", "ownerReferences"]).and_then(serde_json::Value::as_array);
    owners.into_iter().flatten().any(|owner| owner["controller"] == true && owner["uid"] == uid)
}

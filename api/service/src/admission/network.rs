//! Networks of workloads: one of its own is asked for with `hostNetwork: false`, and there is none unless the
//! cluster has a range of addresses for them. What is stored is not judged again.

use horchestra_core::kind::Kind;
use horchestra_core::object::Object;
use serde_json::Value;

use super::{Attributes, Denial};

pub(super) fn check(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    if attributes.allocator.routed || attributes.is_deleting() {
        return Ok(());
    }
    let new = asking(attributes.key.kind, object);
    let old = attributes.old.map(|old| asking(attributes.key.kind, old)).unwrap_or_default();
    match new.into_iter().find(|path| !old.contains(path)) {
        Some(path) => Err(Denial::Invalid(format!(
            "{path}.hostNetwork: false needs a network for workloads, which this cluster does not have; start the \
             control plane with --routed-cidr"
        ))),
        None => Ok(()),
    }
}

/// Where a network of its own is asked for.
fn asking(kind: Kind, object: &Object) -> Vec<String> {
    let asks = |spec: Option<&Value>| spec.is_some_and(|spec| spec["hostNetwork"] == Value::Bool(false));
    match kind {
        Kind::Application if asks(object.get("spec")) => vec!["spec".to_owned()],
        Kind::ApplicationSet => {
            let components = object.at(&["spec", "applications"]).and_then(Value::as_array);
            let components = components.into_iter().flatten().enumerate();
            components
                .filter(|(_, component)| asks(component.get("spec")))
                .map(|(at, _)| format!("spec.applications[{at}].spec"))
                .collect()
        }
        _ => Vec::new(),
    }
}

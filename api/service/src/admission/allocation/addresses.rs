//! Addresses of Services.

use horchestra_core::kind::Kind;
use horchestra_core::object::Object;
use serde_json::Value;

use super::super::services::ADDRESSES;
use super::super::{Attributes, Denial, Operation, Verdict};

/// A new Service without an address is given one of the cluster's range; an update that does not mention the
/// address keeps it. Without a range nothing is given and nothing kept. The claim is made where addresses are
/// judged, whoever chose them.
pub(crate) fn choose_address(
    attributes: &Attributes<'_>,
    object: &mut Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let Some(range) = attributes.allocator.services.filter(|_| attributes.key.kind == Kind::Service) else {
        return Ok(());
    };
    let given = object.at(&["spec", "clusterIP"]).is_some_and(|address| address.as_str() != Some(""));
    if given || !object.get("spec").is_some_and(Value::is_object) {
        return Ok(());
    }
    if attributes.operation != Operation::Create {
        let stored = attributes.old.map_or("", |old| old.str_at(&["spec", "clusterIP"]));
        if !stored.is_empty() {
            set(object, stored);
        }
        return Ok(());
    }
    let chosen = attributes.allocator.held.choose(attributes.view, ADDRESSES, &range.hosts());
    let Some((number, reserved)) = chosen else {
        return Err(Denial::Forbidden(format!(
            "the range of addresses for Services is exhausted: {range} has {}",
            range.size()
        )));
    };
    verdict.reserved.push(reserved);
    set(object, &range.address(number).to_string());
    Ok(())
}

fn set(object: &mut Object, address: &str) {
    if let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("clusterIP".to_owned(), address.into());
    }
}

//! Rules about Nodes: reserved labels, what a node's own certificate may write, and who is admitted.

use horchestra_core::kind::Kind;
use horchestra_core::object::Object;
use serde_json::{Map, Value, json};

use super::{Attributes, CallerClass, Denial, Operation};
use crate::caller::Caller;
use crate::conditions::{self, Condition};

/// Labels under this prefix are derived from what the node reports.
const RESERVED: &str = "horchestra.io/";
/// The condition that lets a node take part.
pub(crate) const ADMITTED: &str = "Admitted";

/// Refuses labels that only the control plane may derive; the keys are sorted, so the text is the same
/// every time.
pub(super) fn check_labels(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    if attributes.key.kind != Kind::Node {
        return Ok(());
    }
    let mut offending: Vec<&str> =
        object.labels().map(|(key, _)| key).filter(|key| key.starts_with(RESERVED)).collect();
    offending.sort_unstable();
    if offending.is_empty() {
        return Ok(());
    }
    Err(Denial::Forbidden(format!(
        "labels under {RESERVED} are derived by the control plane: {}",
        offending.join(", ")
    )))
}

/// Confines the certificate of a node to its own Node, and there to what is no operator's business.
pub(super) fn restrict(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    let Caller::Http(client) = attributes.caller else {
        return Ok(());
    };
    let identity = &client.identity;
    let key = attributes.key;
    if key.kind == Kind::CertificateSigningRequest {
        return Ok(());
    }
    if key.kind != Kind::Node {
        return Err(Denial::Forbidden(format!(
            "node \"{}\" may not write {}",
            identity.name,
            key.kind.plural()
        )));
    }
    if key.name != identity.name {
        return Err(Denial::Forbidden(format!("node \"{}\" may only write its own Node", identity.name)));
    }
    let empty = Value::Object(Map::new());
    let spec = |object: &Object| object.get("spec").cloned().unwrap_or_else(|| empty.clone());
    let labels = |object: &Object| object.at(&["metadata", "labels"]).cloned().unwrap_or(empty.clone());
    match (attributes.operation, attributes.old) {
        (Operation::Create, _) => {
            // Admission itself cordons what came without a spec, and says so.
            let made_here = condition_reason(object, ADMITTED) == SELF_REGISTERED;
            if spec(object) != empty && !made_here {
                return Err(Denial::Forbidden("a node may not set the spec of its Node".to_owned()));
            }
            if labels(object) != empty {
                return Err(Denial::Forbidden("a node may not label its Node".to_owned()));
            }
        }
        (Operation::Update, Some(old)) => {
            if spec(object) != spec(old) {
                return Err(Denial::Forbidden("a node may not change the spec of its Node".to_owned()));
            }
            if labels(object) != labels(old) {
                return Err(Denial::Forbidden("a node may not change the labels of its Node".to_owned()));
            }
        }
        _ => {}
    }
    Ok(())
}

/// A Node that an operator makes is admitted, and so is one that an operator uncordons. One that a node's
/// own certificate makes is what a node that registers through its session gets: cordoned and not admitted.
pub(super) fn admit(attributes: &Attributes<'_>, object: &mut Object) {
    if attributes.key.kind != Kind::Node {
        return;
    }
    if attributes.class == CallerClass::NodeIdentity {
        if attributes.old.is_none() && spec_is_empty(object) {
            object.0.insert("spec".to_owned(), json!({"unschedulable": true}));
            set_admitted(object, false, SELF_REGISTERED, SELF_REGISTERED_MESSAGE);
        }
        return;
    }
    let reason = match attributes.old {
        None => "CreatedByOperator",
        Some(old) if is_cordoned(old) && !is_cordoned(object) => "Uncordoned",
        Some(_) => return,
    };
    if conditions::is_true(object, ADMITTED) {
        return;
    }
    set_admitted(object, true, reason, "");
}

/// Why a Node that nobody made is not admitted.
pub(crate) const SELF_REGISTERED: &str = "SelfRegistered";
pub(crate) const SELF_REGISTERED_MESSAGE: &str =
    "the node registered itself; uncordon or admit it to let it take part";

fn condition_reason<'a>(object: &'a Object, kind: &str) -> &'a str {
    object
        .at(&["status", "conditions"])
        .and_then(Value::as_array)
        .and_then(|all| all.iter().find(|condition| condition["type"] == kind))
        .and_then(|condition| condition["reason"].as_str())
        .unwrap_or("")
}

fn spec_is_empty(node: &Object) -> bool {
    node.get("spec").is_none_or(|spec| spec.as_object().is_some_and(Map::is_empty))
}

fn is_cordoned(node: &Object) -> bool {
    node.at(&["spec", "unschedulable"]).and_then(Value::as_bool).unwrap_or(false)
}

/// Sets the verdict on admission.
pub(crate) fn set_admitted(node: &mut Object, admitted: bool, reason: &str, message: &str) {
    ensure_status(node);
    let status = if admitted { "True" } else { "False" };
    conditions::set(node, &Condition { kind: ADMITTED, status, reason, message, generation: 0 });
}

/// A Node's status always has these three, even when nothing is known.
pub(crate) fn ensure_status(node: &mut Object) {
    let status = conditions::status_mut(node);
    status.entry("capacity").or_insert_with(|| json!({}));
    status.entry("allocated").or_insert_with(|| json!({}));
    status.entry("ready").or_insert_with(|| json!(false));
}

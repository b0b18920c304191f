//! The floor under every workload: nothing runs as root, and nothing that reaches a unit file can break out
//! of its line.

use horchestra_core::kind::Kind;
use horchestra_core::kinds::application::{ApplicationSpec, exec_faults, process_faults};
use horchestra_core::object::Object;
use horchestra_core::values::RUN_AS_IDS;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use super::{Attributes, Denial};

/// What runs as nobody in particular runs as this.
const FALLBACK_ID: i64 = 65532;
const IDS: [&str; 2] = ["runAsUser", "runAsGroup"];

/// Fills ids that neither the author nor an allocator chose. Only where there is a spec: a missing one is the
/// schema's to report.
pub(super) fn fill(attributes: &Attributes<'_>, object: &mut Object) {
    if attributes.key.kind != Kind::Application {
        return;
    }
    let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let context = spec.entry("securityContext").or_insert_with(|| Value::Object(Map::new()));
    if let Some(context) = context.as_object_mut() {
        for member in IDS {
            if !context.contains_key(member) {
                context.insert(member.to_owned(), json!(FALLBACK_ID));
            }
        }
    }
}

pub(super) fn check(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    // What is stored was judged when it came; a label or a report does not put it on trial again.
    let unchanged = attributes.old.is_some_and(|old| old.get("spec") == object.get("spec"));
    if attributes.key.kind != Kind::Application || unchanged {
        return Ok(());
    }
    let context = |member: &str| object.at(&["spec", "securityContext", member]).and_then(Value::as_i64);
    for member in IDS {
        let field = format!("spec.securityContext.{member}");
        match context(member) {
            None => return Err(Denial::Forbidden(format!("{field} is missing"))),
            Some(id) => check_id(&field, id)?,
        }
    }
    let spec = object.get("spec").and_then(|spec| ApplicationSpec::deserialize(spec).ok());
    match spec.and_then(|spec| exec_faults(&spec, "spec").into_iter().next()) {
        Some(fault) => Err(Denial::Forbidden(fault)),
        None => Ok(()),
    }
}

/// The floor under the children of a component of a set, found at `path`. Ids that it leaves out are filled in
/// when a child is made, and its environment is judged with the rest of the set.
pub(super) fn check_component(spec: &ApplicationSpec, path: &str) -> Result<(), Denial> {
    let context = spec.security_context.clone().unwrap_or_default();
    for (member, id) in IDS.into_iter().zip([context.run_as_user, context.run_as_group]) {
        if let Some(id) = id {
            check_id(&format!("{path}.securityContext.{member}"), id)?;
        }
    }
    match process_faults(spec, path).into_iter().next() {
        Some(fault) => Err(Denial::Forbidden(fault)),
        None => Ok(()),
    }
}

fn check_id(field: &str, id: i64) -> Result<(), Denial> {
    if RUN_AS_IDS.contains(&id) {
        return Ok(());
    }
    let (least, most) = (RUN_AS_IDS.start(), RUN_AS_IDS.end());
    Err(Denial::Forbidden(format!(
        "{field} {id} is out of range: it must be between {least} and {most}, root is not allowed"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_root() {
        for good in [65532, 1, 1000, 4_294_967_294] {
            assert!(check_id("x", good).is_ok(), "{good}");
        }
        for bad in [0, -1, -4_294_901_760, 4_294_967_296, 4_295_032_828, 1_099_511_627_776, 4_294_967_295] {
            assert!(check_id("x", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_component_is_held_to_what_it_says() {
        let spec = |members: Value| {
            let mut members = members;
            members["image"] = json!("x");
            serde_json::from_value::<ApplicationSpec>(members).unwrap()
        };
        for (members, good) in [
            (json!({}), true),
            (json!({"securityContext": {"runAsUser": 7}}), true),
            (json!({"securityContext": {"runAsGroup": 0}}), false),
            (json!({"command": ["-x"]}), false),
            (json!({"args": ["a\nb"]}), false),
        ] {
            assert_eq!(check_component(&spec(members.clone()), "spec").is_ok(), good, "{members}");
        }
    }
}

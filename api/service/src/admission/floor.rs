//! The floor under every workload: nothing runs as root, and nothing that reaches a unit file can break out
//! of its line.

use horchestra_core::kind::Kind;
use horchestra_core::object::Object;
use serde_json::{Map, Value, json};

use super::{Attributes, Denial};

/// What runs as nobody in particular runs as this.
const FALLBACK_ID: i64 = 65532;
const HIGHEST_ID: i64 = 4_294_967_294;
const IDS: [&str; 2] = ["runAsUser", "runAsGroup"];

/// Fills ids that nobody chose. Only where there is a spec: a missing one is the schema's to report. On an
/// update an id that was left out stays what it was, so that a workload never changes its user unasked.
pub(super) fn fill(attributes: &Attributes<'_>, object: &mut Object) {
    if attributes.key.kind != Kind::Application {
        return;
    }
    let stored = |member: &str| attributes.old?.at(&["spec", "securityContext", member]).cloned();
    let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let context = spec.entry("securityContext").or_insert_with(|| Value::Object(Map::new()));
    if let Some(context) = context.as_object_mut() {
        for member in IDS {
            if !context.contains_key(member) {
                let id = stored(member).unwrap_or_else(|| json!(FALLBACK_ID));
                context.insert(member.to_owned(), id);
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
    check_ids(object)?;
    check_process(object)
}

fn check_ids(object: &Object) -> Result<(), Denial> {
    for member in IDS {
        let field = format!("spec.securityContext.{member}");
        match object.at(&["spec", "securityContext", member]).and_then(Value::as_i64) {
            None => return Err(Denial::Forbidden(format!("{field} is missing"))),
            Some(id) if (1..=HIGHEST_ID).contains(&id) => {}
            Some(id) => {
                return Err(Denial::Forbidden(format!(
                    "{field} {id} is out of range: it must be between 1 and {HIGHEST_ID}, root is not allowed"
                )));
            }
        }
    }
    Ok(())
}

fn check_process(object: &Object) -> Result<(), Denial> {
    let list = |member: &str| -> Vec<&Value> {
        object.at(&["spec", member]).and_then(Value::as_array).into_iter().flatten().collect()
    };
    for member in ["command", "args"] {
        for (at, element) in list(member).into_iter().enumerate() {
            let text = element.as_str().unwrap_or_default();
            check_line(text, || format!("spec.{member}[{at}]"))?;
            if member == "command" && at == 0 && text.starts_with(['@', '-', ':', '+', '!']) {
                return Err(Denial::Forbidden(
                    "spec.command[0] may not start with one of @ - : + !".to_owned(),
                ));
            }
        }
    }
    let mut names = Vec::new();
    for (at, entry) in list("env").into_iter().enumerate() {
        for member in ["name", "value"] {
            check_line(entry[member].as_str().unwrap_or_default(), || format!("spec.env[{at}].{member}"))?;
        }
        let name = entry["name"].as_str().unwrap_or_default();
        // Entries without a name bring all keys of a Secret; there may be several.
        if !name.is_empty() && names.contains(&name) {
            return Err(Denial::Forbidden(format!("spec.env[{at}].name \"{name}\" is there twice")));
        }
        names.push(name);
    }
    Ok(())
}

fn check_line(text: &str, field: impl Fn() -> String) -> Result<(), Denial> {
    if text.contains(['\n', '\r', '\0']) {
        return Err(Denial::Forbidden(format!("{} may not contain a line break or NUL", field())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_break_out_is_refused() {
        for (spec, good) in [
            (json!({"command": ["/bin/true"], "args": ["-x", "@y"]}), true),
            (json!({"command": ["-/bin/true"]}), false),
            (json!({"command": ["!x"]}), false),
            (json!({"command": ["/bin/sh", "-c"]}), true),
            (json!({"args": ["a\nb"]}), false),
            (json!({"args": ["a\rb"]}), false),
            (json!({"env": [{"name": "A", "value": "a\nb"}]}), false),
            (json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}), false),
            (
                json!({"env": [{"secretRef": {"name": "a", "key": "*"}}, {"secretRef": {"name": "b", "key": "*"}}]}),
                true,
            ),
        ] {
            let object = Object::from_value(json!({ "spec": spec })).unwrap();
            assert_eq!(check_process(&object).is_ok(), good, "{}", object.get("spec").unwrap());
        }
    }

    #[test]
    fn nobody_is_root() {
        for (user, good) in [
            (json!(0), false),
            (json!(-1), false),
            (json!(1), true),
            (json!(HIGHEST_ID), true),
            (json!(4294967295_i64), false),
        ] {
            let object = Object::from_value(
                json!({"spec": {"securityContext": {"runAsUser": user, "runAsGroup": 7}}}),
            )
            .unwrap();
            assert_eq!(check_ids(&object).is_ok(), good, "{user}");
        }
    }
}

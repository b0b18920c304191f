//! Names of objects and namespaces: their syntax, the names that the server makes up, and how the request's
//! path binds them.

use crate::kind::Kind;
use crate::object::Object;
use crate::registry::KindSpec;
use crate::status::{Cause, Status};

/// Longest name of an object.
pub const MAX_NAME: usize = 253;
/// Longest name of a namespace (a DNS label).
pub const MAX_LABEL: usize = 63;
/// Longest part of `generateName` that goes into a name.
pub const MAX_GENERATED_BASE: usize = 58;

/// Characters of generated names: no vowels (no words) and nothing that looks like another character.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const RANDOM_LENGTH: usize = 5;

/// What is wrong with a text as the name of an object; `None` when nothing is.
pub fn subdomain_fault(name: &str) -> Option<&'static str> {
    if name.len() > MAX_NAME {
        return Some("must be no more than 253 characters");
    }
    let good = !name.is_empty() && name.split('.').all(is_label);
    (!good).then_some(
        "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
         must start and end with an alphanumeric character",
    )
}

/// What is wrong with a text as the name of a namespace; `None` when nothing is.
pub fn label_fault(name: &str) -> Option<&'static str> {
    if name.len() > MAX_LABEL {
        return Some("must be no more than 63 characters");
    }
    (!is_label(name)).then_some(
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
         start and end with an alphanumeric character",
    )
}

fn is_label(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(plain)
        && bytes.last().copied().is_some_and(plain)
        && bytes.iter().all(|&b| plain(b) || b == b'-')
}

/// A name from a prefix: what fits of it and five characters that `random` decides. Twenty-four even bits
/// are enough.
pub fn generate_name(base: &str, mut random: u64) -> String {
    let end = (0..=base.len().min(MAX_GENERATED_BASE)).rev().find(|&at| base.is_char_boundary(at));
    let mut name = base[..end.unwrap_or(0)].to_owned();
    for _ in 0..RANDOM_LENGTH {
        let at = usize::try_from(random % ALPHABET.len() as u64).unwrap_or(0);
        name.push(char::from(ALPHABET[at]));
        random /= ALPHABET.len() as u64;
    }
    name
}

/// Gives an object that is to be created its name if it only has a prefix, and checks name and namespace.
/// Returns whether the name was made up (so that a clash is worth another try). 422.
pub fn settle_name(spec: &KindSpec, object: &mut Object, random: u64) -> Result<bool, Status> {
    let base = object.str_at(&["metadata", "generateName"]).to_owned();
    let generated = object.name().is_empty() && !base.is_empty();
    if generated {
        let name = generate_name(&base, random);
        object.set_metadata("name", name);
    }
    let mut causes = Vec::new();
    let name = object.name();
    if name.is_empty() {
        causes.push(Cause::new(
            "FieldValueRequired",
            "metadata.name",
            "Required value: name or generateName is required",
        ));
    } else if let Some(fault) = subdomain_fault(name) {
        let field = if generated { "metadata.generateName" } else { "metadata.name" };
        let shown = if generated { &base } else { name };
        causes.push(Cause::invalid(field, &format!("{shown:?}"), fault));
    }
    let namespace = object.namespace();
    if let Some(fault) = label_fault(namespace).filter(|_| spec.namespaced()) {
        causes.push(Cause::invalid("metadata.namespace", &format!("{namespace:?}"), fault));
    }
    if causes.is_empty() { Ok(generated) } else { Err(Status::invalid(spec.kind, name, causes)) }
}

/// Binds the namespace of a written object to the one of the request: filled in when absent, 400 when it is
/// another one. `namespace` is empty for cluster-scoped kinds.
pub fn bind_namespace(spec: &KindSpec, object: &mut Object, namespace: &str) -> Result<(), Status> {
    let own = object.namespace();
    if !spec.namespaced() {
        if own.is_empty() {
            object.metadata_mut().remove("namespace");
            return Ok(());
        }
        return Err(Status::bad_request(format!(
            "{} are cluster-scoped, but the object names the namespace {own:?}",
            spec.plural()
        )));
    }
    if !own.is_empty() && own != namespace {
        return Err(Status::bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the request: {own:?} \
             is not {namespace:?}"
        )));
    }
    object.set_metadata("namespace", namespace);
    Ok(())
}

/// Checks that the body of a replacement is about the object that the request names. 400.
pub fn bind_name(object: &Object, name: &str) -> Result<(), Status> {
    let own = object.name();
    if own == name {
        return Ok(());
    }
    Err(Status::bad_request(if own.is_empty() {
        "the name of the object must be given in metadata.name".to_owned()
    } else {
        format!("the name of the object ({own}) does not match the name on the URL ({name})")
    }))
}

/// The answer to a write into a namespace that is not there.
pub fn no_namespace(name: &str) -> Status {
    Status::not_found_resource("", Kind::Namespace.plural(), name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn syntax_of_names() {
        for good in ["ok-1.web", "a", "0", "a.b.c"] {
            assert_eq!(subdomain_fault(good), None, "{good}");
        }
        let long = "a".repeat(254);
        for bad in [
            "",
            "app,lowerdir=/",
            "../../etc",
            "a/b",
            "Foo",
            "bad:name",
            "-a",
            "a-",
            "a..b",
            ".a",
            "a.",
            "é",
            long.as_str(),
        ] {
            assert!(subdomain_fault(bad).is_some(), "{bad}");
        }
        assert_eq!(label_fault(&"a".repeat(63)), None);
        for bad in ["a.b", "", &"a".repeat(64), "A"] {
            assert!(label_fault(bad).is_some(), "{bad}");
        }
    }

    fn application(metadata: serde_json::Value) -> Object {
        Object::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn a_missing_or_bad_name_is_refused_with_its_field() {
        let spec = registry::spec(Kind::Application).unwrap();
        let field = |metadata| {
            let status = settle_name(spec, &mut application(metadata), 1).unwrap_err();
            assert_eq!(status.code(), 422);
            status.details.causes[0].field.clone()
        };
        assert_eq!(field(json!({"namespace": "d"})), "metadata.name");
        assert_eq!(field(json!({"namespace": "d", "name": "Foo"})), "metadata.name");
        assert_eq!(field(json!({"namespace": "d", "generateName": "Foo"})), "metadata.generateName");
        assert_eq!(field(json!({"namespace": "a.b", "name": "x"})), "metadata.namespace");
    }

    #[test]
    fn a_name_wins_over_a_prefix() {
        let spec = registry::spec(Kind::Application).unwrap();
        let mut object = application(json!({"namespace": "d", "name": "x", "generateName": "y-"}));
        assert!(!settle_name(spec, &mut object, 1).unwrap());
        assert_eq!(object.name(), "x");
        let mut object = application(json!({"namespace": "d", "generateName": "web."}));
        assert!(settle_name(spec, &mut object, 99).unwrap());
        assert!(object.name().starts_with("web.") && object.name().len() == 9);
    }

    #[test]
    fn the_namespace_of_the_request_binds() {
        let application_spec = registry::spec(Kind::Application).unwrap();
        let node_spec = registry::spec(Kind::Node).unwrap();
        let mut object = application(json!({"name": "x"}));
        bind_namespace(application_spec, &mut object, "team-a").unwrap();
        assert_eq!(object.namespace(), "team-a");
        assert_eq!(bind_namespace(application_spec, &mut object, "team-b").unwrap_err().code(), 400);
        assert_eq!(bind_namespace(node_spec, &mut object, "").unwrap_err().code(), 400);
        assert_eq!(bind_name(&object, "y").unwrap_err().code(), 400);
        assert!(bind_name(&object, "x").is_ok());
        assert_eq!(no_namespace("gone").message, "namespaces \"gone\" not found");
    }

    proptest! {
        #[test]
        fn generated_names_are_valid_and_follow_the_base(base in "[a-z][a-z0-9.-]{0,80}", random in any::<u64>()) {
            let name = generate_name(&base, random);
            prop_assert_eq!(name.len(), base.len().min(MAX_GENERATED_BASE) + RANDOM_LENGTH);
            prop_assert!(name[name.len() - 5..].bytes().all(|b| ALPHABET.contains(&b)));
            prop_assert!(base.starts_with(&name[..name.len() - 5]));
        }

        #[test]
        fn any_base_is_survived(base in "\\PC{0,80}", random in any::<u64>()) {
            generate_name(&base, random);
        }
    }
}

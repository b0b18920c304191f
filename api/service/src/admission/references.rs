//! Rules about objects that others rest on.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::names;
use horchestra_core::object::Object;
use horchestra_core::registry::Reference;
use horchestra_core::status::{Cause, Status};
use horchestra_store::{Guard, Snapshot};

use super::table::holds_namespace;
use super::{Attributes, Denial, Verdict};
use crate::write::draft::spec_of;

/// The Namespace that is always there.
const DEFAULT_NAMESPACE: &str = "default";
/// How many names of each kind an answer lists.
const NAMES_SHOWN: usize = 3;

pub(super) fn namespace_exists(attributes: &Attributes<'_>, verdict: &mut Verdict) -> Result<(), Denial> {
    let namespace = &attributes.key.namespace;
    if namespace.is_empty() {
        return Ok(());
    }
    let missing = || names::no_namespace(namespace);
    let key = Key::cluster(Kind::Namespace, namespace.clone());
    match attributes.view.get(&key) {
        None => Err(Denial::Status(missing())),
        Some(entry) if entry.deleting => {
            let mut status = Status::forbidden(
                attributes.key.kind,
                &attributes.key.name,
                format!("namespace \"{namespace}\" is being deleted"),
            );
            status.details.causes.push(Cause::new(
                "NamespaceTerminating",
                "metadata.namespace",
                format!("namespace {namespace} is being terminated"),
            ));
            Err(Denial::Status(status))
        }
        Some(_) => {
            verdict.demand(Guard::Exists(key), missing());
            Ok(())
        }
    }
}

pub(super) fn namespace_empty(attributes: &Attributes<'_>, verdict: &mut Verdict) -> Result<(), Denial> {
    let key = attributes.key;
    if key.kind != Kind::Namespace {
        return Ok(());
    }
    if key.name == DEFAULT_NAMESPACE {
        return Err(Denial::Forbidden("the namespace is part of the system and stays".to_owned()));
    }
    if let Some(held) = contents(attributes.view, &key.name) {
        return Err(Denial::Forbidden(format!("it still holds {held}; delete that first")));
    }
    verdict.demand(
        Guard::NamespaceEmpty(key.name.clone()),
        Status::forbidden(key.kind, &key.name, "it is not empty; delete what it holds first"),
    );
    Ok(())
}

/// What a namespace holds, e.g. `application web, db; service db`; `None` when nothing.
fn contents(view: &Snapshot, namespace: &str) -> Option<String> {
    let mut parts = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| holds_namespace(*kind)) {
        let count = view.count(kind, Some(namespace));
        if count == 0 {
            continue;
        }
        let names: Vec<&str> =
            view.list(kind, Some(namespace)).take(NAMES_SHOWN).map(|entry| entry.key.name.as_str()).collect();
        let more = if count > NAMES_SHOWN { ", …" } else { "" };
        parts.push(format!("{} {}{more}", kind.name().to_lowercase(), names.join(", ")));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

pub(super) fn node_exists(
    attributes: &Attributes<'_>,
    object: &Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let node = object.str_at(&["spec", "placement", "nodeName"]);
    let before = attributes.old.map(|old| old.str_at(&["spec", "placement", "nodeName"]));
    if attributes.key.kind != Kind::Application
        || node.is_empty()
        || attributes.is_deleting()
        || before == Some(node)
    {
        return Ok(());
    }
    let why = format!("spec.placement.nodeName: node \"{node}\" does not exist");
    let key = Key::cluster(Kind::Node, node);
    if attributes.view.get(&key).is_none_or(|entry| entry.deleting) {
        return Err(Denial::Invalid(why));
    }
    let refusal = Status::refused(attributes.key.kind, &attributes.key.name, why);
    verdict.demand(Guard::Exists(key), refusal);
    Ok(())
}

/// Required Secrets that the object names and the stored one did not.
pub(super) fn secrets_exist(
    attributes: &Attributes<'_>,
    object: &Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let kind = attributes.key.kind;
    if kind != Kind::Application || attributes.is_deleting() {
        return Ok(());
    }
    let before = attributes.old.map(|old| required_secrets(kind, old)).unwrap_or_default();
    for name in required_secrets(kind, object) {
        if before.contains(&name) {
            continue;
        }
        let why = format!("secret \"{name}\" does not exist in namespace \"{}\"", attributes.key.namespace);
        require(attributes, Key::namespaced(Kind::Secret, &*attributes.key.namespace, name), why, verdict)?;
    }
    Ok(())
}

fn required_secrets(kind: Kind, object: &Object) -> Vec<String> {
    let Ok(spec) = spec_of(kind) else {
        return Vec::new();
    };
    (spec.references)(object)
        .into_iter()
        .filter_map(|reference| match reference {
            Reference::Secret(name) => Some(name),
            _ => None,
        })
        .collect()
}

pub(super) fn service_exists(
    attributes: &Attributes<'_>,
    object: &Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let name = object.str_at(&["spec", "serviceName"]);
    let before = attributes.old.map(|old| old.str_at(&["spec", "serviceName"]));
    if attributes.key.kind != Kind::Application
        || name.is_empty()
        || attributes.is_deleting()
        || before == Some(name)
    {
        return Ok(());
    }
    let why = format!(
        "spec.serviceName: service \"{name}\" does not exist in namespace \"{}\"",
        attributes.key.namespace
    );
    require(attributes, Key::namespaced(Kind::Service, &*attributes.key.namespace, name), why, verdict)
}

fn require(
    attributes: &Attributes<'_>,
    target: Key,
    why: String,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    if attributes.view.get(&target).is_none_or(|entry| entry.deleting) {
        return Err(Denial::Invalid(why));
    }
    let refusal = Status::refused(attributes.key.kind, &attributes.key.name, why);
    verdict.demand(Guard::Exists(target), refusal);
    Ok(())
}

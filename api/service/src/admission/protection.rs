//! What an Application uses cannot be deleted.
//!
//! Every Application of the namespace counts that is still there, one that is being deleted too: its node may
//! still run it. A deletion that has been accepted is not judged again.

use horchestra_core::kind::Kind;
use horchestra_core::kinds::application::Application;
use horchestra_core::status::Status;
use horchestra_store::{Guard, Relation, Snapshot};

use super::{Attributes, Denial, Verdict};

/// Names of the Applications of a namespace for which something holds, in their order.
pub(super) fn applications(
    view: &Snapshot,
    namespace: &str,
    holds: impl Fn(&Application) -> bool,
) -> Vec<String> {
    view.list(Kind::Application, Some(namespace))
        .filter(|entry| entry.typed::<Application>().is_ok_and(|application| holds(&application)))
        .map(|entry| entry.key.name.clone())
        .collect()
}

/// `application "a", "b"`
pub(super) fn listed(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    format!("application {}", quoted.join(", "))
}

pub(super) fn volume_unused(attributes: &Attributes<'_>, verdict: &mut Verdict) -> Result<(), Denial> {
    let key = attributes.key;
    if key.kind != Kind::PersistentVolume || attributes.is_deleting() {
        return Ok(());
    }
    let users = applications(attributes.view, &key.namespace, |application| application.mounts(&key.name));
    let used = |by: &str| format!("{by} mounts it; change or delete that first");
    if !users.is_empty() {
        return Err(Denial::Forbidden(used(&listed(&users))));
    }
    let refusal = Status::forbidden(key.kind, &key.name, used("an application"));
    verdict.demand(Guard::NoEdge { relation: Relation::Mounts, target: key.clone() }, refusal);
    Ok(())
}

/// Optional references count as well: whoever deletes a Secret should know who reads it.
pub(super) fn secret_unused(attributes: &Attributes<'_>, verdict: &mut Verdict) -> Result<(), Denial> {
    let key = attributes.key;
    if key.kind != Kind::Secret || attributes.is_deleting() {
        return Ok(());
    }
    let users = applications(attributes.view, &key.namespace, |application| {
        application.spec.secrets().contains_key(key.name.as_str())
    });
    let used = |by: &str| format!("{by} refers to it; change or delete that first");
    if !users.is_empty() {
        return Err(Denial::Forbidden(used(&listed(&users))));
    }
    for relation in [Relation::Secret, Relation::SecretOptional] {
        let refusal = Status::forbidden(key.kind, &key.name, used("an application"));
        verdict.demand(Guard::NoEdge { relation, target: key.clone() }, refusal);
    }
    Ok(())
}

pub(super) fn service_unused(attributes: &Attributes<'_>, verdict: &mut Verdict) -> Result<(), Denial> {
    let key = attributes.key;
    if key.kind != Kind::Service || attributes.is_deleting() {
        return Ok(());
    }
    let members = applications(attributes.view, &key.namespace, |application| {
        application.spec.service_name == key.name
    });
    let joined = |by: &str| format!("{by} is a member of it; change or delete that first");
    if let Some(first) = members.first() {
        return Err(Denial::Invalid(joined(&listed(std::slice::from_ref(first)))));
    }
    let refusal = Status::refused(key.kind, &key.name, joined("an application"));
    verdict.demand(Guard::NoEdge { relation: Relation::Service, target: key.clone() }, refusal);
    Ok(())
}

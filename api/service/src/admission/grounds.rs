//! What the rights of an author rest on, so that they still count when what they allow is stored.
//!
//! Between the question and the commit somebody may take the right away, through this replica or another. Who
//! hands out rights therefore has them judged on the state that the write is planned on, and the item carries
//! a guard for everything that they come from: each binding that names the author where the rights were asked
//! for, and the role that it binds. When one of them has changed, the write is planned again on what is there
//! then, and refused in the words of the rule.
//!
//! The judge of the process follows its cache and may be a moment ahead of the view. Then the view is judged by
//! itself, which is dear and rare. A judge that follows no rule objects (of tools and tests) has nothing that
//! could be taken away.

use std::collections::BTreeMap;
use std::sync::Arc;

use horchestra_auth::Authorizer;
use horchestra_auth::rbac::is_named;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::rbac::{BindingSpec, ClusterRoleBinding, RoleBinding};
use horchestra_core::status::Status;
use horchestra_store::{Entry, Guard, Revision, Snapshot};

use super::{Attributes, Denial, Verdict};
use crate::caller::Client;
use crate::rules;

/// Whether the judge speaks of the state of this view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judged {
    /// Of this very one.
    OnIt,
    /// Of another state of the same rules.
    Elsewhere,
    /// Of rules that are not in the store.
    Apart,
}

fn judged(authorizer: &Authorizer, view: &Snapshot) -> Judged {
    match (authorizer.version(), rules::version(view)) {
        (Some(judge), Some(here)) if judge == here => Judged::OnIt,
        (Some(judge), Some(here)) if judge.history != here.history => Judged::Apart,
        _ => Judged::Elsewhere,
    }
}

/// Asks the judge about the author on the state of the view, and has the answer hold until the write is stored.
pub(super) fn on(
    attributes: &Attributes<'_>,
    client: &Client,
    verdict: &mut Verdict,
    ask: impl Fn(&Authorizer, &mut Verdict) -> Result<(), Denial>,
) -> Result<(), Denial> {
    let view = attributes.view;
    let unloaded = |_| Denial::Status(Status::internal("the rights of the caller could not be judged"));
    client.authorizer.refresh().map_err(unloaded)?;
    let before = judged(&client.authorizer, view);
    if before != Judged::Elsewhere {
        ask(&client.authorizer, verdict)?;
        if before == Judged::Apart {
            return Ok(());
        }
    }
    if judged(&client.authorizer, view) != Judged::OnIt {
        let judge = Authorizer::new(rules::ViewedRules::new(view.clone()));
        ask(&judge, verdict)?;
    }
    for (key, revision) in of(attributes, client) {
        let refusal = Status::conflict(
            attributes.key.kind,
            &attributes.key.name,
            "the rights of its author change all the time",
        );
        verdict.demand(Guard::Unchanged(key, revision), refusal);
    }
    Ok(())
}

/// The bindings that name the author where the object is, and the roles that they bind.
fn of(attributes: &Attributes<'_>, client: &Client) -> BTreeMap<Key, Revision> {
    let namespace = attributes.key.namespace.as_str();
    let mut grounds = BTreeMap::new();
    let mut note = |entry: &Arc<Entry>, spec: &BindingSpec| {
        if !is_named(&spec.subjects, &client.identity) {
            return;
        }
        grounds.insert(entry.key.clone(), entry.revision);
        let role = match spec.role_ref.kind.as_str() {
            "Role" => Key::namespaced(Kind::Role, entry.key.namespace.as_str(), &*spec.role_ref.name),
            _ => Key::cluster(Kind::ClusterRole, &*spec.role_ref.name),
        };
        // A role that is not there gives nothing that could be taken away.
        if let Some(role) = attributes.view.get(&role) {
            grounds.insert(role.key.clone(), role.revision);
        }
    };
    for entry in attributes.view.list(Kind::ClusterRoleBinding, None) {
        if let Ok(binding) = entry.typed::<ClusterRoleBinding>() {
            note(entry, &binding.spec);
        }
    }
    if !namespace.is_empty() {
        for entry in attributes.view.list(Kind::RoleBinding, Some(namespace)) {
            if let Ok(binding) = entry.typed::<RoleBinding>() {
                note(entry, &binding.spec);
            }
        }
    }
    // The object itself is stored on the revision that it was judged on, or not at all.
    grounds.remove(attributes.key);
    grounds
}

//! Nobody hands out, or makes use of through a workload, what they may not do themselves.
//!
//! * Who writes a role, or binds one, holds everything that is in it, where it will count. The verb
//!   `escalate` on the role and the verb `bind` on the bound role waive that. A wildcard stands for rights
//!   that do not exist yet, so nobody holds one, and only administrators hand it out.
//! * Who has a workload read a Secret may `get` that Secret; who has it join a Service may `get` that Service. That
//!   holds for whoever changes anything of what is to run, since another image would be shown the same Secrets.
//!   Who changes nothing of it, but a label, is not asked.
//!
//! These are questions to the judge of the request's own caller, who comes with the request ([`Client`]). They
//! come last, since they are the dearest, and are bounded. Without an answer the write is refused. A bound role
//! is judged as the view has it and has to be that one when the binding is stored; should it grow later, that
//! is the doing of somebody who may grow it. The author has to hold then, too, what was held when the question was
//! asked ([`grounds`]); of a Secret or a Service that a workload names it is enough to have been allowed to read it
//! a moment ago.

use std::collections::BTreeSet;

use horchestra_auth::identity::CONTROLLERS;
use horchestra_auth::{Attributes as Asked, Authorizer, ResourceAttributes};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::{Application, ApplicationSpec};
use horchestra_core::kinds::application_set::ApplicationSet;
use horchestra_core::kinds::rbac::{
    BindingSpec, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleSpec,
};
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_store::Guard;
use serde::de::DeserializeOwned;

use super::{Attributes, Denial, Verdict, grounds};
use crate::caller::{Caller, Client};

/// Most questions that one role may raise.
const QUESTIONS: usize = 10_000;
/// Most different Secrets that one object of a user may speak of.
const SECRETS: usize = 64;
const ALL: &str = "*";

/// The group of the control plane's own processes is bound by nobody, administrators included.
pub(super) fn bindable_subjects(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    if !matches!(attributes.key.kind, Kind::RoleBinding | Kind::ClusterRoleBinding) {
        return Ok(());
    }
    let named = |object: &Object| {
        let subjects = object.at(&["spec", "subjects"]).and_then(serde_json::Value::as_array);
        subjects.into_iter().flatten().position(|it| it["kind"] == "Group" && it["name"] == CONTROLLERS)
    };
    match named(object) {
        Some(at) if attributes.old.and_then(named).is_none() => Err(Denial::Invalid(format!(
            "spec.subjects[{at}]: the group {CONTROLLERS} is that of the control plane's own processes and \
             cannot be granted anything"
        ))),
        _ => Ok(()),
    }
}

/// What a role or a binding hands out, its author holds.
pub(super) fn hands_out(
    attributes: &Attributes<'_>,
    object: &Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let Caller::Http(client) = attributes.caller else { return Ok(()) };
    let key = attributes.key;
    let kinds = [Kind::Role, Kind::ClusterRole, Kind::RoleBinding, Kind::ClusterRoleBinding];
    if !kinds.contains(&key.kind) {
        return Ok(());
    }
    grounds::on(attributes, client, verdict, |judge, verdict| {
        let author = Author { client, judge, namespace: &key.namespace };
        match key.kind {
            Kind::RoleBinding => author.binds(attributes, &read::<RoleBinding>(object)?.spec, verdict),
            Kind::ClusterRoleBinding => {
                author.binds(attributes, &read::<ClusterRoleBinding>(object)?.spec, verdict)
            }
            _ if author.may("escalate", key.kind, &key.name)? => Ok(()),
            _ => author.holds(&member::<RoleSpec>(object, "spec")?.rules),
        }
    })
}

/// The Secrets that a workload reads, its author may read.
pub(super) fn reads_secrets(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    let Some(client) = author_of_workload(attributes, object) else { return Ok(()) };
    let specs = workloads(attributes.key.kind, object)?;
    let names: BTreeSet<&str> = specs.iter().flat_map(|spec| spec.secrets().into_keys()).collect();
    if names.len() > SECRETS {
        return Err(Denial::Forbidden(format!(
            "it speaks of {} different secrets, at most {SECRETS} are possible",
            names.len()
        )));
    }
    may_get(client, &attributes.key.namespace, Kind::Secret, names)
}

/// The Services that a workload joins, its author may read.
pub(super) fn joins_services(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    let Some(client) = author_of_workload(attributes, object) else { return Ok(()) };
    let specs = workloads(attributes.key.kind, object)?;
    let names = specs.iter().map(|spec| spec.service_name.as_str()).filter(|name| !name.is_empty()).collect();
    may_get(client, &attributes.key.namespace, Kind::Service, names)
}

/// Who says what is to run, if the write does.
fn author_of_workload<'a>(attributes: &Attributes<'a>, object: &Object) -> Option<&'a Client> {
    let Caller::Http(client) = attributes.caller else { return None };
    let unchanged = attributes.old.is_some_and(|old| old.get("spec") == object.get("spec"));
    (!unchanged).then_some(client)
}

fn may_get(client: &Client, namespace: &str, kind: Kind, names: BTreeSet<&str>) -> Result<(), Denial> {
    let author = Author { client, judge: &client.authorizer, namespace };
    for name in names {
        if !author.may("get", kind, name)? {
            return Err(Denial::Forbidden(format!(
                "User \"{}\" cannot get {} \"{name}\" in the namespace \"{namespace}\", which it refers to",
                client.identity.name,
                kind.name().to_lowercase()
            )));
        }
    }
    Ok(())
}

/// What is to run, wherever the object says so.
fn workloads(kind: Kind, object: &Object) -> Result<Vec<ApplicationSpec>, Denial> {
    match kind {
        Kind::Application => Ok(vec![read::<Application>(object)?.spec]),
        Kind::ApplicationSet => {
            let set = read::<ApplicationSet>(object)?.spec;
            let common = set.common.map(|common| ApplicationSpec {
                env: common.env,
                volumes: common.volumes,
                ..ApplicationSpec::default()
            });
            Ok(set.applications.into_iter().map(|component| component.spec).chain(common).collect())
        }
        _ => Ok(Vec::new()),
    }
}

/// The author of a write, and the namespace (empty: everywhere) in which rights are asked for.
struct Author<'a> {
    client: &'a Client,
    judge: &'a Authorizer,
    namespace: &'a str,
}

impl Author<'_> {
    fn allowed(&self, asked: &Asked<'_>) -> Result<bool, Denial> {
        match self.judge.authorize(&self.client.identity, asked) {
            Ok(decision) => Ok(decision.allowed),
            Err(error) => {
                tracing::error!(%error, "the rights of the author of a write could not be judged");
                Err(Denial::Status(Status::internal("the rights of the caller could not be judged")))
            }
        }
    }

    fn may(&self, verb: &str, kind: Kind, name: &str) -> Result<bool, Denial> {
        self.allowed(&Asked::resource(verb, kind.group(), kind.plural(), self.namespace, name))
    }

    fn binds(
        &self,
        attributes: &Attributes<'_>,
        binding: &BindingSpec,
        verdict: &mut Verdict,
    ) -> Result<(), Denial> {
        let role = &binding.role_ref;
        let key = match role.kind.as_str() {
            "Role" if !self.namespace.is_empty() => Key::namespaced(Kind::Role, self.namespace, &*role.name),
            "ClusterRole" => Key::cluster(Kind::ClusterRole, &*role.name),
            _ => return Err(nothing_bound(binding)),
        };
        if self.may("bind", key.kind, &key.name)? {
            return Ok(());
        }
        let Some(entry) = attributes.view.get(&key) else { return Err(nothing_bound(binding)) };
        match key.kind {
            Kind::Role => self.holds(&entry.typed::<Role>().map_err(unreadable)?.spec.rules)?,
            _ => self.holds(&entry.typed::<ClusterRole>().map_err(unreadable)?.spec.rules)?,
        }
        let refusal = Status::conflict(
            attributes.key.kind,
            &attributes.key.name,
            format!("{} \"{}\" changes all the time", role.kind, role.name),
        );
        verdict.demand(Guard::Unchanged(key, entry.revision), refusal);
        Ok(())
    }

    fn holds(&self, rules: &[PolicyRule]) -> Result<(), Denial> {
        let questions = rules.iter().fold(0usize, |sum, rule| sum.saturating_add(questions(rule)));
        if questions > QUESTIONS {
            return Err(Denial::Forbidden(format!(
                "its rules spell out {questions} permissions; only a member of system:masters may hand out \
                 more than {QUESTIONS} at once"
            )));
        }
        for (at, rule) in rules.iter().enumerate() {
            self.holds_rule(rule, at)?;
        }
        Ok(())
    }

    fn holds_rule(&self, rule: &PolicyRule, at: usize) -> Result<(), Denial> {
        let wild = |list: &[String]| list.iter().any(|one| one == ALL);
        let wild_path = rule.non_resource_urls.iter().any(|url| url.ends_with(ALL));
        if wild(&rule.verbs) || wild(&rule.api_groups) || wild(&rule.resources) || wild_path {
            return Err(Denial::Forbidden(format!(
                "rule {at} has a wildcard, and only a member of system:masters may hand out one"
            )));
        }
        let any = [String::new()];
        let names = if rule.resource_names.is_empty() { &any[..] } else { &rule.resource_names };
        for verb in &rule.verbs {
            for group in &rule.api_groups {
                for resource in &rule.resources {
                    for name in names {
                        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                        self.holds_one(&Asked::Resource(ResourceAttributes {
                            verb,
                            group,
                            resource,
                            subresource,
                            namespace: self.namespace,
                            name,
                        }))?;
                    }
                }
            }
            for url in &rule.non_resource_urls {
                self.holds_one(&Asked::path(verb, url))?;
            }
        }
        Ok(())
    }

    fn holds_one(&self, asked: &Asked<'_>) -> Result<(), Denial> {
        if self.allowed(asked)? {
            return Ok(());
        }
        Err(Denial::Forbidden(format!(
            "User \"{}\" cannot hand out what is not their own: {asked}",
            self.client.identity.name
        )))
    }
}

/// How many questions a rule raises at most.
fn questions(rule: &PolicyRule) -> usize {
    let at_least_one = |list: &[String]| list.len().max(1);
    let resources = at_least_one(&rule.api_groups)
        .saturating_mul(at_least_one(&rule.resources))
        .saturating_mul(at_least_one(&rule.resource_names));
    let paths = rule.non_resource_urls.len();
    resources.saturating_add(paths).saturating_mul(at_least_one(&rule.verbs))
}

fn nothing_bound(binding: &BindingSpec) -> Denial {
    Denial::Forbidden(format!(
        "there is no {} \"{}\" to be bound here, and only a member of system:masters, or who may bind it, \
         can bind a role before it exists",
        binding.role_ref.kind, binding.role_ref.name
    ))
}

fn read<T: DeserializeOwned>(object: &Object) -> Result<T, Denial> {
    object.read().map_err(unreadable)
}

fn member<T: DeserializeOwned>(object: &Object, name: &str) -> Result<T, Denial> {
    serde_json::from_value(object.get(name).cloned().unwrap_or_default()).map_err(unreadable)
}

fn unreadable(error: serde_json::Error) -> Denial {
    Denial::Forbidden(format!("what it refers to cannot be read: {error}"))
}

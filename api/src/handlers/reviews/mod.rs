//! Reviews: what may I, what may they, who am I.
//!
//! An answer is what the judge of requests says to the same question, asked in the same terms; resources of the
//! core group that show objects of ours are judged as those, here as there. Nothing is stored. The bodies of
//! kubectl since 1.32 come in protobuf ([`wire`]); answers are JSON, which it takes, or YAML.

mod wire;

use std::sync::Arc;

use bytes::Bytes;
use horchestra_auth::{Attributes, Credential, Identity, ResourceAttributes};
use horchestra_core::admit::{self, Media};
use horchestra_core::kind::{CORE_GROUP, Kind};
use horchestra_core::reviews::{
    NonResourceRule, ResourceRule, Review, ReviewSpec, ReviewedPath, ReviewedResource,
    SelfSubjectReviewStatus, SubjectAccessReviewSpec, SubjectAccessReviewStatus, SubjectRulesReviewStatus,
    UserInfo,
};
use horchestra_core::status::{Cause, Status};
use http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::access::no_decision;
use crate::app::App;
use crate::http::Call;
use crate::http::negotiate::{self, Offer, Wire};
use crate::http::respond::{self, Answer};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

pub async fn serve(app: &Arc<App>, call: &Call, spec: &'static ReviewSpec) -> Result<Answer, Status> {
    let accepted = negotiate::accept(&call.headers, Offer::PLAIN)?;
    let asked = read(call, spec).await?;
    let status = match spec.review {
        Review::SelfSubjectAccess => {
            let question: SubjectAccessReviewSpec = typed(&asked)?;
            check_question(spec, &question)?;
            to_value(&access(app, &call.known.identity, &question).await?)
        }
        Review::SubjectAccess | Review::LocalSubjectAccess => {
            let question: SubjectAccessReviewSpec = typed(&asked)?;
            check_question(spec, &question)?;
            check_subject(spec, &question)?;
            if spec.review == Review::LocalSubjectAccess {
                check_local(spec, &question, call.route.namespace().unwrap_or_default())?;
            }
            let somebody = Identity {
                name: question.user.clone(),
                groups: question.groups.clone(),
                credential: Credential::Certificate {
                    fingerprint: String::new(),
                    not_after: jiff::Timestamp::MAX,
                },
            };
            to_value(&access(app, &somebody, &question).await?)
        }
        Review::SelfSubjectRules => {
            let namespace = asked["namespace"].as_str().unwrap_or_default();
            if namespace.is_empty() {
                return Err(Status::bad_request("spec.namespace: the review needs a namespace"));
            }
            to_value(&rules(app, call, namespace)?)
        }
        Review::SelfSubject => to_value(&SelfSubjectReviewStatus {
            user_info: UserInfo {
                username: call.known.identity.name.clone(),
                groups: call.known.identity.groups.clone(),
            },
        }),
    };
    let mut metadata = json!({"creationTimestamp": null});
    if let Some(namespace) = call.route.namespace() {
        metadata["namespace"] = json!(namespace);
    }
    let mut document = json!({
        "kind": spec.kind,
        "apiVersion": spec.api_version(),
        "metadata": metadata,
        "status": status,
    });
    if spec.review != Review::SelfSubject {
        document["spec"] = asked;
    }
    respond::document(StatusCode::CREATED, accepted.wire, Bytes::from(document.to_string()))
}

fn to_value(status: &impl Serialize) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

/// The `spec` of the review in the body.
async fn read(call: &Call, spec: &ReviewSpec) -> Result<Value, Status> {
    if negotiate::content_type(&call.headers).as_deref() == Some(PROTOBUF) {
        return wire::decode(spec, &call.body().await?);
    }
    let media = match negotiate::document_type(&call.headers)? {
        Wire::Json => Media::Json,
        Wire::Yaml => Media::Yaml,
    };
    let document = admit::read(media, &call.body().await?)?;
    let object = document.object;
    check_type(spec, object.str_at(&["apiVersion"]), object.str_at(&["kind"]))?;
    Ok(object.get("spec").cloned().filter(|spec| !spec.is_null()).unwrap_or_else(|| json!({})))
}

/// A body says of which kind it is, or nothing.
fn check_type(spec: &ReviewSpec, api_version: &str, kind: &str) -> Result<(), Status> {
    let fits = |said: &str, is: &str| said.is_empty() || said == is;
    if fits(api_version, &spec.api_version()) && fits(kind, spec.kind) {
        return Ok(());
    }
    Err(Status::bad_request(format!(
        "the body is a {kind} of {api_version}, but {} of {} are created here",
        spec.kind,
        spec.api_version()
    )))
}

fn typed<T: DeserializeOwned>(spec: &Value) -> Result<T, Status> {
    T::deserialize(spec).map_err(|error| Status::bad_request(format!("spec: {error}")))
}

fn refuse(spec: &ReviewSpec, field: &str, shown: &str, why: &str) -> Status {
    Status::invalid_options(spec.kind, vec![Cause::invalid(field, shown, why)])
}

fn check_question(spec: &ReviewSpec, question: &SubjectAccessReviewSpec) -> Result<(), Status> {
    if question.resource_attributes.is_some() == question.non_resource_attributes.is_some() {
        let why = "exactly one of resourceAttributes and nonResourceAttributes must be there";
        return Err(refuse(spec, "spec", "null", why));
    }
    Ok(())
}

fn check_subject(spec: &ReviewSpec, question: &SubjectAccessReviewSpec) -> Result<(), Status> {
    if question.user.is_empty() && question.groups.is_empty() {
        return Err(refuse(spec, "spec.user", "\"\"", "a user or at least one group must be named"));
    }
    Ok(())
}

fn check_local(spec: &ReviewSpec, question: &SubjectAccessReviewSpec, namespace: &str) -> Result<(), Status> {
    match &question.resource_attributes {
        None => {
            let why = "only resources of the namespace can be asked about";
            Err(refuse(spec, "spec.nonResourceAttributes", "null", why))
        }
        Some(asked) if asked.namespace != namespace => {
            let shown = format!("{:?}", asked.namespace);
            Err(refuse(
                spec,
                "spec.resourceAttributes.namespace",
                &shown,
                "must be the namespace of the request",
            ))
        }
        Some(_) => Ok(()),
    }
}

async fn access(
    app: &Arc<App>,
    who: &Identity,
    question: &SubjectAccessReviewSpec,
) -> Result<SubjectAccessReviewStatus, Status> {
    let asked = match (&question.resource_attributes, &question.non_resource_attributes) {
        (Some(resource), _) => Attributes::Resource(as_judged(resource)),
        (None, Some(ReviewedPath { path, verb })) => Attributes::path(verb, path),
        (None, None) => return Ok(SubjectAccessReviewStatus::default()),
    };
    let decision = app.may(who, &asked).await?;
    // Which rule is missing, nobody is told; that none grants it, the answer says.
    let reason = if decision.allowed { decision.reason.into_owned() } else { String::new() };
    Ok(SubjectAccessReviewStatus { allowed: decision.allowed, reason })
}

/// The terms in which a request for this resource would be judged.
fn as_judged(asked: &ReviewedResource) -> ResourceAttributes<'_> {
    let ReviewedResource { namespace, verb, group, resource, subresource, name, .. } = asked;
    let as_asked = ResourceAttributes { verb, group, resource, subresource, namespace, name };
    if !group.is_empty() {
        return as_asked;
    }
    let ours = |kind: Kind| ResourceAttributes {
        group: CORE_GROUP,
        resource: kind.plural(),
        subresource: "",
        ..as_asked
    };
    match (resource.as_str(), subresource.as_str()) {
        ("pods", "" | "log") | ("pods/log", "") => ours(Kind::Application),
        ("nodes", "") => ours(Kind::Node),
        ("namespaces", "") => ours(Kind::Namespace),
        _ => as_asked,
    }
}

fn rules(app: &Arc<App>, call: &Call, namespace: &str) -> Result<SubjectRulesReviewStatus, Status> {
    let rules = app.authorizer().rules_of(&call.known.identity, namespace).map_err(no_decision)?;
    let mut status = SubjectRulesReviewStatus::default();
    for rule in rules {
        if rule.non_resource_urls.is_empty() {
            status.resource_rules.push(ResourceRule {
                verbs: rule.verbs,
                api_groups: rule.api_groups,
                resources: rule.resources,
                resource_names: rule.resource_names,
            });
        } else {
            let (verbs, non_resource_urls) = (rule.verbs, rule.non_resource_urls);
            status.non_resource_rules.push(NonResourceRule { verbs, non_resource_urls });
        }
    }
    Ok(status)
}

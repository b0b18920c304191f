//! CertificateSigningRequests: who made one is the server's word, and what it asks for stays as it is.

use horchestra_auth::Credential;
use horchestra_auth::pki::CertificateRequest;
use horchestra_core::kind::Kind;
use horchestra_core::kinds::certificate_signing_request::{
    CertificateSigningRequest, PHASE_PENDING, REQUESTER_ANNOTATION, REQUESTER_CERTIFICATE_ANNOTATION,
    REQUESTER_GROUPS_ANNOTATION,
};
use horchestra_core::object::Object;
use horchestra_core::status::{Cause, Status};
use horchestra_core::values::decode_base64;
use serde_json::{Value, json};

use super::ownership::restore;
use super::{Attributes, Denial, Operation, Verdict};
use crate::caller::Caller;

/// Most requests of one requester that are kept at a time, decided ones included. An agent that is refused all
/// the time makes six in an hour, and the hour is what a decided one is kept for.
const KEPT: usize = 100;

/// A new request carries the name, the groups and the certificate of its caller and is undecided. A changed one keeps what it
/// was given.
pub(super) fn stamp(attributes: &Attributes<'_>, object: &mut Object, verdict: &mut Verdict) {
    if attributes.key.kind != Kind::CertificateSigningRequest {
        return;
    }
    if let Some(old) = attributes.old {
        for annotation in
            [REQUESTER_ANNOTATION, REQUESTER_GROUPS_ANNOTATION, REQUESTER_CERTIFICATE_ANNOTATION]
        {
            let stored = old.at(&["metadata", "annotations", annotation]).cloned();
            restore(object, "annotations", annotation, stored);
        }
        return;
    }
    if let Caller::Http(client) = attributes.caller {
        let identity = &client.identity;
        restore(object, "annotations", REQUESTER_ANNOTATION, Some(Value::from(identity.name.as_str())));
        // A comma would make two groups of one for whoever splits the list.
        let (plain, odd): (Vec<&str>, Vec<&str>) =
            identity.groups.iter().map(String::as_str).partition(|group| !group.contains(','));
        for group in odd {
            verdict.warn(format!("the group {group:?} of the requester is not recorded: it has a comma"));
        }
        let groups = Value::from(plain.join(","));
        restore(object, "annotations", REQUESTER_GROUPS_ANNOTATION, Some(groups));
        let certificate = match &identity.credential {
            Credential::Certificate { fingerprint, .. } => Some(Value::from(fingerprint.as_str())),
            Credential::Token { .. } => None,
        };
        restore(object, "annotations", REQUESTER_CERTIFICATE_ANNOTATION, certificate);
    }
    object.0.insert("status".to_owned(), json!({"phase": PHASE_PENDING}));
}

pub(super) fn check(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    let key = attributes.key;
    if key.kind != Kind::CertificateSigningRequest {
        return Ok(());
    }
    let request = |object: &Object| decode_base64(object.str_at(&["spec", "request"]));
    match (attributes.operation, attributes.old) {
        (Operation::Create, _) => {
            let pem = request(object).unwrap_or_default();
            CertificateRequest::from_pem(&pem).map(|_| ()).map_err(|error| {
                let cause = Cause::invalid("spec.request", "null", error);
                Denial::Status(Status::invalid(key.kind, &key.name, vec![cause]))
            })
        }
        (Operation::Update, Some(old)) => {
            let node = |object: &Object| object.str_at(&["spec", "nodeName"]).to_owned();
            if request(old) != request(object) {
                return Err(immutable("spec.request"));
            }
            if node(old) != node(object) {
                return Err(immutable("spec.nodeName"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Nobody fills the database with requests: a node's certificate is enough to make them, and each is kept for some
/// time. This is a limit on what is stored, not a promise about it: requests that one caller makes at the same
/// moment may go over it by as many as a caller may have in flight.
pub(super) fn bound(attributes: &Attributes<'_>) -> Result<(), Denial> {
    let (Kind::CertificateSigningRequest, Caller::Http(client)) = (attributes.key.kind, attributes.caller)
    else {
        return Ok(());
    };
    let requester = client.identity.name.as_str();
    let stored = attributes.view.list(Kind::CertificateSigningRequest, None);
    let own = stored
        .filter(|entry| {
            entry.typed::<CertificateSigningRequest>().is_ok_and(|request| request.requester() == requester)
        })
        .count();
    if own < KEPT {
        return Ok(());
    }
    Err(Denial::Forbidden(format!(
        "\"{requester}\" has {own} certificate requests here already, and no more than {KEPT} are kept of one \
         requester; delete some, or wait until they are cleaned up: decided ones go after an hour, others after a \
         day"
    )))
}

fn immutable(field: &str) -> Denial {
    Denial::Forbidden(format!("{field} cannot be changed; create another request instead"))
}

//! What is to become of one request, from what is stored of it and nothing else.

use horchestra_auth::identity::NODES;
use horchestra_auth::pki::{CertificateRequest, RequestError, is_node_name};
use horchestra_core::gates::Gate;
use horchestra_core::kinds::certificate_signing_request::{
    CONDITION_APPROVED, CONDITION_DENIED, CONDITION_ISSUED, CertificateSigningRequest,
};
use horchestra_core::kinds::meta::condition;
use jiff::{SignedDuration, Timestamp};

/// How long a request is kept after its decision.
const DECIDED: SignedDuration = SignedDuration::from_hours(1);
/// How long an undecided request is kept, after it was made or approved.
const UNDECIDED: SignedDuration = SignedDuration::from_hours(24);

/// What a decision depends on besides the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Nodes may renew their own certificates without asking anybody.
    pub automatic: bool,
    /// There is somebody who signs.
    pub signer: bool,
}

/// What is to be done about an undecided request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It is good, and is to be signed.
    Sign(CertificateRequest),
    /// Nobody could ever sign it.
    Deny(String),
    /// It has to wait, and that is why.
    Hold(String),
}

/// Decides. Of the request itself the name and the key count; who made it is the server's word.
pub fn decide(request: &CertificateSigningRequest, rules: Rules) -> Decision {
    let asked = match CertificateRequest::from_pem(&request.spec.request.0) {
        Ok(asked) => asked,
        Err(error @ RequestError::CommonName) => return hold(format!("the request {error}"), REPLACE),
        Err(error) => return Decision::Deny(format!("the request {error}")),
    };
    let name = &asked.common_name;
    if !is_node_name(name) {
        return hold(format!("it asks for the name {name:?}, which no node can have"), REPLACE);
    }
    if !request.has(CONDITION_APPROVED)
        && let Some((why, remedy)) = needs_approval(request, name, rules)
    {
        return hold(why, remedy);
    }
    if !rules.signer {
        return hold("the workers of this cluster have nothing to sign with".to_owned(), SIGNER);
    }
    Decision::Sign(asked)
}

/// Why somebody has to approve it; `None`: it is the renewal of a node's own certificate, and nobody has to.
fn needs_approval(
    request: &CertificateSigningRequest,
    name: &str,
    rules: Rules,
) -> Option<(String, &'static str)> {
    let requester = request.requester();
    if requester.is_empty() {
        return Some(("it does not say who made it".to_owned(), APPROVE));
    }
    if !request.requester_groups().any(|group| group == NODES) {
        return Some((format!("it was made by {requester:?}, who is not a node"), APPROVE));
    }
    if requester != name {
        return Some((format!("node {requester:?} asks for the certificate of {name:?}"), APPROVE));
    }
    let gate = Gate::AutoNodeCertRotation.name();
    (!rules.automatic)
        .then(|| (format!("nodes do not renew their certificates by themselves here ({gate} is off)"), GATE))
}

const REPLACE: &str = "deny it, and have another one made";
const APPROVE: &str = "approve or deny it, or sign it with `horchestra-local pki sign`";
const GATE: &str = "approve it, sign it with `horchestra-local pki sign`, or switch the gate on";
const SIGNER: &str = "start them with --cluster-ca and --cluster-ca-key or with --pki-vault, or sign it with \
                      `horchestra-local pki sign`";

fn hold(why: String, remedy: &str) -> Decision {
    Decision::Hold(format!("held: {why}; {remedy}"))
}

/// Whether a node asks for the next certificate of its own.
pub fn is_renewal(request: &CertificateSigningRequest) -> bool {
    let requester = request.requester();
    !requester.is_empty()
        && request.requester_groups().any(|group| group == NODES)
        && CertificateRequest::from_pem(&request.spec.request.0)
            .is_ok_and(|asked| asked.common_name == requester)
}

/// From when on the request is no longer kept: an hour after its decision, else a day after it was made or approved.
/// An approval that stands for the next request keeps it for as long as it stands. `None`: nobody knows how old it is.
pub fn kept_until(request: &CertificateSigningRequest) -> Option<Timestamp> {
    let made = request.metadata.creation_timestamp?.timestamp();
    // A request that was decided by a control plane without conditions counts from when it was made.
    let turned = [CONDITION_APPROVED, CONDITION_DENIED, CONDITION_ISSUED]
        .iter()
        .filter(|kind| request.is_decided() || **kind == CONDITION_APPROVED)
        .filter_map(|kind| condition(&request.status.conditions, kind)?.last_transition_time)
        .map(|time| time.timestamp())
        .fold(made, Timestamp::max);
    let keep = if request.is_decided() { DECIDED } else { UNDECIDED };
    let until = turned.checked_add(keep).unwrap_or(Timestamp::MAX);
    Some(request.standing_until().map_or(until, |standing| standing.max(until)))
}

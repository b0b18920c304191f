//! What happens to certificate requests: what a new one does to older ones, and the doors of those who decide.
//!
//! A request is decided in two steps by two parties: an operator (or a rule) approves, and the loop that has the
//! authority's key signs. Between the two the request stays `Pending`, with the condition `Approved`. The phase
//! `Approved` and the certificate come in one change, since for an agent that reads the one without the other the
//! renewal has failed for good. Whoever approves waits a little for the second step, so that its answer has the
//! certificate in it.
//!
//! An agent polls its request for two minutes, then gives it up and makes another one, with another key, ten
//! minutes later. An operator hardly ever hits those two minutes. Hence two rules. A new request supersedes what
//! its maker asked before and nobody has decided: of an agent everything, of anybody else what is for the same
//! name. And the approval of a renewal stands for a day for the next one: used once, by a request that was made
//! with the very same client certificate. It is a condition of the request that was approved, so deleting
//! that request withdraws it; using it up is part of the change that creates the new request, so of two
//! requests only one can have it. An approval that was not signed in time passes on in the same way.
//!
//! Where nobody signs, an approval is refused: it would look like a decision and be none.

use std::borrow::Cow;
use std::sync::Arc;

use horchestra_auth::identity::NODES;
use horchestra_auth::pki::{CertificateRequest, is_node_name};
use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::certificate_signing_request::{
    CONDITION_APPROVED, CONDITION_DENIED, CONDITION_ISSUED, CONDITION_STANDING, CertificateSigningRequest,
    PHASE_APPROVED, PHASE_DENIED,
};
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_core::values::encode_base64;
use horchestra_store::{Class, Entry, Op, Revision};
use jiff::Timestamp;
use serde::Deserialize;

use super::Edit;
use crate::admission::Verdict;
use crate::caller::{Caller, RequestContext};
use crate::conditions::{self, Condition, status_mut};
use crate::errors::read_status;
use crate::request::{Contents, DoorError, Order, Outcome, WatchEvent, WatchRequest, WriteOptions, Written};
use crate::service::Service;
use crate::settings::ClusterSettings;
use crate::write::draft::{columns, draft, spec_of};
use crate::write::{Attempt, stored_object, tracking};

/// How many older requests a new one supersedes at most: they share its item. The next one takes the rest.
const SUPERSEDED: usize = 48;

const MESSAGE_LIMIT: usize = 1024;

/// Whether a node asks, with a certificate of its own, for the next one of the same name.
fn renews(request: &CertificateSigningRequest, common_name: &str) -> bool {
    !request.requester_certificate().is_empty()
        && request.requester() == common_name
        && request.requester_groups().any(|group| group == NODES)
}

/// The name that a request is for; empty for one that cannot be read.
fn common_name(request: &CertificateSigningRequest) -> String {
    CertificateRequest::from_pem(&request.spec.request.0)
        .map(|request| request.common_name)
        .unwrap_or_default()
}

/// Who made a stored request.
#[derive(Deserialize)]
struct Made<'a> {
    #[serde(borrow)]
    metadata: MadeBy<'a>,
}

#[derive(Deserialize)]
struct MadeBy<'a> {
    #[serde(borrow)]
    annotations: Requester<'a>,
}

#[derive(Deserialize)]
struct Requester<'a> {
    #[serde(borrow, rename = "certificates.horchestra.io/requester")]
    name: Cow<'a, str>,
}

/// Whether this stored request is known to be of somebody else: there may be many of others, and reading all of each
/// would take its time.
fn is_of_another(entry: &Entry, requester: &str) -> bool {
    serde_json::from_slice::<Made<'_>>(&entry.body)
        .is_ok_and(|made| made.metadata.annotations.name != requester)
}

/// Settles what a new request has to do with those that its maker made before. `object` is the new one, its maker
/// stamped on it.
pub(crate) fn settle_new(
    context: &RequestContext,
    attempt: &Attempt<'_>,
    object: &mut Object,
    verdict: &mut Verdict,
) -> Result<(), Status> {
    if !matches!(context.caller, Caller::Http(_)) {
        return Ok(());
    }
    // What cannot be read is refused later, in the words of whoever judges requests.
    let Ok(new) = object.read::<CertificateSigningRequest>() else { return Ok(()) };
    let name = common_name(&new);
    let agent = new.requester_groups().any(|group| group == NODES);
    let mut standing = renews(&new, &name);
    let mut superseded = 0;
    for entry in attempt.view.list(Kind::CertificateSigningRequest, None) {
        if is_of_another(entry, new.requester()) {
            continue;
        }
        // One that cannot be read is in nobody's way.
        let Ok(stored) = stored_object(entry) else { continue };
        let Ok(old) = stored.read::<CertificateSigningRequest>() else { continue };
        if old.requester() != new.requester() {
            continue;
        }
        let mut changed = stored.clone();
        if standing && old.requester_certificate() == new.requester_certificate() {
            let unsigned = !old.is_decided() && old.has(CONDITION_APPROVED);
            let stands = old.standing_until().is_some_and(|until| Timestamp::now() <= until);
            if unsigned || stands {
                standing = false;
                let message = format!("the approval of {} stands for this one", entry.key.name);
                set(object, CONDITION_APPROVED, "True", CONDITION_STANDING, &message);
            }
            if stands && !unsigned {
                let message = format!("used by {}", object.name());
                set(&mut changed, CONDITION_STANDING, "False", "Used", &message);
            }
        }
        if !old.is_decided() && superseded < SUPERSEDED && (agent || common_name(&old) == name) {
            superseded += 1;
            deny(&mut changed, "Superseded", &format!("superseded by {}", object.name()));
        }
        if changed != stored {
            verdict.ops.push(update(context, entry, &stored, &changed)?);
        }
    }
    Ok(())
}

fn update(context: &RequestContext, entry: &Entry, stored: &Object, changed: &Object) -> Result<Op, Status> {
    let spec = spec_of(entry.key.kind)?;
    let columns = columns(spec, changed);
    let managed = tracking::of_component(spec, context, Some((entry, stored)), changed);
    let draft = draft(spec, &entry.key, changed, columns, managed)?;
    Ok(Op::Update { draft, expect: entry.revision, class: Class::Status })
}

fn set(object: &mut Object, kind: &str, status: &str, reason: &str, message: &str) {
    conditions::set(object, &Condition { kind, status, reason, message, generation: 0 });
}

fn set_phase(object: &mut Object, phase: &str) {
    status_mut(object).insert("phase".to_owned(), phase.into());
}

fn set_reason(object: &mut Object, reason: &str) {
    status_mut(object).insert("reason".to_owned(), reason.into());
}

fn deny(object: &mut Object, reason: &str, message: &str) {
    set_phase(object, PHASE_DENIED);
    set_reason(object, message);
    set(object, CONDITION_DENIED, "True", reason, message);
}

/// What is told about a decision: who made it, and why if that was said.
fn message(context: &RequestContext, order: &Order, what: &str) -> Result<String, Status> {
    let said = order.message.as_deref().unwrap_or_default();
    if said.len() > MESSAGE_LIMIT {
        return Err(Status::bad_request(format!("message must have at most {MESSAGE_LIMIT} bytes")));
    }
    let by = format!("{what} by {}", context.caller.user());
    Ok(if said.is_empty() { by } else { format!("{by}: {said}") })
}

fn read(object: &Object) -> Result<CertificateSigningRequest, Status> {
    object.read().map_err(|_| Status::internal("a stored certificate request cannot be read"))
}

impl Service {
    /// Approves a request and waits for its certificate.
    pub(super) async fn approve(
        &self,
        context: &RequestContext,
        key: &Key,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        if !self.has_signer().await? {
            let why = "nobody signs certificates here: sign the request with `horchestra-local pki sign` and \
                       hand the certificate over yourself";
            return Err(Status::conflict(key.kind, &key.name, why));
        }
        let why = message(context, order, "approved")?;
        let mut written = self
            .change_through(context, Door::Approve, key, order, options, |object, _| {
                let request = read(object)?;
                match request.status.phase.as_str() {
                    PHASE_APPROVED => return Ok(Edit::Write(Class::Status)),
                    PHASE_DENIED => {
                        let why = "it is denied already; its maker has to make another one";
                        return Err(Status::conflict(key.kind, &key.name, why));
                    }
                    _ => {}
                }
                let name = common_name(&request);
                if !is_node_name(&name) {
                    let why = format!("it asks for the name {name:?}, which no node can have");
                    return Err(Status::refused(key.kind, &key.name, why));
                }
                if request.has(CONDITION_APPROVED) {
                    return Ok(Edit::Write(Class::Status));
                }
                set(object, CONDITION_APPROVED, "True", "ApprovedByOperator", &why);
                if renews(&request, &name) {
                    let message = "stands for the next renewal with the same certificate, once, for a day";
                    set(object, CONDITION_STANDING, "True", "ApprovedByOperator", message);
                }
                Ok(Edit::Write(Class::Status))
            })
            .await?;
        if options.dry_run {
            return Ok(written);
        }
        match self.decided(key, &written.entry).await {
            Some(entry) => written.entry = entry,
            None => written.warnings.push(
                "the approval is recorded, but the certificate was not signed yet: look at the request again, and \
                 at the log of the workers"
                    .to_owned(),
            ),
        }
        Ok(written)
    }

    /// Turns a request down.
    pub(super) async fn deny(
        &self,
        context: &RequestContext,
        key: &Key,
        order: &Order,
        options: &WriteOptions,
    ) -> Result<Written, Status> {
        let why = message(context, order, "denied")?;
        self.change_through(context, Door::Deny, key, order, options, |object, _| {
            match read(object)?.status.phase.as_str() {
                PHASE_DENIED => {}
                PHASE_APPROVED => {
                    let why = "its certificate is signed already, and cannot be called back";
                    return Err(Status::conflict(key.kind, &key.name, why));
                }
                _ => {
                    conditions::clear(object, CONDITION_APPROVED);
                    conditions::clear(object, CONDITION_STANDING);
                    deny(object, "DeniedByOperator", &why);
                }
            }
            Ok(Edit::Write(Class::Status))
        })
        .await
    }

    /// Whether there is a loop that signs, as it said itself when it started.
    async fn has_signer(&self) -> Result<bool, Status> {
        let row = self.inner.store.settings().await.map_err(|error| read_status(&error))?;
        Ok(row.is_some_and(|row| {
            serde_json::from_slice::<ClusterSettings>(&row.body).is_ok_and(|it| it.certificate_signer)
        }))
    }

    /// Waits until a request that is stored as `seen` is decided; `None` after a while.
    async fn decided(&self, key: &Key, seen: &Arc<Entry>) -> Option<Arc<Entry>> {
        let decided = |entry: &Entry| {
            stored_object(entry).and_then(|object| read(&object)).is_ok_and(|request| request.is_decided())
        };
        if decided(seen) {
            return Some(Arc::clone(seen));
        }
        let request = WatchRequest {
            field_selector: format!("metadata.name={}", key.name),
            resource_version: Some(seen.revision.to_string()),
            contents: Contents::Sealed,
            ..WatchRequest::of(key.kind)
        };
        let waiting = async {
            let mut watch = self.watch(request).await.ok()?;
            while let Some(event) = watch.next().await {
                match event {
                    WatchEvent::Added(entry) | WatchEvent::Modified(entry) if decided(&entry) => {
                        return Some(entry);
                    }
                    WatchEvent::Deleted(_) | WatchEvent::Failed(_) => return None,
                    _ => {}
                }
            }
            None
        };
        tokio::time::timeout(self.config().signed_within, waiting).await.ok().flatten()
    }

    // ---- the loop that signs ------------------------------------------------------------------------

    /// Stores a certificate (PEM, the leaf first), and with it that the request is approved.
    pub(crate) async fn store_certificate(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
        certificate: &str,
    ) -> Result<Outcome, DoorError> {
        self.judge(context, "issue", key, revision, |object| {
            set_phase(object, PHASE_APPROVED);
            status_mut(object).insert("certificate".to_owned(), encode_base64(certificate.as_bytes()).into());
            status_mut(object).remove("reason");
            if !conditions::is_true(object, CONDITION_APPROVED) {
                set(object, CONDITION_APPROVED, "True", "Renewal", "the node renews its own certificate");
            }
            set(object, CONDITION_ISSUED, "True", "Signed", "");
        })
        .await
    }

    /// Turns a request down that no operator could approve.
    pub(crate) async fn turn_down(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
        why: &str,
    ) -> Result<Outcome, DoorError> {
        self.judge(context, "deny", key, revision, |object| deny(object, "Unusable", why)).await
    }

    /// Says why a request waits; what was said first stays.
    pub(crate) async fn hold(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
        why: &str,
    ) -> Result<Outcome, DoorError> {
        self.judge(context, "hold", key, revision, |object| {
            if object.str_at(&["status", "reason"]).is_empty() {
                set_reason(object, why);
            }
        })
        .await
    }

    /// Says that a request could not be signed, which will be tried again. In place of why it was held before, if it
    /// was; a failure that is told already stays as it is told.
    pub(crate) async fn tell_failure(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
        why: &str,
    ) -> Result<Outcome, DoorError> {
        self.judge(context, "fail", key, revision, |object| {
            if conditions::find(object, CONDITION_ISSUED).is_none() {
                set_reason(object, why);
                set(object, CONDITION_ISSUED, "False", "SigningFailed", why);
            }
        })
        .await
    }

    /// Changes an undecided request that is still the one that the loop looked at.
    async fn judge(
        &self,
        context: &RequestContext,
        verb: &str,
        key: &Key,
        revision: Revision,
        change: impl Fn(&mut Object) + Send + Sync,
    ) -> Result<Outcome, DoorError> {
        self.edit(context, verb, key, |entry, object| {
            let request = read(object).map_err(DoorError::Refused)?;
            if entry.revision != revision || request.is_decided() {
                return Err(DoorError::Changed);
            }
            change(object);
            Ok(Edit::Write(Class::Status))
        })
        .await
    }
}

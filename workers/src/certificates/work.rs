//! What there is to do: every request that is stored, sorted by what it comes to.
//!
//! A request is read and verified once for each revision of it; what came of that is kept for the next look.

use std::collections::HashMap;
use std::sync::Arc;

use horchestra_auth::pki::CertificateRequest;
use horchestra_core::kind::Kind;
use horchestra_core::kinds::certificate_signing_request::{CONDITION_DENIED, CertificateSigningRequest};
use horchestra_core::kinds::meta::condition;
use horchestra_store::{Entry, Revision, Snapshot};
use jiff::Timestamp;
use uuid::Uuid;

use super::policy::{self, Decision, Rules};
use super::rotation::Rotation;

/// What a request comes to, as of a revision.
#[derive(Clone)]
pub(super) struct Known {
    revision: Revision,
    until: Option<Timestamp>,
    state: State,
}

#[derive(Clone)]
enum State {
    Decided(Option<Rotation>),
    /// What to do, and whether it was said already why it waits.
    Open(Decision, bool),
    /// Not to be touched: it cannot be read, or is being deleted.
    Left,
}

/// A request to do something about.
pub(super) struct Case {
    pub entry: Arc<Entry>,
    pub decision: Decision,
}

/// What one pass has to do.
#[derive(Default)]
pub(super) struct Work {
    pub expired: Vec<Arc<Entry>>,
    /// To be turned down or told why they wait.
    pub judged: Vec<Case>,
    pub signed: Vec<(Arc<Entry>, CertificateRequest)>,
    pub rotations: Vec<(Uuid, Rotation)>,
    /// Turned down by an operator since the last look.
    pub denied: Vec<Arc<Entry>>,
    pub held: usize,
    /// The next moment at which one of them has had its time.
    pub next_expiry: Option<Timestamp>,
}

/// Looks at every request; at those that have not changed since only at what is known of them.
pub(super) fn sort(
    snapshot: &Snapshot,
    rules: Rules,
    mut old: HashMap<Uuid, Known>,
    now: Timestamp,
) -> (Work, HashMap<Uuid, Known>) {
    let mut work = Work::default();
    let mut all = HashMap::with_capacity(old.len());
    for entry in snapshot.list(Kind::CertificateSigningRequest, None) {
        let known = match old.remove(&entry.uid) {
            Some(known) if known.revision == entry.revision => known,
            before => {
                let was_decided = before.is_some_and(|known| matches!(known.state, State::Decided(_)));
                if !was_decided && is_denied_by_operator(entry) {
                    work.denied.push(Arc::clone(entry));
                }
                know(entry, rules)
            }
        };
        let expired = known.until.is_some_and(|until| until <= now);
        match &known.state {
            State::Left => {}
            _ if expired => work.expired.push(Arc::clone(entry)),
            State::Decided(rotation) => {
                work.rotations.extend(rotation.clone().map(|rotation| (entry.uid, rotation)));
            }
            State::Open(Decision::Sign(request), _) => {
                work.signed.push((Arc::clone(entry), request.clone()));
            }
            State::Open(decision, told) => {
                let hold = matches!(decision, Decision::Hold(_));
                work.held += usize::from(hold);
                if !(hold && *told) {
                    work.judged.push(Case { entry: Arc::clone(entry), decision: decision.clone() });
                }
            }
        }
        if let (Some(until), false, false) = (known.until, expired, matches!(known.state, State::Left)) {
            work.next_expiry = Some(work.next_expiry.map_or(until, |next| next.min(until)));
        }
        all.insert(entry.uid, known);
    }
    (work, all)
}

pub(super) fn is_denied_by_operator(entry: &Entry) -> bool {
    let request = entry.typed::<CertificateSigningRequest>().ok();
    request.is_some_and(|request| {
        condition(&request.status.conditions, CONDITION_DENIED)
            .is_some_and(|denied| denied.reason == "DeniedByOperator")
    })
}

fn know(entry: &Entry, rules: Rules) -> Known {
    let left = Known { revision: entry.revision, until: None, state: State::Left };
    if entry.deleting {
        return left;
    }
    let Ok(request) = entry.typed::<CertificateSigningRequest>() else {
        tracing::warn!(request = entry.key.name, "a stored request cannot be read");
        return left;
    };
    let state = if request.is_decided() {
        State::Decided(Rotation::of(&request))
    } else {
        State::Open(policy::decide(&request, rules), !request.status.reason.is_empty())
    };
    Known { revision: entry.revision, until: policy::kept_until(&request), state }
}

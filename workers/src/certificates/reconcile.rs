//! The loop around the rules: requests in, fenced decisions out.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use horchestra_auth::pki::CertificateRequest;
use horchestra_core::gates::Gate;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::certificate_signing_request::{CONDITION_ISSUED, CertificateSigningRequest};
use horchestra_core::kinds::meta::condition;
use horchestra_core::reasons::{self, EventReason};
use horchestra_runtime::Backoff;
use horchestra_service::settings::ClusterSettings;
use horchestra_service::{DeleteOptions, DoorError, Outcome, Recorder, RequestContext, Service, Subject};
use horchestra_store::{Change, ChangeKind, Entry, Revision};
use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::metrics::{CertificateMetrics, Fate};
use super::policy::{Decision, Rules, is_renewal};
use super::rotation::Rotations;
use super::signer::{SignError, Signer};
use super::work::{Case, Known, Work, is_denied_by_operator, sort};
use crate::substrate::{PassError, PassReport, Reconciler, Term};

/// Requests that are signed at the same time: an outside signer takes a while for each.
const SIGNATURES: usize = 8;
/// Other decisions that are written at the same time.
const WRITES: usize = 16;
/// Requests that are deleted before the lease is looked at again.
const DELETIONS: usize = 1024;
/// How soon a pass follows one of which something was refused.
const AFTER_REFUSAL: Duration = Duration::from_millis(250);

/// How soon what failed is tried again.
#[derive(Clone, Debug)]
pub struct Retry {
    /// One request that could not be signed.
    pub request: Backoff,
    /// All of them, when the signer cannot be used at all.
    pub signer: Backoff,
}

impl Default for Retry {
    /// One request after two seconds, then more rarely, every five minutes in the end; the signer after a second,
    /// then more rarely, every half a minute in the end.
    fn default() -> Retry {
        Retry {
            request: Backoff::new(Duration::from_secs(2), Duration::from_secs(300)),
            signer: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
        }
    }
}

/// The loop that decides about certificate requests, and signs.
pub struct NodeCertificates {
    service: Service,
    recorder: Recorder,
    signer: Option<Arc<dyn Signer>>,
    metrics: CertificateMetrics,
    retry: Retry,
    now: fn() -> Timestamp,
    memory: Memory,
}

/// What a term remembers, all of which it could find out again.
#[derive(Default)]
struct Memory {
    /// Whether it was said that there is a signer, or that there is none.
    announced: bool,
    /// Whether a pass has looked at the requests.
    looked: bool,
    /// What each request comes to, as of its revision.
    known: HashMap<Uuid, Known>,
    /// Requests that could not be signed, and when they are tried again.
    failed: HashMap<Uuid, Failed>,
    /// The signer cannot be used until then.
    away: Option<(Instant, Backoff)>,
    rotations: Rotations,
}

struct Failed {
    /// As of which it failed: a changed request is tried at once.
    revision: Revision,
    due: Instant,
    backoff: Backoff,
}

impl NodeCertificates {
    pub fn new(
        service: Service,
        recorder: Recorder,
        signer: Option<Arc<dyn Signer>>,
        metrics: CertificateMetrics,
    ) -> NodeCertificates {
        let (retry, now, memory) = (Retry::default(), Timestamp::now as fn() -> Timestamp, Memory::default());
        NodeCertificates { service, recorder, signer, metrics, retry, now, memory }
    }

    /// With another clock for the ages of requests.
    #[must_use]
    pub fn with_clock(self, now: fn() -> Timestamp) -> NodeCertificates {
        NodeCertificates { now, ..self }
    }

    /// With other pauses after failures.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> NodeCertificates {
        NodeCertificates { retry, ..self }
    }

    fn rules(&self) -> Rules {
        Rules {
            automatic: self.service.config().gates.enabled(Gate::AutoNodeCertRotation),
            signer: self.signer.is_some(),
        }
    }

    async fn reconcile(&mut self, term: &Term) -> Result<PassReport, PassError> {
        let context = RequestContext::new(term.caller());
        let mut report = PassReport::default();
        let mut again = Soonest::default();
        if !self.announce().await {
            again.within(Duration::from_secs(1));
        }
        let work = self.sort().await?;
        self.metrics.held.set(i64::try_from(work.held).unwrap_or(i64::MAX));
        self.show_signer();
        for entry in &work.denied {
            let request = entry.typed::<CertificateSigningRequest>();
            let why = request.map(|request| request.status.reason.clone()).unwrap_or_default();
            self.metrics.count(Fate::Denied, 1);
            self.recorder.record(Subject::of(entry), &reasons::CERTIFICATE_DENIED, why);
        }
        // First what somebody waits for.
        self.sign(&context, work.signed, &mut report, &mut again).await?;
        self.judge(&context, work.judged, &mut report).await?;
        self.expire(&context, &work.expired, &mut report).await?;
        let now = (self.now)();
        let look = self.memory.rotations.look(self.service.store(), &self.recorder, &work.rotations, now);
        if let Some(look) = look.await {
            again.within(look);
        }
        if let Some(next) = work.next_expiry {
            let rest = next.duration_since(now).max(jiff::SignedDuration::ZERO);
            again.within(Duration::try_from(rest).unwrap_or_default() + Duration::from_millis(1));
        }
        if report.refused > 0 {
            again.within(AFTER_REFUSAL);
        }
        report.again_in = again.0;
        Ok(report)
    }

    /// Says, once in a term, whether somebody signs; false: it could not be said yet.
    async fn announce(&mut self) -> bool {
        if !self.memory.announced {
            match ClusterSettings::set_signer(self.service.store(), self.signer.is_some()).await {
                Ok(()) => self.memory.announced = true,
                Err(error) => tracing::warn!(%error, "could not say whether there is a signer"),
            }
        }
        self.memory.announced
    }

    fn show_signer(&self) {
        let health = self.signer.as_ref().map(|signer| signer.health()).unwrap_or_default();
        self.metrics.unusable_files.set(i64::from(health.unusable_files));
        let left = health.until.map_or(0, |until| until.as_second() - Timestamp::now().as_second());
        self.metrics.signer_expiry.set(left);
    }

    /// Finds out what there is to do.
    async fn sort(&mut self) -> Result<Work, PassError> {
        let (snapshot, rules, now) = (self.service.store().snapshot(), self.rules(), (self.now)());
        let known = std::mem::take(&mut self.memory.known);
        let first = !std::mem::replace(&mut self.memory.looked, true);
        // Reading many requests takes a while and never yields: off the threads that renew leases.
        let sorting = tokio::task::spawn_blocking(move || sort(&snapshot, rules, known, now));
        let (mut work, known) = sorting.await.map_err(|_| PassError::Panicked)?;
        if first {
            // What was decided before this term was told of then.
            work.denied.clear();
        }
        self.memory.failed.retain(|uid, _| known.contains_key(uid));
        self.memory.known = known;
        Ok(work)
    }

    async fn sign(
        &mut self,
        context: &RequestContext,
        asked: Vec<(Arc<Entry>, CertificateRequest)>,
        report: &mut PassReport,
        again: &mut Soonest,
    ) -> Result<(), PassError> {
        let Some(signer) = self.signer.clone() else { return Ok(()) };
        let now = Instant::now();
        if let Some((until, _)) = &self.memory.away
            && now < *until
        {
            if !asked.is_empty() {
                again.at(*until);
            }
            return Ok(());
        }
        let failed = &self.memory.failed;
        let due = asked.into_iter().filter(|(entry, _)| match failed.get(&entry.uid) {
            Some(failed) if failed.revision == entry.revision && now < failed.due => {
                again.at(failed.due);
                false
            }
            _ => true,
        });
        let due: Vec<_> = due.collect();
        let (away, signer) = (AtomicBool::new(false), &*signer);
        let (service, metrics) = (&self.service, &self.metrics);
        let mut signing = stream::iter(due)
            .map(|(entry, request)| {
                let away = &away;
                async move {
                    // The others would fare no better.
                    if away.load(Ordering::Relaxed) {
                        return None;
                    }
                    let signed = issue(service, context, signer, metrics, &entry, &request).await;
                    if matches!(&signed, Signed::Failed(error) if error.is_outage()) {
                        away.store(true, Ordering::Relaxed);
                    }
                    Some((entry, signed))
                }
            })
            .buffer_unordered(SIGNATURES);
        let mut outcomes = Vec::new();
        while let Some(outcome) = signing.next().await {
            outcomes.extend(outcome);
        }
        drop(signing);
        if away.into_inner() {
            let mut backoff =
                self.memory.away.take().map_or(self.retry.signer.clone(), |(_, backoff)| backoff);
            let until = Instant::now() + backoff.pause();
            again.at(until);
            self.memory.away = Some((until, backoff));
        } else if !outcomes.is_empty() {
            self.memory.away = None;
        }
        for (entry, signed) in outcomes {
            match signed {
                Signed::Stored(Ok(outcome)) => {
                    report.writes += 1;
                    self.memory.failed.remove(&entry.uid);
                    self.issued(&outcome.entry);
                }
                Signed::Stored(Err(error)) => refused(&entry.key, "issued", &error, report)?,
                Signed::Failed(error) => {
                    let due = self.failure(context, &entry, &error, report).await?;
                    again.at(due);
                }
            }
        }
        Ok(())
    }

    /// Tells of a certificate that was signed.
    fn issued(&self, entry: &Entry) {
        self.metrics.count(Fate::Issued, 1);
        tracing::info!(request = entry.key.name, "signed");
        // A node's renewal is told of when the node is back with it.
        if entry.typed::<CertificateSigningRequest>().is_ok_and(|request| !is_renewal(&request)) {
            self.recorder.record(Subject::of(entry), &reasons::CERTIFICATE_ISSUED, "signed");
        }
    }

    /// Notes that a request could not be signed, and answers when it is tried again.
    async fn failure(
        &mut self,
        context: &RequestContext,
        entry: &Arc<Entry>,
        error: &SignError,
        report: &mut PassReport,
    ) -> Result<Instant, PassError> {
        self.metrics.count(Fate::Failed, 1);
        let cause = error.source().map(chain);
        tracing::warn!(request = entry.key.name, %error, cause, "could not sign");
        let told = entry
            .typed::<CertificateSigningRequest>()
            .is_ok_and(|request| condition(&request.status.conditions, CONDITION_ISSUED).is_some());
        let mut revision = entry.revision;
        if !told {
            let why = format!("not signed yet: {error}; it will be tried again");
            match self.service.fail_certificate(context, &entry.key, entry.revision, &why).await {
                Ok(outcome) => {
                    report.writes += 1;
                    revision = outcome.entry.revision;
                    self.recorder.record(Subject::of(&outcome.entry), &reasons::SIGNING_FAILED, why);
                }
                Err(error) => refused(&entry.key, "told that it failed", &error, report)?,
            }
        }
        let mut backoff =
            self.memory.failed.remove(&entry.uid).map_or(self.retry.request.clone(), |old| old.backoff);
        let due = Instant::now() + backoff.pause();
        self.memory.failed.insert(entry.uid, Failed { revision, due, backoff });
        Ok(due)
    }

    /// Turns down, and says why others wait.
    async fn judge(
        &self,
        context: &RequestContext,
        cases: Vec<Case>,
        report: &mut PassReport,
    ) -> Result<(), PassError> {
        let service = &self.service;
        let outcomes: Vec<_> = stream::iter(cases)
            .map(|Case { entry, decision }| async move {
                let (key, revision) = (&entry.key, entry.revision);
                let outcome = match &decision {
                    Decision::Deny(why) => service.deny_certificate(context, key, revision, why).await,
                    Decision::Hold(why) => service.hold_certificate(context, key, revision, why).await,
                    Decision::Sign(_) => Err(DoorError::Changed),
                };
                (entry, decision, outcome)
            })
            .buffer_unordered(WRITES)
            .collect()
            .await;
        for (entry, decision, outcome) in outcomes {
            match (outcome, decision) {
                (Ok(outcome), Decision::Deny(why)) => {
                    report.writes += 1;
                    self.metrics.count(Fate::Denied, 1);
                    tracing::info!(request = entry.key.name, why, "denied");
                    self.recorder.record(Subject::of(&outcome.entry), &reasons::CERTIFICATE_DENIED, why);
                }
                (Ok(outcome), Decision::Hold(why)) if outcome.changed => {
                    report.writes += 1;
                    self.metrics.count(Fate::Held, 1);
                    tracing::info!(request = entry.key.name, why, "held");
                    let (subject, reason) = self.held(&outcome.entry);
                    self.recorder.record(subject, reason, why);
                }
                (Ok(_), _) => {}
                (Err(error), _) => refused(&entry.key, "judged", &error, report)?,
            }
        }
        Ok(())
    }

    /// What is told of when a request is held: the node that asks for its own certificate, since it will ask again and
    /// again, else the request.
    fn held(&self, entry: &Entry) -> (Subject, &'static EventReason) {
        let request = entry.typed::<CertificateSigningRequest>().ok().filter(|request| is_renewal(request));
        let node = request.and_then(|request| {
            let key = Key::cluster(Kind::Node, request.requester());
            self.service.store().snapshot().get(&key)
        });
        match node {
            Some(node) => (Subject::of(&node), &reasons::RENEWAL_HELD),
            None => (Subject::of(entry), &reasons::CERTIFICATE_HELD),
        }
    }

    /// Deletes what has had its time, in items of many; what somebody else holds is marked, one by one.
    async fn expire(
        &self,
        context: &RequestContext,
        expired: &[Arc<Entry>],
        report: &mut PassReport,
    ) -> Result<(), PassError> {
        let (held, free): (Vec<Arc<Entry>>, Vec<Arc<Entry>>) = expired
            .iter()
            .cloned()
            .partition(|entry| entry.object().is_ok_and(|object| !object.finalizers().is_empty()));
        for batch in free.chunks(DELETIONS) {
            match self.service.expire_certificate_requests(context, batch).await {
                Ok(gone) => {
                    report.writes += gone;
                    report.refused += batch.len() - gone;
                    self.metrics.count(Fate::Expired, gone);
                }
                Err(DoorError::Fenced) => return Err(PassError::Deposed),
                Err(error) => {
                    tracing::warn!(%error, "old certificate requests could not be deleted; trying again");
                    report.refused += batch.len();
                }
            }
        }
        for entry in held {
            let mut options = DeleteOptions::default();
            options.preconditions.uid = Some(entry.uid.to_string());
            options.preconditions.resource_version = Some(entry.revision.to_string());
            match self.service.delete(context, &entry.key, &options).await {
                Ok(_) => {
                    report.writes += 1;
                    self.metrics.count(Fate::Expired, 1);
                }
                Err(error) => {
                    tracing::debug!(request = entry.key.name, %error, "an old request was not deleted");
                    report.refused += 1;
                }
            }
        }
        Ok(())
    }
}

/// What came of asking the signer.
enum Signed {
    Stored(Result<Outcome, DoorError>),
    Failed(SignError),
}

/// Signs one request and stores the certificate, phase and all in one change.
async fn issue(
    service: &Service,
    context: &RequestContext,
    signer: &dyn Signer,
    metrics: &CertificateMetrics,
    entry: &Entry,
    request: &CertificateRequest,
) -> Signed {
    let Ok(stored) = entry.typed::<CertificateSigningRequest>() else {
        return Signed::Stored(Err(DoorError::Changed));
    };
    let began = Instant::now();
    let signed = signer.sign(request, &stored.spec.request.0).await;
    metrics.sign.observe(began.elapsed().as_secs_f64());
    match signed {
        Ok(certificate) => {
            Signed::Stored(service.issue_certificate(context, &entry.key, entry.revision, &certificate).await)
        }
        Err(error) => Signed::Failed(error),
    }
}

/// Counts a write that was not made. What has changed meanwhile is looked at anew.
fn refused(key: &Key, what: &str, error: &DoorError, report: &mut PassReport) -> Result<(), PassError> {
    match error {
        DoorError::Fenced => return Err(PassError::Deposed),
        DoorError::Changed | DoorError::Gone => {}
        error => tracing::warn!(request = key.name, %error, "could not be {what}; trying again"),
    }
    report.refused += 1;
    Ok(())
}

fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// The soonest of several moments.
#[derive(Default)]
struct Soonest(Option<Duration>);

impl Soonest {
    fn within(&mut self, wait: Duration) {
        self.0 = Some(self.0.map_or(wait, |soonest| soonest.min(wait)));
    }

    fn at(&mut self, moment: Instant) {
        self.within(moment.saturating_duration_since(Instant::now()));
    }
}

impl Reconciler for NodeCertificates {
    fn name(&self) -> &'static str {
        "node-csr"
    }

    fn kinds(&self) -> &'static [Kind] {
        &[Kind::CertificateSigningRequest]
    }

    fn wakes(&self, change: &Change) -> bool {
        // What was decided needs nothing but its time; that an operator turned it down is told of.
        change.kind != ChangeKind::Deleted
            && (is_denied_by_operator(&change.entry)
                || change.entry.typed::<CertificateSigningRequest>().is_ok_and(|it| !it.is_decided()))
    }

    fn begin_term(&mut self) {
        self.memory = Memory::default();
    }

    fn end_term(&mut self) {
        self.metrics.clear();
    }

    fn pass<'a>(&'a mut self, term: &'a Term) -> BoxFuture<'a, Result<PassReport, PassError>> {
        Box::pin(self.reconcile(term))
    }
}

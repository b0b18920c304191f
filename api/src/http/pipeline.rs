//! What every request goes through, in order.
//!
//! panic recovery → audit id → path (400) → probes and what the token issuer serves → authentication (401) → `Impersonate-*` (403) → route
//! (404) → method (405) → places in flight (429) → authorization (403) → handler.
//!
//! The order is the guarantee. Nothing is known about a caller before 401 is behind it, not even whether a
//! path exists; authorization sees the very [`Route`] that the handler acts on; and a handler is only ever
//! reached through [`Call`], which carries the identity and what was granted. Every answer, refusals
//! included, leaves through one place that names, measures and logs it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use horchestra_core::status::Status;
use horchestra_runtime::telemetry::REQUEST_LOG;
use horchestra_service::{Caller, RequestContext, program_of};
use horchestra_trace::{Role, Trace};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Method, Request, header};
use hyper::body::Incoming;
use parking_lot::Mutex;

use super::audit::{AUDIT_ID, AuditId};
use super::limits::{Class, Slot};
use super::patience::Patience;
use super::query::Query;
use super::respond::{self, Answer};
use super::route::{NoRoute, Route, Verb};
use super::trace::{self, Answered};
use crate::access::{Known, Permit};
use crate::app::App;
use crate::catalog::query::is_blocking;
use crate::handlers;
use crate::metrics::Counted;
use crate::server::{Held, Peer};
use http_body_util::BodyExt;

/// Longest time that a request other than a watch, a log or a query that waits may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A request that was authenticated, routed and authorized.
pub struct Call {
    pub route: Route,
    /// `None` for documents.
    pub verb: Option<Verb>,
    pub method: Method,
    pub headers: HeaderMap,
    pub query: Query,
    /// The address that was asked, where the protocol says it outside the headers.
    pub authority: Option<Authority>,
    pub known: Known,
    pub permit: Permit,
    pub context: RequestContext,
    pub audit: AuditId,
    body: Mutex<Source>,
    /// The place in flight; streams take it with them.
    place: Mutex<Option<Place>>,
}

/// Where the body of a request comes from.
enum Source {
    Stream(Option<Incoming>),
    /// It was read before, for a request that may be tried again.
    Read(Bytes),
}

/// A place in flight and its gauge.
#[derive(Debug)]
pub struct Place {
    _slot: Slot,
    _gauge: Counted,
}

impl Call {
    /// The request body; empty when it was taken already.
    pub async fn body(&self) -> Result<Bytes, Status> {
        let stream = match &mut *self.body.lock() {
            Source::Stream(stream) => stream.take(),
            Source::Read(bytes) => return Ok(bytes.clone()),
        };
        match stream {
            Some(body) => super::body::read(&self.headers, body).await,
            None => Ok(Bytes::new()),
        }
    }

    /// Takes over the place in flight, for answers that outlive the handler.
    pub fn take_place(&self) -> Option<Place> {
        self.place.lock().take()
    }
}

/// What is known of a request by the time its answer is logged.
#[derive(Default)]
struct Record {
    route: Option<Route>,
    verb: Option<Verb>,
    user: Option<Arc<str>>,
    problem: Option<String>,
    /// The client's trace, where it is not recorded here; lines within one that is say so by themselves.
    passing: Option<Trace>,
}

impl App {
    /// Answers one request.
    pub async fn answer(
        self: &Arc<Self>,
        peer: &Peer,
        known: Option<Known>,
        request: Request<Incoming>,
    ) -> Answer {
        let began = Instant::now();
        let (parts, body) = request.into_parts();
        let audit = AuditId::of(&parts.headers);
        let span = trace::begin(&parts);
        let passing = span.trace().filter(|_| !span.is_recorded());
        let record = Mutex::new(Record { passing, ..Record::default() });
        let head = parts.method == Method::HEAD;
        let run = Box::pin(self.run(&parts, body, known, &audit, span.trace(), &record));
        let answer = span.around(recovered(run, || self.metrics().panicked())).await;
        let mut answer = match answer {
            Ok(answer) => respond::compress(&parts.headers, answer).await,
            Err(status) => {
                record.lock().problem = Some(status.message.clone());
                respond::failure(&status)
            }
        };
        if head {
            answer = respond::headers_only(answer);
        }
        answer.headers_mut().insert(&AUDIT_ID, audit.text.clone());
        let (record, code) = (record.into_inner(), answer.status().as_u16());
        let (route, user) = (record.route.as_ref(), record.user.as_deref().unwrap_or_default());
        trace::describe(&span, &parts, peer, &Answered { route, user, audit_id: audit.as_str(), code });
        span.within(|| self.log(&parts, peer, &audit, &record, code, began.elapsed()));
        answer
    }

    async fn run(
        self: &Arc<Self>,
        parts: &http::request::Parts,
        body: Incoming,
        known: Option<Known>,
        audit: &AuditId,
        trace: Option<Trace>,
        record: &Mutex<Record>,
    ) -> Result<Answer, Status> {
        let resolved = self.served().resolve(parts.uri.path());
        let query = Query::parse(parts.uri.query());
        if resolved == Err(NoRoute::Encoded) {
            return Err(Status::bad_request("the path of the request must not contain percent escapes"));
        }
        if let Ok(Route::Probe { probe, check }) = &resolved {
            record.lock().route = resolved.clone().ok();
            return Ok(handlers::health::probe(self, *probe, check.as_deref(), parts.uri.query()));
        }

        let body = match (&resolved, self.issuer()) {
            (Ok(Route::Issued(what)), Some(issuer)) => {
                record.lock().route = resolved.clone().ok();
                match handlers::tokens::serve(self, issuer, *what, parts, body).await {
                    Ok(answer) => return Ok(answer),
                    Err(body) => body,
                }
            }
            _ => body,
        };

        let known = trace::step("authenticate", trace, || self.authenticate(known, &parts.headers))?;
        record.lock().user = Some(known.name());
        if parts.headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
            return Err(Status::forbidden_path(parts.uri.path(), "impersonation is not supported"));
        }
        let route = resolved.map_err(|_| Status::no_such_route())?;
        record.lock().route = Some(route.clone());
        let methods = route.methods();
        if !methods.contains(&parts.method) {
            let refusal = Status::method_not_allowed(parts.method.as_str());
            let mut answer = respond::failure(&refusal);
            record.lock().problem = Some(refusal.message);
            let allow: Vec<&str> = methods.iter().map(Method::as_str).collect();
            if let Ok(value) = HeaderValue::from_str(&allow.join(", ")) {
                answer.headers_mut().insert(header::ALLOW, value);
            }
            return Ok(answer);
        }
        let verb = route.verb(&parts.method, query.watch());
        record.lock().verb = verb;

        let class = class(&route, verb, &query);
        let mut patience = self.parking().patience(&route, verb);
        let slot = loop {
            match self.in_flight().enter(class, &known.name(), known.is_node()) {
                Ok(slot) => break slot,
                Err(refusal) if outlasts(&mut patience, &refusal).await => {}
                Err(refusal) => {
                    self.metrics().rejected(class.word());
                    return Err(refusal);
                }
            }
        };
        let place = Place { _slot: slot, _gauge: self.metrics().in_flight(class.word()) };
        let judging = horchestra_trace::child("authorize", Role::Internal, trace);
        let permit = judging
            .around(self.authorize(&known, &route, verb, &parts.method, parts.uri.path()))
            .await
            .inspect_err(|status| trace::refused(&judging, status))?;
        drop(judging);

        let deadline = tokio::time::Instant::now() + query.timeout(TIMEOUT)?.min(known.left());
        let caller = known.clone();
        let call = Call {
            verb,
            method: parts.method.clone(),
            headers: parts.headers.clone(),
            query,
            authority: parts.uri.authority().cloned(),
            permit,
            context: RequestContext {
                caller: Caller::http(Arc::clone(&known.identity), Arc::clone(self.authorizer())),
                audit_id: audit.id,
                trace,
                program: program_of(
                    parts.headers.get(header::USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default(),
                ),
            },
            known,
            audit: audit.clone(),
            body: Mutex::new(match patience {
                Some(_) => Source::Read(
                    tokio::time::timeout_at(deadline, super::body::read(&parts.headers, body))
                        .await
                        .unwrap_or_else(|_| {
                            Err(Status::timeout("the body did not come within the allowed time"))
                        })?,
                ),
                None => Source::Stream(Some(body)),
            }),
            place: Mutex::new(Some(place)),
            route,
        };
        let answer = if matches!(class, Class::Watch | Class::Parked) {
            handlers::dispatch(self, &call).await
        } else {
            let patiently = async {
                loop {
                    match handlers::dispatch(self, &call).await {
                        Err(refusal) if outlasts(&mut patience, &refusal).await => {}
                        answer => break answer,
                    }
                }
            };
            tokio::time::timeout_at(deadline, patiently).await.unwrap_or_else(|_| {
                Err(if caller.valid() {
                    Status::timeout("the request did not complete within the allowed time")
                } else {
                    Status::unauthorized("the credential expired before the request was complete")
                })
            })
        }?;
        Ok(match call.take_place() {
            Some(place) => answer.map(|body| Held::new(body, place).boxed_unsync()),
            None => answer,
        })
    }

    fn log(
        &self,
        parts: &http::request::Parts,
        peer: &Peer,
        audit: &AuditId,
        record: &Record,
        code: u16,
        took: Duration,
    ) {
        let route = record.route.as_ref();
        let resource = route.map_or("none", Route::label);
        let verb = match record.verb {
            Some(verb) => verb.word(),
            None if parts.method == Method::GET || parts.method == Method::HEAD => "get",
            None => "other",
        };
        self.metrics().answered(verb, resource, code, took);
        if matches!(route, Some(Route::Probe { .. })) {
            return;
        }
        // A method that writes, where nothing is written or nothing is, was an attempt all the same.
        let write = match record.verb {
            Some(verb) => !matches!(verb, Verb::Get | Verb::List | Verb::Watch),
            None => !parts.method.is_safe() && !matches!(route, Some(Route::Issued(_))),
        };
        let sensitive = matches!(route, Some(Route::PodLog { .. } | Route::NodeLog { .. }))
            || route.and_then(Route::kind).is_some_and(|kind| kind.is_sealed());
        let telling = write || sensitive || matches!(code, 401 | 403 | 429 | 500..);
        let path: String = parts.uri.path().chars().take(512).collect();
        let agent =
            parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or("-");
        let agent = agent.get(..agent.len().min(128)).unwrap_or("-");
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(
                    target: REQUEST_LOG,
                    audit_id = audit.as_str(),
                    method = parts.method.as_str(),
                    path,
                    user = record.user.as_deref().unwrap_or("-"),
                    verb,
                    resource,
                    namespace = route.and_then(Route::namespace).unwrap_or(""),
                    name = route.map_or("", Route::name),
                    code,
                    latency_ms = took.as_secs_f64() * 1e3,
                    peer = %peer.address,
                    agent,
                    problem = record.problem.as_deref().unwrap_or(""),
                    trace_id = record.passing.as_ref().map(Trace::id_text),
                    "request"
                )
            };
        }
        if telling {
            line!(info);
        } else {
            line!(debug);
        }
    }
}

/// The outcome of a request; a panic on the way becomes a 500 that says nothing of it. The panic hook has
/// logged the place by then.
async fn recovered(
    work: impl Future<Output = Result<Answer, Status>>,
    note: impl FnOnce(),
) -> Result<Answer, Status> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
        note();
        Err(Status::internal("the request could not be handled"))
    })
}

async fn outlasts(patience: &mut Option<Patience>, refusal: &Status) -> bool {
    match patience {
        Some(patience) => patience.outlasts(refusal).await,
        None => false,
    }
}

fn class(route: &Route, verb: Option<Verb>, query: &Query) -> Class {
    match verb {
        None if matches!(route, Route::Catalog(endpoint) if endpoint.is_data()) && is_blocking(query) => {
            Class::Parked
        }
        Some(Verb::Watch) => Class::Watch,
        Some(Verb::Get) if matches!(route, Route::PodLog { .. } | Route::NodeLog { .. }) => Class::Watch,
        // A review stores nothing.
        Some(Verb::Create) if matches!(route, Route::Review { .. }) => Class::Read,
        Some(Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection) => {
            Class::Write
        }
        _ => Class::Read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_500_that_gives_nothing_away() {
        let mut panics = 0;
        let broken = async { std::panic::panic_any("a secret") };
        let status = recovered(broken, || panics += 1).await.unwrap_err();
        assert_eq!((status.code(), panics), (500, 1));
        assert!(!status.to_value().to_string().contains("secret"));
        let fine = async { Err(Status::no_such_route()) };
        assert_eq!(recovered(fine, || panics += 1).await.unwrap_err().code(), 404);
        assert_eq!(panics, 1);
    }
}

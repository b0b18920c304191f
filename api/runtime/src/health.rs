//! Is the process alive, is it ready, and what does it count.
//!
//! Two questions with different askers. *Live* is asked by whoever would restart the process: it is yes as
//! long as the process can answer at all, so a lost database never causes restarts. *Ready* is asked by
//! whoever would send it work, and is the conjunction of named checks.
//!
//! A check is a piece of state that its owner keeps up to date ([`Check`]), or a closure over such state. It
//! never does I/O: a probe must not hang on what it is probing.
//!
//! The answers have the form that Kubernetes tools know: `ok`, or the list of checks with `[+]` and `[-]`.
//! On a listener that strangers reach, the reasons are withheld ([`Detail`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use parking_lot::{Mutex, RwLock};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Form, Metrics, Readings};

#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    #[error("cannot listen on {address} for health and metrics")]
    Bind {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("the health listener failed")]
    Serve {
        #[source]
        source: std::io::Error,
    },
}

type Look = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The readiness checks of a process. Cheap to clone.
#[derive(Clone, Default)]
pub struct Checks {
    checks: Arc<RwLock<BTreeMap<String, Look>>>,
}

impl Checks {
    pub fn new() -> Checks {
        Checks::default()
    }

    /// Adds a check, or replaces the one of that name. `look` returns at once; its error says in a few words
    /// what is missing.
    pub fn add(&self, name: &str, look: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        self.checks.write().insert(name.to_owned(), Arc::new(look));
    }

    /// Adds a check that its owner sets. It fails with `starting` until it is told otherwise.
    pub fn state(&self, name: &str) -> Check {
        let check = Check { state: Arc::new(Mutex::new(Err("starting".to_owned()))) };
        let state = check.state.clone();
        self.add(name, move || state.lock().clone());
        check
    }

    /// Adds the check `shutdown`, which fails once `draining` is cancelled.
    pub fn draining(&self, draining: &CancellationToken) {
        let draining = draining.clone();
        self.add(
            "shutdown",
            move || {
                if draining.is_cancelled() { Err("shutting down".to_owned()) } else { Ok(()) }
            },
        );
    }

    /// Whether every check passes.
    pub fn ready(&self) -> bool {
        self.looks().iter().all(|(_, look)| look().is_ok())
    }

    /// `ready{check}`: 1 for each check that passes, 0 for the others.
    fn readings(&self) -> Readings {
        let passed = self.looks().into_iter().map(|(name, look)| (name, f64::from(u8::from(look().is_ok()))));
        let ready = ("check", passed.collect());
        Readings {
            gauges_by: vec![("ready", "Whether a check of readiness passes", ready)],
            ..Readings::default()
        }
    }

    fn looks(&self) -> Vec<(String, Look)> {
        self.checks.read().iter().map(|(name, look)| (name.clone(), look.clone())).collect()
    }
}

impl std::fmt::Debug for Checks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.checks.read().keys()).finish()
    }
}

/// One check's state, held by whoever knows it.
#[derive(Clone, Debug)]
pub struct Check {
    state: Arc<Mutex<Result<(), String>>>,
}

impl Check {
    pub fn pass(&self) {
        *self.state.lock() = Ok(());
    }

    pub fn fail(&self, reason: impl Into<String>) {
        *self.state.lock() = Err(reason.into());
    }
}

/// Whether an answer says why a check fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// For listeners that only operators reach.
    Shown,
    /// For listeners that answer anybody.
    Withheld,
}

/// What `/readyz?…` answers: the status and a plain text.
pub fn readyz(checks: &Checks, query: Option<&str>, detail: Detail) -> (StatusCode, String) {
    let mut excluded: Vec<String> = Vec::new();
    let mut verbose = false;
    for (name, value) in parameters(query) {
        match name.as_str() {
            "verbose" => verbose = true,
            "exclude" => excluded.push(value),
            _ => {}
        }
    }
    let mut list = String::new();
    let mut passed = true;
    for (name, look) in checks.looks() {
        if let Some(at) = excluded.iter().position(|excluded| *excluded == name) {
            excluded.swap_remove(at);
            let _ = writeln!(list, "[+]{name} excluded: ok");
            continue;
        }
        match (look(), detail) {
            (Ok(()), _) => {
                let _ = writeln!(list, "[+]{name} ok");
            }
            (Err(reason), Detail::Shown) => {
                passed = false;
                let _ = writeln!(list, "[-]{name} failed: {reason}");
            }
            (Err(_), Detail::Withheld) => {
                passed = false;
                let _ = writeln!(list, "[-]{name} failed: reason withheld");
            }
        }
    }
    if !excluded.is_empty() && detail == Detail::Shown {
        let _ =
            writeln!(list, "warn: some checks cannot be excluded: no check is named {}", excluded.join(", "));
    }
    match (passed, verbose) {
        (true, false) => (StatusCode::OK, "ok".to_owned()),
        (true, true) => (StatusCode::OK, list + "readyz check passed\n"),
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, list + "readyz check failed\n"),
    }
}

/// What `/readyz/<check>` answers; 404 for a check that does not exist.
pub fn readyz_check(checks: &Checks, name: &str, detail: Detail) -> (StatusCode, String) {
    let look = checks.checks.read().get(name).cloned();
    match look.map(|look| look()) {
        None => (StatusCode::NOT_FOUND, "no such check\n".to_owned()),
        Some(Ok(())) => (StatusCode::OK, "ok".to_owned()),
        Some(Err(reason)) => {
            let reason = if detail == Detail::Shown { reason } else { "reason withheld".to_owned() };
            (StatusCode::SERVICE_UNAVAILABLE, format!("{name} failed: {reason}\n"))
        }
    }
}

/// What `/livez` and `/healthz` answer: yes.
pub fn livez(query: Option<&str>) -> (StatusCode, String) {
    let verbose = parameters(query).any(|(name, _)| name == "verbose");
    let text = if verbose { "[+]ping ok\nlivez check passed\n" } else { "ok" };
    (StatusCode::OK, text.to_owned())
}

/// The name-value pairs of a query. Names of checks need no escapes, so none are undone.
fn parameters(query: Option<&str>) -> impl Iterator<Item = (String, String)> {
    query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), value.to_owned())
    })
}

#[derive(Clone)]
struct Shown {
    checks: Checks,
    metrics: Metrics,
}

/// The routes of the health listener: `/livez`, `/healthz`, `/readyz`, `/readyz/<check>`, `/metrics`.
pub fn router(checks: Checks, metrics: Metrics) -> Router {
    Router::new()
        .route("/livez", any(|RawQuery(query): RawQuery| async move { text(livez(query.as_deref())) }))
        .route("/healthz", any(|RawQuery(query): RawQuery| async move { text(livez(query.as_deref())) }))
        .route(
            "/readyz",
            any(|State(shown): State<Shown>, RawQuery(query): RawQuery| async move {
                text(readyz(&shown.checks, query.as_deref(), Detail::Shown))
            }),
        )
        .route(
            "/readyz/{check}",
            any(|State(shown): State<Shown>, Path(name): Path<String>| async move {
                text(readyz_check(&shown.checks, &name, Detail::Shown))
            }),
        )
        .route(
            "/metrics",
            get(async |State(shown): State<Shown>, headers: HeaderMap| exposition(&shown.metrics, &headers)),
        )
        .with_state(Shown { checks, metrics })
}

/// Binds the health listener. Separate from [`serve`], so that a busy port fails the start.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, HealthError> {
    TcpListener::bind(address).await.map_err(|source| HealthError::Bind { address, source })
}

/// Serves health and metrics until `closing` is cancelled; the metrics tell of the checks as well.
pub async fn serve(
    listener: TcpListener,
    checks: Checks,
    metrics: Metrics,
    closing: CancellationToken,
) -> Result<(), HealthError> {
    let judged = checks.clone();
    metrics.readings(move || judged.readings());
    axum::serve(listener, router(checks, metrics))
        .with_graceful_shutdown(closing.cancelled_owned())
        .await
        .map_err(|source| HealthError::Serve { source })
}

fn text((status, body): (StatusCode, String)) -> Response {
    (
        status,
        [
            (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
            (header::CACHE_CONTROL, "no-cache, no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ],
        body,
    )
        .into_response()
}

fn exposition(metrics: &Metrics, headers: &HeaderMap) -> Response {
    let form = Form::accepted(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()));
    match metrics.encode_as(form) {
        Ok(body) => ([(header::CONTENT_TYPE, form.content_type())], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be printed");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks() -> (Checks, Check) {
        let checks = Checks::new();
        checks.add("database", || Ok(()));
        let tail = checks.state("tail");
        (checks, tail)
    }

    #[test]
    fn readiness_is_every_check_and_the_answers_have_the_known_form() {
        use Detail::{Shown, Withheld};
        let (checks, tail) = checks();
        assert!(!checks.ready());
        let failed = "[+]database ok\n[-]tail failed: starting\nreadyz check failed\n";
        let withheld = "[+]database ok\n[-]tail failed: reason withheld\nreadyz check failed\n";
        let excluded = "[+]database ok\n[+]tail excluded: ok\nreadyz check passed\n";
        for (query, detail, status, body) in [
            (None, Shown, 503, failed),
            (None, Withheld, 503, withheld),
            (Some("verbose"), Withheld, 503, withheld),
            (Some("exclude=tail"), Shown, 200, "ok"),
            (Some("verbose=true&exclude=tail"), Shown, 200, excluded),
        ] {
            assert_eq!(
                readyz(&checks, query, detail),
                (StatusCode::from_u16(status).unwrap(), body.to_owned())
            );
        }
        let (status, body) = readyz(&checks, Some("exclude=nothing"), Shown);
        assert!(status == 503 && body.contains("no check is named nothing"), "{body}");

        tail.pass();
        assert!(checks.ready());
        assert_eq!(readyz(&checks, None, Withheld), (StatusCode::OK, "ok".to_owned()));
        tail.fail("the database does not answer");
        assert!(readyz(&checks, None, Shown).1.contains("the database does not answer"));
    }

    #[test]
    fn one_check_can_be_asked_for() {
        let (checks, _tail) = checks();
        for (name, status) in [("database", 200), ("tail", 503), ("other", 404)] {
            assert_eq!(readyz_check(&checks, name, Detail::Shown).0, status, "{name}");
        }
    }

    #[test]
    fn a_draining_process_is_not_ready_but_alive() {
        let checks = Checks::new();
        let draining = CancellationToken::new();
        checks.draining(&draining);
        assert!(checks.ready());
        draining.cancel();
        assert!(!checks.ready());
        assert_eq!(livez(None), (StatusCode::OK, "ok".to_owned()));
        assert_eq!(livez(Some("verbose")).1, "[+]ping ok\nlivez check passed\n");
    }
}

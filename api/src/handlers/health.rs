//! Probes. They need no credentials, so they say which check failed and never why.
//!
//! `/livez` and `/healthz` say that the process answers. `/readyz` says that requests sent here will be
//! served well: the cache is loaded, the log was followed within the last ten seconds, there is a policy to
//! judge requests by, and the replica is not shutting down. A database that is away makes a replica unready, never unhealthy: restarting it would
//! throw away the cache that still answers reads.

use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::Authorizer;
use horchestra_runtime::health::{self, Checks, Detail};
use horchestra_store::Store;
use http::{HeaderValue, header};

use crate::app::App;
use crate::http::respond::{Answer, text};
use crate::http::route::Probe;

/// How long the database may be away before readiness says so.
const DISCONNECTED: Duration = Duration::from_secs(10);

/// Adds what readiness means for a replica of the API.
pub fn add_checks(checks: &Checks, store: &Store, authorizer: &Arc<Authorizer>) {
    let cache = store.clone();
    checks.add("store-loaded", move || {
        if cache.health().loaded { Ok(()) } else { Err("the cache is not loaded".to_owned()) }
    });
    let tail = store.clone();
    checks.add("store-connected", move || {
        let away = tail.health().disconnected_for;
        if away <= DISCONNECTED {
            Ok(())
        } else {
            Err(format!("the database has been away for {} s", away.as_secs()))
        }
    });
    let authorizer = Arc::clone(authorizer);
    checks.add("policy", move || {
        authorizer.refresh().map_err(|_| "the rules that requests are judged by are not loaded".to_owned())
    });
}

pub fn probe(app: &App, probe: Probe, check: Option<&str>, query: Option<&str>) -> Answer {
    let (code, body) = match (probe, check) {
        (Probe::Ready, None) => health::readyz(app.checks(), query, Detail::Withheld),
        (Probe::Ready, Some(check)) => health::readyz_check(app.checks(), check, Detail::Withheld),
        (Probe::Live | Probe::Health, None | Some("ping")) => health::livez(query),
        (Probe::Live | Probe::Health, Some(_)) => (http::StatusCode::NOT_FOUND, "no such check\n".to_owned()),
    };
    let mut answer = text(code, body);
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, no-store"));
    answer
}

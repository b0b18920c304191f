//! What the issuer of workload tokens serves: its public keys, its configuration, and TokenReviews.
//!
//! None of it goes through the ordinary chain. Keys and configuration are for everybody: whoever verifies
//! tokens needs them first. A TokenReview is asked by services that know nothing of this API but a token (Vault
//! shows the very token that it was given), so the credential is a token of this issuer for any audience, in
//! the `Authorization` header, and nothing else: neither a certificate nor a rule has a say. Its refusals are
//! plain text, since its callers read nothing else.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use horchestra_auth::tokens::{Issuer, TokenReviewSpec, review};
use horchestra_core::status::Status;
use http::{HeaderValue, Method, StatusCode, header};
use hyper::body::Incoming;
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::app::App;
use crate::http::limits::Class;
use crate::http::respond::{self, Answer};
use crate::http::route::Issued;
use crate::http::{body, credentials};

/// Largest body of a TokenReview, in bytes.
const REVIEW_LIMIT: usize = 1 << 20;
/// How long a review may take to come.
const REVIEW_PATIENCE: Duration = Duration::from_secs(10);

/// Keys may be kept for as long as a new one waits before it signs.
const KEEP: &str = "public, max-age=60";

/// The answer to a request for what the issuer serves. For a method that is not the route's the body is given back.
pub async fn serve(
    app: &Arc<App>,
    issuer: &Issuer,
    what: Issued,
    parts: &http::request::Parts,
    body: Incoming,
) -> Result<Answer, Incoming> {
    let reading = matches!(parts.method, Method::GET | Method::HEAD);
    match what {
        Issued::Keys if reading => Ok(published("application/jwk-set+json", &issuer.jwks())),
        Issued::Configuration if reading => match issuer.configuration() {
            Some(configuration) => Ok(published("application/json", &configuration)),
            None => Err(body),
        },
        Issued::Review if parts.method == Method::POST => Ok(answer_review(app, issuer, parts, body).await),
        _ => Err(body),
    }
}

fn published(content_type: &'static str, document: &Value) -> Answer {
    let mut answer = respond::json(StatusCode::OK, document);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(KEEP));
    answer
}

async fn answer_review(
    app: &Arc<App>,
    issuer: &Issuer,
    parts: &http::request::Parts,
    body: Incoming,
) -> Answer {
    let refuse = |code: StatusCode, why: &str| respond::text(code, Bytes::from(format!("{why}\n")));
    let reviewer = match issuer.verify(credentials::reviewer(&parts.headers), Timestamp::now()) {
        Ok(reviewer) => reviewer,
        Err(error) => {
            return refuse(
                StatusCode::UNAUTHORIZED,
                &format!("a TokenReview needs a token of this issuer in the header Authorization: {error}"),
            );
        }
    };
    let _slot = match app.in_flight().enter(Class::Read, &reviewer.claims.sub, false) {
        Ok(slot) => slot,
        Err(status) => {
            app.metrics().rejected(Class::Read.word());
            return respond::failure(&status);
        }
    };
    let read = body::read_up_to(REVIEW_LIMIT, &parts.headers, body);
    let body = match tokio::time::timeout(REVIEW_PATIENCE, read).await.unwrap_or_else(|_| Err(too_slow())) {
        Ok(body) => body,
        Err(status) => {
            let code = StatusCode::from_u16(status.code()).unwrap_or(StatusCode::BAD_REQUEST);
            return refuse(code, &status.message);
        }
    };
    match asked(&body) {
        Some(asked) => respond::json(StatusCode::CREATED, &review(issuer, &asked, Timestamp::now())),
        // Without the parser's words: they can quote the token.
        None => refuse(StatusCode::BAD_REQUEST, "the body is no TokenReview in JSON"),
    }
}

fn too_slow() -> Status {
    Status::timeout("the body did not come within the allowed time")
}

/// What a body asks; `None`: it is no TokenReview.
fn asked(body: &[u8]) -> Option<TokenReviewSpec> {
    let mut members: Map<String, Value> = serde_json::from_slice(body).ok()?;
    match members.remove("spec").unwrap_or_default() {
        Value::Null => Some(TokenReviewSpec::default()),
        // A list would pass for an object whose members come in their order.
        spec if spec.is_object() => serde_json::from_value(spec).ok(),
        _ => None,
    }
}

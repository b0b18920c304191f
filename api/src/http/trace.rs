//! The span of a request, named and described as OpenTelemetry's conventions for HTTP say.

use horchestra_core::status::Status;
use horchestra_trace::{Incoming, Role, Span, Trace, attribute};
use http::{HeaderMap, HeaderName, HeaderValue, header, request};

use super::route::Route;
use crate::server::Peer;

static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Begins the span of a request. Probes have none.
pub fn begin(parts: &request::Parts) -> Span {
    let probe = ["/livez", "/readyz", "/healthz"].iter().any(|probe| parts.uri.path().starts_with(probe));
    if probe {
        Span::none()
    } else {
        horchestra_trace::request("request", Role::Server, incoming(&parts.headers).as_ref())
    }
}

/// The context that the client has sent, where it is as W3C says: one `traceparent`, and any number of pieces of a
/// `tracestate`.
fn incoming(headers: &HeaderMap) -> Option<Incoming> {
    let mut parents = headers.get_all(&TRACEPARENT).iter();
    let parent = parents.next().filter(|_| parents.next().is_none())?.to_str().ok()?;
    let pieces: Result<Vec<&str>, _> = headers.get_all(&TRACESTATE).iter().map(HeaderValue::to_str).collect();
    let state = pieces.ok().map(|pieces| pieces.join(","));
    Incoming::read(parent, state.as_deref())
}

/// A step of a request that does not wait.
pub fn step<T>(
    name: &'static str,
    trace: Option<Trace>,
    work: impl FnOnce() -> Result<T, Status>,
) -> Result<T, Status> {
    let span = horchestra_trace::child(name, Role::Internal, trace);
    span.within(work).inspect_err(|status| refused(&span, status))
}

/// Notes that a step was refused.
pub fn refused(span: &Span, status: &Status) {
    span.set(|| [attribute("horchestra.reason", format!("{:?}", status.reason))]);
    if status.code() >= 500 {
        span.fail(|| status.message.clone().into());
    }
}

/// What is known of a request once it is answered.
pub struct Answered<'a> {
    pub route: Option<&'a Route>,
    pub user: &'a str,
    pub audit_id: &'a str,
    pub code: u16,
}

/// Names and describes the span of a request that was answered.
pub fn describe(span: &Span, parts: &request::Parts, peer: &Peer, answered: &Answered<'_>) {
    let Answered { route, user, audit_id, code } = *answered;
    let template = route.filter(|_| span.is_recorded()).map(|route| template(route, parts.uri.path()));
    span.rename(|| match &template {
        Some(template) => format!("{} {template}", parts.method),
        None => parts.method.to_string(),
    });
    span.set(|| {
        let agent = parts.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        [
            attribute("http.request.method", parts.method.to_string()),
            attribute("http.response.status_code", i64::from(code)),
            attribute("url.scheme", "https"),
            attribute("url.path", parts.uri.path().chars().take(512).collect::<String>()),
            attribute("client.address", peer.address.ip().to_string()),
            attribute("user_agent.original", agent.unwrap_or_default().to_owned()),
            attribute("enduser.id", user.to_owned()),
            attribute("horchestra.audit_id", audit_id.to_owned()),
        ]
    });
    if let Some(template) = template {
        span.set(|| [attribute("http.route", template)]);
    }
    if code >= 500 {
        span.set(|| [attribute("error.type", code.to_string())]);
        span.fail(|| format!("answered {code}").into());
    }
}

/// The path with its names taken out: few of them, whatever clients ask for.
fn template(route: &Route, path: &str) -> String {
    let mut segments: Vec<&str> = path.split('/').collect();
    if let Some(namespace) = route.namespace()
        && let Some(at) = segments.windows(2).position(|pair| pair == ["namespaces", namespace])
    {
        segments[at + 1] = "{namespace}";
    }
    let below = matches!(
        route,
        Route::ItemStatus { .. }
            | Route::ItemDoor { .. }
            | Route::PodLog { .. }
            | Route::NodeLog { .. }
            | Route::ApplicationMetrics { .. }
    );
    let at = segments.len().saturating_sub(1 + usize::from(below));
    if !route.name().is_empty() && segments.get(at) == Some(&route.name()) {
        segments[at] = "{name}";
    }
    segments.join("/")
}

#[cfg(test)]
mod tests {
    use horchestra_core::registry;

    use super::super::route::Served;
    use super::*;

    #[test]
    fn templates_hold_no_names() {
        let served = Served::new(registry::served().iter().map(|spec| spec.kind));
        for (path, expected) in [
            ("/version", "/version"),
            ("/apis/horchestra.io/v1", "/apis/horchestra.io/v1"),
            ("/apis/horchestra.io/v1/applications", "/apis/horchestra.io/v1/applications"),
            (
                "/apis/horchestra.io/v1/namespaces/team/applications",
                "/apis/horchestra.io/v1/namespaces/{namespace}/applications",
            ),
            (
                "/apis/horchestra.io/v1/namespaces/namespaces/applications/applications",
                "/apis/horchestra.io/v1/namespaces/{namespace}/applications/{name}",
            ),
            (
                "/apis/horchestra.io/v1/namespaces/team/applications/status/status",
                "/apis/horchestra.io/v1/namespaces/{namespace}/applications/{name}/status",
            ),
            (
                "/apis/horchestra.io/v1/namespaces/team/applications/web/freeze",
                "/apis/horchestra.io/v1/namespaces/{namespace}/applications/{name}/freeze",
            ),
            ("/apis/horchestra.io/v1/nodes/nodes", "/apis/horchestra.io/v1/nodes/{name}"),
            ("/apis/horchestra.io/v1/namespaces/team", "/apis/horchestra.io/v1/namespaces/{name}"),
            ("/api/v1/namespaces/team/pods/web/log", "/api/v1/namespaces/{namespace}/pods/{name}/log"),
        ] {
            let route = served.resolve(path).unwrap_or_else(|_| panic!("{path} is routed"));
            assert_eq!(template(&route, path), expected);
        }
    }

    #[test]
    fn a_context_comes_in_one_header() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        for (headers, expected) in [
            (vec![("traceparent", parent)], Some(parent)),
            (vec![("traceparent", parent), ("traceparent", parent)], None),
            (vec![("traceparent", "made up")], None),
            (vec![("tracestate", "a=1")], None),
        ] {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                map.append(name, HeaderValue::from_static(value));
            }
            let span = horchestra_trace::request("test", Role::Server, incoming(&map).as_ref());
            assert_eq!(span.headers().map(|(parent, _)| parent).as_deref(), expected);
        }
    }
}

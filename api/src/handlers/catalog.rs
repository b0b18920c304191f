//! The catalog over HTTP: permissions, waiting, headers.
//!
//! A path is granted like any path that is no resource, to subjects of ClusterRoles; what is about a namespace takes
//! the permission to list its Services besides. Both are judged again after a wait, since rights end meanwhile.

use std::sync::Arc;

use horchestra_auth::Attributes;
use horchestra_core::kind::Kind;
use horchestra_core::status::Status;
use http::uri::Authority;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::json;
use tokio::time::Instant;

use crate::app::App;
use crate::catalog::query::{self, Asked};
use crate::catalog::{DATACENTER, Question, SELF};
use crate::http::Call;
use crate::http::negotiate::Wire;
use crate::http::respond::{self, Answer};
use crate::http::route::Endpoint;

const INDEX: HeaderName = HeaderName::from_static("x-consul-index");
const KNOWN_LEADER: HeaderName = HeaderName::from_static("x-consul-knownleader");
const LAST_CONTACT: HeaderName = HeaderName::from_static("x-consul-lastcontact");

/// Answers with more in them than this are written on a thread of their own.
const LARGE: usize = 256;

pub async fn serve(app: &Arc<App>, call: &Call, endpoint: &Endpoint) -> Result<Answer, Status> {
    let document = match endpoint {
        Endpoint::Datacenters => json!([DATACENTER]),
        Endpoint::Agent => json!({"Config": {"Datacenter": DATACENTER, "NodeName": SELF}}),
        // Whoever answers is as good as any other, so it is the address that led here.
        Endpoint::Leader if app.catalog().last_contact().is_zero() => json!(authority(call)),
        Endpoint::Leader => json!(""),
        _ => return answer(app, call, endpoint).await,
    };
    Ok(respond::json(StatusCode::OK, &document))
}

/// The question of an endpoint, as far as the caller may ask it.
async fn question(app: &App, call: &Call, endpoint: &Endpoint, namespace: &str) -> Result<Question, Status> {
    sees_services(app, call, namespace).await?;
    Ok(match endpoint {
        Endpoint::Services => Question::Services,
        Endpoint::Service(name) => Question::Service(name.clone()),
        Endpoint::Health(name) => Question::Health(name.clone()),
        Endpoint::State(state) => match state.as_str() {
            "any" | "passing" | "warning" | "critical" => Question::State(state.clone()),
            other => return Err(Status::bad_request(format!("{other:?} is no state of a check"))),
        },
        Endpoint::Nodes => Question::Nodes { all: sees_nodes(app, call).await? },
        Endpoint::Node(name) => Question::Node { name: name.clone(), any: sees_nodes(app, call).await? },
        Endpoint::Datacenters | Endpoint::Agent | Endpoint::Leader => return Err(Status::no_such_route()),
    })
}

async fn answer(app: &Arc<App>, call: &Call, endpoint: &Endpoint) -> Result<Answer, Status> {
    let namespace = query::namespace(&call.query, &app.service().config().catalog_namespace);
    let mut question = question(app, call, endpoint, namespace).await?;
    let asked = Asked::of(&call.query, question.shape())?;
    let catalog = app.catalog();
    catalog.start(app.tasks(), app.draining());
    let known = catalog.catch_up(&asked).await?;
    if known > 0 {
        wait(app, call, &question, namespace, &asked, known).await;
        if !call.known.valid() {
            return Err(Status::unauthorized("the credential expired while the request waited"));
        }
        app.authorize(&call.known, &call.route, call.verb, &call.method, &endpoint.path()).await?;
        question = self::question(app, call, endpoint, namespace).await?;
    }
    let began = Instant::now();
    let answer = catalog.answer(&question, namespace, &asked, known);
    let (index, body) = (answer.index, answer.body);
    let written = if body.len() > LARGE {
        let written = tokio::task::spawn_blocking(move || body.write(&asked)).await;
        written.map_err(|_| Status::internal("the answer could not be written"))?
    } else {
        body.write(&asked)
    };
    let written = written.map_err(|_| Status::internal("the answer could not be written"))?;
    app.metrics().catalog.answered(endpoint.label(), began.elapsed());
    let mut answer = respond::document(StatusCode::OK, Wire::Json, written)?;
    let contact = app.catalog().last_contact();
    let headers = answer.headers_mut();
    headers.insert(INDEX, HeaderValue::from(index));
    headers.insert(KNOWN_LEADER, HeaderValue::from_static(if contact.is_zero() { "true" } else { "false" }));
    headers.insert(LAST_CONTACT, HeaderValue::from(u64::try_from(contact.as_millis()).unwrap_or(u64::MAX)));
    Ok(answer)
}

/// Parks a question whose answer at this index is known.
async fn wait(app: &Arc<App>, call: &Call, question: &Question, namespace: &str, asked: &Asked, known: i64) {
    // Nobody waits for longer than he is believed.
    let patience = asked.patience(rand::random()).min(call.known.left());
    let parked = app.metrics().catalog.parked();
    let until = Instant::now() + patience;
    let woken = app.catalog().changed(question, namespace, known, until, app.draining()).await;
    drop(parked);
    app.metrics().catalog.woken(woken);
}

async fn sees_services(app: &App, call: &Call, namespace: &str) -> Result<(), Status> {
    let (group, plural) = (Kind::Service.group(), Kind::Service.plural());
    let asked = Attributes::resource("list", group, plural, namespace, "");
    let decision = app.may(&call.known.identity, &asked).await?;
    if decision.allowed {
        return Ok(());
    }
    Err(Status::forbidden_resource(group, plural, "", &decision.reason))
}

/// Whether the caller may know of nodes that its namespace has nothing on.
async fn sees_nodes(app: &App, call: &Call) -> Result<bool, Status> {
    let asked = Attributes::resource("list", Kind::Node.group(), Kind::Node.plural(), "", "");
    Ok(app.may(&call.known.identity, &asked).await?.allowed)
}

/// The address that the client has used.
fn authority(call: &Call) -> &str {
    let named = call.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    named.or(call.authority.as_ref().map(Authority::as_str)).unwrap_or(SELF)
}

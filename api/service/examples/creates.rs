//! Creates Applications through the service on a store in memory, one after the other: decoding, admission, the
//! committer and the cache, without sockets and without a database. For counting the instructions of a write
//! (`make instructions`).
//!
//! The argument is how many; the difference of two runs is free of what starting costs.

use std::sync::Arc;

use horchestra_auth::identity::Credential;
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Authorizer, Identity};
use horchestra_core::kind::Kind;
use horchestra_service::{Body, Caller, RequestContext, Service, ServiceConfig, WriteOptions};
use horchestra_store::Store;
use serde_json::{Value, json};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let count: usize = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1000);
    let store = Store::memory();
    store.ready().await;
    let service = Service::new(store.clone(), ServiceConfig::default());
    create(&service, Kind::Namespace, "", &json!({"metadata": {"name": "default"}})).await;
    for number in 0..count {
        let app = json!({"metadata": {"name": format!("app-{number}")}, "spec": {"image": "nginx"}});
        create(&service, Kind::Application, "default", &app).await;
    }
    store.shutdown().await;
}

async fn create(service: &Service, kind: Kind, namespace: &str, object: &Value) {
    let identity = Identity {
        name: "admin".to_owned(),
        groups: ["system:masters".to_owned()].into(),
        credential: Credential::Certificate {
            fingerprint: "00".repeat(32),
            not_after: "2100-01-01T00:00:00Z".parse().expect("a time"),
        },
    };
    let authorizer = Arc::new(Authorizer::new(FixedPolicy::default()));
    let context = RequestContext::new(Caller::http(Arc::new(identity), authorizer));
    let body = Body::Json(object.to_string().into());
    service.create(&context, kind, namespace, body, &WriteOptions::default()).await.expect("created");
}

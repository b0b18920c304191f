//! The request log: who did what, how it ended, and which requests are always in it.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

use crate::client::Protocol;
use crate::crud::app;
use crate::stack::{Stack, Who};

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = Sink;

    fn make_writer(&'a self) -> Sink {
        self.clone()
    }
}

#[tokio::test]
async fn writes_refusals_and_log_reads_are_always_logged() {
    let sink = Sink::default();
    tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::INFO)
        .with_writer(sink.clone())
        .try_init()
        .expect("this test sets up logging alone");
    let stack = Stack::with_namespaces().await;
    let master = stack.master();
    let nobody = stack.client(Who::Nobody, Protocol::Http1);
    let stranger = stack.client(Who::Anonymous, Protocol::Http1);
    let apps = "/apis/horchestra.io/v1/namespaces/default/applications";
    let body = app("web").to_string();
    master.send(Method::POST, apps, &[("audit-id", "log-create")], body).await;
    master.send(Method::GET, apps, &[("audit-id", "log-read")], Bytes::new()).await;
    nobody.send(Method::GET, apps, &[("audit-id", "log-denied")], Bytes::new()).await;
    stranger.send(Method::GET, apps, &[("audit-id", "log-stranger")], Bytes::new()).await;
    let log = "/api/v1/namespaces/default/pods/web/log";
    master.send(Method::GET, log, &[("audit-id", "log-log")], Bytes::new()).await;

    // Whoever reads Secrets is in it, in whatever form; what they hold is not.
    let secrets = "/apis/horchestra.io/v1/namespaces/default/secrets";
    let db = format!("{secrets}/db");
    let odd = format!("{secrets}?fieldSelector=data.value%3Dhunter2");
    let secret =
        |value: &str| json!({"metadata": {"name": "db"}, "stringData": {"value": value}}).to_string();
    let wrong = json!({"metadata": {"name": "db"}, "data": {"value": "%hunter2"}}).to_string();
    for (audit, method, path, body) in [
        ("secret-create", Method::POST, secrets, secret("hunter2")),
        ("secret-read", Method::GET, db.as_str(), String::new()),
        ("secret-list", Method::GET, secrets, String::new()),
        ("secret-taken", Method::POST, secrets, secret("hunter2")),
        ("secret-wrong", Method::POST, secrets, wrong),
        ("secret-select", Method::GET, odd.as_str(), String::new()),
    ] {
        master.send(method, path, &[("audit-id", audit)], body).await;
    }
    let metadata = [
        ("audit-id", "secret-metadata"),
        ("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"),
    ];
    master.send(Method::GET, &db, &metadata, Bytes::new()).await;
    let mut watch = master.lines(&format!("{secrets}?watch=1"), &[("audit-id", "secret-watch")]).await;
    assert_eq!(watch.event().await.1, "db");

    let text = String::from_utf8(sink.0.lock().clone()).unwrap();
    for value in ["hunter2", "aHVudGVyMg"] {
        assert!(!text.contains(value), "{text}");
    }
    let line = |audit: &str| {
        text.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .map(|line| line["fields"].clone())
            .find(|fields| fields["audit_id"] == audit)
    };
    for (audit, user, verb, resource, code) in [
        ("log-create", "admin", "create", "applications", 201),
        ("log-denied", "nobody", "list", "applications", 403),
        ("log-stranger", "-", "get", "none", 401),
        ("log-log", "admin", "get", "pods/log", 400),
        ("secret-create", "admin", "create", "secrets", 201),
        ("secret-read", "admin", "get", "secrets", 200),
        ("secret-list", "admin", "list", "secrets", 200),
        ("secret-taken", "admin", "create", "secrets", 409),
        ("secret-wrong", "admin", "create", "secrets", 422),
        ("secret-select", "admin", "list", "secrets", 400),
        ("secret-metadata", "admin", "get", "secrets", 200),
        ("secret-watch", "admin", "watch", "secrets", 200),
    ] {
        let fields = line(audit).unwrap_or_else(|| panic!("{audit} is not in {text}"));
        assert_eq!(fields["user"], user, "{fields}");
        assert_eq!((&fields["verb"], &fields["resource"]), (&verb.into(), &resource.into()), "{fields}");
        assert_eq!(fields["code"], code, "{fields}");
        assert!(fields["latency_ms"].is_number() && fields["peer"].is_string(), "{fields}");
    }
    assert_eq!(line("log-read"), None, "plain reads are for the debug level");
}

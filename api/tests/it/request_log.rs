//! The request log: who did what, how it ended, and which requests are always in it.

use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

use crate::client::{Client, Protocol};
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
async fn writes_refusals_and_reads_of_logs_and_secrets_have_one_line_each() {
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
    let (log, secrets) =
        ("/api/v1/namespaces/default/pods/web/log", "/apis/horchestra.io/v1/namespaces/default/secrets");
    let secret = r#"{"metadata":{"name":"s"},"stringData":{"a":"hunter2"}}"#;
    let send = async |client: &Client, method: Method, path: String, audit: &str, body: &'static str| {
        let patch = [("audit-id", audit), ("content-type", "application/merge-patch+json")];
        let headers = if method == Method::PATCH { &patch[..] } else { &patch[..1] };
        client.send(method, &path, headers, body).await;
    };
    for (client, method, path, audit, body) in [
        (&master, Method::GET, log.to_owned(), "log-log", ""),
        (&nobody, Method::GET, log.to_owned(), "log-log-hidden", ""),
        (&nobody, Method::POST, apps.to_owned(), "log-create-denied", "{}"),
        (&master, Method::PUT, format!("{apps}/web/freeze"), "log-door", ""),
        (&master, Method::PATCH, format!("{apps}/web"), "log-patch-refused", r#"{"spec":{"imgae":"x"}}"#),
        (&master, Method::PATCH, format!("{apps}/web/status"), "log-status", r#"{"status":{}}"#),
        (&master, Method::DELETE, format!("{apps}/web?dryRun=All"), "log-delete", ""),
        (&master, Method::DELETE, format!("{apps}?labelSelector=a%3Db"), "log-delete-all", ""),
        (&master, Method::PUT, apps.to_owned(), "log-no-such-method", "{}"),
        (&master, Method::POST, "/nonsense".to_owned(), "log-nowhere", "{}"),
        (&master, Method::GET, "/nonsense".to_owned(), "log-nowhere-read", ""),
    ] {
        send(client, method, path, audit, body).await;
    }
    master.send(Method::POST, secrets, &[("audit-id", "log-secret-create")], secret).await;
    for (client, path, audit) in [
        (&master, format!("{secrets}/s"), "log-secret"),
        (&master, format!("{secrets}/ghost"), "log-secret-missing"),
        (&master, secrets.to_owned(), "log-secrets"),
        (&master, "/apis/horchestra.io/v1/secrets".to_owned(), "log-secrets-everywhere"),
        (&master, format!("{secrets}?watch=1&timeoutSeconds=1"), "log-secrets-watched"),
        (&master, format!("{secrets}/s/revisions"), "log-secret-versions"),
        (&nobody, format!("{secrets}/s"), "log-secret-denied"),
        (&stranger, format!("{secrets}/s"), "log-secret-stranger"),
    ] {
        send(client, Method::GET, path, audit, "").await;
    }

    // Whoever reads Secrets is in it, in whatever form; what they hold is not.
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
    let lines = |audit: &str| -> Vec<Value> {
        text.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .map(|line| line["fields"].clone())
            .filter(|fields| fields["audit_id"] == audit)
            .collect()
    };
    for (audit, user, verb, resource, name, code) in [
        ("log-create", "admin", "create", "applications", "", 201),
        ("log-denied", "nobody", "list", "applications", "", 403),
        ("log-stranger", "-", "get", "none", "", 401),
        ("log-log", "admin", "get", "pods/log", "web", 400),
        ("log-log-hidden", "nobody", "get", "pods/log", "web", 404),
        ("log-create-denied", "nobody", "create", "applications", "", 403),
        ("log-door", "admin", "update", "freeze", "web", 200),
        ("log-patch-refused", "admin", "patch", "applications", "web", 400),
        ("log-status", "admin", "patch", "applications/status", "web", 200),
        ("log-delete", "admin", "delete", "applications", "web", 200),
        ("log-delete-all", "admin", "deletecollection", "applications", "", 200),
        ("log-no-such-method", "admin", "other", "applications", "", 405),
        ("log-nowhere", "admin", "other", "none", "", 404),
        ("log-secret-create", "admin", "create", "secrets", "", 201),
        ("log-secret", "admin", "get", "secrets", "s", 200),
        ("log-secret-missing", "admin", "get", "secrets", "ghost", 404),
        ("log-secrets", "admin", "list", "secrets", "", 200),
        ("log-secrets-everywhere", "admin", "list", "secrets", "", 200),
        ("log-secrets-watched", "admin", "watch", "secrets", "", 200),
        ("log-secret-versions", "admin", "get", "revisions", "s", 200),
        ("log-secret-denied", "nobody", "get", "secrets", "s", 403),
        ("log-secret-stranger", "-", "get", "none", "", 401),
        ("secret-create", "admin", "create", "secrets", "", 201),
        ("secret-read", "admin", "get", "secrets", "db", 200),
        ("secret-list", "admin", "list", "secrets", "", 200),
        ("secret-taken", "admin", "create", "secrets", "", 409),
        ("secret-wrong", "admin", "create", "secrets", "", 422),
        ("secret-select", "admin", "list", "secrets", "", 400),
        ("secret-metadata", "admin", "get", "secrets", "db", 200),
        ("secret-watch", "admin", "watch", "secrets", "", 200),
    ] {
        let found = lines(audit);
        let [fields] = found.as_slice() else { panic!("{audit} has {} lines in {text}", found.len()) };
        assert_eq!(fields["user"], user, "{fields}");
        assert_eq!((&fields["verb"], &fields["resource"]), (&verb.into(), &resource.into()), "{fields}");
        assert_eq!((&fields["name"], &fields["code"]), (&name.into(), &code.into()), "{fields}");
        assert!(fields["latency_ms"].is_number() && fields["peer"].is_string(), "{fields}");
        assert_eq!(fields["problem"] == "", code < 400, "{audit} says what was wrong: {fields}");
    }
    for quiet in ["log-read", "log-nowhere-read"] {
        assert!(lines(quiet).is_empty(), "plain reads are for the debug level: {quiet}");
    }
    assert!(!text.contains("hunter2"), "no line shows what is in a body");
}

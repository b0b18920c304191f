//! Objects over HTTP: what comes back, and with which code.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::client::BOTH;
use crate::stack::{Stack, Who};

const APPS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
const NODES: &str = "/apis/horchestra.io/v1/nodes";

pub fn app(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"image": "nginx:1"}})
}

fn revision(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn an_object_lives_from_create_to_delete() {
    let stack = Stack::with_namespaces().await;
    for protocol in BOTH {
        let client = stack.client(Who::Master, protocol);
        let created = client.post(APPS, &app("web")).await;
        assert_eq!(created.status, 201, "{created:?}");
        assert!(created.body.ends_with(b"}\n"));
        assert_eq!(created.header("content-type"), "application/json");
        let first = created.json();
        assert_eq!(
            (&first["apiVersion"], &first["kind"]),
            (&json!("horchestra.io/v1"), &json!("Application"))
        );
        assert_eq!(first["metadata"]["generation"], 1);
        assert_eq!(first["metadata"]["namespace"], "default");
        for member in ["uid", "resourceVersion", "creationTimestamp"] {
            assert!(first["metadata"][member].is_string(), "{member}");
        }
        assert_eq!(first["spec"]["lifecycle"]["restartPolicy"], "Always", "defaults are visible");

        let again = client.post(APPS, &app("web")).await;
        assert_eq!((again.status, again.reason().as_str()), (409, "AlreadyExists"));
        assert_eq!(again.json()["details"]["name"], "web");

        assert_eq!(client.get(&format!("{APPS}/web")).await.json(), first);
        let missing = client.get(&format!("{APPS}/ghost")).await;
        assert_eq!(
            (missing.status, missing.message()),
            (404, "applications.horchestra.io \"ghost\" not found".into())
        );

        let mut changed = first.clone();
        changed["spec"]["image"] = json!("nginx:2");
        let updated = client.put(&format!("{APPS}/web"), &changed).await;
        assert_eq!(updated.status, 200, "{updated:?}");
        let second = updated.json();
        assert_eq!(second["metadata"]["uid"], first["metadata"]["uid"]);
        assert_eq!(second["metadata"]["generation"], 2);
        assert!(revision(&second) > revision(&first));

        let stale = client.put(&format!("{APPS}/web"), &changed).await;
        assert_eq!((stale.status, stale.reason().as_str()), (409, "Conflict"));

        let same = client.put(&format!("{APPS}/web"), &second).await;
        assert_eq!(same.json(), second, "a write that changes nothing changes nothing");

        let merged = client.merge(&format!("{APPS}/web"), &json!({"spec": {"image": "nginx:3"}})).await;
        assert_eq!((merged.status, &merged.json()["spec"]["image"]), (200, &json!("nginx:3")));
        let operations = json!([{"op": "replace", "path": "/spec/image", "value": "nginx:4"}]);
        let patched = client.json_patch(&format!("{APPS}/web"), &operations).await;
        assert_eq!((patched.status, &patched.json()["spec"]["image"]), (200, &json!("nginx:4")));
        let headers = [("content-type", "application/merge-patch+json; charset=utf-8")];
        let reply = client.send(Method::PATCH, &format!("{APPS}/web"), &headers, "{}").await;
        assert_eq!(reply.status, 200, "parameters of the type do not matter");

        let head = client.send(Method::HEAD, &format!("{APPS}/web"), &[], Bytes::new()).await;
        let get = client.get(&format!("{APPS}/web")).await;
        assert_eq!((head.status, head.body.len()), (200, 0));
        assert_eq!(head.header("content-length"), get.body.len().to_string());

        let deleted = client.delete(&format!("{APPS}/web")).await;
        assert_eq!(deleted.status, 200);
        let status = deleted.json();
        assert_eq!((&status["kind"], &status["status"]), (&json!("Status"), &json!("Success")));
        assert_eq!(status["details"]["uid"], first["metadata"]["uid"]);
        assert_eq!(client.get(&format!("{APPS}/web")).await.status, 404);
    }
}

#[tokio::test]
async fn a_placed_application_is_deleted_in_two_steps() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    assert_eq!(client.post(NODES, &json!({"metadata": {"name": "n1"}, "spec": {}})).await.status, 201);
    let mut placed = app("placed");
    placed["spec"]["placement"] = json!({"nodeName": "n1"});
    let created = client.post(APPS, &placed).await;
    assert_eq!(created.status, 201, "{created:?}");
    let body = r#"{"kind":"DeleteOptions","apiVersion":"horchestra.io/v1","propagationPolicy":"Background"}"#;
    for _ in 0..2 {
        let deleted = client.send(Method::DELETE, &format!("{APPS}/placed"), &[], body).await;
        assert_eq!((deleted.status, &deleted.json()["kind"]), (200, &json!("Application")));
    }
    let held = client.get(&format!("{APPS}/placed")).await.json();
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(held["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
}

#[tokio::test]
async fn lists_are_complete_sorted_and_always_carry_their_revision() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let empty = client.get(APPS).await.json();
    assert_eq!((&empty["kind"], &empty["items"]), (&json!("ApplicationList"), &json!([])));
    assert!(revision(&empty) > 0);
    for (name, env) in [("c", "prod"), ("a", "prod"), ("b", "dev")] {
        let mut app = app(name);
        app["metadata"]["labels"] = json!({"env": env});
        assert_eq!(client.post(APPS, &app).await.status, 201);
    }
    let other = "/apis/horchestra.io/v1/namespaces/team-a/applications";
    assert_eq!(client.post(other, &app("d")).await.status, 201);
    for (query, expected) in [
        ("", vec!["a", "b", "c"]),
        ("?", vec!["a", "b", "c"]),
        ("?labelSelector=env%3Dprod", vec!["a", "c"]),
        ("?labelSelector=env+in+(dev,test)", vec!["b"]),
        ("?labelSelector=env%3Dnone", vec![]),
        ("?fieldSelector=metadata.name%3Db", vec!["b"]),
        ("?limit=500&resourceVersion=0&fieldSelector=metadata.name%3Db", vec!["b"]),
        ("?&limit=0", vec!["a", "b", "c"]),
    ] {
        let list = client.get(&format!("{APPS}{query}")).await.json();
        let names: Vec<&str> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, expected, "{query}");
        assert!(revision(&list) > 0, "{query}");
    }
    let everywhere = client.get("/apis/horchestra.io/v1/applications").await.json();
    assert_eq!(everywhere["items"].as_array().unwrap().len(), 4);
    assert_eq!(everywhere["items"][0]["kind"], "Application");
    let nowhere = client.get("/apis/horchestra.io/v1/namespaces/nowhere/applications").await;
    assert_eq!((nowhere.status, &nowhere.json()["items"]), (200, &json!([])));

    // Pages are of one revision, whatever is written between them.
    let mut page = client.get(&format!("{APPS}?limit=1")).await.json();
    assert_eq!(page["metadata"]["remainingItemCount"], 2);
    let at = revision(&page);
    let mut seen = vec![page["items"][0]["metadata"]["name"].clone()];
    while let Some(token) = page["metadata"]["continue"].as_str() {
        client.post(APPS, &app(&format!("late-{}", seen.len()))).await;
        let token: String = form_urlencoded::byte_serialize(token.as_bytes()).collect();
        page = client.get(&format!("{APPS}?limit=1&continue={token}")).await.json();
        assert_eq!(revision(&page), at);
        seen.push(page["items"][0]["metadata"]["name"].clone());
    }
    assert_eq!(seen, ["a", "b", "c"]);
}

#[tokio::test]
async fn status_is_written_apart() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let mut with_status = app("web");
    with_status["status"] = json!({"phase": "Running"});
    let created = client.post(APPS, &with_status).await.json();
    assert_eq!(created["status"]["phase"].as_str().filter(|phase| *phase == "Running"), None);
    let path = format!("{APPS}/web/status");
    let written =
        client.merge(&path, &json!({"status": {"phase": "Running"}, "spec": {"image": "other"}})).await;
    assert_eq!(written.status, 200, "{written:?}");
    let object = written.json();
    assert_eq!(
        (&object["status"]["phase"], &object["spec"]["image"]),
        (&json!("Running"), &json!("nginx:1"))
    );
    assert_eq!(object["metadata"]["generation"], 1);
    assert!(revision(&object) > revision(&created));
    assert_eq!(client.get(&path).await.json()["status"]["phase"], "Running");
    let mut whole = object.clone();
    whole["status"]["phase"] = json!("Failed");
    whole["spec"]["image"] = json!("other");
    let replaced = client.put(&path, &whole).await.json();
    assert_eq!(
        (&replaced["status"]["phase"], &replaced["spec"]["image"]),
        (&json!("Failed"), &json!("nginx:1"))
    );
    let stale = client.put(&path, &whole).await;
    assert_eq!((stale.status, stale.reason().as_str()), (409, "Conflict"), "status wants the very head");
    let in_step = client.merge(&path, &json!({"status": {"phase": "Running"}})).await;
    assert_eq!(in_step.status, 200);
    // A writer of the main resource does not collide with reports.
    let mut edited = created.clone();
    edited["spec"]["image"] = json!("nginx:2");
    assert_eq!(client.put(&format!("{APPS}/web"), &edited).await.status, 200);
    let strict = client.put(&format!("{APPS}/web?exactResourceVersion=true"), &edited).await;
    assert_eq!(strict.status, 409);
    let kept = client.merge(&format!("{APPS}/web"), &json!({"status": {"phase": "Failed"}})).await.json();
    assert_eq!(kept["status"]["phase"], "Running", "status is not written on the main resource");
    assert_eq!(client.get("/apis/horchestra.io/v1/namespaces/default/status").await.status, 404);
}

#[tokio::test]
async fn a_collection_can_be_deleted_by_selector() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    for (name, env) in [("a", "prod"), ("b", "dev"), ("c", "dev")] {
        let mut app = app(name);
        app["metadata"]["labels"] = json!({"env": env});
        assert_eq!(client.post(APPS, &app).await.status, 201);
    }
    let names = async || {
        let list = client.get(APPS).await.json();
        let items = list["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let selected = format!("{APPS}?labelSelector=env%3Ddev");
    assert_eq!(client.delete(&format!("{selected}&dryRun=All")).await.status, 200);
    assert_eq!(names().await, ["a", "b", "c"]);
    let done = client.delete(&selected).await;
    assert_eq!((done.status, &done.json()["status"]), (200, &json!("Success")), "{done:?}");
    assert_eq!(names().await, ["a"]);
    let everywhere = client.delete("/apis/horchestra.io/v1/applications").await;
    assert_eq!((everywhere.status, everywhere.reason().as_str()), (405, "MethodNotAllowed"));
}

#[tokio::test]
async fn long_lists_come_whole_in_every_form() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let creates = (0..300).map(|number| {
        let client = client.clone();
        async move { client.post(APPS, &app(&format!("app-{number:03}"))).await.status }
    });
    let codes: Vec<u16> =
        futures::StreamExt::collect(futures::StreamExt::buffer_unordered(futures::stream::iter(creates), 16))
            .await;
    assert!(codes.iter().all(|code| *code == 201));
    let list = client.get(APPS).await.json();
    let names: Vec<&str> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    assert!(names.len() == 300 && names.is_sorted());
    let table = client.get_as(APPS, "application/json;as=Table;v=v1;g=meta.k8s.io").await.json();
    assert_eq!(table["rows"].as_array().unwrap().len(), 300);
}

#[tokio::test]
async fn a_dry_run_answers_and_stores_nothing() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let reply = client.post(&format!("{APPS}?dryRun=All"), &app("dry")).await;
    assert_eq!((reply.status, &reply.json()["metadata"]["name"]), (201, &json!("dry")));
    assert_eq!(client.get(&format!("{APPS}/dry")).await.status, 404);
    client.post(APPS, &app("web")).await;
    let before = client.get(&format!("{APPS}/web")).await.json();
    let reply = client.merge(&format!("{APPS}/web?dryRun=All"), &json!({"spec": {"image": "x"}})).await;
    assert_eq!((reply.status, &reply.json()["spec"]["image"]), (200, &json!("x")));
    assert_eq!(
        client.send(Method::DELETE, &format!("{APPS}/web"), &[], r#"{"dryRun":["All"]}"#).await.status,
        200
    );
    assert_eq!(client.get(&format!("{APPS}/web")).await.json(), before);
}

#[tokio::test]
async fn racing_creators_and_writers_have_one_winner() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let race = async |requests: Vec<(Method, String, Value)>| {
        let mut codes: Vec<u16> =
            futures::future::join_all(requests.into_iter().map(|(method, path, body)| {
                let client = client.clone();
                async move {
                    client
                        .send(method, &path, &[("content-type", "application/json")], body.to_string())
                        .await
                        .status
                }
            }))
            .await;
        codes.sort_unstable();
        codes
    };
    let creates = vec![(Method::POST, APPS.to_owned(), app("one")); 20];
    let mut expected = vec![409; 20];
    expected[0] = 201;
    assert_eq!(race(creates).await, expected);
    let stored = client.get(&format!("{APPS}/one")).await.json();
    let puts = (0..20)
        .map(|number| {
            let mut object = stored.clone();
            object["spec"]["image"] = json!(format!("image:{number}"));
            (Method::PUT, format!("{APPS}/one"), object)
        })
        .collect();
    expected[0] = 200;
    assert_eq!(race(puts).await, expected);
}

#[tokio::test]
async fn audit_ids_are_echoed_and_impersonation_is_refused() {
    let stack = Stack::start().await;
    let client = stack.master();
    let reply = client.send(Method::GET, NODES, &[("audit-id", "abc")], Bytes::new()).await;
    assert_eq!(reply.header("audit-id"), "abc");
    let made = client.get("/nonsense").await;
    assert_eq!((made.status, made.header("audit-id").len()), (404, 36));
    for name in ["impersonate-user", "impersonate-group", "impersonate-extra-x"] {
        let reply = client.send(Method::GET, NODES, &[(name, "bob")], Bytes::new()).await;
        assert_eq!((reply.status, reply.reason().as_str()), (403, "Forbidden"), "{name}");
    }
}

//! Secrets over HTTP: whole where they are asked for, and no more than their clear part where that is enough.

use std::sync::Arc;

use horchestra_core::kind::Kind;
use horchestra_core::object;
use horchestra_core::sealed::Seal;
use horchestra_store::sealing::Resealed;
use horchestra_store::{Store, StoreOptions};
use http::Method;
use serde_json::{Value, json};

use crate::client::Next;
use crate::stack::{Setup, Stack};

const SECRETS: &str = "/apis/horchestra.io/v1/namespaces/default/secrets";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const METADATA: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

/// Base64 of "hunter2".
const VALUE: &str = "aHVudGVyMg==";

fn secret(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": "shop"}, "annotations": {"note": "private"}},
        "stringData": {"password": "hunter2"},
    })
}

#[tokio::test]
async fn every_form_that_shows_contents_shows_them_whole() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let created = client.post(SECRETS, &secret("db")).await;
    assert_eq!(created.status, 201, "{created:?}");
    let created = created.json();
    assert_eq!(created["data"], json!({"password": VALUE}));
    let path = format!("{SECRETS}/db");
    assert_eq!(client.get(&path).await.json(), created);
    assert_eq!(client.get(SECRETS).await.json()["items"][0]["data"], created["data"]);
    let yaml = client.get_as(&path, "application/yaml").await.text();
    assert!(yaml.contains(VALUE), "{yaml}");
    let table = client.get_as(&format!("{SECRETS}?includeObject=Object"), TABLE).await.json();
    assert_eq!(table["rows"][0]["object"]["data"], created["data"]);
    let patched = client.merge(&path, &json!({"stringData": {"user": "me"}})).await.json();
    assert_eq!(patched["data"], json!({"password": VALUE, "user": "bWU="}));
    let tested = json!([{"op": "test", "path": "/data/password", "value": VALUE},
        {"op": "remove", "path": "/data/user"}]);
    let patched = client.json_patch(&path, &tested).await;
    assert_eq!((patched.status, &patched.json()["data"]), (200, &created["data"]));
    let wrong =
        client.json_patch(&path, &json!([{"op": "test", "path": "/data/password", "value": "eA=="}])).await;
    assert_eq!(wrong.status, 422);
    assert!(!wrong.text().contains(VALUE), "{}", wrong.text());
}

#[tokio::test]
async fn watches_are_open_too_and_for_each_watcher_anew() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    client.post(SECRETS, &secret("db")).await;
    let path = format!("{SECRETS}?watch=1");
    let mut whole = client.lines(&path, &[]).await;
    let mut second = client.lines(&path, &[]).await;
    let mut metadata = client.lines(&path, &[("accept", METADATA)]).await;
    client.merge(&format!("{SECRETS}/db"), &json!({"metadata": {"labels": {"app": "other"}}})).await;
    for expected in ["ADDED", "MODIFIED"] {
        for watch in [&mut whole, &mut second] {
            let frame = watch.frame().await;
            assert_eq!(
                (frame["type"].as_str(), &frame["object"]["data"]["password"]),
                (Some(expected), &json!(VALUE))
            );
        }
        let Next::Line(line) = metadata.next().await else { panic!("no frame") };
        assert!(line.contains(expected) && line.contains("PartialObjectMetadata"), "{line}");
        for hidden in [VALUE, "private", "sealed"] {
            assert!(!line.contains(hidden), "{hidden} is in {line}");
        }
    }
}

#[tokio::test]
async fn metadata_and_tables_need_no_keys() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    client.post(SECRETS, &secret("db")).await;
    // The same store, behind a replica that was given no keys.
    let setup = Setup { store: Some(stack.store.clone()), secret_keys: false, ..Setup::default() };
    let bare = Stack::with(setup).await;
    let client = bare.master();
    let path = format!("{SECRETS}/db");
    for (path, accept) in [
        (path.clone(), METADATA),
        (SECRETS.to_owned(), METADATA_LIST),
        (format!("{SECRETS}?labelSelector=app%3Dshop&fieldSelector=type%3DOpaque"), TABLE),
    ] {
        let reply = client.get_as(&path, accept).await;
        let text = reply.text();
        assert_eq!(reply.status, 200, "{text}");
        assert!(text.contains(r#""app":"shop""#), "{text}");
        for hidden in [VALUE, "private", "sealed"] {
            assert!(!text.contains(hidden), "{hidden} is in {text}");
        }
    }
    for (method, path, body) in [
        (Method::GET, path.as_str(), None),
        (Method::GET, SECRETS, None),
        (Method::POST, SECRETS, Some(secret("other"))),
        (Method::PUT, path.as_str(), Some(secret("db"))),
    ] {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let headers = [("content-type", "application/json")];
        let reply = client.send(method.clone(), path, &headers, body).await;
        assert_eq!((reply.status, reply.reason().as_str()), (503, "ServiceUnavailable"), "{method} {path}");
        assert!(reply.message().contains("--secret-keys"), "{}", reply.message());
        assert!(!reply.header("retry-after").is_empty());
    }
    let mut watch = client.lines(&format!("{SECRETS}?watch=1"), &[]).await;
    let frame = watch.frame().await;
    assert_eq!((frame["type"].as_str(), frame["object"]["code"].as_i64()), (Some("ERROR"), Some(503)));
    assert_eq!(watch.next().await, Next::End);
    assert_eq!(client.delete(&path).await.status, 200, "deleting looks at nothing that is sealed");
}

#[tokio::test]
async fn who_deletes_need_not_be_shown_what_is_inside() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let mut held = secret("db");
    held["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    client.post(SECRETS, &held).await;
    let path = format!("{SECRETS}/db");
    let finalize = format!("{path}/finalize");
    let one = json!({"finalizers": ["example.com/a"]}).to_string();
    let json_type = ("content-type", "application/json");
    for (method, path, headers, body, kind) in [
        (Method::DELETE, path.clone(), vec![], String::new(), "PartialObjectMetadata"),
        (
            Method::DELETE,
            format!("{path}?includeObject=Object"),
            vec![("accept", TABLE)],
            String::new(),
            "Table",
        ),
        (Method::POST, finalize.clone(), vec![json_type], one, "PartialObjectMetadata"),
        (Method::POST, finalize, vec![], String::new(), "PartialObjectMetadata"),
    ] {
        let reply = client.send(method.clone(), &path, &headers, body).await;
        assert_eq!((reply.status, &reply.json()["kind"]), (200, &json!(kind)), "{method} {path}");
        let text = reply.text();
        assert!(text.contains("\"name\":\"db\""), "{text}");
        for hidden in [VALUE, "private", "sealed"] {
            assert!(!text.contains(hidden), "{hidden} is in {text}");
        }
    }
    assert_eq!(client.get(&path).await.status, 404);
}

#[tokio::test]
async fn one_that_does_not_open_takes_no_other_with_it() {
    let stack = Stack::with_namespaces().await;
    for name in ["db", "other"] {
        assert_eq!(stack.master().post(SECRETS, &secret(name)).await.status, 201);
    }
    // What was sealed for one stands in the place of the other.
    let backend = Arc::clone(stack.store.backend());
    let heads = backend.sealed_heads(Kind::Secret, ("", ""), 2).await.unwrap();
    let mut forged = object::decode(&heads[0].body, 0).unwrap();
    Seal::of(&heads[1].body).unwrap().put(&mut forged);
    let body = object::encode(Kind::Secret, &forged);
    assert_eq!(backend.reseal(&[Resealed { old: heads[0].clone(), body }]).await.unwrap(), 1);
    let store = Store::open(backend, StoreOptions::default());
    let later = Stack::with(Setup { store: Some(store), ..Setup::default() }).await;
    let client = later.master();

    let path = format!("{SECRETS}/db");
    let refused = client.get(&path).await;
    assert_eq!((refused.status, refused.reason().as_str()), (500, "InternalError"));
    assert!(refused.message().contains("default/db"), "{}", refused.message());
    let list = client.get(SECRETS).await;
    let warnings = list.headers_of("warning");
    assert!(warnings.len() == 1 && warnings[0].contains("default/db"), "{warnings:?}");
    let items = list.json()["items"].clone();
    assert_eq!((&items[0]["metadata"]["labels"]["app"], &items[0]["data"]), (&json!("shop"), &Value::Null));
    let marked = &items[0]["metadata"]["annotations"];
    assert!(marked["secrets.horchestra.io/unreadable"].is_string() && marked["note"].is_null(), "{marked}");
    assert_eq!(items[1]["data"], json!({"password": VALUE}));
    let mut watch = client.lines(&format!("{SECRETS}?watch=1"), &[]).await;
    for item in items.as_array().unwrap() {
        let frame = watch.frame().await;
        assert_eq!(frame["type"], "ADDED");
        assert_eq!(frame["object"]["metadata"]["annotations"], item["metadata"]["annotations"]);
    }
    assert_eq!(
        client.get_as(SECRETS, TABLE).await.headers_of("warning").len(),
        0,
        "nothing is opened for that"
    );
    assert_eq!(client.put(&path, &items[0]).await.status, 500, "nobody loses what may still be saved");
    assert_eq!(client.delete(&path).await.status, 200);
    assert!(client.get(SECRETS).await.headers_of("warning").is_empty());
}

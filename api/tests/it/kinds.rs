//! Every kind that is registered is served in every way, by code that knows none of them.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use bytes::Bytes;
use horchestra_core::doors::Door;
use horchestra_core::kind::Kind;
use horchestra_core::registry::{self, KindSpec};
use horchestra_core::yaml;
use http::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::stack::Stack;

const YAML: (&str, &str) = ("content-type", "application/yaml");
const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");

/// The manifests that we show people, in the order of their names: what is needed comes first.
fn manifests() -> Vec<String> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "local", "examples", "kinds"].iter().collect();
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    paths.into_iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// The first manifest of the kind.
pub fn example(kind: Kind) -> Value {
    static EXAMPLES: LazyLock<Vec<Value>> = LazyLock::new(|| {
        let read = |text: String| yaml::read(text.as_bytes()).unwrap().object.into_value();
        manifests().into_iter().map(read).collect()
    });
    EXAMPLES.iter().find(|object| object["kind"] == kind.name()).expect("a manifest of the kind").clone()
}

/// Makes what the manifests describe.
pub async fn make_examples(client: &Client) {
    for text in manifests() {
        let (spec, collection) = place(&text);
        let created = client.send(Method::POST, &collection, &[YAML], Bytes::from(text)).await;
        assert_eq!(created.status, 201, "{}: {created:?}", spec.plural());
    }
}

/// The kind of a manifest, and the path to create it at.
fn place(text: &str) -> (&'static KindSpec, String) {
    let kind = member(text, "kind").unwrap();
    let spec = registry::served().iter().find(|spec| spec.kind.name() == kind).unwrap();
    let place = match member(text, "namespace") {
        Some(namespace) if spec.namespaced() => format!("/namespaces/{namespace}"),
        _ => String::new(),
    };
    (spec, format!("/apis/{}{place}/{}", spec.kind.api_version(), spec.plural()))
}

/// The value of a top-level or metadata member of a manifest, which all stand alone on their lines.
fn member<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(": "))
}

#[tokio::test]
async fn each_kind_is_created_read_listed_shown_and_deleted() {
    let stack = Stack::start().await;
    let client = stack.master();
    let mut objects = Vec::new();
    for text in manifests() {
        let (spec, collection) = place(&text);
        let name = spec.kind.name();
        let created = client.send(Method::POST, &collection, &[YAML], Bytes::from(text.clone())).await;
        assert_eq!(created.status, 201, "{name}: {created:?}");
        let created = created.json();
        assert_eq!(
            (&created["apiVersion"], &created["kind"]),
            (&Value::from(spec.kind.api_version()), &Value::from(name))
        );

        let item = format!("{collection}/{}", created["metadata"]["name"].as_str().unwrap());
        assert_eq!(client.get(&item).await.json(), created, "{name}");
        let list = client.get(&collection).await.json();
        assert_eq!(list["kind"], spec.list_kind);
        assert!(
            list["items"].as_array().unwrap().iter().any(|it| it["metadata"] == created["metadata"]),
            "{name}"
        );
        let table = client.send(Method::GET, &item, &[TABLE], Bytes::new()).await.json();
        assert_eq!(table["rows"][0]["cells"][0], created["metadata"]["name"], "{name}: {table}");
        for selectable in spec.selectable {
            let chosen =
                client.get(&format!("{collection}?fieldSelector={}%21%3Dnosuch", selectable.field)).await;
            assert!(!chosen.json()["items"].as_array().unwrap().is_empty(), "{name}: {chosen:?}");
        }
        if spec.has_status() {
            assert_eq!(client.get(&format!("{item}/status")).await.json(), created, "{name}");
            let written = client.put(&format!("{item}/status"), &created).await.status;
            assert_eq!(written, if spec.kind.takes_status_writes() { 200 } else { 405 }, "{name}");
        }
        doors(&client, spec, &item, &created).await;
        objects.push(item);
    }
    for item in objects.iter().rev() {
        let deleted = client.delete(item).await;
        // The set is held until its children are gone; with it the namespace stays.
        if item.ends_with("/namespaces/shop") {
            assert_eq!(deleted.status, 403, "{deleted:?}");
            assert!(deleted.message().contains("applicationset search"), "{deleted:?}");
            continue;
        }
        assert_eq!(deleted.status, 200, "{item}: {deleted:?}");
        if item.contains("/applicationsets/") {
            assert!(client.get(item).await.json()["metadata"]["deletionTimestamp"].is_string());
            let mut free = client.get(item).await.json();
            free["metadata"]["finalizers"] = Value::Null;
            let kept = client.put(item, &free).await.json();
            assert_eq!(kept["metadata"]["finalizers"][0], "horchestra.io/child-teardown");
            continue;
        }
        assert_eq!(client.get(item).await.status, 404, "{item}");
    }
}

/// The versions of an object that was just made, and its freezing where there is that.
async fn doors(client: &Client, spec: &KindSpec, item: &str, created: &Value) {
    let versions = client.get(&format!("{item}/revisions")).await.json();
    let current = &versions["items"][0];
    assert_eq!(
        (&current["verb"], &current["current"]),
        (&json!("create"), &json!(true)),
        "{item}: {versions}"
    );
    let back = client.post(&format!("{item}/rollback"), &json!({"revision": current["revision"]})).await;
    if spec.history.is_some() {
        assert_eq!((back.status, &back.json()), (200, created), "{item}: going to where one is");
    } else {
        assert_eq!(back.status, 403, "{item}: {back:?}");
        assert!(back.message().contains("are not kept"), "{item}: {}", back.message());
    }
    if Door::Freeze.opens(spec.kind) {
        let frozen = client.post(&format!("{item}/freeze"), &json!({})).await.json();
        assert_eq!(frozen["spec"]["frozen"], true, "{item}: {frozen}");
        let conditions = frozen["status"]["conditions"].as_array().unwrap();
        assert!(
            conditions.iter().any(|it| it["type"] == "Frozen" && it["reason"] == "Requested"),
            "{frozen}"
        );
        let thawed = client.post(&format!("{item}/thaw"), &json!({})).await.json();
        assert_eq!(
            (&thawed["spec"], &thawed["metadata"]["generation"]),
            (&created["spec"], &created["metadata"]["generation"]),
            "{item}"
        );
    }
}

#[tokio::test]
async fn a_kind_is_listed_under_its_own_plural_and_group_only() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    for (path, status) in [
        ("/apis/horchestra.io/v1/namespaces/default/persistentvolumes", 200),
        ("/apis/rbac.horchestra.io/v1/namespaces/default/rolebindings", 200),
        ("/apis/rbac.horchestra.io/v1/clusterroles", 200),
        ("/apis/horchestra.io/v1/roles", 404),
        ("/apis/rbac.horchestra.io/v1/applications", 404),
        ("/apis/horchestra.io/v1/secretstores", 404),
        ("/apis/secrets.horchestra.io/v1/secrets", 404),
        ("/apis/certificates.horchestra.io/v1/namespaces/default/certificatesigningrequests", 404),
        ("/apis/bogus.io/v1/namespaces/default/secrets", 404),
    ] {
        assert_eq!(client.get(path).await.status, status, "{path}");
    }
    let role = serde_json::json!({"metadata": {"name": "r"}, "spec": {"rules": []}});
    let roles = "/apis/rbac.horchestra.io/v1/namespaces/default/roles";
    assert_eq!(client.post(roles, &role).await.status, 201);
    let applications = client.get("/apis/horchestra.io/v1/namespaces/default/applications").await.json();
    assert!(applications["items"].as_array().unwrap().is_empty());
    assert_eq!(client.get(roles).await.json()["items"].as_array().unwrap().len(), 1);
}

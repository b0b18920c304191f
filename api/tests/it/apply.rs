//! Apply over HTTP: media types, parameters, codes, and who is named as the owner.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, Reply};
use crate::stack::{Stack, Who};

const APPS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
const WEB: &str = "/apis/horchestra.io/v1/namespaces/default/applications/web";
const YAML: &str = "application/apply-patch+yaml";

async fn patch(client: &Client, path: &str, content_type: &str, body: &str) -> Reply {
    client.send(Method::PATCH, path, &[("content-type", content_type)], body.to_owned()).await
}

async fn apply(client: &Client, path: &str, spec: Value) -> Reply {
    let object = json!({"apiVersion": "horchestra.io/v1", "kind": "Application", "spec": spec});
    patch(client, path, YAML, &object.to_string()).await
}

fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    entries.iter().map(|entry| format!("{} {}", text(&entry["operation"]), text(&entry["manager"]))).collect()
}

#[tokio::test]
async fn an_apply_creates_then_changes_nothing_then_conflicts_then_takes_over() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let yaml =
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata:\n  name: web\nspec:\n  image: nginx:1\n";
    let created = patch(&client, &format!("{WEB}?fieldManager=one"), YAML, yaml).await;
    assert_eq!(created.status, 201, "{created:?}");
    assert_eq!(managers(&created.json()), ["Apply one", "Update horchestra-api"]);
    let again = patch(&client, &format!("{WEB}?fieldManager=one"), YAML, yaml).await;
    assert_eq!((again.status, again.json()), (200, created.json()));

    let conflict = apply(&client, &format!("{WEB}?fieldManager=two"), json!({"image": "nginx:2"})).await;
    assert_eq!((conflict.status, conflict.reason().as_str()), (409, "Conflict"));
    assert_eq!(conflict.message(), "Apply failed with 1 conflict: conflict with \"one\": .spec.image");
    assert_eq!(
        conflict.json()["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".spec.image"}])
    );
    let path = format!("{WEB}?fieldManager=two&force=true");
    let forced = apply(&client, &path, json!({"image": "nginx:2"})).await;
    assert_eq!(forced.status, 200);
    assert_eq!(managers(&forced.json()), ["Apply two", "Update horchestra-api"]);

    let tried = apply(&client, &format!("{path}&dryRun=All"), json!({"image": "nginx:3"})).await;
    assert_eq!((tried.status, &tried.json()["spec"]["image"]), (200, &json!("nginx:3")));
    assert_eq!(client.get(WEB).await.json(), forced.json());
    let ghost = format!("{APPS}/ghost?fieldManager=two&dryRun=All");
    assert_eq!(apply(&client, &ghost, json!({"image": "nginx:3"})).await.status, 201);
    assert_eq!(client.get(&format!("{APPS}/ghost")).await.status, 404);

    let status = format!("{WEB}/status?fieldManager=three");
    let applied = patch(&client, &status, YAML, "status: {phase: Running}").await;
    assert_eq!((applied.status, &applied.json()["status"]["phase"]), (200, &json!("Running")), "{applied:?}");
    // Where it stands among the others depends on the second in which it came.
    let managed = applied.json()["metadata"]["managedFields"].clone();
    let own = managed.as_array().unwrap().iter().find(|entry| entry["manager"] == "three").unwrap();
    assert_eq!(own["subresource"], "status");
}

#[tokio::test]
async fn what_is_no_apply_is_told_apart() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let manager = format!("{WEB}?fieldManager=one");
    let object = r#"{"spec":{"image":"a"}}"#;
    for (what, path, content_type, code) in [
        ("no manager", WEB.to_owned(), YAML, 400),
        ("a manager with a line break", format!("{WEB}?fieldManager=a%0Ab"), YAML, 422),
        ("a manager that is too long", format!("{WEB}?fieldManager={}", "a".repeat(129)), YAML, 422),
        ("JSON by name", manager.clone(), "application/apply-patch+json", 415),
        ("CBOR", manager.clone(), "application/apply-patch+cbor", 415),
        ("a bad dry run", format!("{manager}&dryRun=Some"), YAML, 422),
        ("a bad validation", format!("{manager}&fieldValidation=Some"), YAML, 422),
        ("force on a merge patch", format!("{manager}&force=true"), "application/merge-patch+json", 422),
        ("force on a JSON patch", format!("{manager}&force=false"), "application/json-patch+json", 422),
        ("another media type", manager.clone(), "application/strategic-merge-patch+json", 415),
    ] {
        let reply = patch(&client, &path, content_type, object).await;
        assert_eq!(reply.status, code, "{what}: {reply:?}");
        if code == 415 {
            assert!(reply.message().contains(YAML), "{what}: {reply:?}");
        }
    }
    assert_eq!(client.get(WEB).await.status, 404);
    let odd = r#"{"spec":{"image":"a","odd":1}}"#;
    let strict = patch(&client, &manager, YAML, odd).await;
    assert_eq!(strict.status, 400);
    let warned = patch(&client, &format!("{manager}&fieldValidation=Warn"), YAML, odd).await;
    assert_eq!(warned.status, 201, "{warned:?}");
    assert_eq!(warned.headers_of("warning"), [r#"299 - "unknown field \"spec.odd\"""#]);
}

#[tokio::test]
async fn writers_are_known_by_parameter_or_program() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let json_type = ("content-type", "application/json");
    let body = json!({"metadata": {"name": "web"}, "spec": {"image": "a"}}).to_string();
    let agent = ("user-agent", "terraform/1.2 (linux) x");
    let created = client.send(Method::POST, APPS, &[json_type, agent], body).await;
    assert!(managers(&created.json()).contains(&"Update terraform".to_owned()), "{created:?}");
    let merge = [("content-type", "application/merge-patch+json"), agent];
    let label = |value: &str| json!({"metadata": {"labels": {value: "x"}}}).to_string();
    let patched =
        client.send(Method::PATCH, &format!("{WEB}?fieldManager=me"), &merge, label("a")).await.json();
    assert!(managers(&patched).contains(&"Update me".to_owned()));
    let mut read = client.get(WEB).await.json();
    assert_eq!(read, patched);
    read["metadata"]["labels"]["b"] = json!("x");
    let put =
        client.send(Method::PUT, &format!("{WEB}?fieldManager=put"), &[json_type], read.to_string()).await;
    assert!(managers(&put.json()).contains(&"Update put".to_owned()), "{put:?}");
    let listed = client.get(APPS).await.json();
    assert_eq!(listed["items"][0], put.json());
    let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    assert_eq!(client.get_as(WEB, metadata).await.json()["metadata"], put.json()["metadata"]);
}

/// A node may make and patch its own Node; who may patch and not create is judged as that (`may_create`).
#[tokio::test]
async fn an_apply_is_judged_like_any_other_write() {
    let stack = Stack::with_namespaces().await;
    let node = stack.client(Who::Node("n1"), crate::client::Protocol::Http2);
    let own = "/apis/horchestra.io/v1/nodes/n1?fieldManager=agent";
    let object = r#"{"kind":"Node","spec":{}}"#;
    let made = patch(&node, own, YAML, object).await;
    assert_eq!(made.status, 201, "{made:?}");
    let other = "/apis/horchestra.io/v1/nodes/n2?fieldManager=agent";
    assert_eq!(patch(&node, other, YAML, object).await.status, 403);
    assert_eq!(apply(&node, &format!("{WEB}?fieldManager=agent"), json!({"image": "a"})).await.status, 403);
    let nobody = stack.client(Who::Nobody, crate::client::Protocol::Http2);
    assert_eq!(apply(&nobody, &format!("{WEB}?fieldManager=x"), json!({"image": "a"})).await.status, 403);
}

//! Our objects in the shape of core kinds: read only, and never more than the caller may see.

use serde_json::{Value, json};

use crate::client::Protocol;
use crate::crud::app;
use crate::stack::{Stack, Who};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

async fn stack() -> Stack {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    for node in ["n1", "n2"] {
        let reply = client
            .post("/apis/horchestra.io/v1/nodes", &json!({"metadata": {"name": node}, "spec": {}}))
            .await;
        assert_eq!(reply.status, 201, "{reply:?}");
    }
    for (namespace, name, node) in
        [("default", "web", Some("n1")), ("default", "twin", None), ("team-a", "twin", Some("n2"))]
    {
        let mut app = app(name);
        app["metadata"]["labels"] = json!({"app": name});
        if let Some(node) = node {
            app["spec"]["placement"] = json!({"nodeName": node});
        }
        let path = format!("/apis/horchestra.io/v1/namespaces/{namespace}/applications");
        assert_eq!(client.post(&path, &app).await.status, 201);
    }
    stack
}

fn names(list: &Value) -> Vec<String> {
    let text = |item: &Value, member: &str| item["metadata"][member].as_str().unwrap_or("").to_owned();
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| format!("{}/{}", text(item, "namespace"), text(item, "name")))
        .collect()
}

#[tokio::test]
async fn applications_are_pods() {
    let stack = stack().await;
    let client = stack.master();
    let all = client.get("/api/v1/pods").await.json();
    assert_eq!((&all["kind"], &all["apiVersion"]), (&json!("PodList"), &json!("v1")));
    assert!(all["metadata"]["resourceVersion"].is_string());
    assert_eq!(names(&all), ["default/twin", "default/web", "team-a/twin"]);
    for (query, expected) in [
        ("?labelSelector=app%3Dweb", vec!["default/web"]),
        ("?fieldSelector=spec.nodeName%3Dn2", vec!["team-a/twin"]),
        ("?fieldSelector=metadata.namespace%3Dteam-a,metadata.name%3Dtwin", vec!["team-a/twin"]),
        ("?fieldSelector=spec.nodeName!%3Dn1", vec!["default/twin", "team-a/twin"]),
    ] {
        assert_eq!(names(&client.get(&format!("/api/v1/pods{query}")).await.json()), expected, "{query}");
    }
    let refused = client.get("/api/v1/pods?fieldSelector=spec.placement.nodeName%3Dn2").await;
    assert_eq!(refused.status, 400, "a Pod has no such field");

    let pod = client.get("/api/v1/namespaces/default/pods/web").await.json();
    let stored = client.get("/apis/horchestra.io/v1/namespaces/default/applications/web").await.json();
    assert_eq!((&pod["kind"], &pod["spec"]["nodeName"]), (&json!("Pod"), &json!("n1")));
    for member in ["uid", "resourceVersion", "creationTimestamp", "namespace"] {
        assert_eq!(pod["metadata"][member], stored["metadata"][member], "{member}");
    }
    assert_eq!(client.get("/api/v1/pods/web").await.json(), pod, "a name that is unique needs no namespace");
    let several = client.get("/api/v1/pods/twin").await;
    assert_eq!((several.status, several.reason().as_str()), (400, "BadRequest"));
    assert!(several.message().contains("default") && several.message().contains("team-a"));
    let missing = client.get("/api/v1/namespaces/team-a/pods/web").await;
    assert_eq!((missing.status, missing.message()), (404, "pods \"web\" not found".to_owned()));

    let table = client.get_as("/api/v1/namespaces/default/pods", TABLE).await.json();
    let columns: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|column| column["name"].as_str().unwrap())
        .collect();
    assert_eq!(columns[..5], ["Name", "Ready", "Status", "Restarts", "Age"]);
    assert_eq!(table["rows"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn pods_can_be_watched() {
    let stack = stack().await;
    let client = stack.master();
    let list = client.get("/api/v1/namespaces/default/pods").await.json();
    let from = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch =
        client.lines(&format!("/api/v1/namespaces/default/pods?watch=1&resourceVersion={from}"), &[]).await;
    client.post("/apis/horchestra.io/v1/namespaces/default/applications", &app("new")).await;
    let frame = watch.frame().await;
    assert_eq!((&frame["type"], &frame["object"]["kind"]), (&json!("ADDED"), &json!("Pod")));
    client.delete("/apis/horchestra.io/v1/namespaces/default/applications/new").await;
    assert_eq!(watch.event().await, ("DELETED".to_owned(), "new".to_owned()));
}

#[tokio::test]
async fn nodes_and_namespaces_have_their_core_shape() {
    let stack = stack().await;
    let client = stack.master();
    let nodes = client.get("/api/v1/nodes").await.json();
    assert_eq!((&nodes["kind"], nodes["items"].as_array().unwrap().len()), (&json!("NodeList"), 2));
    let node = client.get("/api/v1/nodes/n1").await.json();
    assert_eq!((&node["apiVersion"], &node["kind"]), (&json!("v1"), &json!("Node")));
    assert_eq!(client.get("/api/v1/nodes/ghost").await.status, 404);
    let namespace = client.get("/api/v1/namespaces/team-a").await.json();
    assert_eq!((&namespace["apiVersion"], &namespace["kind"]), (&json!("v1"), &json!("Namespace")));
    let mut watch = client.lines("/api/v1/namespaces?watch=1", &[]).await;
    assert_eq!(watch.event().await.0, "ADDED");
}

#[tokio::test]
async fn callers_see_what_they_may_and_nothing_tells_of_the_rest() {
    let stack = stack().await;
    let nobody = stack.client(Who::Nobody, Protocol::Http2);
    for path in ["/api/v1/pods", "/api/v1/namespaces/default/pods", "/api/v1/pods?limit=1"] {
        let list = nobody.get(path).await;
        assert_eq!((list.status, &list.json()["items"]), (200, &json!([])), "{path}");
        assert_eq!(list.json()["metadata"]["remainingItemCount"], Value::Null);
    }
    assert_eq!(nobody.get("/apis/horchestra.io/v1/namespaces").await.json()["items"], json!([]));
    // Whether it is there, with or without a log, is told to nobody.
    for pod in ["web", "twin", "ghost"] {
        for path in [format!("/api/v1/pods/{pod}"), format!("/api/v1/namespaces/default/pods/{pod}")] {
            for path in [path.clone(), format!("{path}/log")] {
                let reply = nobody.get(&path).await;
                let expected = (404, format!("pods \"{pod}\" not found"));
                assert_eq!((reply.status, reply.message()), expected, "{path}");
            }
        }
    }
    for path in [
        "/api/v1/nodes",
        "/api/v1/nodes/n1",
        "/api/v1/namespaces/team-a",
        "/apis/horchestra.io/v1/namespaces/team-a",
        "/apis/horchestra.io/v1/namespaces?watch=1",
        "/apis/horchestra.io/v1/namespaces/default/applications",
        "/apis/horchestra.io/v1/namespaces/default/applications/web",
        "/apis/horchestra.io/v1/namespaces/default/applications/ghost",
    ] {
        let reply = nobody.get(path).await;
        assert_eq!((reply.status, reply.reason().as_str()), (403, "Forbidden"), "{path}");
    }
}

//! Persistent volumes on a real stack.

use std::time::Duration;

use horchestra_testkit::eventually;
use hyper::Method;
use serde_json::{Value, json};

use crate::client::APPLICATIONS;
use crate::stack::Stack;

const VOLUMES: &str = "/apis/horchestra.io/v1/namespaces/default/persistentvolumes";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_runs_beside_its_volume_and_comes_back_to_it() {
    let stack = Stack::up(&["--nodes", "2"]);
    let client = stack.client("api");
    let app = |name: &str, size: Value| {
        let volume = json!({"type": "pv", "name": "data", "size": size});
        json!({"metadata": {"name": name}, "spec": {
            "image": "x", "command": ["/bin/sh", "-c", "while true; do sleep 1; done"],
            "volumes": [{"mountPath": "/data", "volume": volume}],
        }})
    };
    let create = async |name: &str| {
        let (code, made) =
            client.call(Method::POST, APPLICATIONS, Some(&app(name, json!("1Gi")))).await.unwrap();
        assert_eq!(code, 201, "{made}");
    };
    let node_when_running = async |name: &str| {
        let path = format!("{APPLICATIONS}/{name}");
        eventually(Duration::from_secs(30), async || {
            let (_, found) = client.call_patiently(Method::GET, &path, None).await;
            let running = found["status"]["phase"] == "Running";
            running.then(|| found["spec"]["placement"]["nodeName"].as_str().unwrap().to_owned())
        })
        .await
    };
    create("web").await;
    let node = node_when_running("web").await;
    let path = format!("{VOLUMES}/data");
    let (_, volume) = client.call(Method::GET, &path, None).await.unwrap();
    assert_eq!((&volume["spec"]["node"], &volume["spec"]["size"]), (&json!(node), &json!("1Gi")), "{volume}");
    let (code, refused) = client.call(Method::DELETE, &path, None).await.unwrap();
    assert_eq!(code, 403, "it is mounted: {refused}");

    client.call(Method::DELETE, &format!("{APPLICATIONS}/web"), None).await.unwrap();
    eventually(Duration::from_secs(30), async || {
        let (code, _) = client.call_patiently(Method::GET, &format!("{APPLICATIONS}/web"), None).await;
        code == 404
    })
    .await;
    // The other node is the emptier one now, by name at the latest.
    let (code, _) = client
        .call(
            Method::POST,
            APPLICATIONS,
            Some(&json!({"metadata": {"name": "load"}, "spec": {
                "image": "x", "command": ["/bin/sh", "-c", "while true; do sleep 1; done"],
                "resources": {"requests": {"cpu": "100m"}}, "placement": {"nodeName": node}}})),
        )
        .await
        .unwrap();
    assert_eq!(code, 201);
    create("again").await;
    assert_eq!(node_when_running("again").await, node, "its data lies there");
}

//! A machine that is lost for good: its node is forgotten, and what was to end there ends.

use std::time::Duration;

use horchestra_testkit::eventually;
use hyper::Method;
use serde_json::json;
use sqlx::Connection;

use crate::client::APPLICATIONS;
use crate::stack::{Stack, signal};

const SOON: Duration = Duration::from_secs(60);
const NODE: &str = "/apis/horchestra.io/v1/nodes/node-2";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_node_is_forgotten_with_what_waits_for_it() {
    let stack = Stack::up(&["--nodes", "2", "--restart", "0"]);
    let client = stack.client("api");
    for name in ["goes", "stays"] {
        let app = json!({"metadata": {"name": name}, "spec": {
            "image": "x", "command": ["/bin/sh", "-c", "while true; do sleep 1; done"],
            "placement": {"nodeName": "node-2"}}});
        let (code, made) = client.call_patiently(Method::POST, APPLICATIONS, Some(&app)).await;
        assert_eq!(code, 201, "{made}");
        let path = format!("{APPLICATIONS}/{name}");
        eventually(SOON, async || {
            let (_, app) = client.call_patiently(Method::GET, &path, None).await;
            if app["status"]["phase"] == "Running" { Ok(()) } else { Err(app["status"].to_string()) }
        })
        .await;
    }
    let forget =
        async || client.call_patiently(Method::POST, &format!("{NODE}/forget"), Some(&json!({}))).await;
    let (code, refused) = forget().await;
    assert_eq!(code, 409, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("stop its agent"), "{refused}");

    signal(stack.pid("agent-1"), "KILL");
    client.call_patiently(Method::DELETE, &format!("{APPLICATIONS}/goes"), None).await;
    let (code, waits) = client.call_patiently(Method::GET, &format!("{APPLICATIONS}/goes"), None).await;
    assert_eq!(code, 200);
    assert!(waits["metadata"]["deletionTimestamp"].is_string(), "it waits for its node: {waits}");
    let (code, refused) = forget().await;
    assert_eq!(code, 409, "it was heard of just now: {refused}");

    // Instead of waiting for as long as a node may be silent.
    let mut database = sqlx::PgConnection::connect(&stack.database_url()).await.unwrap();
    sqlx::query("update horchestra.heartbeats set at = at - interval '5 minutes' where node = 'node-2'")
        .execute(&mut database)
        .await
        .unwrap();
    eventually(SOON, async || {
        let (code, answer) = forget().await;
        if code == 200 { Ok(()) } else { Err(format!("{code}: {answer}")) }
    })
    .await;
    let gone = async |path: &str| client.call_patiently(Method::GET, path, None).await.0 == 404;
    assert!(gone(NODE).await);
    assert!(gone(&format!("{APPLICATIONS}/goes")).await, "the door lets go what was being deleted");

    // What is deleted later does not wait for it either.
    let path = format!("{APPLICATIONS}/stays");
    let (_, stays) = client.call_patiently(Method::GET, &path, None).await;
    assert_eq!(stays["spec"]["placement"]["nodeName"], "node-2", "nobody moves it");
    client.call_patiently(Method::DELETE, &path, None).await;
    eventually(SOON, async || gone(&path).await).await;
}

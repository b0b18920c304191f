//! A read sees every write that was acknowledged before it, on any replica.

use hyper::Method;
use serde_json::json;

use crate::client::{APPLICATIONS, Session};
use crate::stack::Stack;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_replica_knows_what_was_just_acknowledged() {
    let stack = Stack::up(&["--nodes", "0", "--api-replicas", "2"]);
    let mut replicas =
        [Session::open(&stack.client("api-0")).await, Session::open(&stack.client("api-1")).await];
    let body = json!({"metadata": {"name": "web"}, "spec": {"image": "registry.example/demo:1"}});
    let (code, made) = replicas[0].call(Method::POST, APPLICATIONS, Some(&body)).await;
    assert_eq!(code, 201, "{made}");
    let path = format!("{APPLICATIONS}/web");
    for round in 0..3000 {
        let change = json!({"metadata": {"labels": {"round": round.to_string()}}});
        let (writer, reader) = (round % 2, (round + 1) % 2);
        let (code, written) = replicas[writer].call(Method::PATCH, &path, Some(&change)).await;
        assert_eq!(code, 200, "{written}");
        let (code, read) = if round % 3 == 0 {
            let (code, list) = replicas[reader].call(Method::GET, APPLICATIONS, None).await;
            (code, list["items"][0].clone())
        } else {
            replicas[reader].call(Method::GET, &path, None).await
        };
        assert_eq!(code, 200, "{read}");
        let revision = |object: &serde_json::Value| -> i64 {
            object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
        };
        assert!(revision(&read) >= revision(&written), "round {round}: read {read} after {written}");
        assert_eq!(read["metadata"]["labels"]["round"], round.to_string());
    }
}

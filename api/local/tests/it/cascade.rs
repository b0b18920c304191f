//! `kubectl delete` with every cascade mode, with every kubectl that is found: dependents go or stay.

use std::path::PathBuf;
use std::time::Duration;

use horchestra_testkit::eventually;
use hyper::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::stack::Stack;
use crate::tour::{Kubectl, kubectls};

const SOON: Duration = Duration::from_secs(30);
const VOLUMES: &str = "/apis/horchestra.io/v1/namespaces/default/persistentvolumes";

/// The kinds of the dependents, with all that they need.
fn dependents() -> [(&'static str, Value); 3] {
    [
        ("persistentvolumes", json!({})),
        ("services", json!({"ports": [{"port": 80}]})),
        // One that runs, so its deletion waits for its node.
        ("applications", json!({"image": "x", "command": ["/bin/sh", "-c", "while true; do sleep 1; done"]})),
    ]
}

async fn make(client: &Client, path: &str, object: Value) -> Value {
    let (code, made) = client.call_patiently(Method::POST, path, Some(&object)).await;
    assert_eq!(code, 201, "{made}");
    made
}

/// An owner, and dependents that it waits for. Answers the paths of these.
async fn family(client: &Client, name: &str) -> Vec<String> {
    let owner = make(client, VOLUMES, json!({"metadata": {"name": name}, "spec": {}})).await;
    let reference = json!([{
        "apiVersion": "horchestra.io/v1", "kind": "PersistentVolume", "name": name,
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true,
    }]);
    let mut paths = Vec::new();
    for (plural, spec) in dependents() {
        let path = format!("/apis/horchestra.io/v1/namespaces/default/{plural}");
        let child = format!("{name}-child");
        let object = json!({"metadata": {"name": child, "ownerReferences": reference}, "spec": spec});
        make(client, &path, object).await;
        paths.push(format!("{path}/{child}"));
    }
    paths
}

async fn get(client: &Client, path: &str) -> (u16, Value) {
    client.call_patiently(Method::GET, path, None).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kubectl_deletes_with_every_cascade() {
    let programs = kubectls();
    if programs.is_empty() {
        return;
    }
    let stack = Stack::up(&["--nodes", "1"]);
    let client = stack.client("api");
    for (number, program) in programs.iter().enumerate() {
        let kubectl = Kubectl {
            program,
            kubeconfig: stack.kubeconfig(),
            cache: stack.home().join(format!("cache-{number}")),
            editor: PathBuf::from("true"),
        };
        for mode in ["background", "foreground", "orphan"] {
            let what = format!("{} --cascade={mode}", program.display());
            let name = format!("owner-{number}-{mode}");
            let children = family(&client, &name).await;
            let app = children.last().unwrap();
            eventually(SOON, async || {
                let (_, app) = get(&client, app).await;
                if app["status"]["phase"] == "Running" { Ok(()) } else { Err(app["status"].to_string()) }
            })
            .await;
            // It returns when the owner is gone.
            kubectl
                .ok(&format!("delete persistentvolumes.horchestra.io {name} --cascade={mode} --timeout=60s"));
            assert_eq!(get(&client, &format!("{VOLUMES}/{name}")).await.0, 404, "{what}");
            for child in &children {
                let (code, object) = get(&client, child).await;
                match mode {
                    "foreground" => assert_eq!(code, 404, "{what}: {child} goes before its owner"),
                    "orphan" => {
                        let metadata = &object["metadata"];
                        assert_eq!(code, 200, "{what}: {child}");
                        assert!(metadata.get("ownerReferences").is_none(), "{what}: {metadata}");
                        assert!(metadata.get("deletionTimestamp").is_none(), "{what}: {metadata}");
                    }
                    _ => {
                        let gone = async || get(&client, child).await.0 == 404;
                        eventually(SOON, gone).await;
                    }
                }
            }
            if mode == "orphan" {
                for child in &children {
                    client.call_patiently(Method::DELETE, child, None).await;
                }
            }
        }
    }
}

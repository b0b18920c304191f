//! Secrets and tokens, from the API to the hands of a workload.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use horchestra_testkit::eventually;
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::{Value, json};

use crate::client::{APPLICATIONS, Client};
use crate::stack::{RECOVERY, Stack};

const SECRETS: &str = "/apis/horchestra.io/v1/namespaces/default/secrets";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const MYSELF: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// What runs: it writes down what it sees, again and again.
const SCRIPT: &str = "while true; do \
    { echo \"$PASSWORD\"; cat \"$HORCHESTRA_FILES/etc/db/password\"; echo; } > next; mv next seen; sleep 0.2; done";

async fn answer(client: &Client, path: &str, body: &Value, token: &str) -> (u16, Value) {
    let response = client.send_as(Method::POST, path, Some(body), Some(token)).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_workload_has_its_secrets_and_proves_who_it_is() {
    let stack = Stack::up(&["--nodes", "1"]);
    // The workload runs as a user of its own, who has to get to its folder.
    std::fs::set_permissions(stack.home(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let client = stack.client("api");
    let post = async |path: &str, object: Value| {
        let (code, made) = client.call(Method::POST, path, Some(&object)).await.unwrap();
        assert_eq!(code, 201, "{made}");
        made
    };
    post(SECRETS, json!({"metadata": {"name": "db"}, "stringData": {"password": "first"}})).await;
    let volumes = json!([
        {"mountPath": "/etc/db", "volume": {"type": "secret", "name": "db"}},
        {"mountPath": "/run/identity", "volume": {"type": "token"}},
    ]);
    let env = json!([{"name": "PASSWORD", "secretRef": {"name": "db", "key": "password"}}]);
    let spec = json!({"image": "x", "command": ["/bin/sh", "-c", SCRIPT], "env": env, "volumes": volumes});
    let app = post(APPLICATIONS, json!({"metadata": {"name": "web"}, "spec": spec})).await;
    let uid = app["metadata"]["uid"].as_str().unwrap().to_owned();
    let unit = stack.home().join("agents/node-1/units").join(&uid);
    let text = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let sees = async |expected: &str| {
        eventually(RECOVERY, async || text(unit.join("work/seen")) == expected).await;
    };
    sees("first\nfirst\n").await;

    // The file follows the Secret, the variable waits for the next start.
    let (code, patched) = client
        .call(Method::PATCH, &format!("{SECRETS}/db"), Some(&json!({"stringData": {"password": "second"}})))
        .await
        .unwrap();
    assert_eq!(code, 200, "{patched}");
    sees("first\nsecond\n").await;

    let identity = unit.join("files/run/identity");
    assert_eq!(text(identity.join("namespace")), "default");
    assert_eq!(text(identity.join("ca.crt")), text(stack.home().join("pki/ca.crt")));
    let token = text(identity.join("token"));
    let address = SocketAddr::from(([127, 0, 0, 1], stack.port("api")));
    let workload = Client::anonymous(address, &stack.home().join("pki"));
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let (code, said) = answer(&workload, MYSELF, &review, &token).await;
    assert_eq!(code, 201, "{said}");
    assert_eq!(said["status"]["userInfo"]["username"], "system:workload:default:web", "{said}");
    for (what, shown, authenticated) in
        [("its own token", token.as_str(), true), ("another text", "a.b.c", false)]
    {
        let review = json!({"spec": {"token": shown}});
        let (code, said) = answer(&workload, REVIEWS, &review, &token).await;
        assert_eq!(code, 201, "{what}: {said}");
        assert_eq!(said["status"]["authenticated"], authenticated, "{what}: {said}");
        if authenticated {
            assert_eq!(said["status"]["user"]["username"], "system:serviceaccount:default:web");
            assert_eq!(said["status"]["user"]["uid"], uid);
        }
    }
    // Nobody else is, by a token that was changed.
    let (code, _) = answer(&workload, MYSELF, &review, &format!("{token}x")).await;
    assert_eq!(code, 401);
}

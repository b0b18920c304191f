//! One address: everything that a fleet, its operators and their tools do goes through the port of the gateways.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use horchestra_testkit::{eventually, eventually_blocking};
use hyper::Method;
use serde_json::{Value, json};

use crate::certificates;
use crate::client::{APPLICATIONS, Client, Reflector};
use crate::stack::{RECOVERY, Stack};
use crate::tour::{Kubectl, example, kubectls};

/// The kubeconfig of the stack with the gateways' port in place of the API's.
fn through_gateways(stack: &Stack) -> std::path::PathBuf {
    let text = fs::read_to_string(stack.kubeconfig()).unwrap();
    let (api, nodes) = (stack.port("api").to_string(), stack.port("nodegate").to_string());
    assert!(text.contains(&api), "{text}");
    let path = stack.home().join("kubeconfig-one-address");
    fs::write(&path, text.replace(&api, &nodes)).unwrap();
    path
}

#[test]
fn kubectl_works_through_the_nodes_port_whatever_its_version() {
    let programs = kubectls();
    if programs.is_empty() {
        return;
    }
    let stack = Stack::up(&["--nodes", "1", "--api-replicas", "2", "--nodegate-replicas", "2"]);
    let kubeconfig = through_gateways(&stack);
    for program in &programs {
        let kubectl = Kubectl {
            program,
            kubeconfig: kubeconfig.clone(),
            cache: stack.home().join(format!("cache-{}", program.file_name().unwrap().to_string_lossy())),
            editor: "true".into(),
        };
        assert!(kubectl.ok("get nodes").contains(" Ready "));
        let mut watch =
            kubectl.command("get app -w -o name").stdout(Stdio::piped()).spawn().expect("kubectl starts");
        kubectl.ok(&format!("apply -f {}", example("web")));
        kubectl.ok("wait --for=jsonpath={.status.phase}=Running app/web --timeout=60s");
        let mut seen = BufReader::new(watch.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(seen.any(|line| line.ends_with("/web")), "the watch tells of it");
        eventually_blocking(Duration::from_secs(30), || kubectl.ok("logs web").contains("request 1"));
        let mut follow =
            kubectl.command("logs -f web --tail=1").stdout(Stdio::piped()).spawn().expect("kubectl starts");
        let lines: Vec<String> =
            BufReader::new(follow.stdout.take().unwrap()).lines().map_while(Result::ok).take(3).collect();
        for mut child in [watch, follow] {
            let _ = child.kill();
            let _ = child.wait();
        }
        assert_eq!(lines.len(), 3, "the follower ended early: {lines:?}");
        kubectl.ok("delete app web --timeout=60s");
    }
}

/// Applications of these names exist in the end.
async fn create(client: &Client, names: impl Iterator<Item = String>) -> i64 {
    let mut last = 0;
    for name in names {
        let body = json!({"metadata": {"name": name}, "spec": {"image": "demo:1"}});
        let (code, made) = client.call_patiently(Method::POST, APPLICATIONS, Some(&body)).await;
        // Said again after a lost answer, it is there.
        assert!(code == 201 || code == 409, "{made}");
        if code == 201 {
            last = made["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        }
    }
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_renew_and_watches_go_on_through_the_nodes_port_whatever_dies() {
    let stack = Stack::up(&[
        "--nodes",
        "1",
        "--api-replicas",
        "2",
        "--nodegate-replicas",
        "2",
        "--feature-gates",
        "AutoNodeCertRotation=true",
    ]);
    // The client of an agent: HTTP/1.1, no ALPN, the certificate of its node.
    let pki = stack.home().join("pki");
    let read = |name: &str| fs::read_to_string(pki.join(name)).unwrap();
    let folder = horchestra_testkit::TempDir::new().unwrap();
    let (certificate, key) = (read("node-node-1.crt"), read("node-node-1.key"));
    let agent = certificates::client(&stack, "nodegate", folder.path(), &certificate, &key);
    let (renewed, _) = certificates::renew(&agent, "node-1", "node-1-00000001").await.unwrap();
    assert_ne!(renewed, certificate);
    // A node is confined as ever: who it is comes out of its own handshake with the API.
    let (code, answer) = agent.call(Method::GET, APPLICATIONS, None).await.unwrap();
    assert_eq!(code, 403, "{answer}");

    // Kept watches through both gateways, while replicas and gateways die in turn.
    let through = stack.client("nodegate");
    let until = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let watching = {
        let (client, until) = (through.clone(), Arc::clone(&until));
        tokio::spawn(async move {
            Reflector::run(&client, || {
                Some(until.load(std::sync::atomic::Ordering::SeqCst)).filter(|revision| *revision > 0)
            })
            .await
        })
    };
    let mut last = create(&through, (0..5).map(|n| format!("a-{n}"))).await;
    for victim in ["api-0", "nodegate-0", "api-1", "nodegate-1"] {
        stack.kill_and_await_successor(victim).await;
        last = last.max(create(&through, (0..5).map(|n| format!("{victim}-{n}"))).await);
    }
    until.store(last, std::sync::atomic::Ordering::SeqCst);
    let reflector = tokio::time::timeout(RECOVERY, watching).await.expect("the watch arrives").unwrap();
    let mut added: Vec<&str> =
        reflector.events.iter().filter(|seen| seen.kind == "ADDED").map(|seen| seen.name.as_str()).collect();
    added.sort_unstable();
    let count = added.len();
    added.dedup();
    assert_eq!(added.len(), count, "nothing is told twice");
    assert!(reflector.reconnects > 0, "something was cut: {:?}", reflector.reconnects);

    // The node never stops being ready for long.
    let nodes = "/apis/horchestra.io/v1/nodes/node-1";
    eventually(RECOVERY, async || {
        let (_, node) = through.call_patiently(Method::GET, nodes, None).await;
        is_ready(&node)
    })
    .await;

    // What the node has is denied: neither its agent nor its tools get in, until an operator allows it again.
    let asked = format!("{}/node-1-00000001", certificates::REQUESTS);
    assert_eq!(agent.call(Method::GET, &asked, None).await.unwrap().0, 200);
    // It may be on its way from one gateway to the other.
    eventually(RECOVERY, async || certificates::session_certificate(&stack, "node-1").await.is_some()).await;
    let denied = stack.operate(&["certificates", "deny", "--name", "node-1", "--reason", "a test"]);
    assert_eq!(denied.lines().count(), 2, "by its name and by the certificate of its session: {denied}");
    eventually(RECOVERY, async || agent.call(Method::GET, &asked, None).await.is_err()).await;
    eventually(RECOVERY, async || certificates::session_certificate(&stack, "node-1").await.is_none()).await;
    for line in stack.operate(&["certificates", "list"]).lines() {
        stack.operate(&["certificates", "allow", line.split(' ').next().unwrap()]);
    }
    eventually(RECOVERY, async || certificates::session_certificate(&stack, "node-1").await.is_some()).await;
    eventually(RECOVERY, async || agent.call(Method::GET, &asked, None).await.is_ok()).await;
}

fn is_ready(node: &Value) -> bool {
    node["status"]["conditions"]
        .as_array()
        .is_some_and(|all| all.iter().any(|it| it["type"] == "Ready" && it["status"] == "True"))
}

/// What the request log of a replica says of where a request came from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_request_log_says_where_a_client_is_and_not_where_the_gateway_is() {
    let stack = Stack::up(&["--nodes", "0"]);
    let gateway = SocketAddr::from(([127, 0, 0, 1], stack.port("nodegate-0")));
    // Without nodes nobody has waited for the gateway.
    let stream = eventually(RECOVERY, async || std::net::TcpStream::connect(gateway)).await;
    let from = stream.local_addr().unwrap();
    stream.set_nonblocking(true).unwrap();
    let stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let answer = stack.client("nodegate-0").delete_over(stream, &format!("{APPLICATIONS}/nothing")).await;
    assert_eq!(answer, 404);
    let log = stack.home().join("logs/api-0.log");
    let expected = from.to_string();
    eventually(RECOVERY, async || {
        let text = fs::read_to_string(&log).unwrap();
        text.lines().any(|line| line.contains("applications/nothing") && line.contains(&expected))
    })
    .await;
}

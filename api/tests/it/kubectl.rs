//! kubectl, every version that is found, against the API.
//!
//! Versions lie as `kubectl.1.27` and so on beside the program that `kubectl` on the path leads to; without
//! any of them the one on the path is used, and without that these tests say loudly that they saw nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use futures::StreamExt;
use horchestra_auth::pki::Process;
use serde_json::json;

use crate::client::DEADLINE;
use crate::logs::{Gateway, claim, data};
use crate::stack::{Setup, Stack};

fn on_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("kubectl")).find(|file| file.is_file())
}

/// Every kubectl that is found.
pub fn versions() -> Vec<PathBuf> {
    let Some(found) = on_path() else {
        nothing_found();
        return Vec::new();
    };
    let real = found.canonicalize().unwrap_or(found);
    let mut versions: Vec<PathBuf> = real
        .parent()
        .and_then(|folder| folder.read_dir().ok())
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("kubectl."))
        })
        .collect();
    versions.sort();
    if versions.is_empty() { vec![real] } else { versions }
}

#[allow(clippy::print_stderr)]
fn nothing_found() {
    eprintln!("\n*** NO kubectl WAS FOUND: NOTHING OF IT WAS TESTED ***\n");
}

/// One kubectl with a home of its own.
pub struct Kubectl {
    pub program: PathBuf,
    pub kubeconfig: PathBuf,
    pub home: PathBuf,
}

impl Kubectl {
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(args)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .env("KUBE_EDITOR", "sed -i s/nginx:2/nginx:3/")
            // It does not live long enough for collecting garbage to be worth a fifth of its time.
            .env("GOGC", "off")
            .stdin(Stdio::null());
        command
    }

    pub async fn try_run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        let run = tokio::task::spawn_blocking(move || command.output());
        tokio::time::timeout(Duration::from_secs(60), run).await.expect("kubectl ends").unwrap().unwrap()
    }

    pub async fn run(&self, args: &[&str]) -> String {
        let output = self.try_run(args).await;
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {args:?}: {errors}", self.program.display());
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub async fn refused(&self, args: &[&str]) -> String {
        let output = self.try_run(args).await;
        assert!(!output.status.success(), "{} {args:?} succeeded", self.program.display());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

fn write(path: &Path, text: &str) -> String {
    std::fs::write(path, text).unwrap();
    path.display().to_string()
}

/// Versions that play a part at the same time.
const AT_ONCE: usize = 2;

/// Runs a part with every kubectl that is found, each on a stack of its own.
pub async fn with_every_kubectl(part: impl AsyncFn(&Stack, &Kubectl)) {
    let play = async |program| {
        let stack = Stack::with(Setup { relay: true, ..Setup::default() }).await;
        stack.make_namespaces().await;
        let home = stack.folder().join("home");
        std::fs::create_dir(&home).unwrap();
        let kubectl = Kubectl { program, kubeconfig: stack.kubeconfig(), home };
        part(&stack, &kubectl).await;
    };
    futures::stream::iter(versions()).for_each_concurrent(AT_ONCE, play).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kubectl_works_with_our_kinds() {
    with_every_kubectl(tour).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kubectl_applies_on_the_server() {
    with_every_kubectl(server_side_apply).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kubectl_reads_logs() {
    with_every_kubectl(read_logs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kubectl_shows_events() {
    with_every_kubectl(show_events).await;
}

async fn tour(stack: &Stack, kubectl: &Kubectl) {
    let name = kubectl.program.display().to_string();
    let says = |text: &str, part: &str| assert!(text.contains(part), "{name}: no {part:?} in {text}");
    let first = write(
        &stack.folder().join("web.yaml"),
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata:\n  name: web\n  namespace: default\nspec:\n  image: nginx:1\n",
    );
    let second = write(
        &stack.folder().join("web2.yaml"),
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata:\n  name: web\n  namespace: default\nspec:\n  image: nginx:2\n",
    );
    let wrong = write(
        &stack.folder().join("wrong.yaml"),
        "apiVersion: horchestra.io/v1\nkind: Application\nmetadata:\n  name: wrong\n  namespace: default\nspec:\n  imgae: nginx:2\n",
    );

    says(&kubectl.run(&["version"]).await, "v1.32.0+horchestra-");
    says(&kubectl.run(&["api-resources"]).await, "applications");
    says(&kubectl.run(&["create", "-f", &first]).await, "application.horchestra.io/web created");
    says(&kubectl.refused(&["create", "-f", &first]).await, "AlreadyExists");
    says(&kubectl.refused(&["create", "-f", &wrong]).await, "imgae");
    says(&kubectl.run(&["get", "app"]).await, "IMAGE");
    says(&kubectl.run(&["get", "app", "web", "-o", "wide"]).await, "NODE");
    says(&kubectl.run(&["get", "apps", "-A", "-o", "name"]).await, "application.horchestra.io/web");
    says(&kubectl.run(&["get", "app", "web", "-o", "yaml"]).await, "image: nginx:1");
    says(&kubectl.run(&["get", "nodes"]).await, "");
    says(&kubectl.run(&["get", "ns"]).await, "team-a");
    says(&kubectl.run(&["get", "pods"]).await, "web");
    says(&kubectl.run(&["get", "app", "--show-labels", "--sort-by=.metadata.name"]).await, "web");

    let apply = kubectl.run(&["apply", "-f", &second]).await;
    says(&apply, "application.horchestra.io/web configured");
    says(&kubectl.run(&["apply", "-f", &second]).await, "unchanged");
    says(&kubectl.run(&["edit", "app", "web"]).await, "edited");
    says(&kubectl.run(&["get", "app", "web", "-o", "jsonpath={.spec.image}"]).await, "nginx:3");
    says(&kubectl.run(&["label", "app", "web", "env=prod"]).await, "labeled");
    says(&kubectl.run(&["get", "app", "-l", "env=prod"]).await, "web");
    says(&kubectl.run(&["annotate", "app", "web", "note=x"]).await, "annotate");
    says(
        &kubectl.run(&["patch", "app", "web", "--type=merge", "-p", r#"{"spec":{"image":"nginx:4"}}"#]).await,
        "patched",
    );
    let operations = r#"[{"op":"replace","path":"/spec/image","value":"nginx:5"}]"#;
    says(&kubectl.run(&["patch", "app", "web", "--type=json", "-p", operations]).await, "patched");
    let strategic = kubectl.refused(&["patch", "app", "web", "-p", r#"{"spec":{"image":"x"}}"#]).await;
    says(&strategic, "application/merge-patch+json");
    says(&kubectl.run(&["explain", "app.spec"]).await, "image");
    says(&kubectl.run(&["explain", "app.spec.lifecycle.restartPolicy"]).await, "restartPolicy");
    let diff = kubectl.try_run(&["diff", "-f", &second]).await;
    assert_eq!(diff.status.code(), Some(1), "{name}: {}", String::from_utf8_lossy(&diff.stderr));
    says(&String::from_utf8_lossy(&diff.stdout), "+  image: nginx:2");

    watch_and_wait(stack, kubectl).await;
    use_doors(stack, kubectl).await;

    for core in [["create", "namespace", "core"], ["create", "configmap", "core"]] {
        let refused = kubectl.refused(&core).await;
        assert!(!refused.is_empty(), "{name}");
    }
    says(&kubectl.run(&["delete", "app", "web"]).await, "deleted");
    says(&kubectl.refused(&["get", "app", "web"]).await, "NotFound");
    says(&kubectl.run(&["apply", "-f", &first, "--dry-run=server"]).await, "created (server dry run)");
    says(&kubectl.refused(&["get", "app", "web"]).await, "NotFound");
}

/// Managers, conflicts, and the way from client-side to server-side apply.
async fn server_side_apply(stack: &Stack, kubectl: &Kubectl) {
    let program = kubectl.program.display().to_string();
    let says = |text: &str, part: &str| assert!(text.contains(part), "{program}: no {part:?} in {text}");
    let manifest = |name: &str, spec: &str| {
        write(
            &stack.folder().join(format!("{name}.yaml")),
            &format!(
                "apiVersion: horchestra.io/v1\nkind: Application\nmetadata:\n  name: {name}\n  namespace: default\n\
                 spec:\n{spec}"
            ),
        )
    };
    let one = manifest("ssa", "  image: nginx:1\n  args: [x]\n");
    let apply = ["apply", "--server-side", "-f", &one];
    says(&kubectl.run(&apply).await, "serverside-applied");
    let revision =
        async || kubectl.run(&["get", "app", "ssa", "-o", "jsonpath={.metadata.resourceVersion}"]).await;
    let first = revision().await;
    says(&kubectl.run(&apply).await, "serverside-applied");
    assert_eq!(revision().await, first, "{program}");
    assert_eq!(kubectl.run(&["diff", "--server-side", "-f", &one]).await, "", "{program}");

    let hidden = kubectl.run(&["get", "app", "ssa", "-o", "yaml"]).await;
    assert!(!hidden.contains("managedFields"), "{program}: {hidden}");
    let shown = kubectl.run(&["get", "app", "ssa", "-o", "yaml", "--show-managed-fields"]).await;
    says(&shown, "manager: kubectl\n");
    says(&shown, "f:image");

    let two = manifest("ssa", "  image: nginx:2\n");
    let other = ["apply", "--server-side", "-f", &two, "--field-manager", "other"];
    let conflict = kubectl.refused(&other).await;
    says(&conflict, "conflict with \"kubectl\": .spec.image");
    let forced = [&other[..], &["--force-conflicts"]].concat();
    says(&kubectl.run(&forced).await, "serverside-applied");
    let three = manifest("ssa", "  command: [run]\n");
    kubectl.run(&["apply", "--server-side", "-f", &three]).await;
    let spec = kubectl
        .run(&["get", "app", "ssa", "-o", "jsonpath={.spec.image} {.spec.args} {.spec.command}"])
        .await;
    assert_eq!(spec, "nginx:2  [\"run\"]", "{program}: the args were kubectl's alone, the image is not");
    kubectl.run(&["delete", "app", "ssa"]).await;

    for (name, create) in [("moved", vec!["apply"]), ("saved", vec!["create", "--save-config"])] {
        let with = |image: &str, args: &str| {
            manifest(
                name,
                &format!(
                    "  image: {image}\n  env: [{{name: A, value: '1'}}, {{secretRef: {{name: s, key: '*', optional: true}}}}]\n{args}"
                ),
            )
        };
        let file = with("nginx:1", "  args: [x]\n");
        kubectl.run(&[&create[..], &["-f", &file]].concat()).await;
        let file = with("nginx:2", "");
        kubectl.run(&["apply", "--server-side", "-f", &file]).await;
        // A second one takes away what only the client-side apply had, in those versions that move managers.
        kubectl.run(&["apply", "--server-side", "-f", &file]).await;
        let object: serde_json::Value = serde_json::from_str(
            &kubectl.run(&["get", "app", name, "-o", "json", "--show-managed-fields"]).await,
        )
        .unwrap();
        assert_eq!(object["spec"]["image"], "nginx:2", "{program}");
        let managers: Vec<&str> = object["metadata"]["managedFields"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["manager"].as_str().unwrap())
            .collect();
        assert!(managers.contains(&"kubectl"), "{program}: {managers:?}");
        assert!(!managers.contains(&"kubectl-client-side-apply"), "{program} {name}: {managers:?}");
        assert_eq!(object["spec"].get("args"), None, "{program} {name}");
        // And back again.
        let back = with("nginx:3", "");
        says(&kubectl.run(&["apply", "-f", &back]).await, "configured");
        kubectl.run(&["delete", "app", name]).await;
    }
}

/// `get -w` sees a change, and `wait` returns when the phase comes.
async fn watch_and_wait(stack: &Stack, kubectl: &Kubectl) {
    let client = stack.master();
    let path = "/apis/horchestra.io/v1/namespaces/default/applications/web";
    let output = stack.folder().join("watched");
    let file = std::fs::File::create(&output).unwrap();
    let mut watcher =
        kubectl.command(&["get", "app", "-w", "--output-watch-events"]).stdout(file).spawn().unwrap();
    let seen = || std::fs::read_to_string(&output).unwrap_or_default();
    horchestra_testkit::eventually(DEADLINE, async || seen().contains("ADDED")).await;
    client.merge(path, &json!({"spec": {"image": "nginx:6"}})).await;
    horchestra_testkit::eventually(DEADLINE, async || {
        seen().contains("MODIFIED") && seen().contains("nginx:6")
    })
    .await;
    watcher.kill().unwrap();
    watcher.wait().unwrap();

    let mut waiting = kubectl
        .command(&["wait", "app/web", "--for=jsonpath={.status.phase}=Running", "--timeout=30s"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    client.merge(&format!("{path}/status"), &json!({"status": {"phase": "Running"}})).await;
    let ended = tokio::task::spawn_blocking(move || waiting.wait());
    assert!(ended.await.unwrap().unwrap().success(), "{}", kubectl.program.display());
}

/// Actions have no command of their own, but can be sent raw.
async fn use_doors(stack: &Stack, kubectl: &Kubectl) {
    let web = "/apis/horchestra.io/v1/namespaces/default/applications/web";
    let raw = async |command: &str, door: &str, body: &str| {
        let file = write(&stack.folder().join("order.json"), body);
        kubectl.run(&[command, "--raw", &format!("{web}/{door}"), "-f", &file]).await
    };
    assert!(raw("create", "freeze", "{}").await.contains(r#""frozen":true"#));
    assert!(!raw("replace", "thaw", "{}").await.contains("frozen"));
    let revisions = kubectl.run(&["get", "--raw", &format!("{web}/revisions")]).await;
    let list: serde_json::Value = serde_json::from_str(&revisions).unwrap();
    assert_eq!((&list["kind"], &list["items"][0]["verb"]), (&json!("RevisionList"), &json!("thaw")));
    let current = list["items"][0]["revision"].to_string();
    let order = format!(r#"{{"revision":{current}}}"#);
    assert!(raw("create", "rollback", &order).await.contains("nginx:6"));

    let nodes = "/apis/horchestra.io/v1/nodes";
    stack.master().post(nodes, &json!({"metadata": {"name": "lost"}, "spec": {}})).await;
    let empty = write(&stack.folder().join("order.json"), "{}");
    let forgotten = kubectl.run(&["create", "--raw", &format!("{nodes}/lost/forget"), "-f", &empty]).await;
    assert!(forgotten.contains(r#""name":"lost""#), "{forgotten}");
    assert!(kubectl.refused(&["get", "node", "lost"]).await.contains("NotFound"));
}

/// `logs` finds the container by itself, and `logs -f` shows lines while the stream is open.
async fn read_logs(stack: &Stack, kubectl: &Kubectl) {
    let client = stack.master();
    let (gateway, address) = Gateway::start(stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("first\n"), data("second\n")]));
    let node = json!({"metadata": {"name": "n1"}, "spec": {}});
    assert_eq!(client.post("/apis/horchestra.io/v1/nodes", &node).await.status, 201);
    let placed = json!({"metadata": {"name": "placed"}, "spec": {"image": "nginx:1", "placement": {"nodeName": "n1"}}});
    let reply = client.post("/apis/horchestra.io/v1/namespaces/default/applications", &placed).await;
    assert_eq!(reply.status, 201, "{reply:?}");
    assert_eq!(kubectl.run(&["logs", "placed", "--tail=5"]).await, "first\nsecond\n");
    assert!(kubectl.refused(&["logs", "placed", "-c", "other"]).await.contains("other"));
    assert!(kubectl.refused(&["logs", "ghost"]).await.contains("not found"));

    let output = stack.folder().join("followed");
    let file = std::fs::File::create(&output).unwrap();
    let mut follower = kubectl.command(&["logs", "-f", "placed"]).stdout(file).spawn().unwrap();
    horchestra_testkit::eventually(DEADLINE, async || {
        std::fs::read_to_string(&output).unwrap_or_default().contains("second")
    })
    .await;
    follower.kill().unwrap();
    follower.wait().unwrap();
}

/// Events as `get`, `events` and `describe` ask for them, about an Application and a Node.
async fn show_events(stack: &Stack, kubectl: &Kubectl) {
    let name = kubectl.program.display().to_string();
    let says = |text: &str, part: &str| assert!(text.contains(part), "{name}: no {part:?} in {text}");
    let client = stack.master();
    let made = async |path: &str, object: &serde_json::Value| {
        let reply = client.post(&format!("/apis/horchestra.io/v1/{path}"), object).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        reply.json()
    };
    let node = made("nodes", &json!({"metadata": {"name": "n1"}, "spec": {}})).await;
    let app = json!({"metadata": {"name": "placed"}, "spec": {"image": "nginx:1"}});
    let app = made("namespaces/default/applications", &app).await;
    let event = |about: &serde_json::Value, suffix: &str, reason: &str, kind: &str, last: &str| {
        json!({
            "metadata": {"name": format!("{}.{suffix}", about["metadata"]["name"].as_str().unwrap())},
            "involvedObject": {
                "kind": about["kind"], "apiVersion": about["apiVersion"], "name": about["metadata"]["name"],
                "namespace": about["metadata"]["namespace"], "uid": about["metadata"]["uid"],
            },
            "reason": reason, "message": format!("this is {reason}"), "type": kind, "count": 3,
            "source": {"component": "tester"}, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": last,
        })
    };
    for event in [
        event(&app, "b", "Scheduled", "Normal", "2026-01-01T00:00:05Z"),
        event(&app, "a", "Started", "Normal", "2026-01-01T00:00:09Z"),
        event(&app, "c", "Failed", "Warning", "2026-01-01T00:00:07Z"),
        event(&node, "n", "NodeReady", "Normal", "2026-01-01T00:00:01Z"),
    ] {
        let reply = client.post("/api/v1/namespaces/default/events", &event).await;
        assert_eq!(reply.status, 201, "{reply:?}");
    }

    let got = kubectl.run(&["get", "events"]).await;
    for part in [
        "LAST SEEN",
        "TYPE",
        "REASON",
        "OBJECT",
        "MESSAGE",
        "application/placed",
        "node/n1",
        "this is Failed",
    ] {
        says(&got, part);
    }
    let wide = kubectl.run(&["get", "ev", "-o", "wide"]).await;
    for part in ["SUBOBJECT", "SOURCE", "FIRST SEEN", "COUNT", "NAME", "tester", "placed.a"] {
        says(&wide, part);
    }
    let order = |text: &str| -> Vec<usize> {
        ["NodeReady", "Scheduled", "Failed", "Started"].iter().map(|word| text.find(word).unwrap()).collect()
    };
    let sorted = kubectl.run(&["get", "events", "--sort-by=.lastTimestamp"]).await;
    assert!(order(&sorted).is_sorted(), "{name}: {sorted}");
    let newer = kubectl.run(&["get", "events.events.k8s.io", "-o", "yaml"]).await;
    says(&newer, "note: this is Failed");
    let selected = |selector: &'static str| async move {
        let flag = format!("--field-selector={selector}");
        kubectl.run(&["get", "events", "-A", "-o", "name", &flag]).await
    };
    assert_eq!(selected("involvedObject.name=placed,type=Warning").await.trim(), "event/placed.c");
    assert_eq!(selected("reason=NodeReady").await.trim(), "event/n1.n");
    assert_eq!(selected("involvedObject.kind=Node,type!=Normal").await.trim(), "");

    let listed = kubectl.run(&["events"]).await;
    assert!(order(&listed).is_sorted(), "{name}: {listed}");
    says(&kubectl.run(&["events", "-A", "--types=Warning"]).await, "this is Failed");
    let about = kubectl.run(&["events", "--for", "app/placed"]).await;
    says(&about, "this is Started");
    assert!(!about.contains("NodeReady"), "{name}: {about}");
    says(&kubectl.run(&["events", "--for", "node/n1"]).await, "this is NodeReady");

    let described = kubectl.run(&["describe", "app", "placed"]).await;
    for part in ["Events:", "this is Scheduled", "this is Started", "(x3 over", "tester"] {
        says(&described, part);
    }
    assert!(!described.contains("NodeReady"), "{name}: {described}");
    let described = kubectl.run(&["describe", "node", "n1"]).await;
    says(&described, "this is NodeReady");
    assert!(!described.contains("this is Started"), "{name}: {described}");

    for arguments in [&["get", "events", "-w"][..], &["events", "-w"][..]] {
        let output = stack.folder().join("events");
        let file = std::fs::File::create(&output).unwrap();
        let mut watcher = kubectl.command(arguments).stdout(file).spawn().unwrap();
        let seen = || std::fs::read_to_string(&output).unwrap_or_default();
        horchestra_testkit::eventually(DEADLINE, async || seen().contains("this is NodeReady")).await;
        let path = "/apis/events.k8s.io/v1/namespaces/default/events/placed.a";
        let note = format!("changed for {}", arguments.join(" "));
        assert_eq!(client.merge(path, &json!({"note": note})).await.status, 200);
        horchestra_testkit::eventually(DEADLINE, async || seen().contains(&note)).await;
        watcher.kill().unwrap();
        watcher.wait().unwrap();
    }

    says(&kubectl.run(&["explain", "events.involvedObject"]).await, "uid");
    says(&kubectl.run(&["annotate", "event", "placed.a", "note=x"]).await, "annotate");
    says(&kubectl.run(&["delete", "event", "placed.a"]).await, "deleted");
    says(&kubectl.run(&["delete", "events", "--all"]).await, "deleted");
    assert!(!kubectl.run(&["describe", "app", "placed"]).await.contains("this is"), "{name}");
}

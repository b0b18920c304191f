//! The guide from its beginning on one stack, as somebody goes through it who has just built everything.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use horchestra_auth::pki::NewRequest;
use horchestra_core::values::encode_base64;
use horchestra_testkit::{TempDir, eventually_blocking, free_port};
use serde_json::json;

use super::{Reader, marked, programs, repository};
use crate::stack::{said, signal};
use crate::tour::kubectls;

const SOON: Duration = Duration::from_secs(90);

/// A folder in which everything is built: what `make` and the examples are, and nothing of a stack yet. What is
/// started there is stopped with the value.
pub struct Checkout {
    folder: TempDir,
    pub reader: Reader,
}

impl Checkout {
    pub fn new() -> Checkout {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["Makefile", "api"] {
            symlink(repository().join(name), at(name)).unwrap();
        }
        fs::create_dir(at("target")).unwrap();
        symlink(programs(), at("target/debug")).unwrap();
        let port = || free_port().unwrap().to_string();
        let reader = Reader::new(folder.path())
            // It is built.
            .with("CARGO", "true")
            .with("KUBECONFIG", ".horchestra/kubeconfig")
            .with("API_PORT", port())
            .with("NODEGATE_PORT", port())
            .with("HEARTBEAT", "1");
        Checkout { folder, reader }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What the stack keeps.
    pub fn home(&self) -> std::path::PathBuf {
        self.folder().join(".horchestra")
    }

    /// What a file of the running stack says.
    pub fn kept(&self, name: &str) -> String {
        let path = self.home().join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.trim().to_owned()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let output = self.reader.shell("make down").output().unwrap();
        if !output.status.success() && !std::thread::panicking() {
            panic!("make down: {}", said(&output));
        }
        crate::stumbles::forget(&self.home());
    }
}

/// Until a command says this.
#[track_caller]
fn until(reader: &Reader, line: &str, part: &str) -> String {
    eventually_blocking(SOON, || {
        let output = reader.shell(line).output().unwrap();
        let text = said(&output);
        if output.status.success() && text.contains(part) { Ok(text) } else { Err(text) }
    })
}

#[test]
fn the_guide_holds_from_its_beginning() {
    if kubectls().is_empty() {
        return;
    }
    let mut checkout = Checkout::new();
    let reader = checkout.reader.clone();
    let started = reader.clone().with("NODES", "2").with("FEATURE_GATES", "NodeLogs=true").run("up");
    let kubeconfig = checkout.home().join("kubeconfig");
    assert!(started.contains(&format!("export KUBECONFIG={}", kubeconfig.display())), "{started}");
    let status = reader.line("make status");
    assert!(status.contains("ready") && status.contains("workers-0"), "{status}");
    checkout.reader = reader.with("DATABASE_URL", checkout.kept("database-url"));

    five_minutes(&checkout.reader);
    sets(&checkout);
    extras(&checkout);
    certificates(&checkout);
    deletions_that_hang(&checkout);
    holds(&checkout.reader);
    what_is_killed_comes_back(&checkout);

    // The folder of all kinds, as the text says.
    checkout.reader.line("kubectl apply -f api/local/examples/kinds");
    checkout.reader.line("make down");
    assert!(checkout.reader.line("make status").contains("not running"));
}

fn five_minutes(reader: &Reader) {
    let shown = reader.run("five-minutes");
    for part in ["node-2", "application.horchestra.io/web created", "Running", "DESCRIPTION"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    // CPU takes two measurements.
    eventually_blocking(SOON, || reader.command("usage").output().unwrap().status.success());
    assert!(reader.run("usage").contains(r#""kind":"ApplicationMetrics""#));
    assert!(!reader.run("node-log").trim().is_empty());
    let changed = reader.run("change");
    for part in ["labeled", "patched", "deleted"] {
        assert!(changed.contains(part), "{changed}");
    }
    reader.run("job");
    until(reader, "kubectl get app too-large -o jsonpath='{.status.message}'", "nodes are available");
}

fn sets(checkout: &Checkout) {
    let editor = checkout.folder().join("editor");
    fs::write(&editor, "#!/bin/sh\nsed -i 's#image: .*#image: registry.example/edited:1#' \"$1\"\n").unwrap();
    fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
    let reader = checkout.reader.clone().with("KUBE_EDITOR", editor.display().to_string());
    let shown = reader.run("sets");
    for part in ["shop-web", "applicationset.horchestra.io/shop edited", "registry.example/edited:1"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    assert!(!reader.line("kubectl get app -o name").contains("shop-"), "the children are gone");
}

/// What needs nothing but a stack.
fn extras(checkout: &Checkout) {
    let reader = &checkout.reader;
    let inside = reader.run("look-inside");
    for part in ["too-large", "LEADS", "stored Secrets"] {
        assert!(inside.contains(part), "{part} is missing in {inside}");
    }
    reader.run("new-keys");
    assert!(checkout.folder().join("secret-keys").is_file());
    reader.run("token-form");
    reader.run("logins");
    let reading = "psql \"$(echo \"$DATABASE_URL\" | sed 's#//[^@]*@#//alice:a%20long%20one@#')\" \
                   -c 'select count(*) from inspect.nodes'";
    assert!(reader.line(reading).contains('2'), "alice reads");

    fs::write(checkout.folder().join("discoverers.yaml"), marked("yaml discoverers")).unwrap();
    reader.line("kubectl apply -f discoverers.yaml");
    let found = reader.run("catalog");
    assert!(found.starts_with('{'), "{found}");
}

fn certificates(checkout: &Checkout) {
    let reader = &checkout.reader;
    let request = json!({
        "apiVersion": "certificates.horchestra.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "node-a-renewal"},
        "spec": {"nodeName": "node-a", "groups": ["system:nodes"],
            "request": encode_base64(NewRequest::generate("node-a").unwrap().request.as_bytes())},
    });
    fs::write(checkout.folder().join("request.json"), request.to_string()).unwrap();
    reader.line("kubectl create -f request.json");
    let approved = reader.run("approve");
    assert!(approved.contains("REQUESTOR") && approved.contains("Pending"), "{approved}");
    assert!(approved.contains("\"certificate\""), "it comes back with the certificate: {approved}");
    assert!(reader.line("kubectl get csr").contains("Approved,Issued"));
    // The example of a request has the same name.
    reader.line("kubectl delete csr node-a-renewal");
    assert!(reader.run("deny").contains("node-3"));
}

fn deletions_that_hang(checkout: &Checkout) {
    let reader = &checkout.reader;
    let agent: i32 = checkout.kept("run/agent-1.pid").parse().unwrap();
    let web = json!({
        "apiVersion": "horchestra.io/v1", "kind": "Application",
        "metadata": {"name": "web", "finalizers": ["example.com/uninstalled"]},
        "spec": {"image": "x", "placement": {"nodeName": "node-2"}},
    });
    fs::write(checkout.folder().join("web.json"), web.to_string()).unwrap();
    reader.line("kubectl apply -f web.json");
    reader.line("kubectl wait --for=jsonpath='{.status.phase}'=Running app/web --timeout=60s");
    // A node that answers nobody any more.
    signal(agent, "STOP");
    reader.line("kubectl delete app web --wait=false");
    assert!(reader.line("kubectl get app web").contains("Terminating"));
    let given_up = reader.run("finalize");
    assert!(given_up.contains("[\"horchestra.io/node-teardown\"]"), "{given_up}");
    let gone = said(&reader.shell("kubectl get app web").output().unwrap());
    signal(agent, "CONT");
    assert!(gone.contains("not found"), "{gone}");

    let lost =
        r#"{"apiVersion": "horchestra.io/v1", "kind": "Node", "metadata": {"name": "node-3"}, "spec": {}}"#;
    reader.line(&format!("echo '{lost}' | kubectl create -f -"));
    reader.run("forget");
    let gone = said(&reader.shell("kubectl get node node-3").output().unwrap());
    assert!(gone.contains("not found"), "{gone}");
}

fn holds(reader: &Reader) {
    reader.line("horchestra-api hold engage");
    until(reader, "kubectl get nodes", "Ready,Held");
    let shown = reader.run("held");
    assert!(shown.contains("Ready,Held") && shown.contains("all nodes are held"), "{shown}");
    reader.run("admit-held");
    until(
        reader,
        "kubectl get node node-1 -o jsonpath='{.status.conditions[?(@.type==\"Held\")].status}.'",
        "\n.",
    );
    assert!(reader.run("release").contains("no node is held"));
}

fn what_is_killed_comes_back(checkout: &Checkout) {
    let processes = ["workers-0", "api-0", "postgres"];
    let pid =
        |name: &str| fs::read_to_string(checkout.home().join(format!("run/{name}.pid"))).unwrap_or_default();
    let before = processes.map(pid);
    checkout.reader.run("kill");
    eventually_blocking(SOON, || {
        let now = processes.map(pid);
        now.iter().zip(&before).all(|(now, before)| !now.is_empty() && now != before)
    });
    until(&checkout.reader, "kubectl get app", "too-large");
}

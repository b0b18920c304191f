//! A set on a real stack: applied, rolled and deleted with kubectl.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use horchestra_testkit::eventually_blocking;
use serde_json::Value;

use crate::stack::{Stack, said};

const SOON: Duration = Duration::from_secs(60);

struct Kubectl<'a>(&'a Stack);

impl Kubectl<'_> {
    fn run(&self, line: &str) -> Output {
        Command::new("kubectl")
            .args(line.split(' '))
            .env("KUBECONFIG", self.0.kubeconfig())
            .env("KUBECACHEDIR", self.0.home().join("cache-sets"))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}\n{}", said(&output), self.0.log("workers-0"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The children of a component: name, image, and whether they run what they were last told.
    fn children(&self, component: &str) -> Vec<(String, String, bool)> {
        let shown = self.ok(&format!("get app -l horchestra.io/component={component} -o json"));
        let list: Value = serde_json::from_str(&shown).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|app| {
                let current = app["status"]["observedGeneration"] == app["metadata"]["generation"];
                let runs = app["status"]["phase"] == "Running" && current;
                (text(&app["metadata"]["name"]), text(&app["spec"]["image"]), runs)
            })
            .collect()
    }
}

#[test]
#[allow(clippy::print_stderr)]
fn a_set_becomes_running_children_rolls_and_goes_with_them() {
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("!!! NO KUBECTL WAS FOUND: THIS TEST CHECKS NOTHING !!!");
        return;
    }
    let stack = Stack::up(&["--nodes", "2"]);
    let kubectl = Kubectl(&stack);
    kubectl.ok(&format!("apply -f {}/examples/shop.yaml", env!("CARGO_MANIFEST_DIR")));
    kubectl.ok("wait --for=jsonpath={.status.phase}=Ready appset/shop --timeout=60s");
    let shown = kubectl.ok("get appset shop");
    let row: Vec<&str> = shown.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..5], ["shop", "3", "3", "3", "Ready"], "{shown}");
    let children = kubectl.children("web");
    assert_eq!(children.len(), 3);
    assert!(
        children.iter().all(|(_, image, runs)| *runs && image == "registry.example/shop:1"),
        "{children:?}"
    );
    assert!(kubectl.ok("logs shop-migrate").contains("migrated"), "the step ran first");
    assert!(kubectl.ok("get svc shop-web -o jsonpath={.spec.ports[0].port}").contains("8080"));
    let found = || kubectl.ok("get --raw /v1/health/service/shop-web-http?passing");
    eventually_blocking(SOON, || {
        let found = found();
        let tags = ["applicationset=shop", "component=web", "service=shop-web"];
        let passing = found.matches("\"Status\":\"passing\"").count();
        if passing == 3 && tags.iter().all(|tag| found.contains(tag)) { Ok(()) } else { Err(found) }
    });
    let refused = said(&kubectl.run("label app shop-web-0 horchestra.io/component=other --overwrite"));
    assert_eq!(kubectl.children("web").len(), 3, "{refused}");

    let edit = r#"patch appset shop --type=json -p [{"op":"replace","path":"/spec/applications/1/spec/image","value":"registry.example/shop:2"}]"#;
    kubectl.ok(edit);
    let end = std::time::Instant::now() + SOON;
    loop {
        let children = kubectl.children("web");
        let down = children.iter().filter(|(_, _, runs)| !runs).count();
        assert!(down <= 1, "more than the budget is down: {children:?}");
        if down == 0 && children.iter().all(|(_, image, _)| image == "registry.example/shop:2") {
            break;
        }
        assert!(std::time::Instant::now() < end, "{children:?}\n{}", kubectl.ok("get appset shop -o yaml"));
    }
    kubectl.ok("wait --for=condition=Available appset/shop --timeout=60s");
    eventually_blocking(SOON, || {
        let told = format!("{}{}", kubectl.ok("describe appset shop"), kubectl.ok("get events"));
        let parts = ["RolloutStarted", "RolloutComplete", "horchestra-applicationset", "ChildUpdated"];
        if parts.iter().all(|part| told.contains(part)) { Ok(()) } else { Err(told) }
    });

    kubectl.ok("delete appset shop --timeout=60s");
    for kind in ["appset", "app", "svc"] {
        assert_eq!(
            kubectl.ok(&format!("get {kind} -o name")),
            "",
            "nothing is left when the deletion returns"
        );
    }
    assert_eq!(found().trim(), "[]");
}

//! What the README promises, with every kubectl that is found.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use horchestra_testkit::eventually_blocking;

use crate::stack::{Stack, said};

/// The kubectl on PATH and versions that lie beside it.
#[allow(clippy::print_stderr)]
pub fn kubectls() -> Vec<PathBuf> {
    let Some(on_path) = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join("kubectl")).find(|file| file.is_file())
    }) else {
        eprintln!("!!! NO KUBECTL WAS FOUND: THE KUBECTL TESTS CHECK NOTHING !!!");
        return Vec::new();
    };
    let real = fs::canonicalize(&on_path).unwrap();
    let mut beside: Vec<PathBuf> = fs::read_dir(real.parent().unwrap())
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("kubectl.1.")))
        .collect();
    beside.sort();
    beside.push(on_path);
    beside
}

pub struct Kubectl<'a> {
    pub program: &'a Path,
    pub kubeconfig: PathBuf,
    pub cache: PathBuf,
    pub editor: PathBuf,
}

impl Kubectl<'_> {
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(self.program);
        command
            .args(line.split(' ').map(|word| word.replace("%20", " ")))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECACHEDIR", &self.cache)
            .env("KUBE_EDITOR", &self.editor)
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    /// Must succeed; returns what it printed.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{} {line}: {}", self.program.display(), said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

pub fn example(name: &str) -> String {
    format!("{}/examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_five_minute_tour_works_with_every_kubectl() {
    let programs = kubectls();
    if programs.is_empty() {
        return;
    }
    let stack = Stack::up(&["--nodes", "3"]);
    let editor = stack.home().join("editor.sh");
    let mut script = fs::File::create(&editor).unwrap();
    script
        .write_all(b"#!/bin/sh\nsed -i 's/image: .*/image: registry.example\\/edited:1/' \"$1\"\n")
        .unwrap();
    drop(script);
    Command::new("chmod").args(["+x", &editor.display().to_string()]).status().unwrap();
    for program in &programs {
        let kubectl = Kubectl {
            program,
            kubeconfig: stack.kubeconfig(),
            cache: stack.home().join(format!("cache-{}", program.file_name().unwrap().to_string_lossy())),
            editor: editor.clone(),
        };
        tour(&kubectl, &stack);
    }
}

fn tour(kubectl: &Kubectl<'_>, stack: &Stack) {
    let nodes = kubectl.ok("get nodes");
    assert_eq!(nodes.lines().filter(|line| line.contains(" Ready ")).count(), 3, "{nodes}");

    let web = example("web");
    kubectl.ok(&format!("apply -f {web}"));
    kubectl.ok("wait --for=jsonpath={.status.phase}=Running app/web --timeout=30s");
    assert!(kubectl.ok(&format!("apply -f {web}")).contains("unchanged"));
    assert!(kubectl.run(&format!("diff -f {web}")).status.success());

    let wide = kubectl.ok("get app -o wide");
    for column in ["NAME", "IMAGE", "STATUS", "NODE", "AGE", "node-"] {
        assert!(wide.contains(column), "{wide}");
    }
    assert!(kubectl.ok("get pods").contains("web"));
    tell_of(kubectl);

    eventually_blocking(Duration::from_secs(15), || kubectl.ok("logs web").contains("request 1"));
    follow_logs(kubectl);

    let explained = kubectl.ok("explain app.spec");
    for word in ["FIELDS", "image", "lifecycle", "DESCRIPTION"] {
        assert!(explained.contains(word), "{explained}");
    }

    kubectl.ok("edit app web");
    assert_eq!(kubectl.ok("get app web -o jsonpath={.spec.image}"), "registry.example/edited:1");
    kubectl.ok("label app web tier=front");
    kubectl.ok("annotate app web note=seen");
    kubectl.ok(r#"patch app web --type=merge -p {"metadata":{"labels":{"merged":"yes"}}}"#);
    kubectl.ok(r#"patch app web --type=json -p [{"op":"add","path":"/metadata/labels/json","value":"yes"}]"#);
    let strategic = said(&kubectl.run(r#"patch app web -p {"metadata":{"labels":{"no":"no"}}}"#));
    assert!(strategic.contains("not supported") || strategic.contains("UnsupportedMediaType"), "{strategic}");
    let labels = kubectl.ok("get app web -o jsonpath={.metadata.labels}");
    for label in ["\"tier\":\"front\"", "\"merged\":\"yes\"", "\"json\":\"yes\""] {
        assert!(labels.contains(label), "{labels}");
    }
    assert!(kubectl.ok("get app -l tier=front").contains("web"));

    kubectl.ok("delete app web --timeout=60s");
    let gone = kubectl.run("get app web");
    assert!(
        !gone.status.success() && said(&gone).contains("not found"),
        "{}\n{}",
        said(&gone),
        stack.log("nodegate-0")
    );

    kubectl.ok(&format!("apply -f {}", example("job")));
    kubectl.ok("wait --for=jsonpath={.status.phase}=Succeeded app/hello --timeout=30s");
    assert!(kubectl.ok("logs hello").contains("done"));
    kubectl.ok(&format!("apply -f {}", example("too-large")));
    let message = || kubectl.ok("get app too-large -o jsonpath={.status.message}");
    eventually_blocking(Duration::from_secs(15), || message().contains("0/3 nodes are available"));
    kubectl.ok("delete app hello too-large --timeout=60s");
}

/// What happened to the Application is told, by everybody who had a part in it.
fn tell_of(kubectl: &Kubectl<'_>) {
    let shows = |line: &str, parts: &[&str]| {
        eventually_blocking(Duration::from_secs(15), || {
            let shown = kubectl.ok(line);
            parts.iter().all(|part| shown.contains(part))
        });
    };
    shows(
        "describe app web",
        &["Events:", "Scheduled", "bound to node node-", "Started", "horchestra-nodegate"],
    );
    shows("get events", &["LAST SEEN", "application/web", "Scheduled", "Started"]);
    shows("events --for app/web", &["Scheduled", "Started"]);
    let node = kubectl.ok("get app web -o jsonpath={.spec.placement.nodeName}");
    shows(&format!("describe node {node}"), &["NodeReady", "horchestra-node-lifecycle"]);
    assert!(!kubectl.ok(&format!("describe node {node}")).contains("Scheduled"));
}

/// A follower gets lines as they are written.
fn follow_logs(kubectl: &Kubectl<'_>) {
    let mut child = kubectl.command("logs -f web --tail=1").stdout(Stdio::piped()).spawn().unwrap();
    let lines: Vec<String> =
        BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok).take(3).collect();
    let _ = child.kill();
    let _ = child.wait();
    assert_eq!(lines.len(), 3, "the follower ended early: {lines:?}");
    assert!(lines.iter().all(|line| line.contains("request")), "{lines:?}");
}

//! What people type, row by row, with every kubectl that is found.
//!
//! A row is a command and what has to come of it: exit code, what is printed, what is there afterwards. Rows
//! that only read share the namespace `shop`; every other row has a namespace of its own with the Application
//! `web` in it, so rows neither meet nor need an order. A row whose command would go on for ever says what it
//! shows while things change, and is ended then.
//!
//! Starting kubectl is what this costs, some 2,000 times. So what is there afterwards is asked of the API
//! directly: that kubectl reads well is for the rows about reading.
//!
//! Manifests are the files of [`files`]; `{f}` in a command is their folder, `{ns}` the row's namespace.

mod changing;
mod creating;
mod deleting;
mod files;
mod reading;
mod refused;
mod waiting;
mod watching;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use horchestra_auth::pki::Process;
use serde_json::{Value, json};

use crate::client::{Client, DEADLINE};
use crate::kubectl::{Kubectl, versions};
use crate::logs::{Gateway, claim, data};
use crate::stack::{Setup, Stack};

/// The namespace of rows that only read.
const SHOP: &str = "shop";
/// Commands at the same time.
const AT_ONCE: usize = 4;

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Well,
    Badly,
    With(i32),
}

/// What is looked at afterwards.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    /// Members of an Application by their JSON pointers, one behind the other: a text as it is, anything else
    /// as JSON, what is missing as nothing.
    Of(&'static str, &'static [&'static str]),
    /// One member of all Applications, with blanks between.
    All(&'static str),
    /// What a command prints.
    Printed(&'static str),
}

/// Something that happens while the command runs.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    /// This is printed.
    Prints(&'static str),
    /// A merge patch of `web`, again and again until this is printed; `{n}` in it counts.
    Patch(&'static str, &'static str),
    /// `web` is deleted.
    Delete,
    /// An Event about `web`, with this reason.
    Event(&'static str),
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Row {
    name: &'static str,
    command: &'static str,
    shared: bool,
    empty: bool,
    before: Vec<&'static str>,
    status: Option<&'static str>,
    stdin: &'static str,
    editor: &'static str,
    ends: Ends,
    exactly: Option<&'static str>,
    prints: Vec<&'static str>,
    hides: Vec<&'static str>,
    complains: Vec<&'static str>,
    meanwhile: Vec<Meanwhile>,
    then: Vec<(Look, &'static str)>,
    /// First minor version that has what the row needs.
    from: u32,
}

/// A row that must succeed and has a namespace of its own.
pub fn row(name: &'static str, command: &'static str) -> Row {
    Row {
        name,
        command,
        shared: false,
        empty: false,
        before: Vec::new(),
        status: None,
        stdin: "",
        editor: "true",
        ends: Ends::Well,
        exactly: None,
        prints: Vec::new(),
        hides: Vec::new(),
        complains: Vec::new(),
        meanwhile: Vec::new(),
        then: Vec::new(),
        from: 0,
    }
}

/// A row that changes nothing.
pub fn read(name: &'static str, command: &'static str) -> Row {
    Row { shared: true, ..row(name, command) }
}

impl Row {
    /// There is nothing in the namespace.
    pub fn in_an_empty_namespace(mut self) -> Row {
        self.empty = true;
        self
    }

    /// A command that is run first and must succeed.
    pub fn after(mut self, command: &'static str) -> Row {
        self.before.push(command);
        self
    }

    /// The status of `web`, as JSON.
    pub fn with_status(mut self, status: &'static str) -> Row {
        self.status = Some(status);
        self
    }

    pub fn stdin(mut self, text: &'static str) -> Row {
        self.stdin = text;
        self
    }

    pub fn editor(mut self, editor: &'static str) -> Row {
        self.editor = editor;
        self
    }

    /// The command fails, and says this.
    pub fn fails(mut self, text: &'static str) -> Row {
        self.ends = Ends::Badly;
        self.complains.push(text);
        self
    }

    pub fn code(mut self, code: i32) -> Row {
        self.ends = Ends::With(code);
        self
    }

    /// All of the standard output.
    pub fn exactly(mut self, text: &'static str) -> Row {
        self.exactly = Some(text);
        self
    }

    /// Part of the standard output.
    pub fn prints(mut self, text: &'static str) -> Row {
        self.prints.push(text);
        self
    }

    /// No part of the standard output.
    pub fn hides(mut self, text: &'static str) -> Row {
        self.hides.push(text);
        self
    }

    /// Part of the standard error.
    pub fn complains(mut self, text: &'static str) -> Row {
        self.complains.push(text);
        self
    }

    /// The command goes on; it prints this, and is ended when it has done all that is wanted of it.
    pub fn shows(mut self, text: &'static str) -> Row {
        self.meanwhile.push(Meanwhile::Prints(text));
        self
    }

    /// The command goes on; when `web` is patched so, it prints this.
    pub fn shows_change(mut self, patch: &'static str, text: &'static str) -> Row {
        self.meanwhile.push(Meanwhile::Patch(patch, text));
        self
    }

    /// The command goes on; when `web` is deleted, it prints this.
    pub fn shows_deletion(mut self, text: &'static str) -> Row {
        self.meanwhile.extend([Meanwhile::Delete, Meanwhile::Prints(text)]);
        self
    }

    /// The command goes on; when there is an Event about `web` for this reason, it prints that.
    pub fn shows_event(mut self, reason: &'static str) -> Row {
        self.meanwhile.extend([Meanwhile::Event(reason), Meanwhile::Prints(reason)]);
        self
    }

    /// What is there afterwards.
    pub fn then(mut self, look: Look, text: &'static str) -> Row {
        self.then.push((look, text));
        self
    }

    pub fn since_version(mut self, minor: u32) -> Row {
        self.from = minor;
        self
    }
}

/// Splits at blanks outside of single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in line.chars() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            other => words.last_mut().expect("never empty").push(other),
        }
    }
    words
}

/// The minor version in a program's name; of one that does not say, the newest.
fn minor(program: &Path) -> u32 {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.rsplit('.').next().and_then(|text| text.parse().ok()).unwrap_or(u32::MAX)
}

/// What all rows of a run have in common.
struct World {
    client: Client,
    kubeconfig: PathBuf,
    folder: PathBuf,
}

impl World {
    fn kubectl(&self, program: &Path) -> Kubectl {
        let home = self.folder.join(format!("home-{}", minor(program)));
        std::fs::create_dir_all(&home).unwrap();
        Kubectl { program: program.to_owned(), kubeconfig: self.kubeconfig.clone(), home }
    }

    fn filled(&self, namespace: &str, text: &str) -> String {
        text.replace("{f}", &self.folder.join("files").display().to_string()).replace("{ns}", namespace)
    }

    fn command(&self, kubectl: &Kubectl, row: &Row, namespace: &str, line: &str) -> Command {
        let mut args = vec![format!("--namespace={namespace}")];
        args.extend(words(line).iter().map(|word| self.filled(namespace, word)));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = kubectl.command(&args);
        command.env("KUBE_EDITOR", row.editor);
        command
    }

    async fn output(&self, kubectl: &Kubectl, row: &Row, namespace: &str, line: &str, stdin: &str) -> Output {
        let mut command = self.command(kubectl, row, namespace, line);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let stdin = self.filled(namespace, stdin);
        let run = tokio::task::spawn_blocking(move || run(command, &stdin));
        tokio::time::timeout(Duration::from_secs(60), run).await.expect("kubectl ends").unwrap()
    }

    /// Runs a row; the text says what is wrong with what came of it.
    async fn run(&self, program: &Path, number: usize, row: &Row) -> Result<(), String> {
        let kubectl = self.kubectl(program);
        let namespace =
            if row.shared { SHOP.to_owned() } else { format!("v{}-{number}", minor(program) % 10_000) };
        if !row.shared {
            self.make_namespace(&namespace, row).await;
        }
        for line in &row.before {
            let output = self.output(&kubectl, row, &namespace, line, "").await;
            if !output.status.success() {
                return Err(format!("before: {line}: {}", said(&output)));
            }
        }
        if !row.meanwhile.is_empty() {
            return self.run_meanwhile(&kubectl, row, &namespace).await;
        }
        let output = self.output(&kubectl, row, &namespace, row.command, row.stdin).await;
        let wrong = |what: String| Err(format!("{what}\n{}", said(&output)));
        let code = output.status.code();
        let fits = match row.ends {
            Ends::Well => code == Some(0),
            Ends::Badly => code.is_some_and(|code| code != 0),
            Ends::With(wanted) => code == Some(wanted),
        };
        if !fits {
            return wrong(format!("ended with {code:?}, wanted {:?}", row.ends));
        }
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let complained = String::from_utf8_lossy(&output.stderr).into_owned();
        if row.exactly.is_some_and(|text| text != printed) {
            return wrong(format!("wanted exactly {:?}", row.exactly));
        }
        if let Some(text) = row.prints.iter().find(|text| !printed.contains(**text)) {
            return wrong(format!("does not print {text:?}"));
        }
        if let Some(text) = row.hides.iter().find(|text| printed.contains(**text)) {
            return wrong(format!("prints {text:?}"));
        }
        if let Some(text) = row.complains.iter().find(|text| !complained.contains(**text)) {
            return wrong(format!("does not complain of {text:?}"));
        }
        self.look(&kubectl, row, &namespace).await
    }

    /// Judges what is there afterwards.
    async fn look(&self, kubectl: &Kubectl, row: &Row, namespace: &str) -> Result<(), String> {
        let applications = format!("/apis/horchestra.io/v1/namespaces/{namespace}/applications");
        for (look, expected) in &row.then {
            let found = match look {
                Look::Of(name, members) => {
                    let reply = self.client.get(&format!("{applications}/{name}")).await;
                    match reply.status {
                        404 => String::new(),
                        _ => {
                            let object = reply.json_of(200)?;
                            members.iter().map(|member| plain(object.pointer(member))).collect()
                        }
                    }
                }
                Look::All(member) => {
                    let list = self.client.get(&applications).await.json_of(200)?;
                    let items = list["items"].as_array().into_iter().flatten();
                    items.map(|item| plain(item.pointer(member))).collect::<Vec<_>>().join(" ")
                }
                Look::Printed(line) => {
                    let output = self.output(kubectl, row, namespace, line, "").await;
                    String::from_utf8_lossy(&output.stdout).into_owned()
                }
            };
            let expected = expected.replace("{ns}", namespace);
            if found != expected {
                return Err(format!("afterwards {look:?} is {found:?}, not {expected:?}"));
            }
        }
        Ok(())
    }

    /// Runs a command that goes on, and lets things happen meanwhile.
    async fn run_meanwhile(&self, kubectl: &Kubectl, row: &Row, namespace: &str) -> Result<(), String> {
        let printed = self.folder.join(format!("printed-{namespace}"));
        let complained = self.folder.join(format!("complained-{namespace}"));
        let mut command = self.command(kubectl, row, namespace, row.command);
        command.stdout(std::fs::File::create(&printed).unwrap());
        command.stderr(std::fs::File::create(&complained).unwrap());
        command.stdin(Stdio::null());
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap();
        let happened = self.meanwhile(row, namespace, &printed).await;
        let ended = child.try_wait().unwrap();
        child.kill().await.unwrap();
        let text = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
        happened.map_err(|what| {
            format!("{what}; ended: {ended:?}\nstdout: {}\nstderr: {}", text(&printed), text(&complained))
        })?;
        if let Some(shown) = row.hides.iter().find(|shown| text(&printed).contains(**shown)) {
            return Err(format!("prints {shown:?}\nstdout: {}", text(&printed)));
        }
        self.look(kubectl, row, namespace).await
    }

    async fn meanwhile(&self, row: &Row, namespace: &str, printed: &Path) -> Result<(), String> {
        let web = format!("/apis/horchestra.io/v1/namespaces/{namespace}/applications/web");
        for step in &row.meanwhile {
            let (patch, text) = match step {
                Meanwhile::Prints(text) => ("", *text),
                Meanwhile::Patch(patch, text) => (*patch, *text),
                Meanwhile::Delete => {
                    self.client.delete(&web).await.json_of(200)?;
                    continue;
                }
                Meanwhile::Event(reason) => {
                    self.tell(namespace, reason, "Normal").await;
                    continue;
                }
            };
            let started = Instant::now();
            for count in 0.. {
                if std::fs::read_to_string(printed).is_ok_and(|all| all.contains(text)) {
                    break;
                }
                if started.elapsed() > DEADLINE {
                    return Err(format!("does not print {text:?}"));
                }
                if !patch.is_empty() {
                    let patch = serde_json::from_str(&patch.replace("{n}", &count.to_string())).unwrap();
                    self.client.merge(&web, &patch).await.json_of(200)?;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// An Event about the Application `web`.
    async fn tell(&self, namespace: &str, reason: &str, kind: &str) {
        let event = json!({
            "metadata": {"generateName": "web."},
            "involvedObject": {"apiVersion": "horchestra.io/v1", "kind": "Application",
                "namespace": namespace, "name": "web"},
            "reason": reason, "message": format!("this is {reason}"), "type": kind, "count": 1,
            "source": {"component": "tester"},
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
        });
        let reply = self.client.post(&format!("/api/v1/namespaces/{namespace}/events"), &event).await;
        assert_eq!(reply.status, 201, "{reply:?}");
    }

    async fn make_namespace(&self, name: &str, row: &Row) {
        let namespace = json!({"metadata": {"name": name}});
        let reply = self.client.post("/apis/horchestra.io/v1/namespaces", &namespace).await;
        assert_eq!(reply.status, 201, "{reply:?}");
        if row.empty {
            return;
        }
        self.create(name, "web", json!({"tier": "front"}), json!({"image": "nginx:1"})).await;
        if let Some(status) = row.status {
            let status: Value = serde_json::from_str(status).unwrap();
            self.report(name, "web", &status).await;
        }
    }

    async fn create(&self, namespace: &str, name: &str, labels: Value, spec: Value) {
        let path = format!("/apis/horchestra.io/v1/namespaces/{namespace}/applications");
        let app = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        let reply = self.client.post(&path, &app).await;
        assert_eq!(reply.status, 201, "{reply:?}");
    }

    async fn report(&self, namespace: &str, name: &str, status: &Value) {
        let path = format!("/apis/horchestra.io/v1/namespaces/{namespace}/applications/{name}/status");
        let reply = self.client.merge(&path, &json!({ "status": status })).await;
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// What rows that only read find.
    async fn fill(&self) {
        let node = json!({"metadata": {"name": "n1"}, "spec": {}});
        assert_eq!(self.client.post("/apis/horchestra.io/v1/nodes", &node).await.status, 201);
        let shop = json!({"metadata": {"name": SHOP}});
        assert_eq!(self.client.post("/apis/horchestra.io/v1/namespaces", &shop).await.status, 201);
        let placed = json!({"image": "nginx:1", "placement": {"nodeName": "n1"}});
        self.create(SHOP, "web", json!({"tier": "front", "env": "prod"}), placed).await;
        self.create(SHOP, "db", json!({"tier": "back"}), json!({"image": "postgres:16"})).await;
        self.create(SHOP, "job", json!({}), json!({"image": "job:1"})).await;
        self.report(SHOP, "web", &json!({"phase": "Running"})).await;
        self.tell(SHOP, "Started", "Normal").await;
        self.tell(SHOP, "Failed", "Warning").await;
    }
}

fn run(mut command: Command, stdin: &str) -> Output {
    if stdin.is_empty() {
        return command.stdin(Stdio::null()).output().unwrap();
    }
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // One that has failed before it read everything says so itself.
    let _ = pipe.write_all(stdin.as_bytes());
    drop(pipe);
    child.wait_with_output().unwrap()
}

/// A text as it is, anything else as JSON, what is missing as nothing.
fn plain(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("stdout: {}\nstderr: {}", text(&output.stdout), text(&output.stderr))
}

/// Runs every row with every version, and tells of all that went wrong.
async fn run_table(rows: Vec<Row>) {
    let programs = versions();
    if programs.is_empty() {
        return;
    }
    let stack = Stack::with(Setup { relay: true, ..Setup::default() }).await;
    let (gateway, address) = Gateway::start(&stack, Process::Nodegate).await;
    claim(&stack.store, &address).await;
    gateway.plays(|_| Ok(vec![data("first\n"), data("second\n")]));
    let folder = stack.folder().to_owned();
    files::write(&folder.join("files"));
    let client = stack.master().keep().await;
    let world = Arc::new(World { client, kubeconfig: stack.kubeconfig(), folder });
    world.fill().await;
    // Each fills its cache of discovery documents first.
    for program in &programs {
        let kubectl = world.kubectl(program);
        let output = world.output(&kubectl, &read("", ""), SHOP, "api-resources", "").await;
        assert!(output.status.success(), "{}: {}", program.display(), said(&output));
    }
    let mut jobs = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        for program in programs.iter().filter(|program| minor(program) >= row.from) {
            let (world, program, row) = (Arc::clone(&world), program.clone(), row.clone());
            jobs.push(async move {
                let result = world.run(&program, number, &row).await;
                result.err().map(|error| {
                    format!("--- {} ({}): kubectl {}\n{error}", row.name, program.display(), row.command)
                })
            });
        }
    }
    let results: Vec<Option<String>> = futures::stream::iter(jobs).buffer_unordered(AT_ONCE).collect().await;
    let count = results.len();
    let wrong: Vec<String> = results.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{} of {count} went wrong\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading() {
    run_table(reading::rows()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating() {
    run_table(creating::rows()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing() {
    run_table(changing::rows()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting() {
    run_table(deleting::rows()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_and_logs() {
    run_table(waiting::rows()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watching() {
    run_table(watching::rows()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_meaning_here_is_refused_and_changes_nothing() {
    run_table(refused::rows()).await;
}

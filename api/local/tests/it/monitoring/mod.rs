//! What is offered for monitoring, with a stack that runs: pages that Prometheus takes, rules and a dashboard that name
//! what is there, and a configuration with which all of it is scraped.

mod names;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use horchestra_core::yaml;
use horchestra_testkit::eventually;
use http_body_util::BodyExt;
use hyper::Method;
use serde_json::Value;

use crate::client::{APPLICATIONS, Client, page};
use crate::stack::{RECOVERY, Stack, said};
use names::{Catalogue, shown_labels};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/monitoring");
const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
/// The processes of the stack, with the default ports that the example of a configuration names.
const PROCESSES: [(&str, &str); 3] = [("api-0", "9443"), ("workers-0", "9445"), ("nodegate-0", "9454")];

fn offered(file: &str) -> String {
    fs::read_to_string(Path::new(FOLDER).join(file)).unwrap()
}

fn document(text: &str) -> Value {
    yaml::read(text.as_bytes()).unwrap().object.into_value()
}

/// A program of the Debian package `prometheus`.
#[allow(clippy::print_stderr)]
fn program(name: &str) -> Option<PathBuf> {
    let found = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
    });
    if found.is_none() {
        eprintln!("!!! NO {name} WAS FOUND: WHAT IT WOULD CHECK IS NOT CHECKED !!!");
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_scrapes_a_stack_with_what_is_offered() {
    let stack = Stack::up(&["--nodes", "2", "--heartbeat", "1"]);
    let client = stack.client("api");
    something_to_tell(&client).await;
    rules_are_explained();
    // Loops tell of what they keep once they have looked for the first time.
    let pages = eventually(RECOVERY, async || {
        let pages = pages(&stack, &client).await;
        let mut catalogue = Catalogue::default();
        pages.iter().for_each(|(_, page)| catalogue.add(page));
        let missing: Vec<String> =
            missing_of_rules(&catalogue).into_iter().chain(missing_of_dashboard(&catalogue)).collect();
        if missing.is_empty() { Ok(pages) } else { Err(missing) }
    })
    .await;
    for (name, page) in &pages {
        assert!(name == "fleet" || page.lines().count() < 5_000, "the page of {name} grows without end");
    }

    if let Some(promtool) = program("promtool") {
        let tested =
            Command::new(&promtool).args(["test", "rules", "alerts.test.yaml"]).current_dir(FOLDER).output();
        let tested = tested.unwrap();
        assert!(tested.status.success(), "{}", said(&tested));
        for (name, page) in &pages {
            let checked = promtool_reads(&promtool, page);
            assert!(checked.status.success(), "the page of {name}: {}", said(&checked));
        }
    }
    if let Some(prometheus) = program("prometheus") {
        everything_is_scraped(&stack, &prometheus).await;
    }
}

/// Applications that run and that cannot, a watch, and somebody who may read the page of the fleet.
async fn something_to_tell(client: &Client) {
    let rbac = "/apis/rbac.horchestra.io/v1";
    let access = offered("access.yaml");
    let manifests = access.split("\n---\n").zip(["clusterroles", "clusterrolebindings"]);
    let mut made: Vec<(String, String)> =
        manifests.map(|(text, plural)| (format!("{rbac}/{plural}"), text.to_owned())).collect();
    for example in ["web.yaml", "too-large.yaml"] {
        let text = fs::read_to_string(Path::new(FOLDER).join("../examples").join(example)).unwrap();
        made.push((APPLICATIONS.to_owned(), text));
    }
    for (path, text) in made {
        let (code, body) =
            client.call_raw(Method::POST, &path, "application/yaml", text.into()).await.unwrap();
        assert_eq!(code, 201, "{path}: {}", String::from_utf8_lossy(&body));
    }
    let watch =
        client.send(Method::GET, &format!("{APPLICATIONS}?watch=1&timeoutSeconds=1"), None).await.unwrap();
    watch.into_body().collect().await.unwrap();
}

/// The page of every process and of the fleet, once there is something on each.
async fn pages(stack: &Stack, client: &Client) -> Vec<(String, String)> {
    let of_fleet = async || {
        let answer = client.send(Method::GET, "/metrics", None).await.ok()?;
        let code = answer.status();
        let body = answer.into_body().collect().await.ok()?.to_bytes();
        (code == 200).then(|| String::from_utf8_lossy(&body).into_owned())
    };
    let fleet = eventually(RECOVERY, async || {
        of_fleet().await.filter(|page| {
            page.contains("horchestra_application_memory_bytes{namespace=\"default\",application=\"web\"")
                && page.contains("horchestra_node_memory_used_bytes{node=\"node-2\"}")
        })
    })
    .await;
    let mut pages = vec![("fleet".to_owned(), fleet)];
    for (process, _) in PROCESSES {
        let full = |page: &String| match process {
            "workers-0" => ["scheduler_unschedulable{", "database_lease_held{", "held_nodes{"]
                .iter()
                .all(|name| page.contains(&format!("horchestra_{name}"))),
            "nodegate-0" => page.contains("horchestra_gate_sessions 2"),
            _ => true,
        };
        let page = eventually(RECOVERY, async || stack.metrics(process).await.ok().filter(full)).await;
        pages.push((process.to_owned(), page));
    }
    pages
}

/// Every rule.
fn rules() -> Vec<Value> {
    let rules = document(&offered("alerts.yaml"));
    let groups = rules["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
}

/// Every alert has a name of its own, says how grave it is, and is explained to people.
fn rules_are_explained() {
    let readme = fs::read_to_string(README).unwrap();
    let rules = rules();
    let mut alerts = BTreeSet::new();
    for rule in &rules {
        let name = rule["alert"].as_str().unwrap();
        assert!(["page", "ticket", "info"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{name}");
        assert!(alerts.insert(name), "two alerts are called {name}");
    }
    let cells = readme.lines().filter_map(|line| line.strip_prefix("| `Horchestra")?.split('`').next());
    let explained: BTreeSet<String> = cells.map(|rest| format!("Horchestra{rest}")).collect();
    let explained: BTreeSet<&str> = explained.iter().map(String::as_str).collect();
    assert_eq!(explained, alerts, "alerts that the README explains, and alerts that there are");
}

/// What rules ask for and is on no page.
fn missing_of_rules(catalogue: &Catalogue) -> Vec<String> {
    let of_rule = |rule: &Value| {
        let expression = rule["expr"].as_str().unwrap();
        let shown = shown_labels(rule["annotations"]["summary"].as_str().unwrap(), "$labels.", '}');
        let missing = catalogue.missing(expression, &shown);
        (!missing.is_empty()).then(|| format!("{}: {missing:?} of {expression}", rule["alert"]))
    };
    rules().iter().filter_map(of_rule).collect()
}

/// What panels ask for and is on no page.
fn missing_of_dashboard(catalogue: &Catalogue) -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&offered("dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets: Vec<(&Value, &Value)> = panels
        .iter()
        .flat_map(|panel| {
            panel["targets"].as_array().into_iter().flatten().map(move |target| (panel, target))
        })
        .collect();
    assert!(targets.len() > 50);
    let of_target = |(panel, target): &(&Value, &Value)| {
        let expression = target["expr"].as_str().unwrap();
        let shown = shown_labels(target["legendFormat"].as_str().unwrap(), "{{", '}');
        let missing = catalogue.missing(expression, &shown);
        (!missing.is_empty()).then(|| format!("{}: {missing:?} of {expression}", panel["title"]))
    };
    targets.iter().filter_map(of_target).collect()
}

fn promtool_reads(promtool: &Path, page: &str) -> Output {
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// A Prometheus that ends with the test.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    async fn ask(&self, path: &str) -> anyhow::Result<Value> {
        let answer: Value = serde_json::from_str(&page(self.address, path).await?)?;
        anyhow::ensure!(answer["status"] == "success", "{path}: {answer}");
        Ok(answer["data"].clone())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The example of a configuration, for this stack and in more of a hurry.
fn configure(stack: &Stack, folder: &Path) -> PathBuf {
    let pki = stack.home().join("pki");
    let made = stack.local(&[
        "pki",
        "--pki-dir",
        &pki.display().to_string(),
        "cert",
        "prometheus",
        "--out",
        &folder.join("prometheus").display().to_string(),
    ]);
    assert!(made.status.success(), "{}", said(&made));
    fs::copy(pki.join("ca.crt"), folder.join("ca.crt")).unwrap();
    let mut config = offered("prometheus.yaml")
        .replace("/etc/prometheus/horchestra", &folder.display().to_string())
        .replace("15s", "1s")
        .replace(":8443", &format!(":{}", stack.port("api")));
    for (process, default) in PROCESSES {
        let port = stack.port(&format!("{process}.metrics"));
        config = config.replace(&format!(":{default}"), &format!(":{port}"));
    }
    fs::write(folder.join("alerts.yaml"), offered("alerts.yaml")).unwrap();
    let file = folder.join("prometheus.yaml");
    fs::write(&file, config).unwrap();
    file
}

async fn everything_is_scraped(stack: &Stack, prometheus: &Path) {
    let folder = stack.home().join("prometheus");
    fs::create_dir(&folder).unwrap();
    let config = configure(stack, &folder);
    if let Some(promtool) = program("promtool") {
        let checked = Command::new(promtool).args(["check", "config"]).arg(&config).output().unwrap();
        assert!(checked.status.success(), "{}", said(&checked));
    }
    let address = SocketAddr::from(([127, 0, 0, 1], horchestra_testkit::free_port().unwrap()));
    let log = fs::File::create(folder.join("log")).unwrap();
    let child = Command::new(prometheus)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={address}"))
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let prometheus = Prometheus { child, address };

    let expected = PROCESSES.len() + 1;
    eventually(RECOVERY, async || {
        let data = prometheus.ask("/api/v1/targets").await.map_err(|error| error.to_string())?;
        let targets = data["activeTargets"].as_array().cloned().unwrap_or_default();
        match targets.iter().find(|target| target["health"] != "up") {
            None if targets.len() == expected => Ok(()),
            down => Err(format!("{} targets, {down:?}", targets.len())),
        }
    })
    .await;
    // A page that took longer than its second once comes with the next scrape.
    let everywhere = async |query: &str, count: usize| {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let data = prometheus.ask(&format!("/api/v1/query?query={encoded}")).await;
        let data = data.map_err(|error| error.to_string())?;
        let found = data["result"].as_array().map_or(0, Vec::len);
        if found == count { Ok(()) } else { Err(format!("{query}: {found} of {count}: {data}")) }
    };
    eventually(RECOVERY, async || everywhere("up == 1", expected).await).await;

    // Both forms of a page mean the same: what is scraped has the names of what is read by eye.
    let rules = eventually(RECOVERY, async || {
        let data = prometheus.ask("/api/v1/rules").await.map_err(|error| error.to_string())?;
        let groups = data["groups"].as_array().cloned().unwrap_or_default();
        let rules: Vec<Value> =
            groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect();
        match rules.iter().find(|rule| rule["health"] != "ok") {
            None if !rules.is_empty() => Ok(rules),
            bad => Err(format!("{bad:?}")),
        }
    })
    .await;
    let firing: Vec<&Value> = rules.iter().filter(|rule| rule["state"] == "firing").collect();
    assert!(firing.is_empty(), "alerts about a stack that is well: {firing:?}");
    for query in ["horchestra_store_committed_total", "process_cpu_seconds_total{job=~\"horchestra-.*\"}"] {
        eventually(RECOVERY, async || everywhere(query, PROCESSES.len()).await).await;
    }
}

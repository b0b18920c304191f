//! python-consul, as it is, against the catalog.
//!
//! It is installed once into a folder beside the other results of the build. Where there is no Python, no pip or no
//! way to install anything, this says loudly that it saw nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::Site;
use crate::stack::Who;

const PACKAGE: &str = "python-consul==1.1.0";

/// Asks for everything, waits for a change, and says what it got as JSON.
const PROGRAM: &str = r#"
import json, sys
import consul

host, port, ca, cert, key = sys.argv[1:]
client = consul.Consul(host=host, port=int(port), scheme="https", verify=ca, cert=(cert, key))
found = {}
found["datacenters"] = client.catalog.datacenters()
found["leader"] = client.status.leader()
found["self"] = client.agent.self()["Config"]
index, found["services"] = client.catalog.services()
found["entries"] = client.catalog.service("cache")[1]
found["tagged"] = client.catalog.service("cache", tag="service=cache")[1]
found["untagged"] = client.catalog.service("cache", tag="nope")[1]
found["health"] = client.health.service("cache")[1]
found["passing"] = client.health.service("cache", passing=True, near="_agent")[1]
found["state"] = client.health.state("any")[1]
found["nodes"] = client.catalog.nodes(consistency="stale")[1]
found["node"] = client.catalog.node("node-1")[1]
found["ghost"] = client.health.service("ghost")[1]
at, same = client.health.service("cache", index=client.health.service("cache")[0], wait="100ms")
found["unchanged"] = same == found["health"]
print(json.dumps(found), flush=True)
# The other side makes a change while this waits.
later, changed = client.health.service("cache", index=at, wait="60s")
print(json.dumps({"later": int(later) > int(at), "changed": changed}), flush=True)
"#;

#[allow(clippy::print_stderr)]
fn nothing_tested(why: &str) {
    eprintln!("\n*** python-consul WAS NOT RUN: {why} ***\n");
}

/// The folder with the package. The error says why there is none.
fn installed() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-consul-1.1.0");
    if folder.join("consul").is_dir() {
        return Ok(folder);
    }
    let fresh = folder.with_extension(std::process::id().to_string());
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
        .arg(&fresh)
        .arg(PACKAGE)
        .output()
        .map_err(|error| format!("python3: {error}"))?;
    if !output.status.success() {
        return Err(format!("pip: {}", text(&output.stderr)));
    }
    // Another run may have been first.
    let _ = std::fs::rename(&fresh, &folder);
    let _ = std::fs::remove_dir_all(&fresh);
    if folder.join("consul").is_dir() { Ok(folder) } else { Err("it is not where it should be".to_owned()) }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_consul_runs_as_it_is() {
    let folder = match tokio::task::spawn_blocking(installed).await.unwrap() {
        Ok(folder) => folder,
        Err(why) => return nothing_tested(&why),
    };
    let site = Site::usual().await;
    let _ = site.stack.kubeconfig_of(Who::Master, "admin");
    let file = |ending: &str| site.stack.folder().join(format!("master.{ending}"));
    let mut command = Command::new("python3");
    command
        .args(["-c", PROGRAM, &site.stack.address.ip().to_string(), &site.stack.address.port().to_string()])
        .arg(site.stack.pki.authority())
        .args([file("crt"), file("key")])
        .env("PYTHONPATH", &folder)
        .env("NO_PROXY", "*");
    let running = tokio::task::spawn_blocking(move || command.output());
    // The first that waits does so for a tenth of a second only; the second until there is a change.
    horchestra_testkit::eventually(crate::client::DEADLINE, async || site.woken("elapsed") == 1).await;
    site.parked(1).await;
    site.report("default", "cache-0", "Failed").await;
    let Output { status, stdout, stderr } = running.await.unwrap().unwrap();
    assert!(status.success(), "{}", text(&stderr));
    let lines: Vec<Value> = text(&stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [found, after] = lines.as_slice() else { panic!("{lines:?}") };

    assert_eq!(found["datacenters"], json!(["horchestra"]));
    assert_eq!(found["leader"], json!(site.stack.address.to_string()));
    assert_eq!(found["self"]["Datacenter"], "horchestra");
    assert_eq!(found["services"]["cache"], json!(["namespace=default", "protocol=tcp", "service=cache"]));
    let count = |of: &str| found[of].as_array().map(Vec::len);
    for (of, expected) in [
        ("entries", 2),
        ("tagged", 2),
        ("untagged", 0),
        ("health", 2),
        ("passing", 2),
        ("state", 5),
        ("nodes", 1),
        ("ghost", 0),
    ] {
        assert_eq!(count(of), Some(expected), "{of}: {}", found[of]);
    }
    assert_eq!(found["node"]["Node"]["Node"], "node-1");
    assert_eq!(found["unchanged"], true);
    assert_eq!(after["later"], true);
    assert_eq!(after["changed"][0]["Checks"][0]["Status"], "critical");
}

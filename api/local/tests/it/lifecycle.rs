//! The stack itself: up, status, down, and up again with the data of before.

use std::fs;
use std::net::SocketAddr;

use hyper::Method;
use serde_json::{Value, json};

use crate::client::APPLICATIONS;
use crate::stack::{Stack, said, signal};
use crate::tracing::collector::Collector;

/// Processes of the machine that work on this stack.
fn processes_of(stack: &Stack) -> Vec<String> {
    let home = stack.home().display().to_string();
    let own = std::process::id().to_string();
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().chars().all(|c| c.is_ascii_digit()))
        .filter(|entry| *entry.file_name().to_string_lossy() != *own)
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|raw| String::from_utf8_lossy(&raw).replace('\0', " "))
        .filter(|line| line.contains(&home))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn down_leaves_nothing_running_and_up_goes_on_with_the_data() {
    // Nobody exports traces where that is switched off, collector or not.
    let collector = Collector::http(SocketAddr::from(([127, 0, 0, 1], 0))).await;
    let environment = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address)),
        ("OTEL_BSP_SCHEDULE_DELAY", "10".to_owned()),
        ("OTEL_SDK_DISABLED", "true".to_owned()),
    ];
    let stack = Stack::up_in(environment, &["--nodes", "1"]);
    let status = said(&stack.local(&["status"]));
    for process in ["supervisor", "api-0", "workers-0", "nodegate-0", "postgres", "agent-0"] {
        assert!(status.contains(process), "{process} is missing in {status}");
    }
    assert!(status.contains("ready"), "{status}");

    let app = json!({
        "metadata": {"name": "web"},
        "spec": {"image": "x", "command": ["/bin/sh", "-c", "while true; do sleep 1; done"]},
    });
    let client = stack.client("api");
    let (code, made) = client.call(Method::POST, APPLICATIONS, Some(&app)).await.unwrap();
    assert_eq!(code, 201, "{made}");
    let path = format!("{APPLICATIONS}/web");
    let running = async || {
        let (_, web) = client.call_patiently(Method::GET, &path, None).await;
        if web["status"]["phase"] == "Running" { Ok(()) } else { Err(web["status"].to_string()) }
    };
    horchestra_testkit::eventually(std::time::Duration::from_secs(30), running).await;

    // The same from the database alone, for programs.
    let url = stack.database_url();
    let seen = async || {
        let told = stack.local(&["status", "--database-url", url.trim(), "-o", "json"]).stdout;
        let told: Value = serde_json::from_slice(&told).map_err(|error| error.to_string())?;
        let (overview, processes) = (&told["database"]["overview"], &told["database"]["processes"]);
        let programs: Vec<&str> =
            processes.as_array().into_iter().flatten().filter_map(|one| one["program"].as_str()).collect();
        let leads = processes
            .as_array()
            .and_then(|all| all.iter().find(|one| one["program"] == "horchestra-workers"));
        let leads = leads.and_then(|one| one["leads"].as_array()).map_or(0, Vec::len);
        let well = programs == ["horchestra-api", "horchestra-nodegate", "horchestra-workers"]
            && leads == 7
            && overview["nodes_ready"] == 1
            && overview["sessions"] == 1
            && overview["running"] == 1;
        if well && told["stack"].is_null() { Ok(()) } else { Err(told.to_string()) }
    };
    horchestra_testkit::eventually(std::time::Duration::from_secs(30), seen).await;
    let told = said(&stack.local(&["status"]));
    assert!(told.contains("nodes          1 of 1 ready, 1 with a session, 0 held"), "{told}");

    let again = stack.local(&["up", "--detach"]);
    assert!(again.status.success() && said(&again).contains("already runs"), "{}", said(&again));

    stack.down();
    assert_eq!(processes_of(&stack), Vec::<String>::new());
    assert!(said(&stack.local(&["status"])).contains("not running"));

    stack.up_again(&["--nodes", "1"]);
    let (code, web) = stack.client("api").call_patiently(Method::GET, &path, None).await;
    assert_eq!(code, 200);
    assert_eq!(web["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!((collector.connections(), collector.spans().len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn up_waits_for_its_own_stack_though_one_that_was_killed_said_that_it_was_ready() {
    let stack = Stack::up(&["--nodes", "1"]);
    let killed = stack.pid("supervisor");
    signal(killed, "KILL");
    let gone = async || {
        let left = fs::read(format!("/proc/{killed}/cmdline")).unwrap_or_default();
        if left.is_empty() { Ok(()) } else { Err("it is still there") }
    };
    horchestra_testkit::eventually(std::time::Duration::from_secs(30), gone).await;
    assert!(said(&stack.local(&["status"])).contains("not running"));
    stack.up_again(&["--nodes", "1"]);
    let status = said(&stack.local(&["status"]));
    assert!(status.contains("ready"), "{status}");
    let (code, answer) = stack.client("api").call(Method::GET, "/version", None).await.unwrap();
    assert_eq!(code, 200, "{answer}");
}

//! One trace from a request to the node's first report, and what becomes of processes whose collector is not there.

pub mod collector;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use horchestra_testkit::{TempDir, eventually, free_port};
use hyper::Method;
use serde_json::{Value, json};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};

use crate::client::{APPLICATIONS, Client};
use crate::stack::{RECOVERY, Stack};
use collector::{Collector, Span};

const PATIENCE: Duration = Duration::from_secs(60);
/// The span that a client of ours was in.
const CLIENT: &str = "00f067aa0ba902b7";

fn application(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"image": "x", "command": ["/bin/sh", "-c", "while true; do sleep 1; done"]},
    })
}

/// Creates an Application in a trace, and waits until it runs.
async fn create(client: &Client, name: &str, traceparent: Option<&str>) {
    let headers: Vec<_> = traceparent.map(|parent| ("traceparent", parent.to_owned())).into_iter().collect();
    let body = application(name);
    let answer = client.send_with(Method::POST, APPLICATIONS, Some(&body), &headers).await.unwrap();
    assert_eq!(answer.status(), 201, "{name}");
    let path = format!("{APPLICATIONS}/{name}");
    eventually(PATIENCE, async || {
        let (_, found) = client.call_patiently(Method::GET, &path, None).await;
        if found["status"]["phase"] == "Running" { Ok(()) } else { Err(found["status"].to_string()) }
    })
    .await;
}

/// What the span is called here, the process, the name, the span that it goes on from, and some of its attributes.
type Expected =
    (&'static str, &'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

/// What a trace from a request to the node's first report is made of.
const WHOLE: &[Expected] = &[
    (
        "request",
        "horchestra-api",
        "POST /apis/horchestra.io/v1/namespaces/{namespace}/applications",
        "client",
        &[
            ("http.request.method", "POST"),
            ("http.route", "/apis/horchestra.io/v1/namespaces/{namespace}/applications"),
            ("http.response.status_code", "201"),
            ("url.path", APPLICATIONS),
            ("enduser.id", "admin"),
        ],
    ),
    ("authentication", "horchestra-api", "authenticate", "request", &[]),
    ("authorization", "horchestra-api", "authorize", "request", &[]),
    ("admission", "horchestra-api", "admission", "request", &[]),
    (
        "created",
        "horchestra-api",
        "commit",
        "request",
        &[("horchestra.verb", "create"), ("horchestra.kind", "Application"), ("horchestra.batch.size", "1")],
    ),
    ("batch", "horchestra-api", "commit batch", "created", &[("db.operation.batch.size", "1")]),
    ("told", "horchestra-workers", "deliver", "created", &[("horchestra.name", "web")]),
    ("pass", "horchestra-workers", "pass scheduler", "created", &[("horchestra.loop", "scheduler")]),
    (
        "bind",
        "horchestra-workers",
        "bind",
        "created",
        &[("horchestra.name", "web"), ("horchestra.node", "node-1")],
    ),
    ("bound", "horchestra-workers", "commit", "bind", &[("horchestra.verb", "bind")]),
    ("heard", "horchestra-nodegate", "deliver", "bound", &[("horchestra.name", "web")]),
    (
        "push",
        "horchestra-nodegate",
        "push",
        "bound",
        &[("horchestra.node", "node-1"), ("horchestra.generation", "2"), ("horchestra.push.taken", "true")],
    ),
    (
        "report",
        "horchestra-nodegate",
        "report",
        "push",
        &[("horchestra.node", "node-1"), ("horchestra.phase", "Running"), ("horchestra.generation", "2")],
    ),
    (
        "reported",
        "horchestra-nodegate",
        "commit",
        "report",
        &[("horchestra.verb", "status"), ("horchestra.kind", "Application")],
    ),
];

/// The spans of the table that are there, by what they are called in it; the first that is missing is named.
fn find(spans: &[Span]) -> Result<BTreeMap<&'static str, Span>, String> {
    let mut found: BTreeMap<&'static str, Span> = BTreeMap::new();
    for (called, service, name, parent, attributes) in WHOLE {
        let parent = match *parent {
            "client" => CLIENT,
            other => &found[other].id,
        };
        let span = spans.iter().find(|span| {
            (span.service.as_str(), span.name.as_str(), span.parent.as_str()) == (*service, *name, parent)
                && attributes.iter().all(|(key, value)| span.attributes.get(*key).is_some_and(|v| v == value))
        });
        let span =
            span.ok_or_else(|| format!("no {called} ({name} of {service}, below {parent}) in {spans:#?}"))?;
        found.insert(called, span.clone());
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_leads_from_the_request_to_the_first_report_of_the_node() {
    let collector = Collector::grpc().await;
    let environment = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address)),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc".to_owned()),
        // Only what a client wants to have recorded.
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off".to_owned()),
        ("OTEL_BSP_SCHEDULE_DELAY", "100".to_owned()),
    ];
    let stack = Stack::up_in(environment, &["--nodes", "1", "--heartbeat", "1"]);
    let client = stack.client("api");
    let trace = |number: u8| format!("{number:032x}");

    create(&client, "web", Some(&format!("00-{}-{CLIENT}-01", trace(1)))).await;
    let found = eventually(PATIENCE, async || find(&collector.trace(&trace(1)))).await;
    let spans = collector.trace(&trace(1));
    for span in &spans {
        let parent = spans.iter().find(|other| other.id == span.parent);
        assert!(span.parent == CLIENT || parent.is_some(), "nobody knows the parent of {span:?}");
        assert!(span.began <= span.ended, "{span:?}");
    }
    let linked = |from: &str, to: &str| found[from].links.contains(&found[to].id);
    assert!(linked("created", "batch"), "{:?}", found["created"]);
    // Another pass may have been under way, and have placed it.
    let in_pass = found["pass"].began <= found["bind"].began && found["bind"].ended <= found["pass"].ended;
    assert_eq!(linked("bind", "pass"), in_pass, "{found:#?}");
    let order = ["request", "created", "bind", "bound", "push", "report", "reported"];
    assert!(order.windows(2).all(|pair| found[pair[0]].began <= found[pair[1]].began), "{found:#?}");
    assert!(found["bound"].ended <= found["push"].began && found["push"].ended <= found["report"].began);

    // Contexts that ask for nothing to be recorded, ones that are malformed, and none.
    let headers = [
        ("unsampled", Some(format!("00-{}-{CLIENT}-00", trace(2)))),
        ("malformed", Some(format!("00-{}-{CLIENT}-1", trace(3)))),
        ("without", None),
    ];
    for (name, header) in &headers {
        create(&client, name, header.as_deref()).await;
    }
    // Recorded after them, and exported after them.
    let path = format!("{APPLICATIONS}/web");
    let header = ("traceparent", format!("00-{}-{CLIENT}-01", trace(4)));
    client.send_with(Method::GET, &path, None, &[header]).await.unwrap();
    eventually(PATIENCE, async || !collector.trace(&trace(4)).is_empty()).await;
    let others: Vec<Span> =
        collector.spans().into_iter().filter(|span| ![trace(1), trace(4)].contains(&span.trace)).collect();
    assert!(others.is_empty(), "{others:#?}");

    // The trace's id goes with the changes whether or not it is recorded.
    let mut database = PgConnection::connect(&stack.database_url()).await.unwrap();
    for (name, traced) in [("web", Some(1)), ("unsampled", Some(2)), ("malformed", None), ("without", None)] {
        let rows = sqlx::query(
            "select e.verb, e.phase, replace(e.trace::text, '-', '') as trace, s.span is not null as recorded \
             from horchestra.events e left join horchestra.spans s on s.rv = e.rv \
             where e.kind = 3 and e.name = $1 order by e.rv",
        );
        let rows = rows.bind(name).fetch_all(&mut database).await.unwrap();
        let of = |verb: &str, phase: Option<&str>| {
            let row = rows.iter().find(|row| {
                let (found, stored): (String, Option<String>) = (row.get("verb"), row.get("phase"));
                found == verb && phase.is_none_or(|phase| stored.as_deref() == Some(phase))
            });
            let row = row.unwrap_or_else(|| panic!("{name}: no {verb}"));
            (row.get::<Option<String>, _>("trace"), row.get::<bool, _>("recorded"))
        };
        let expected = (traced.map(trace), traced == Some(1));
        let changes = [("create", None), ("bind", None), ("status", Some("Running"))];
        for (verb, phase) in changes {
            assert_eq!(of(verb, phase), expected, "{name}: {verb}");
        }
    }
}

/// How often a line of the log of a process says this.
fn lines(stack: &Stack, process: &str, says: &str) -> usize {
    let log = stack.home().join("logs").join(format!("{process}.log"));
    fs::read_to_string(log).unwrap_or_default().lines().filter(|line| line.contains(says)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_collector_everything_goes_on_and_it_is_said_once() {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    let environment = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{address}")),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf".to_owned()),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "500".to_owned()),
        ("OTEL_SERVICE_NAME", "one-name".to_owned()),
        ("OTEL_BSP_SCHEDULE_DELAY", "50".to_owned()),
    ];
    let stack = Stack::up_in(environment, &["--nodes", "1", "--heartbeat", "1"]);
    let client = stack.client("api");
    for name in ["a", "b"] {
        create(&client, name, None).await;
    }
    let processes = ["api-0", "workers-0", "nodegate-0"];
    eventually(PATIENCE, async || {
        let said = processes.map(|process| lines(&stack, process, "traces cannot be exported"));
        if said == [1; 3] { Ok(()) } else { Err(format!("{said:?}")) }
    })
    .await;
    create(&client, "c", None).await;
    assert_eq!(processes.map(|process| lines(&stack, process, "traces cannot be exported")), [1; 3]);

    let collector = Collector::http(address).await;
    create(&client, "d", None).await;
    eventually(RECOVERY, async || {
        let spans = collector.spans();
        spans.iter().any(|span| span.name == "report" && span.attributes["horchestra.name"] == "d")
    })
    .await;
    assert!(collector.spans().iter().all(|span| span.service == "one-name"));
    eventually(PATIENCE, async || lines(&stack, "api-0", "traces are exported again") == 1).await;

    // What has not been exported by then is when a process ends in order.
    let (_, _) = client.call(Method::GET, &format!("{APPLICATIONS}/last"), None).await.unwrap();
    stack.down();
    let last = format!("{APPLICATIONS}/last");
    assert!(collector.spans().iter().any(|span| span.attributes.get("url.path") == Some(&last)));
}

/// A process that ends with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the environment says, and what a process then says about it.
#[tokio::test]
async fn nothing_is_exported_unless_the_environment_says_so() {
    const ON: &str = "traces are exported";
    const OFF: &str = "";
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[], OFF),
        (&[("OTEL_SERVICE_NAME", "x"), ("OTEL_TRACES_SAMPLER", "always_on")], OFF),
        (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], OFF),
        (&[endpoint, ("OTEL_SDK_DISABLED", "true")], OFF),
        (&[endpoint, ("OTEL_TRACES_EXPORTER", "none")], OFF),
        (&[endpoint], ON),
        (&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], ON),
        (&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces")], ON),
        (&[("OTEL_TRACES_EXPORTER", "otlp")], ON),
        (&[endpoint, ("OTEL_TRACES_EXPORTER", "zipkin")], "OTEL_TRACES_EXPORTER=zipkin is not supported"),
        (
            &[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")],
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/json is not supported",
        ),
        (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:9")], "over https only grpc is supported"),
        (
            &[
                ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:9"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/does/not/exist"),
            ],
            "names the file /does/not/exist",
        ),
    ];
    let folder = TempDir::new().unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_horchestra-local")).with_file_name("horchestra-workers");
    for (number, (environment, says)) in cases.iter().enumerate() {
        let log = folder.path().join(number.to_string());
        let output = fs::File::create(&log).unwrap();
        let process = Command::new(&program)
            .args(["--metrics-addr", "127.0.0.1:0"])
            // There is no database, which it says after everything about traces.
            .env("DATABASE_URL", "postgres://nobody@127.0.0.1:9/nothing")
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let process = Running(process);
        let text = eventually(PATIENCE, async || {
            let text = fs::read_to_string(&log).unwrap();
            if text.contains("waiting for the cluster's settings") { Ok(text) } else { Err(text) }
        })
        .await;
        drop(process);
        let about: Vec<&str> = text.lines().filter(|line| line.contains("traces are")).collect();
        match *says {
            OFF => assert!(about.is_empty(), "{environment:?}: {about:?}"),
            says => assert!(about.len() == 1 && about[0].contains(says), "{environment:?}: {text}"),
        }
    }
}

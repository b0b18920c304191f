//! What people see of running workloads: `kubectl top`, and logs that never end as if they were whole.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use horchestra_testkit::eventually_blocking;

use crate::stack::{RECOVERY, Stack, signal};
use crate::tour::{Kubectl, kubectls};

/// A follower whose output goes to files.
struct Follower {
    name: String,
    child: Child,
    output: PathBuf,
    errors: PathBuf,
}

impl Follower {
    fn start(kubectl: &Kubectl<'_>, stack: &Stack) -> Follower {
        let name = kubectl.program.file_name().unwrap().to_string_lossy().into_owned();
        let file = |ending: &str| stack.home().join(format!("{name}.{ending}"));
        let (output, errors) = (file("out"), file("err"));
        let child = kubectl
            .command("logs -f web")
            .stdout(fs::File::create(&output).unwrap())
            .stderr(fs::File::create(&errors).unwrap())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Follower { name, child, output, errors }
    }

    fn said(&self) -> (String, String) {
        (fs::read_to_string(&self.output).unwrap(), fs::read_to_string(&self.errors).unwrap())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn usage_and_logs_of_a_running_stack() {
    let programs = kubectls();
    if programs.is_empty() {
        return;
    }
    let stack = Stack::up(&[
        "--nodes",
        "2",
        "--api-replicas",
        "2",
        "--heartbeat",
        "1",
        "--feature-gates",
        "NodeLogs=true",
    ]);
    let every: Vec<Kubectl<'_>> = programs
        .iter()
        .map(|program| Kubectl {
            program,
            kubeconfig: stack.kubeconfig(),
            cache: stack.home().join(format!("cache-{}", program.file_name().unwrap().to_string_lossy())),
            editor: PathBuf::from("false"),
        })
        .collect();
    let kubectl = every.last().unwrap();
    kubectl.ok(&format!("apply -f {}/examples/web.yaml", env!("CARGO_MANIFEST_DIR")));
    kubectl.ok("wait --for=jsonpath={.status.phase}=Running app/web --timeout=60s");
    top_answers_through_every_replica(&stack, &every);
    agents_show_their_own_logs(kubectl);
    a_followed_log_ends_with_an_error(&stack, &every);
}

fn top_answers_through_every_replica(stack: &Stack, every: &[Kubectl<'_>]) {
    for kubectl in every {
        for replica in ["api-0", "api-1"] {
            let server = format!("--server=https://127.0.0.1:{}", stack.port(replica));
            let rows = |what: &str| {
                let shown = kubectl.run(&format!("top {what} --no-headers {server}"));
                String::from_utf8_lossy(&shown.stdout).lines().map(str::to_owned).collect::<Vec<_>>()
            };
            // CPU takes two measurements.
            let measured =
                |rows: &Vec<String>| rows.len() == 2 && !rows.iter().any(|row| row.contains("<unknown>"));
            let nodes = eventually_blocking(RECOVERY, || Some(rows("node")).filter(measured));
            for (row, name) in nodes.iter().zip(["node-1", "node-2"]) {
                let words: Vec<&str> = row.split_ascii_whitespace().collect();
                let [node, cpu, share, memory, part] = words.as_slice() else { panic!("{row}") };
                assert_eq!(*node, name);
                assert!(cpu.ends_with('m') && share.ends_with('%'), "{row}");
                assert!(memory.ends_with("Mi") && *memory != "0Mi" && part.ends_with('%'), "{row}");
            }
            let pods = eventually_blocking(RECOVERY, || Some(rows("pod -A")).filter(|rows| rows.len() == 1));
            let words: Vec<&str> = pods[0].split_ascii_whitespace().collect();
            assert_eq!(words[..2], ["default", "web"], "{pods:?}");
            let megabytes: u64 = words[3].trim_end_matches("Mi").parse().unwrap();
            assert!((1..64).contains(&megabytes), "a shell that sleeps: {pods:?}");
        }
    }
    let shown = every[0].ok("get --raw /apis/horchestra.io/v1/namespaces/default/applications/web/metrics");
    assert!(
        shown.contains(r#""kind":"ApplicationMetrics""#) && shown.contains(r#""node":"node-"#),
        "{shown}"
    );
}

fn agents_show_their_own_logs(kubectl: &Kubectl<'_>) {
    let path = |node: &str| format!("get --raw /apis/horchestra.io/v1/nodes/{node}/log?tailLines=3");
    let log = kubectl.ok(&path("node-1"));
    assert!(!log.is_empty() && log.lines().count() <= 3 && !log.contains("request "), "{log}");
    assert!(!kubectl.run(&path("node-9")).status.success());
}

fn a_followed_log_ends_with_an_error(stack: &Stack, every: &[Kubectl<'_>]) {
    let mut followers: Vec<Follower> = every.iter().map(|kubectl| Follower::start(kubectl, stack)).collect();
    for follower in &followers {
        eventually_blocking(RECOVERY, || follower.said().0.contains("request"));
    }
    signal(stack.pid("nodegate-0"), "KILL");
    for follower in &mut followers {
        let status = eventually_blocking(RECOVERY, || follower.child.try_wait().unwrap());
        let (output, errors) = follower.said();
        assert!(!status.success(), "{}: a torn log was taken for a whole one: {output}", follower.name);
        assert!(output.contains("error: the log was cut: "), "{}: {output}", follower.name);
        assert!(errors.to_lowercase().contains("err"), "{}: {errors}", follower.name);
    }
    // Another gateway takes its place, and what was written meanwhile is there.
    let again = || every[0].run("logs web --tail=1").status.success();
    eventually_blocking(RECOVERY + Duration::from_secs(30), again);
    eventually_blocking(RECOVERY, || every[0].run("top pod web").status.success());
}

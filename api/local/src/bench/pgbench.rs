//! The comparison for writes: pgbench, one prepared statement per transaction that writes the same rows as a
//! commit does (head, log, history), durable, numbered by a sequence, in no order.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::Command;

use super::object;
use super::server::pgbench;
use super::writes::{Load, OBJECTS};

/// Transactions per second, and their mean latency in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Throughput {
    pub per_second: f64,
    pub latency: f64,
}

pub fn script(load: Load) -> String {
    let body = String::from_utf8_lossy(&object::body()).replace('\'', "''");
    let index = r#"{"labels":{"app":"web","team":"shop","tier":"front","track":"stable","zone":"a"},"fields":{"status.phase":"Pending"}}"#;
    let index = format!("convert_to('{index}', 'UTF8')");
    let body = format!("convert_to('{body}', 'UTF8')");
    let history = "insert into horchestra.history (uid, rv, generation, audit, trace, at, kind, ns, name, who, \
         verb, body) select uid, rv, 1, audit, null, now(), 3, 'default', name, 'bench', 'create', body from r";
    match load {
        Load::Create => format!(
            "with r as materialized (select nextval('public.bench_rv') as rv, gen_random_uuid() as uid, \
             gen_random_uuid() as audit, 'app-' || :client_id || '-' || nextval('public.bench_rv') as name, \
             {body} as body, {index} as index), \
             o as (insert into horchestra.objects (uid, rv, core_rv, generation, cpu, memory, edge_hash, kind, \
             deleting, ns, name, node, phase, index, managed, body) select uid, rv, rv, 1, 100000000, 67108864, 0, \
             3, false, 'default', name, null, 'Pending', index, null, body from r), \
             e as (insert into horchestra.events (rv, uid, audit, trace, at, core_rv, generation, cpu, memory, \
             prev_rv, op, kind, deleting, ns, name, who, verb, node, phase, index, managed, body) \
             select rv, uid, audit, null, now(), rv, 1, 100000000, 67108864, 0, 1, 3, false, 'default', name, \
             'bench', 'create', null, 'Pending', index, null, body from r) {history};\n"
        ),
        Load::Update => format!(
            "\\set n random(0, {last})\n\
             with r as materialized (select nextval('public.bench_rv') as rv, o.uid, gen_random_uuid() as audit, \
             o.name, {body} as body, {index} as index, o.rv as prev_rv, o.core_rv as prev_core_rv, \
             o.generation as prev_generation, o.cpu as prev_cpu, o.memory as prev_memory, \
             o.deleting as prev_deleting, o.phase as prev_phase, o.index as prev_index \
             from horchestra.objects o where o.kind = 3 and o.ns = 'default' and o.name = 'app-' || :n order by o.rv desc limit 1), \
             u as (update horchestra.objects o set rv = r.rv, core_rv = r.rv, generation = 1, cpu = 100000000, \
             memory = 67108864, phase = 'Pending', index = r.index, body = r.body from r \
             where o.kind = 3 and o.ns = 'default' and o.name = r.name and o.rv = r.prev_rv), \
             e as (insert into horchestra.events (rv, uid, audit, trace, at, core_rv, generation, cpu, memory, \
             prev_rv, prev_core_rv, prev_generation, prev_cpu, prev_memory, op, kind, deleting, prev_deleting, ns, \
             name, who, verb, node, phase, prev_phase, index, prev_index, managed, body) \
             select rv, uid, audit, null, now(), rv, 1, 100000000, 67108864, prev_rv, prev_core_rv, \
             prev_generation, prev_cpu, prev_memory, 2, 3, false, prev_deleting, 'default', name, 'bench', \
             'update', null, 'Pending', prev_phase, index, prev_index, null, body from r) {history};\n",
            last = OBJECTS - 1
        ),
    }
}

/// Reads one of [`OBJECTS`] by its key.
pub fn read_script() -> String {
    format!(
        "\\set n random(0, {last})\n\
         select body from horchestra.objects where kind = 3 and ns = 'default' and name = 'app-' || :n \
         order by rv desc limit 1;\n",
        last = OBJECTS - 1
    )
}

/// Runs the script for the time, with one connection per client.
pub async fn run(
    folder: &Path,
    url: &str,
    script: &str,
    clients: usize,
    time: Duration,
) -> Result<Throughput> {
    let file = folder.join("comparison.sql");
    std::fs::write(&file, script).context("cannot write the script")?;
    let output = Command::new(pgbench()?)
        .args(["--no-vacuum", "--protocol=prepared"])
        .arg(format!("--client={}", clients.max(1)))
        .arg(format!("--jobs={}", clients.min(2)))
        .arg(format!("--time={}", time.as_secs()))
        .arg("--file")
        .arg(&file)
        .arg(url)
        .stdin(Stdio::null())
        .output()
        .await
        .context("cannot run pgbench")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("pgbench failed: {}", complaint.lines().take(5).collect::<Vec<_>>().join("; "));
    }
    let number = |label: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(label))
            .and_then(|rest| {
                rest.trim_start_matches([' ', '=']).split_whitespace().next()?.parse::<f64>().ok()
            })
            .with_context(|| format!("pgbench said no {label}"))
    };
    Ok(Throughput { per_second: number("tps")?, latency: number("latency average")? })
}

//! The answer for people.

use std::fmt::Write as _;

use super::database::{Database, Overview};
use super::{Process, Stack, Status};

/// Names that a line of held or silent nodes shows.
const NAMED: usize = 10;

pub(super) fn text(status: &Status) -> String {
    let mut out = String::new();
    if let Some(stack) = &status.stack {
        stack_of(&mut out, stack);
    }
    if let Some(database) = &status.database {
        database_of(&mut out, database);
    }
    if let Some(problem) = &status.problem {
        let _ = writeln!(out, "\n{problem}");
    }
    if out.is_empty() {
        out.push_str("There is no stack here: `make up` starts one.\n");
    }
    out
}

fn stack_of(out: &mut String, stack: &Stack) {
    let _ = writeln!(out, "stack in {}: {}", stack.folder, stack.state);
    for Process { name, pid, address } in stack.processes.iter().chain(&stack.addresses) {
        let pid = pid.map(|pid| pid.to_string()).unwrap_or_default();
        let line = format!("{name:<14} {pid:>8}  {}", address.as_deref().unwrap_or_default());
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn database_of(out: &mut String, database: &Database) {
    let Overview {
        head,
        revisions_kept,
        database_bytes,
        server_version,
        migration,
        nodes,
        nodes_ready,
        nodes_held,
        sessions,
        applications,
        running,
        pending,
        failed,
        oldest_transaction_seconds,
    } = &database.overview;
    let _ = writeln!(
        out,
        "\ndatabase       PostgreSQL {server_version}, migration {migration}, {}",
        size(*database_bytes)
    );
    let _ = writeln!(out, "log            at revision {head}, {revisions_kept} kept");
    if let Some(seconds) = oldest_transaction_seconds.filter(|seconds| *seconds >= 1.0) {
        let _ = writeln!(out, "               the oldest transaction is open for {}", duration(seconds));
    }
    let _ = writeln!(
        out,
        "nodes          {nodes_ready} of {nodes} ready, {sessions} with a session, {nodes_held} held"
    );
    let _ =
        writeln!(out, "applications   {applications}: {running} running, {pending} pending, {failed} failed");
    let held = database.held_nodes.iter().map(|held| (held.node.as_str(), held.reason.clone()));
    named(out, "held", &held.collect::<Vec<_>>());
    let silent = database.silent_nodes.iter().map(|node| (node.node.as_str(), duration(node.silent_seconds)));
    named(out, "silent", &silent.collect::<Vec<_>>());

    let mut table =
        vec![["PROGRAM", "PLACE", "VERSION", "SEEN", "BEHIND", "LEADS", "NODES"].map(str::to_owned)];
    table.extend(database.processes.iter().map(|process| {
        let behind = match process.behind {
            0 => "0".to_owned(),
            changes => format!("{changes} ({})", duration(process.behind_seconds)),
        };
        let gone = if process.live { "" } else { " (gone?)" };
        [
            process.program.clone(),
            process.place.clone(),
            process.version.clone(),
            format!("{} ago{gone}", duration(process.seen_seconds)),
            behind,
            if process.leads.is_empty() { "-".to_owned() } else { process.leads.join(",") },
            process.nodes.to_string(),
        ]
    }));
    out.push('\n');
    if database.processes.is_empty() {
        out.push_str("no process of this version runs on this database\n");
    } else {
        columns(out, &table);
    }
    let leaderless: Vec<&str> =
        database.leases.iter().filter(|lease| !lease.live).map(|lease| lease.name.as_str()).collect();
    if !leaderless.is_empty() {
        let _ = writeln!(out, "\nnobody leads: {}", leaderless.join(", "));
    }
    // Leads and sessions of what says nothing of itself: of another version, say.
    let silent_leads = database.leases.iter().filter(|lease| lease.live && lease.holder_place.is_none());
    let silent_leads: Vec<&str> = silent_leads.map(|lease| lease.name.as_str()).collect();
    if !silent_leads.is_empty() {
        let _ =
            writeln!(out, "\nled by a process that does not announce itself: {}", silent_leads.join(", "));
    }
    for gateway in database.gateways.iter().filter(|gateway| !gateway.live && gateway.nodes > 0) {
        let name = gateway.name.as_deref().unwrap_or(&gateway.internal_address);
        let _ = writeln!(out, "\ngateway {name} is gone and {} nodes wait to be taken over", gateway.nodes);
    }
}

fn named(out: &mut String, what: &str, nodes: &[(&str, String)]) {
    if nodes.is_empty() {
        return;
    }
    let mut text: Vec<String> =
        nodes.iter().take(NAMED).map(|(node, why)| format!("{node} ({why})")).collect();
    if nodes.len() > NAMED {
        text.push(format!("and {} more", nodes.len() - NAMED));
    }
    let _ = writeln!(out, "{what:<14} {}", text.join(", "));
}

/// Cells of a column under each other, two blanks between columns.
fn columns<const N: usize>(out: &mut String, table: &[[String; N]]) {
    let width = |at: usize| table.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    for row in table {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let _ = write!(line, "{cell:<width$}  ", width = width(at));
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// In the largest unit of which there is a whole one.
fn duration(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "times of years fit")]
    let seconds = seconds.max(0.0) as i64;
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

fn size(bytes: i64) -> String {
    match bytes >> 20 {
        0 => format!("{} kB", bytes >> 10),
        megabytes @ 1..=10_239 => format!("{megabytes} MB"),
        megabytes => format!("{} GB", megabytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::super::database;
    use super::*;

    #[test]
    fn times_and_sizes_are_short() {
        for (seconds, text) in
            [(-1.0, "0 s"), (59.9, "59 s"), (125.0, "2 min"), (7300.0, "2 h"), (1e6, "11 d")]
        {
            assert_eq!(duration(seconds), text);
        }
        for (bytes, text) in [(2048, "2 kB"), (5 << 20, "5 MB"), (20 << 30, "20 GB")] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn what_needs_somebody_is_said_in_words() {
        let lease = |name: &str, place: Option<&str>, live| database::Lease {
            name: name.into(),
            holder_place: place.map(str::to_owned),
            epoch: 1,
            live,
        };
        let database = Database {
            overview: Overview { nodes: 3, nodes_ready: 1, ..Overview::default() },
            processes: vec![database::Process {
                program: "horchestra-api".into(),
                place: "h/1".into(),
                version: "0.1.0".into(),
                live: false,
                started_at: String::new(),
                seen_seconds: 90.0,
                behind: 7,
                behind_seconds: 3.0,
                leads: vec!["a".into(), "b".into()],
                nodes: 0,
            }],
            leases: vec![
                lease("old", None, false),
                lease("foreign", None, true),
                lease("own", Some("h/1"), true),
            ],
            gateways: vec![database::Gateway {
                name: Some("g".into()),
                internal_address: String::new(),
                live: false,
                nodes: 2,
            }],
            held_nodes: (0..12)
                .map(|n| database::Held {
                    node: format!("n{n}"),
                    reason: "Lost".into(),
                    message: String::new(),
                })
                .collect(),
            silent_nodes: vec![database::Silent { node: "n0".into(), silent_seconds: 180.0 }],
        };
        let text = text(&Status { stack: None, database: Some(database), problem: None });
        for expected in [
            "nodes          1 of 3 ready",
            "held           n0 (Lost), n1 (Lost)",
            "and 2 more",
            "silent         n0 (3 min)",
            "horchestra-api  h/1    0.1.0    90 s ago (gone?)  7 (3 s)  a,b    0",
            "nobody leads: old",
            "does not announce itself: foreign",
            "gateway g is gone and 2 nodes wait",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }
}

//! What runs on the nodes in the end, by what is there and not by what anybody says: what the nodes that are played have
//! written down, the records of agents, and the processes of this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use horchestra_core::kind::Kind;
use horchestra_core::kinds::application::Application;
use horchestra_store::Entry;
use uuid::Uuid;

use crate::journal::{Event, Line};

/// By node.
pub type Runs = BTreeMap<String, BTreeSet<Uuid>>;

/// What nodes that are played run, as they have written down.
pub fn played(journal: &[Line]) -> Runs {
    let mut runs = Runs::new();
    for line in journal {
        let of_node = runs.entry(line.node.clone()).or_default();
        match &line.event {
            Event::Reported { uid, phase, .. } if phase == "Running" => {
                of_node.insert(*uid);
            }
            Event::Reported { uid, .. } | Event::Stopped { uid, .. } => {
                of_node.remove(uid);
            }
            Event::Beat | Event::Received { .. } | Event::VolumeGone { .. } => {}
        }
    }
    runs
}

/// What an agent keeps, by its state on disk.
pub fn kept(state: &Path) -> Result<BTreeSet<Uuid>> {
    let mut kept = BTreeSet::new();
    for folder in ["units", "simulated"] {
        for entry in fs::read_dir(state.join(folder))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            kept.extend(name.trim_end_matches(".json").parse::<Uuid>());
        }
    }
    Ok(kept)
}

/// Applications of which there are processes on this machine, of whatever stack.
pub fn processes() -> Result<BTreeSet<Uuid>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        for variable in environment.split(|byte| *byte == 0) {
            if let Some(uid) = variable.strip_prefix(b"HORCHESTRA_UNIT=") {
                found.extend(String::from_utf8_lossy(uid).parse::<Uuid>());
            }
        }
    }
    Ok(found)
}

/// What should run and does not, and what runs and should not. `known` are all Applications that there ever were.
pub fn compare(
    stored: &[Arc<Entry>],
    runs: &Runs,
    processes: &BTreeSet<Uuid>,
    known: &BTreeSet<Uuid>,
) -> Vec<String> {
    let mut violations = Vec::new();
    let mut wanted: BTreeMap<Uuid, String> = BTreeMap::new();
    let mut with_process: BTreeSet<Uuid> = BTreeSet::new();
    for entry in stored.iter().filter(|entry| entry.key.kind == Kind::Application) {
        let Ok(app) = entry.typed::<Application>() else { continue };
        let node = app.node_name();
        // Jobs that are over leave nothing, or a record for a while.
        if node.is_empty() || app.is_job() {
            continue;
        }
        wanted.insert(entry.uid, node.to_owned());
        if !runs.get(node).is_some_and(|runs| runs.contains(&entry.uid)) {
            violations.push(format!("{} does not run on {node}", entry.key));
        }
        if !app.spec.command.is_empty() {
            with_process.insert(entry.uid);
            if !processes.contains(&entry.uid) {
                violations.push(format!("{} has no process on {node}", entry.key));
            }
        }
    }
    let jobs: BTreeSet<Uuid> = stored
        .iter()
        .filter(|entry| entry.typed::<Application>().is_ok_and(|app| app.is_job()))
        .map(|entry| entry.uid)
        .collect();
    for (node, runs) in runs {
        for uid in runs.iter().filter(|uid| wanted.get(uid) != Some(node) && !jobs.contains(uid)) {
            violations.push(format!("{uid} runs on {node}, and should not"));
        }
    }
    for uid in processes.intersection(known).filter(|uid| !with_process.contains(uid)) {
        violations.push(format!("{uid} has a process, and should not"));
    }
    violations
}

#[cfg(test)]
mod tests {
    use horchestra_core::kind::Key;
    use horchestra_core::object::{self, Object};
    use horchestra_store::{Columns, Draft, Index};
    use serde_json::{Value, json};

    use super::*;
    use crate::journal::Stopped;

    fn uid(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn stored(number: u128, mut spec: Value, node: &str) -> Arc<Entry> {
        let name = format!("app-{number}");
        spec["image"] = json!("x");
        spec["placement"] = json!({"nodeName": node});
        let object = json!({
            "metadata": {"name": name, "namespace": "default", "uid": uid(number).to_string(), "generation": 1},
            "spec": spec,
        });
        let object = Object::from_value(object).unwrap();
        let draft = Draft {
            key: Key::namespaced(Kind::Application, "default", name),
            uid: uid(number),
            generation: 1,
            deleting: false,
            body: object::encode(Kind::Application, &object),
            managed: None,
            index: Index::default(),
            columns: Columns::default(),
            edges: Vec::new(),
        };
        Arc::new(Entry::new(draft, 1, 1))
    }

    fn line(node: &str, event: Event) -> Line {
        Line { at: 1, node: node.to_owned(), event }
    }

    fn reported(node: &str, number: u128, phase: &str) -> Line {
        let (uid, phase, address) = (uid(number), phase.to_owned(), String::new());
        line(node, Event::Reported { uid, phase, generation: 1, address })
    }

    #[test]
    fn what_a_played_node_runs_is_what_it_said_last() {
        let journal = [
            reported("n1", 1, "Running"),
            reported("n1", 2, "Running"),
            reported("n2", 1, "Pending"),
            reported("n1", 2, "Succeeded"),
            reported("n2", 3, "Running"),
            line("n2", Event::Stopped { uid: uid(3), why: Stopped::Deleting }),
        ];
        let expected =
            Runs::from([("n1".to_owned(), BTreeSet::from([uid(1)])), ("n2".to_owned(), BTreeSet::new())]);
        assert_eq!(played(&journal), expected);
    }

    #[test]
    fn what_should_run_runs_where_it_should_and_nothing_else_does() {
        let job = json!({"lifecycle": {"restartPolicy": "Never"}});
        let all = [
            stored(1, json!({}), "n1"),
            stored(2, json!({"command": ["sleep", "9"]}), "n2"),
            stored(3, job, "n1"),
        ];
        let known: BTreeSet<Uuid> = (1..=9).map(uid).collect();
        let runs = |n1: &[u128], n2: &[u128]| {
            let of = |numbers: &[u128]| numbers.iter().copied().map(uid).collect::<BTreeSet<Uuid>>();
            Runs::from([("n1".to_owned(), of(n1)), ("n2".to_owned(), of(n2))])
        };
        let alive = |numbers: &[u128]| numbers.iter().copied().map(uid).collect::<BTreeSet<Uuid>>();
        let tales: [(&str, Runs, &[u128], &[&str]); 7] = [
            ("all is well", runs(&[1], &[2]), &[2], &[]),
            ("a job is on record, and a process of another stack", runs(&[1, 3], &[2]), &[2, 77], &[]),
            ("one does not run", runs(&[], &[2]), &[2], &["app-1 does not run on n1"]),
            (
                "one runs elsewhere",
                runs(&[], &[1, 2]),
                &[2],
                &["app-1 does not run on n1", "runs on n2, and should not"],
            ),
            ("one runs twice", runs(&[1], &[1, 2]), &[2], &["runs on n2, and should not"]),
            ("one is only on record", runs(&[1], &[2]), &[], &["app-2 has no process"]),
            ("a process was left", runs(&[1], &[2]), &[2, 8], &["has a process, and should not"]),
        ];
        for (what, runs, processes, expected) in tales {
            let found = compare(&all, &runs, &alive(processes), &known);
            assert_eq!(found.len(), expected.len(), "{what}: {found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.contains(expected), "{what}: {found:?}");
            }
        }
    }
}

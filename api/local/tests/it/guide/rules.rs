//! No command of the guide is left untried: every block of commands has a name, and a test that runs it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::blocks;

/// Languages whose blocks people type.
const COMMANDS: [&str; 5] = ["sh", "bash", "console", "shell", "zsh"];

/// The file below this folder whose tests run each block.
const RUN_BY: &[(&str, &[&str])] = &[
    (
        "guide/tour.rs",
        &[
            "up",
            "five-minutes",
            "change",
            "job",
            "kill",
            "sets",
            "usage",
            "node-log",
            "finalize",
            "forget",
            "look-inside",
            "new-keys",
            "held",
            "admit-held",
            "token-form",
            "approve",
            "deny",
            "catalog",
            "logins",
        ],
    ),
    (
        "guide/processes.rs",
        &[
            "api",
            "workers",
            "gateway",
            "agent",
            "stop-units",
            "fleet",
            "let-in",
            "one-address",
            "traced",
            "certificates",
            "roles",
            "database",
        ],
    ),
    ("moving/mod.rs", &["export", "lay-out", "import", "compare", "admit", "admit-all"]),
    ("plane.rs", &["start-api", "start-workers", "start-gateway"]),
    ("restore/dump.rs", &["dump", "new-server", "read-dump"]),
    ("restore/base.rs", &["archive", "base-backup", "restore-base", "restored"]),
    ("restore/standby.rs", &["standby", "promote"]),
    ("restore/fleet.rs", &["release"]),
    ("guide/inline.rs", &["containers", "units", "work"]),
];

/// Blocks that are not run, and why. Of these it is tried that everything they name is there.
pub const LOOKED_AT: [(&str, &str); 3] = [
    (
        "containers",
        "it builds images, which takes an engine and a registry: `make compose-test` does all of it",
    ),
    ("units", "it takes a service manager, and root"),
    ("work", "each of these takes minutes to hours, and one is the run that this test is a part of"),
];

#[test]
fn every_block_of_commands_has_a_name_and_a_test_that_runs_it() {
    let mut wrong = Vec::new();
    let mut named = BTreeSet::new();
    for block in blocks() {
        let (language, name) = block.words();
        if !COMMANDS.contains(&language) {
            continue;
        }
        let first = block.text.lines().next().unwrap_or_default();
        if language != "sh" || name.is_empty() || name.contains(' ') {
            wrong.push(format!("{}: mark `{first} …` with ```sh and a name", block.document));
        } else if !named.insert(name) {
            wrong.push(format!("{}: there are two blocks {name}", block.document));
        }
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let mut run = BTreeSet::new();
    for (file, names) in RUN_BY {
        let source = fs::read_to_string(tests.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        for name in *names {
            if !run.insert(*name) {
                wrong.push(format!("{name} is listed twice"));
            }
            if !source.contains(&format!("\"{name}\"")) {
                wrong.push(format!("{file} does not run {name}"));
            }
        }
    }
    wrong.extend(named.difference(&run).map(|name| format!("no test is listed that runs the block {name}")));
    wrong.extend(run.difference(&named).map(|name| format!("no document has the block {name}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_command_hides_in_a_block_of_another_language() {
    let programs =
        ["horchestra-", "kubectl ", "make ", "psql ", "docker ", "systemctl ", "apt-get ", "cargo "];
    for block in blocks().iter().filter(|block| !COMMANDS.contains(&block.words().0)) {
        let command =
            block.text.lines().find(|line| programs.iter().any(|it| line.trim_start().starts_with(it)));
        assert!(command.is_none(), "{}: {command:?} stands in a block of {:?}", block.document, block.mark);
    }
}

/// How a heading is called in links, as the places that render these texts do it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[test]
fn links_lead_somewhere() {
    let repository = super::repository();
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (document, text) in super::DOCUMENTS {
        let folder = repository.join(document);
        let folder = folder.parent().unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("http") {
                continue;
            }
            seen += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let place = if path.is_empty() { repository.join(document) } else { folder.join(path) };
            let there = place.exists();
            let read = || fs::read_to_string(&place).unwrap_or_default();
            let found = heading.is_empty()
                || read()
                    .lines()
                    .filter(|line| line.starts_with('#'))
                    .any(|line| anchor(line.trim_start_matches('#')) == heading);
            if !(there && found) {
                wrong.push(format!("{document}: {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "these lead nowhere:\n{}", wrong.join("\n"));
    assert!(seen > 50, "{seen} links were found");
}

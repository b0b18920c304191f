//! Commands in running text and in tables, and blocks that are not run: everything that they name is there. A command
//! of ours is parsed by its own program, with every option that it is shown with; a target of `make` is one, and so on.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

use horchestra_testkit::TempDir;

use super::rules::LOOKED_AT;
use super::{DOCUMENTS, Reader, commands, programs, repository};
use crate::restore::fleet::server;
use crate::stack::said;
use crate::tour::kubectls;

const OURS: [&str; 5] =
    ["horchestra-api", "horchestra-workers", "horchestra-nodegate", "horchestra-local", "horchestra-agent"];
/// Words that a command of ours is shown without, when the text has just spoken of it.
const SHORTENED: [&str; 4] =
    ["horchestra-api", "horchestra-local", "horchestra-local pki", "horchestra-api certificates"];
/// Options of other programs that the text speaks of.
const OF_OTHERS: [&str; 10] = [
    "--cascade",
    "--type",
    "--sort-by",
    "--containers",
    "--no-privileges",
    // Of the control plane that somebody moves away from.
    "--node-cert-ttl",
    "--strict-node-registration",
    "--catalog-default-namespace",
    "--addr",
    "--volumes",
];

/// Every piece of code in running text, with its document, in order.
fn spans() -> Vec<(&'static str, String)> {
    let mut spans = Vec::new();
    for (document, text) in DOCUMENTS {
        let mut fenced = false;
        let mut paragraph = String::new();
        for line in text.lines().chain([""]) {
            let line = line.trim();
            let fence = line.starts_with("```");
            fenced ^= fence;
            // A row of a table is a paragraph of its own.
            let ends = line.is_empty() || fence || fenced || line.starts_with('|');
            if ends {
                spans.extend(paragraph.split('`').skip(1).step_by(2).map(|span| (document, span.to_owned())));
                assert!(paragraph.matches('`').count().is_multiple_of(2), "{document}: {paragraph}");
                paragraph.clear();
            }
            if !(fence || fenced) {
                paragraph.push_str(&line.replace("\\|", "|"));
                paragraph.push(' ');
            }
        }
    }
    spans
}

/// The words of a shown command, with something in the place of what is left out.
fn words(span: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in span.split_ascii_whitespace() {
        let value_is_missing = words.last().is_some_and(|last| last.starts_with("--") && !last.contains('='));
        match word {
            "…" if value_is_missing => words.push("x".to_owned()),
            "…" => {}
            word => words.push(word.split('|').next().unwrap_or(word).replace('…', "x=true")),
        }
    }
    words
}

fn help(program: &str, words: &[String]) -> Output {
    Command::new(programs().join(program))
        .args(words)
        .arg("--help")
        .env_remove("DATABASE_URL")
        .output()
        .unwrap()
}

/// Whether the program takes these words, as far as it reads them before it is asked for its help.
fn understood(words: &[String]) -> Result<(), String> {
    let output = help(&words[0], &words[1..]);
    if output.status.success() { Ok(()) } else { Err(format!("`{}`: {}", words.join(" "), said(&output))) }
}

/// What is printed for the whole program and for each of its commands.
fn all_help() -> String {
    fn below(program: &str, words: &[String], all: &mut String) {
        let text = String::from_utf8_lossy(&help(program, words).stdout).into_owned();
        let listed = text.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
        let names = listed.lines().take_while(|line| !line.trim().is_empty());
        for name in names.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()) {
            if !name.is_empty() && name != "help" {
                let mut longer = words.to_vec();
                longer.push(name.to_owned());
                below(program, &longer, all);
            }
        }
        all.push_str(&text);
    }
    let mut all = String::new();
    for program in OURS {
        below(program, &[], &mut all);
    }
    all
}

#[test]
fn commands_of_ours_in_the_text_are_understood_by_their_programs() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (document, span) in spans() {
        let words = words(&span);
        let Some(first) = words.first() else { continue };
        if OURS.contains(&first.as_str()) {
            seen += 1;
            wrong.extend(understood(&words).err().map(|why| format!("{document}: {why}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 20, "{seen} commands were found");
}

#[test]
fn shortened_commands_and_options_in_the_text_are_there() {
    let all = all_help();
    let known: BTreeSet<&str> = all
        .split(|other: char| !(other.is_ascii_lowercase() || other.is_ascii_digit() || other == '-'))
        .filter(|word| word.starts_with("--"))
        .collect();
    assert!(known.contains("--secret-keys") && known.contains("--minutes"), "{known:?}");
    let verbs = [
        "certificates",
        "token-keys",
        "secret-keys",
        "hold",
        "pki",
        "init",
        "serving",
        "controller",
        "node",
        "cert",
        "kubeconfig",
        "sign",
    ];
    let mut wrong = Vec::new();
    for (document, span) in spans() {
        let words = words(&span);
        if words.len() > 1 && verbs.contains(&words[0].as_str()) {
            let whole = |before: &str| {
                [before.split(' ').map(str::to_owned).collect::<Vec<_>>(), words.clone()].concat()
            };
            let tried: Vec<_> = SHORTENED.iter().map(|before| understood(&whole(before))).collect();
            if tried.iter().all(Result::is_err) {
                wrong.push(format!("{document}: nothing takes `{span}`"));
            }
        }
        if span.starts_with("--") {
            // `--cluster-ca…` is several.
            let options = span.split([' ', '=']).filter(|word| word.starts_with("--"));
            for option in options {
                let found = match option.strip_suffix('…') {
                    Some(beginning) => known.iter().any(|known| known.starts_with(beginning)),
                    None => known.contains(option) || OF_OTHERS.contains(&option) || option == "--help",
                };
                if !found {
                    wrong.push(format!("{document}: no program has {option} (`{span}`)"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What `make` would do.
fn make(words: &[String]) -> Output {
    let mut command = Command::new("make");
    command.arg("-n").args(words).current_dir(repository()).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    command.output().unwrap()
}

/// Whether the target is there, every variable means something, and our programs take what they would be given.
fn made(words: &[String]) -> Result<(), String> {
    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    for variable in words.iter().filter_map(|word| word.split_once('=')).map(|(name, _)| name) {
        let used = makefile.contains(&format!("$({variable})"))
            || makefile.contains(&format!("$(or $({variable})"))
            || makefile
                .lines()
                .skip_while(|line| !line.starts_with("OPTIONS :="))
                .take(2)
                .any(|line| line.split(' ').any(|word| word.trim() == variable));
        if !used {
            return Err(format!("`make {}`: the Makefile knows no {variable}", words.join(" ")));
        }
    }
    let output = make(words);
    if !output.status.success() {
        return Err(format!("`make {}`: {}", words.join(" "), said(&output)));
    }
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some((_, after)) = line.split_once("/horchestra-local ") else { continue };
        // What is for the shell is not for the program.
        if after.contains(';') {
            continue;
        }
        let given = after.split_ascii_whitespace().map(str::to_owned);
        understood(&["horchestra-local".to_owned()].into_iter().chain(given).collect::<Vec<_>>())?;
    }
    Ok(())
}

#[test]
fn targets_of_make_in_the_text_are_there() {
    let mut wrong = Vec::new();
    for (document, span) in spans() {
        if let Some(rest) = span.strip_prefix("make ") {
            wrong.extend(made(&words(rest)).err().map(|why| format!("{document}: {why}")));
        }
    }
    // Those that take too long to be run.
    for command in commands("work") {
        let command = command.split(" #").next().unwrap();
        let words: Vec<String> = match command.split_once("BENCH=") {
            Some((before, bench)) => {
                let bench = bench.trim().trim_matches('\'');
                words(before).into_iter().chain([format!("BENCH={bench}")]).collect()
            }
            None => words(command),
        };
        assert_eq!(words[0], "make");
        wrong.extend(made(&words[1..]).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_machine_without_rust_is_told_so() {
    let output = Command::new("make")
        .args(["build", "CARGO=no-such-cargo"])
        .current_dir(repository())
        .output()
        .unwrap();
    let said = said(&output);
    assert!(!output.status.success() && said.contains("there is no no-such-cargo: install Rust"), "{said}");
}

#[test]
fn commands_of_kubectl_in_the_text_are_there() {
    let Some(kubectl) = kubectls().pop() else { return };
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (document, span) in spans() {
        let Some(rest) = span.strip_prefix("kubectl ") else { continue };
        // These stand there because they are not served.
        if span == "kubectl run" {
            continue;
        }
        seen += 1;
        let (verb, options) = rest.split_once(' ').unwrap_or((rest, ""));
        let asked = |more: &str| {
            let mut command = Command::new(&kubectl);
            command.arg(verb).args(words(options)).args(more.split_ascii_whitespace()).arg("--help");
            command.env("KUBECONFIG", "/dev/null").output().unwrap()
        };
        // The value of the last option is often left out.
        let takes = |output: &Output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success() && text.contains(&format!("kubectl {verb}"))
        };
        let first = asked("");
        if !takes(&first) && !takes(&asked("x")) {
            wrong.push(format!("{document}: `{span}`: {}", said(&first)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen > 10, "{seen} commands were found");
}

#[test]
fn statements_in_the_text_are_taken_by_a_server() {
    let server = server();
    let folder = TempDir::new().unwrap();
    let reader = Reader::new(folder.path()).with("ADMIN_URL", server.url("postgres"));
    let mut seen = 0;
    for (document, span) in spans() {
        let first = span.split(' ').next().unwrap_or_default();
        if !["select", "grant", "alter", "vacuum"].contains(&first) || !span.contains(' ') {
            continue;
        }
        seen += 1;
        let statement = span.replace('…', "current_user");
        let output = reader
            .clone()
            .with("STATEMENT", statement)
            .shell("psql -v ON_ERROR_STOP=1 \"$ADMIN_URL\" -c \"$STATEMENT\"")
            .output()
            .unwrap();
        assert!(output.status.success(), "{document}: `{span}`: {}", said(&output));
    }
    assert!(seen >= 4, "{seen} statements were found");
}

#[test]
fn what_the_blocks_name_that_are_not_run_is_there() {
    let named: Vec<&str> = LOOKED_AT.iter().map(|(name, _)| *name).collect();
    assert_eq!(named, ["containers", "units", "work"], "each has its part here");

    let compose = fs::read_to_string(repository().join("docker-compose.yml")).unwrap();
    let started = commands("containers");
    let (up, copy) = (&started[0], &started[1]);
    assert!(up.starts_with("docker compose up"), "{up}");
    assert!(copy.starts_with("(umask 077;"), "an administrator's key: {copy}");
    assert!(copy.contains(" nodes /keys/operator/admin.conf"), "{copy}");
    for part in ["\n  nodes:", "/keys", "operator"] {
        assert!(compose.contains(part), "{part}");
    }

    let units = repository().join("api/local/systemd");
    let users = fs::read_to_string(units.join("horchestra.sysusers")).unwrap();
    let mut seen = 0;
    for command in commands("units") {
        for unit in command.split(' ').filter(|word| word.starts_with("horchestra-") && !word.contains('$')) {
            assert!(units.join(format!("{unit}.service")).is_file(), "{command}");
            seen += 1;
        }
        for program in
            command.strip_prefix("for program in ").into_iter().flat_map(|rest| rest.split([' ', ';']))
        {
            let known = ["do", ""].contains(&program) || users.contains(&format!("u horchestra-{program} "));
            assert!(known, "{program} of {command}");
        }
    }
    assert_eq!(seen, 4, "each of them is started");
}

#[test]
fn units_start_programs_with_options_that_they_have() {
    let units = repository().join("api/local/systemd");
    let folder = TempDir::new().unwrap();
    let mut copies = Vec::new();
    for entry in fs::read_dir(units).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "service") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap().replace("\\\n", " ");
        let started = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/")).unwrap();
        let words: Vec<String> =
            started.split_ascii_whitespace().filter(|word| *word != "$OPTIONS").map(str::to_owned).collect();
        understood(&words).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        // And as said again in OPTIONS.
        let options = words.iter().filter(|word| word.starts_with("--"));
        let twice: Vec<String> = words.iter().chain(options).cloned().collect();
        understood(&twice).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        let copy = folder.path().join(path.file_name().unwrap());
        fs::write(&copy, text.replace("/usr/local/bin/", &format!("{}/", programs().display()))).unwrap();
        copies.push(copy);
    }
    assert_eq!(copies.len(), 4, "{copies:?}");
    if let Ok(judged) = Command::new("systemd-analyze").arg("verify").args(&copies).output() {
        let said = said(&judged);
        // What it says of other units of the machine is not about these.
        assert!(!said.contains("horchestra"), "{said}");
    }
}

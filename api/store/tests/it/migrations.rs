//! The rules of `migrations/README.md`, as far as a machine can see to them: files are numbered without holes and run
//! in that order, released ones never change, and an expanding one takes nothing away.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use horchestra_store::postgres::MIGRATIONS;

use crate::postgres::released::{Release, landed};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations");

#[test]
fn files_are_numbered_without_holes_and_embedded_in_their_order() {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(FOLDER).expect("the folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if Path::new(&name).extension().is_some_and(|extension| extension == "sql") {
            files.insert(name, fs::read_to_string(entry.path()).expect("a text"));
        }
    }
    let embedded: BTreeMap<String, String> = MIGRATIONS
        .iter()
        .map(|(number, name, sql)| (format!("{number:04}_{name}.sql"), (*sql).to_owned()))
        .collect();
    assert_eq!(files, embedded, "add new files to MIGRATIONS, and have it built again");
    let numbers: Vec<i64> = MIGRATIONS.iter().map(|(number, ..)| *number).collect();
    assert_eq!(numbers, Vec::from_iter(1..=numbers.len() as i64));
}

#[test]
fn a_released_file_never_changes() {
    let (released, now) = (Release::last().migrations, landed());
    for file in &released {
        let number = usize::try_from(file.number).expect("a number");
        assert_eq!(
            now.get(number - 1),
            Some(file),
            "{:04}_{} has run in databases: put it back as it was, and do what is to be done in a new file",
            file.number,
            file.name
        );
    }
}

#[test]
fn what_came_since_the_last_release_keeps_the_rules() {
    let released = Release::last().migrations;
    let newest = released.iter().map(|file| file.number).max().unwrap_or_default();
    for (number, name, sql) in MIGRATIONS.iter().filter(|(number, ..)| *number > newest) {
        assert_eq!(faults(name, sql, newest), Vec::<String>::new(), "{number:04}_{name}");
    }
}

/// Tables that are too large to be rewritten, scanned or indexed while everybody waits.
const LARGE: [&str; 4] =
    ["horchestra.objects", "horchestra.events", "horchestra.history", "horchestra.tombstones"];

/// What is wrong with a migration that comes after the release whose newest one is `released`.
fn faults(name: &str, sql: &str, released: i64) -> Vec<String> {
    let mut faults = Vec::new();
    let contracts =
        name.strip_prefix("contract_").map(|rest| rest.split('_').next().unwrap_or_default().parse());
    match contracts {
        Some(Ok(needed)) if (1..=released).contains(&needed) => {}
        Some(Ok(needed @ 1..)) => faults.push(format!(
            "programs of the last release know migration {released} and not {needed}: take away later"
        )),
        Some(_) => faults
            .push("a contracting migration is named contract_<number that programs know>_<what>".to_owned()),
        None => {}
    }
    for statement in bare(sql).split(';') {
        let words: Vec<&str> = statement.split_whitespace().collect();
        let line = words.join(" ");
        let has = |what: &str| format!(" {line} ").contains(&format!(" {what} "));
        let large = LARGE.iter().any(|table| has(table));
        let takes_away = (has("drop") && !has("drop default"))
            || ["rename", "truncate", "set not null", "set schema"].iter().any(|what| has(what))
            || (has("alter column") && has("type"));
        if takes_away && contracts.is_none() {
            faults.push(format!("takes something away in a migration that expands: {line}"));
        }
        if has("add column") && has("not null") && !has("default") {
            faults.push(format!("older programs insert without this column, so it needs a default: {line}"));
        }
        if large && (has("index") || line.starts_with("update") || line.starts_with("delete")) {
            faults.push(format!("keeps everybody from a large table for too long: {line}"));
        }
        if ["begin", "commit", "rollback", "vacuum"].iter().any(|what| words.first() == Some(what)) {
            faults.push(format!("is run in a transaction of its own: {line}"));
        }
    }
    faults
}

/// What is executed of a file, in lower case: without comments, texts and bodies of functions, with blocks.
fn bare(sql: &str) -> String {
    let (mut out, mut rest) = (String::new(), sql);
    while let Some(next) = rest.chars().next() {
        let until = |text: &str, end: &str| text.find(end).map_or(text.len(), |at| at + end.len());
        if rest.starts_with("--") {
            rest = &rest[until(rest, "\n")..];
            out.push('\n');
        } else if next == '\'' {
            rest = &rest[1 + until(&rest[1..], "'")..];
            out.push_str("text");
        } else if let Some(tag) = dollar(rest) {
            let body = &rest[tag.len()..];
            let end = until(body, tag);
            if out.trim_end().ends_with("do") {
                out.push(' ');
                out.push_str(&bare(body[..end].trim_end_matches(tag)));
            }
            rest = &body[end..];
        } else {
            out.extend(next.to_lowercase());
            rest = &rest[next.len_utf8()..];
        }
    }
    out
}

/// The mark that opens a text in dollars.
fn dollar(text: &str) -> Option<&str> {
    let end = text.strip_prefix('$')?.find('$')?;
    let tag = &text[..end + 2];
    tag[1..=end].chars().all(|c| c.is_ascii_alphabetic() || c == '_').then_some(tag)
}

#[test]
fn a_migration_that_breaks_a_rule_is_found() {
    for (name, sql, wrong) in [
        ("samples", "create table horchestra.x (a int not null); -- drop table y", 0),
        (
            "samples",
            "create function f() returns void language sql as $$ drop table x $$; alter table a add column b int",
            0,
        ),
        ("samples", "comment on table x is 'drop; rename'; alter table x alter column a drop default", 0),
        ("samples", "alter table horchestra.x add column b int not null default 0", 0),
        ("samples", "create index on horchestra.x (a)", 0),
        ("samples", "alter table horchestra.x drop column a", 1),
        ("samples", "do $make$ begin alter table horchestra.x drop column a; end $make$", 1),
        ("samples", "DROP FUNCTION horchestra.f()", 1),
        ("samples", "alter table horchestra.x rename to y", 1),
        ("samples", "alter table horchestra.x alter column a type bigint", 1),
        ("samples", "alter table horchestra.x add column b int not null", 1),
        ("samples", "create index on horchestra.objects (phase)", 1),
        ("samples", "update horchestra.events set phase = ''", 1),
        ("samples", "commit; create table horchestra.x ()", 1),
        ("contract_15_samples", "drop table horchestra.x; alter table horchestra.y rename to z", 0),
        ("contract_16_samples", "drop table horchestra.x", 1),
        ("contract_samples", "drop table horchestra.x", 1),
    ] {
        let found = faults(name, sql, 15);
        assert_eq!(found.len(), wrong, "{name}: {sql}: {found:?}");
    }
}

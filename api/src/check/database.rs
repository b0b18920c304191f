//! The database: whether it is there, set up as it has to be, and agrees with itself.

use std::collections::BTreeSet;

use horchestra_auth::KeyRing;
use horchestra_service::sealing::missing_keys;
use horchestra_store::postgres::{Examination, ExamineError, NAMED, examine};

use super::{CheckArgs, Finding, because};
use crate::serve;

/// The oldest server that is tried.
const OLDEST_SERVER: i32 = 140_000;
/// Microseconds that clocks may be apart before it matters to certificates and tokens.
const CLOCKS_APART: u64 = 5_000_000;

pub(super) async fn look(args: &CheckArgs) -> Vec<Finding> {
    let found = match examine(&args.database.database_url).await {
        Ok(found) => found,
        Err(error) => {
            let advice = match &error {
                ExamineError::Url(_) => "write it as postgres://user@host:5432/database",
                ExamineError::Connect(_) | ExamineError::Patience(_) => {
                    "see whether PostgreSQL runs, may be reached from here, and knows the user"
                }
                ExamineError::Read(_) => {
                    "connect as the owner of the schema, or as a user in the role horchestra_runtime"
                }
            };
            return vec![Finding::bad("database", because(&error), advice)];
        }
    };
    let mut findings = judge(&found);
    if found.migration >= Some(found.known_migration) {
        findings.push(keys(args).await);
    }
    findings
}

/// What the examination means.
fn judge(found: &Examination) -> Vec<Finding> {
    let mut findings = Vec::new();
    let version = format!("PostgreSQL {}", found.version);
    findings.push(if found.version_number < OLDEST_SERVER {
        Finding::bad("database", version, "use PostgreSQL 14 or later")
    } else {
        Finding::good("database", version)
    });
    if found.encoding != "UTF8" {
        let advice = "make a database with the encoding UTF8 and move there";
        findings.push(Finding::bad("encoding", &found.encoding, advice));
    }
    findings.extend(found.settings.iter().map(|(name, value)| setting(name, value)));
    findings.push(migrations(found.migration, found.known_migration));
    let seconds = |micros: i64| {
        format!("{}.{:03} s", micros.unsigned_abs() / 1_000_000, micros.unsigned_abs() / 1000 % 1000)
    };
    let apart = found.clock_ahead.unsigned_abs().saturating_sub(found.clock_error.unsigned_abs());
    let direction = if found.clock_ahead >= 0 { "ahead of" } else { "behind" };
    let clock = format!("the database's is {} {direction} this machine's", seconds(found.clock_ahead));
    findings.push(if apart > CLOCKS_APART {
        Finding::bad(
            "clocks",
            clock,
            "let both machines keep time with NTP: certificates and tokens go by it",
        )
    } else {
        Finding::good("clocks", clock)
    });
    if found.migration >= Some(found.known_migration) {
        findings.extend(agreement(found));
        findings.push(versions(found));
    }
    findings
}

fn setting(name: &str, value: &str) -> Finding {
    let (well, advice) = match name {
        "fsync" | "full_page_writes" => (
            value == "on",
            "set it to on: without it a crash of the machine can lose or spoil what was acknowledged",
        ),
        // Processes ask for it themselves where it is off altogether.
        "synchronous_commit" => (true, ""),
        "max_connections" => (
            value.parse::<u32>().is_ok_and(|most| most >= 40),
            "raise it: every process takes up to 13 (--database-connections)",
        ),
        _ => (true, ""),
    };
    let found = format!("{name} = {value}");
    if well { Finding::good("settings", found) } else { Finding::bad("settings", found, advice) }
}

fn migrations(there: Option<i64>, known: i64) -> Finding {
    match there {
        None => Finding::bad(
            "migrations",
            "none has run",
            "run `horchestra-api migrate` as the owner of the database",
        ),
        Some(there) if there < known => Finding::bad(
            "migrations",
            format!("{there} of {known} have run"),
            "run `horchestra-api migrate` as the owner of the database",
        ),
        Some(there) if there > known => Finding::warning(
            "migrations",
            format!("{there} have run, this program knows {known}"),
            "others have a newer version: update this one soon",
        ),
        Some(there) => Finding::good("migrations", format!("all {there} have run")),
    }
}

/// Heads against the log.
fn agreement(found: &Examination) -> Vec<Finding> {
    let what = "objects and log";
    if found.disagreements.is_empty() {
        return vec![Finding::good(what, format!("{} objects are as the log says", found.compared))];
    }
    let advice = "somebody wrote to these tables by hand, or a disk lies: hold the nodes (`horchestra-api hold engage`), \
        and put back a backup or write these objects anew";
    let mut findings: Vec<Finding> =
        found.disagreements.iter().map(|what_is_wrong| Finding::bad(what, what_is_wrong, advice)).collect();
    if found.disagreements.len() >= NAMED {
        findings.push(Finding::bad(what, "and perhaps more", advice));
    }
    findings
}

fn versions(found: &Examination) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    let others: BTreeSet<&str> = found.processes.iter().map(|(.., version)| version.as_str()).collect();
    let running = format!("this is {own}; {} processes run", found.processes.len());
    if others.iter().all(|version| *version == own) {
        return Finding::good("versions", running);
    }
    let others: Vec<&str> = others.into_iter().collect();
    let found = format!("{running}, of {}", others.join(", "));
    Finding::warning(
        "versions",
        found,
        "finish the update: several versions at once are meant for a short time only",
    )
}

/// Whether stored Secrets can be opened with the keys that were named.
async fn keys(args: &CheckArgs) -> Finding {
    let what = "stored Secrets";
    // A file that cannot be used was told of.
    let ring = args.secret_keys.as_ref().and_then(|path| KeyRing::load(path).ok());
    let store = match serve::open_store(&args.database, None) {
        Ok(store) => store,
        Err(error) => return Finding::bad(what, format!("{error:#}"), "see above"),
    };
    let missing = missing_keys(&store, ring.as_ref()).await;
    store.shutdown().await;
    match missing {
        Err(error) => Finding::bad(what, because(&error), "see whether the user may read the tables"),
        Ok(None) => Finding::good(what, "all can be opened"),
        Ok(Some(missing)) if args.secret_keys.is_none() => Finding::warning(
            what,
            missing.to_string(),
            "name the file with --secret-keys to have it looked at",
        ),
        Ok(Some(missing)) => Finding::bad(
            what,
            missing.to_string(),
            "give the file with these keys, which the other replicas have",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn sound() -> Examination {
        Examination {
            version: "15.1".into(),
            version_number: 150_001,
            encoding: "UTF8".into(),
            settings: vec![("fsync", "on".into()), ("max_connections", "100".into())],
            migration: Some(14),
            known_migration: 14,
            clock_ahead: -20_000,
            clock_error: 100,
            processes: vec![("a".into(), "h/1".into(), env!("CARGO_PKG_VERSION").into())],
            compared: 3,
            disagreements: Vec::new(),
        }
    }

    #[test]
    fn each_thing_that_is_wrong_is_found_and_has_its_advice() {
        assert!(
            judge(&sound()).iter().all(|finding| finding.verdict == Verdict::Good),
            "{:?}",
            judge(&sound())
        );
        type Spoil = fn(&mut Examination);
        let cases: &[(Spoil, &str, Verdict)] = &[
            (|it| it.version_number = 130_009, "database", Verdict::Bad),
            (|it| it.encoding = "LATIN1".into(), "encoding", Verdict::Bad),
            (|it| it.settings[0].1 = "off".into(), "settings", Verdict::Bad),
            (|it| it.settings[1].1 = "20".into(), "settings", Verdict::Bad),
            (|it| it.migration = None, "migrations", Verdict::Bad),
            (|it| it.migration = Some(3), "migrations", Verdict::Bad),
            (|it| it.migration = Some(99), "migrations", Verdict::Warning),
            (|it| it.clock_ahead = -60_000_000, "clocks", Verdict::Bad),
            (|it| it.disagreements.push("x".into()), "objects and log", Verdict::Bad),
            (|it| it.processes[0].2 = "9.9.9".into(), "versions", Verdict::Warning),
        ];
        for (spoil, check, verdict) in cases {
            let mut found = sound();
            spoil(&mut found);
            let wrong: Vec<Finding> =
                judge(&found).into_iter().filter(|finding| finding.verdict != Verdict::Good).collect();
            assert_eq!(wrong.len(), 1, "{check}: {wrong:?}");
            assert_eq!((wrong[0].check.as_str(), wrong[0].verdict), (*check, *verdict));
            assert!(!wrong[0].advice.is_empty());
        }
    }
}

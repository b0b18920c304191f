//! The database: whether it is there, set up as it has to be, and agrees with itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use horchestra_auth::KeyRing;
use horchestra_service::sealing::missing_keys;
use horchestra_store::postgres::{Examination, ExamineError, MIXED_UP, NAMED, examine};
use horchestra_store::{ReadError, Schema};

use super::{CheckArgs, Finding, because};
use crate::serve;

/// The oldest server that is tried.
const OLDEST_SERVER: i32 = 140_000;
/// Microseconds that clocks may be apart before it matters to certificates and tokens.
const CLOCKS_APART: u64 = 5_000_000;
/// How long a database that does not answer is asked again.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn look(args: &CheckArgs) -> Vec<Finding> {
    let listen_url = args.database.database_listen_url.as_deref();
    let found = match examine(&args.database.database_url, listen_url).await {
        Ok(found) => found,
        Err(error) => {
            let advice = match &error {
                ExamineError::Url(_) => "write it as postgres://user@host:5432/database",
                ExamineError::Connect(_) | ExamineError::Patience(_) => {
                    "see whether PostgreSQL runs, may be reached from here, and knows the user"
                }
                ExamineError::MixedUp => MIXED_UP,
                ExamineError::Read(_) => {
                    "connect as the owner of the schema, or as a user in the role horchestra_runtime"
                }
            };
            return vec![Finding::bad("database", because(&error), advice)];
        }
    };
    let mut findings = judge(&found);
    if found.schema.fault().is_none() {
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
    findings.extend(way(found));
    findings.push(migrations(&found.schema));
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
    if found.schema.fault().is_none() {
        findings.extend(agreement(found));
    }
    findings.push(versions(found));
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
            "raise it: every process takes up to 14 (--database-connections)",
        ),
        _ => (true, ""),
    };
    let found = format!("{name} = {value}");
    if well { Finding::good("settings", found) } else { Finding::bad("settings", found, advice) }
}

/// What is said to the database arrives, and what it says.
fn way(found: &Examination) -> Vec<Finding> {
    let mut findings = Vec::new();
    if found.read_only {
        let advice = "it is a standby, or default_transaction_read_only is on: promote it, set that off, or name the \
            primary";
        findings.push(Finding::bad("writes", "the database is read only", advice));
    }
    if found.lends {
        let advice = "it keeps prepared statements apart, which is what matters; limits on statements are to be given to \
            the user (alter role … set statement_timeout), and `migrate` needs a direct connection";
        let lends = "through a pooler that lends connections for single transactions";
        findings.push(Finding::warning("connections", lends, advice));
    } else {
        findings.push(Finding::good("connections", "each is a session of its own"));
    }
    findings.push(match found.hears {
        Some(true) => Finding::good("notifications", "they arrive"),
        Some(false) => Finding::warning(
            "notifications",
            "they do not arrive where processes listen, so changes are found by asking ten times a second",
            "name a direct way with --database-listen-url",
        ),
        None => Finding::warning(
            "notifications",
            "whether they arrive could not be tried",
            "see whether the way of --database-listen-url leads to the same database, and whether that takes writes",
        ),
    });
    findings
}

fn migrations(schema: &Schema) -> Finding {
    let what = "migrations";
    let Schema { newest, known, .. } = *schema;
    let newest = newest.unwrap_or_default();
    match schema.fault() {
        Some(fault) => Finding::bad(what, fault.found(), fault.advice()),
        None if schema.is_ahead() => Finding::warning(
            what,
            format!("the schema is newer than this program: {newest} have run, it knows {known}"),
            "others have a newer version: update this one soon",
        ),
        None => Finding::good(what, format!("all {newest} have run")),
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

/// Who runs in which version, and whether these may run beside each other.
fn versions(found: &Examination) -> Finding {
    let (what, own) = ("versions", env!("CARGO_PKG_VERSION"));
    let mut running: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (program, _, version) in &found.processes {
        *running.entry((program, version)).or_default() += 1;
    }
    let shown: Vec<String> =
        running.iter().map(|((program, version), count)| format!("{count} {program} {version}")).collect();
    let shown = if shown.is_empty() { "no process runs".to_owned() } else { shown.join(", ") };
    let shown = format!("this is {own}; {shown}");
    let all: BTreeSet<&str> = running.keys().map(|(_, version)| *version).chain([own]).collect();
    if all.len() == 1 {
        return Finding::good(what, shown);
    }
    if beside_each_other(&all) {
        let advice =
            "finish the update: neighbouring versions run beside each other, for as long as it takes";
        return Finding::warning(what, shown, advice);
    }
    let advice = "too far apart: only neighbouring versions may run beside each other (0.1 and 0.2, not 0.1 and \
        0.3). Bring the oldest to the version after its own, then go on version by version";
    Finding::bad(what, shown, advice)
}

/// Whether versions are neighbours at most: the same, but for a difference of one in the second number.
fn beside_each_other(versions: &BTreeSet<&str>) -> bool {
    let parsed: Option<Vec<(u32, u32)>> = versions
        .iter()
        .map(|version| {
            let mut numbers = version.split(['.', '-', '+']).map(str::parse);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        })
        .collect();
    let Some(parsed) = parsed else { return false };
    let (lowest, highest) = (parsed.iter().min(), parsed.iter().max());
    lowest.zip(highest).is_none_or(|(low, high)| low.0 == high.0 && high.1 - low.1 <= 1)
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
    let missing = patiently(async || missing_keys(&store, ring.as_ref()).await, PATIENCE).await;
    store.shutdown().await;
    match missing {
        Err(error) => Finding::bad(what, because(&error), unread(&error)),
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

/// Asks again while the database does not answer: it did a moment ago, so it is busy.
async fn patiently<T>(
    mut ask: impl AsyncFnMut() -> Result<T, ReadError>,
    patience: Duration,
) -> Result<T, ReadError> {
    let started = Instant::now();
    loop {
        match ask().await {
            Err(ReadError::Unavailable) if started.elapsed() < patience => {
                tokio::time::sleep(patience / 100).await;
            }
            answer => return answer,
        }
    }
}

/// What to do when it cannot be read which keys are in use.
fn unread(error: &ReadError) -> &'static str {
    match error {
        ReadError::Unavailable => {
            "the database answered before, so it is busy or was just restarted: run this again when it is calmer"
        }
        _ => "connect as the owner of the schema, or as a user in the role horchestra_runtime",
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
            schema: Schema { newest: Some(14), needed: 0, known: 14 },
            read_only: false,
            lends: false,
            hears: Some(true),
            clock_ahead: -20_000,
            clock_error: 100,
            processes: vec![("a".into(), "h/1".into(), env!("CARGO_PKG_VERSION").into())],
            compared: 3,
            disagreements: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_busy_database_is_asked_again_and_a_refusal_is_not() {
        let patience = Duration::from_secs(60);
        let mut asked = 0;
        let answer = patiently(
            async || {
                asked += 1;
                if asked < 3 { Err(ReadError::Unavailable) } else { Ok(asked) }
            },
            patience,
        );
        assert_eq!(answer.await.unwrap(), 3);

        let mut asked = 0;
        let refused = patiently(
            async || {
                asked += 1;
                Err::<(), _>(ReadError::Rejected("permission denied".into()))
            },
            patience,
        );
        let error = refused.await.unwrap_err();
        assert!(unread(&error).contains("horchestra_runtime"));
        assert_eq!(asked, 1);

        let given_up = patiently(async || Err::<(), _>(ReadError::Unavailable), Duration::from_millis(20));
        assert!(unread(&given_up.await.unwrap_err()).contains("run this again"));
    }

    #[test]
    fn what_does_not_fit_is_worded_as_a_process_words_it_that_does_not_start() {
        for schema in [
            Schema { newest: None, needed: 0, known: 14 },
            Schema { newest: Some(3), needed: 0, known: 14 },
            Schema { newest: Some(99), needed: 15, known: 14 },
        ] {
            let finding = migrations(&schema);
            assert_eq!(format!("{}: {}", finding.found, finding.advice), schema.fault().unwrap().to_string());
        }
    }

    /// The version after this one.
    fn neighbour() -> String {
        let mut numbers = env!("CARGO_PKG_VERSION").split('.').map(|number| number.parse::<u32>().unwrap());
        let (major, minor) = (numbers.next().unwrap(), numbers.next().unwrap());
        format!("{major}.{}.7", minor + 1)
    }

    #[test]
    fn neighbouring_versions_may_run_beside_each_other() {
        for (versions, may) in [
            (&["0.1.0"][..], true),
            (&["0.1.0", "0.1.9", "0.2.0"][..], true),
            (&["0.9.3", "0.10.0-rc.1"][..], true),
            (&["0.1.0", "0.2.0", "0.3.0"][..], false),
            (&["0.9.0", "1.0.0"][..], false),
            (&["0.1.0", "main"][..], false),
        ] {
            assert_eq!(beside_each_other(&versions.iter().copied().collect()), may, "{versions:?}");
        }
    }

    #[test]
    fn it_is_said_who_runs_in_which_version() {
        let mut found = sound();
        let own = env!("CARGO_PKG_VERSION");
        let row = |program: &str, version: &str| (program.to_owned(), "h/1".to_owned(), version.to_owned());
        found.processes = vec![
            row("horchestra-api", own),
            row("horchestra-api", own),
            row("horchestra-workers", &neighbour()),
        ];
        let finding = versions(&found);
        let neighbour = neighbour();
        let expected = format!("this is {own}; 2 horchestra-api {own}, 1 horchestra-workers {neighbour}");
        assert_eq!((finding.found, finding.verdict), (expected, Verdict::Warning));
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
            (|it| it.read_only = true, "writes", Verdict::Bad),
            (|it| it.lends = true, "connections", Verdict::Warning),
            (|it| it.hears = Some(false), "notifications", Verdict::Warning),
            (|it| it.hears = None, "notifications", Verdict::Warning),
            (|it| it.schema.newest = None, "migrations", Verdict::Bad),
            (|it| it.schema.newest = Some(3), "migrations", Verdict::Bad),
            (|it| it.schema.newest = Some(99), "migrations", Verdict::Warning),
            (|it| it.schema = Schema { newest: Some(99), needed: 15, known: 14 }, "migrations", Verdict::Bad),
            (|it| it.clock_ahead = -60_000_000, "clocks", Verdict::Bad),
            (|it| it.disagreements.push("x".into()), "objects and log", Verdict::Bad),
            (|it| it.processes[0].2 = "9.9.9".into(), "versions", Verdict::Bad),
            (|it| it.processes[0].2 = "unheard of".into(), "versions", Verdict::Bad),
            (|it| it.processes[0].2 = neighbour(), "versions", Verdict::Warning),
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

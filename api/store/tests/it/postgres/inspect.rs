//! The views for people: whatever stands in a body they answer, and what is asked for by name is found by its key.

use horchestra_core::quantity::Quantity;
use horchestra_store::{Announcement, Backend};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};
use uuid::Uuid;

use super::database::{connect, database};
use crate::fixture::*;

async fn texts(connection: &mut PgConnection, query: &str) -> Vec<String> {
    let rows = sqlx::raw_sql(AssertSqlSafe(query.to_owned())).fetch_all(connection).await.expect(query);
    rows.iter().map(|row| row.get(0)).collect()
}

/// Bodies that nobody should have stored.
const BODIES: &[&[u8]] = &[
    b"",
    b"\xff\xfe not text",
    b"{\"metadata\":",
    b"null",
    b"[]",
    b"\"sealed\"",
    b"17",
    b"{\"metadata\":17,\"spec\":[1],\"status\":\"none\"}",
    b"{\"metadata\":{\"creationTimestamp\":\"2030-02-30T00:00:00Z\",\"deletionTimestamp\":\"yesterday\",\"labels\":[],\
      \"annotations\":3,\"finalizers\":{\"a\":1},\"ownerReferences\":\"x\"},\
      \"spec\":{\"image\":{\"a\":1},\"frozen\":\"perhaps\",\"size\":\"many\",\"unschedulable\":2,\"ports\":{},\
      \"rules\":1,\"subjects\":null,\"roleRef\":[],\"kvVersion\":1e400,\"placement\":{\"priority\":99999999999999999999},\
      \"resources\":{\"requests\":{\"cpu\":\"1e99\",\"memory\":[]},\"limits\":{\"cpu\":-1,\"memory\":\"1Zi\"}},\
      \"rollout\":{\"paused\":[],\"maxUnavailable\":0.5}},\
      \"status\":{\"observedGeneration\":\"x\",\"exitCode\":1.5,\"attempts\":true,\"finishedAt\":{},\
      \"desired\":\"3\",\"children\":{},\"conditions\":{\"type\":\"Ready\"},\"runtimes\":0,\"heartbeat\":1},\
      \"count\":\"x\",\"series\":[],\"eventTime\":\"now\",\"lastTimestamp\":\"infinity\",\"type\":[],\"reason\":{}}",
    b"{\"status\":{\"conditions\":[1,null,{\"type\":\"Ready\"},{\"type\":[\"Ready\"],\"status\":1}]},\"x\":\"\\u0000\"}",
    b"{\"status\":{\"conditions\":[1,null,{\"type\":\"Ready\"},{\"type\":\"Ready\",\"lastTransitionTime\":\"0\"}]}}",
];

#[tokio::test]
async fn no_body_breaks_a_view() {
    let database = database().await;
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    let deep = format!("{}1{}", "{\"a\":".repeat(5_000), "}".repeat(5_000));
    let deeper = format!("{}1{}", "[".repeat(200_000), "]".repeat(200_000));
    let bodies = BODIES.iter().copied().chain([deep.as_bytes(), deeper.as_bytes()]);
    let mut revision = 10;
    for (at, body) in bodies.enumerate() {
        for kind in 1..=14_i16 {
            let uid = Uuid::new_v4();
            for version in 0..2 {
                revision += 1;
                let body = if version == 0 { b"{\"a\":{\"b\":1}}".as_slice() } else { body };
                let insert = sqlx::query(
                    "insert into horchestra.history values ($1, $2, 1, $1, null, now(), $3, 'ns', $4, 'w', 'v', $5)",
                );
                let name = format!("bad-{at}");
                let done = insert.bind(uid).bind(revision).bind(kind).bind(&name).bind(body);
                done.execute(&mut connection).await.expect("stored");
                let op: i16 = if version == 0 { 1 } else { 2 };
                if kind != 7 {
                    let insert = sqlx::query(
                        "insert into horchestra.events (rv, uid, audit, at, core_rv, generation, cpu, memory, prev_rv, \
                         op, kind, deleting, ns, name, who, verb, index, body) \
                         values ($1, $2, $2, now(), $1, 1, 0, 0, $1 - 1, $3, $4, false, 'ns', $5, 'w', 'v', $6, $6)",
                    );
                    let done = insert.bind(revision).bind(uid).bind(op).bind(kind).bind(&name).bind(body);
                    done.execute(&mut connection).await.expect("stored");
                }
            }
            let insert = sqlx::query(
                "insert into horchestra.objects values ($1, $2, $2, 1, 0, 0, 0, $3, false, 'ns', $4, null, null, $5, null, $5)",
            );
            let done = insert.bind(uid).bind(revision).bind(kind).bind(format!("bad-{at}")).bind(body);
            done.execute(&mut connection).await.expect("stored");
        }
        let insert = sqlx::query("insert into horchestra.samples values ($1, now(), $2)");
        insert.bind(format!("bad-{at}")).bind(body).execute(&mut connection).await.expect("stored");
        let replace = sqlx::query(
            "insert into horchestra.settings values (true, 1, $1) on conflict (id) do update set body = excluded.body",
        );
        replace.bind(body).execute(&mut connection).await.expect("stored");
        texts(&mut connection, "select value from inspect.settings").await;
    }
    let views =
        "select c.relname::text from pg_class c where c.relnamespace = 'inspect'::regnamespace order by 1";
    let views = texts(&mut connection, views).await;
    assert!(views.len() > 40, "{views:?}");
    let mut whole = 0;
    for view in views {
        // As text, so that every column is made.
        let rows = texts(&mut connection, &format!("select v::text from inspect.{view} v")).await;
        whole += usize::from(rows.len() > BODIES.len());
    }
    assert!(whole >= 14, "views of kinds, and of their past, show a row for each body");
    let shown = "select concat_ws(' ', image, cpu_request, created_at, ready, phase) from inspect.applications \
                 where name = 'bad-8'";
    assert_eq!(texts(&mut connection, shown).await, ["{\"a\": 1} Pending"], "the rest is null");
}

#[tokio::test]
async fn quantities_are_the_amounts_that_they_are_elsewhere() {
    let database = database().await;
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    for text in [
        "0",
        "1",
        "-1",
        "+3",
        "250m",
        "1500m",
        "0.25",
        ".5",
        "5.",
        "1k",
        "1M",
        "1.5G",
        "2T",
        "3P",
        "1E",
        "64Mi",
        "1.5Gi",
        "1Ki",
        "3Ti",
        "1Pi",
        "7Ei",
        "100n",
        "1u",
        "1e3",
        "2E-3",
        "12e+2",
        " 7 ",
        "0.0000000001",
        "1.0000000001m",
        "abc",
        "1 Gi",
        "1Zi",
        "--1",
        "1e",
        "1e99",
        "k",
        "1mm",
        "0x10",
        "1_000",
        "1,5",
        "NaN",
        "Infinity",
        "1Gi ",
    ] {
        let query = sqlx::query("select trunc(inspect.quantity($1) * 1000000000)::text").bind(text);
        let shown: Option<String> = query.fetch_one(&mut connection).await.expect(text).get(0);
        let meant = text.parse::<Quantity>().ok().filter(|_| text.contains(|c: char| c.is_ascii_digit()));
        let exact = meant.as_ref().map(|quantity| (quantity.nano(), quantity.int()));
        match exact {
            // Beyond what billionths can count in 64 bits, whole units are compared.
            Some((i64::MAX, whole)) => assert_eq!(shown, Some(format!("{whole}000000000")), "{text}"),
            exact => assert_eq!(shown, exact.map(|(nano, _)| nano.to_string()), "{text}"),
        }
    }
}

/// Queries as people write them, and the index by which each has to be answered. A plan shows the index only where the
/// condition got through the view.
const KEYED: &[(&str, &str)] = &[
    ("select * from inspect.applications where namespace = 'shop'", "objects_pkey"),
    ("select * from inspect.applications where namespace = 'shop' and name = 'a'", "objects_pkey"),
    ("select * from inspect.applications where namespace in ('shop', 'b') and name > 'a'", "objects_pkey"),
    ("select * from inspect.applications where node = 'n1'", "objects_node"),
    ("select * from inspect.pending where namespace = 'shop'", "objects_pkey"),
    ("select * from inspect.nodes where name = 'n1'", "objects_pkey"),
    ("select * from inspect.usage where node = 'n1'", "objects_pkey"),
    ("select * from inspect.secrets where namespace = 'shop' and name = 's'", "objects_pkey"),
    ("select * from inspect.rollouts where namespace = 'shop'", "objects_pkey"),
    ("select * from inspect.applications_history where namespace = 'shop' and name = 'a'", "history_pkey"),
    ("select * from inspect.secrets_history where namespace = 'shop' and name = 's'", "history_pkey"),
    ("select * from inspect.changes where revision > 5 and revision < 9", "events_0_pkey"),
    ("select * from inspect.changes order by revision desc limit 10", "events_0_pkey"),
    ("select * from inspect.deletions where deleted_at > now() - interval '1 hour'", "tombstones_at"),
    ("select * from inspect.node_sessions where node = 'n1'", "node_sessions_pkey"),
    ("select * from inspect.pushed where node = 'n1'", "pushed_pkey"),
];

#[tokio::test]
async fn conditions_get_through_the_views_to_the_keys() {
    let database = database().await;
    let backend = connect(&database);
    let items: Vec<_> = (0..40).map(|n| item(vec![create(&app(&format!("a{n}")), "1")])).collect();
    backend.commit(&items, Uuid::new_v4()).await.expect("an answer");
    backend.close().await;
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    let set = "set enable_seqscan = off; set session authorization horchestra_reader";
    sqlx::raw_sql(set).execute(&mut connection).await.expect("set");
    for (query, index) in KEYED {
        let plan = texts(&mut connection, &format!("explain (costs off) {query}")).await;
        assert!(plan.iter().any(|line| line.contains(index)), "{query}: {plan:#?}");
    }
    // Nothing is parsed for columns that nobody asks for.
    let query =
        "explain (costs off, verbose) select namespace, name, node, phase, cpu from inspect.applications";
    let plan = texts(&mut connection, query).await;
    assert!(!plan.iter().any(|line| line.contains("document(")), "{plan:#?}");
    let query =
        "explain (costs off, verbose) select image, message, ready, created_at from inspect.applications";
    let plan = texts(&mut connection, query).await;
    let parsed = plan.iter().filter(|line| line.trim() == "Output: inspect.document(o.body)").count();
    assert_eq!(parsed, 1, "once for all columns: {plan:#?}");
}

#[tokio::test]
async fn the_log_is_entered_at_a_moment() {
    let database = database().await;
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    for revision in 1..=50_i64 {
        let insert = sqlx::query(
            "insert into horchestra.events (rv, uid, audit, at, core_rv, generation, cpu, memory, prev_rv, op, kind, \
             deleting, ns, name, who, verb, index, body) values ($1, $2, $2, '2030-01-01Z'::timestamptz + \
             $1 * interval '1 minute', $1, 1, 0, 0, 0, 1, 3, false, 'ns', 'x', 'w', 'v', '{}', '{}')",
        );
        insert.bind(revision).bind(Uuid::new_v4()).execute(&mut connection).await.expect("stored");
    }
    let insert = "insert into horchestra.commits (rv, nonce, at, revisions, items) values (50, gen_random_uuid(), now(), '{}', '{}')";
    sqlx::raw_sql(insert).execute(&mut connection).await.expect("stored");
    for (moment, after) in [
        ("2029-01-01Z", 0),
        ("2030-01-01 00:01Z", 0),
        ("2030-01-01 00:01:01Z", 1),
        ("2030-01-01 00:33Z", 32),
        ("2031-01-01Z", 50),
    ] {
        let query = sqlx::query("select inspect.revision_at($1::text::timestamptz)").bind(moment);
        let answer: i64 = query.fetch_one(&mut connection).await.expect(moment).get(0);
        assert_eq!(answer, after, "{moment}");
    }
}

#[tokio::test]
async fn processes_are_seen_with_how_far_they_are_behind() {
    let database = database().await;
    let backend = connect(&database);
    let items: Vec<_> = (0..5).map(|n| item(vec![create(&app(&format!("a{n}")), "1")])).collect();
    backend.commit(&items, Uuid::new_v4()).await.expect("an answer");
    let announcement = |program: &str| Announcement {
        id: Uuid::new_v4(),
        program: program.to_owned(),
        place: "here/1".to_owned(),
        version: "0.1.0".to_owned(),
    };
    let (current, behind) = (announcement("current"), announcement("behind"));
    backend.announce(&current, 5).await.expect("announced");
    backend.announce(&behind, 1).await.expect("announced");
    backend.announce(&behind, 3).await.expect("again");
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    let shown = "select concat_ws(' ', program, live, revision, behind, behind_for > '0') from inspect.processes order by program";
    assert_eq!(texts(&mut connection, shown).await, ["behind t 3 2 t", "current t 5 0 f"]);
    let aged = "update horchestra.processes set seen_at = now() - interval '2 days' where program = 'behind'";
    sqlx::raw_sql(aged).execute(&mut connection).await.expect("aged");
    assert_eq!(texts(&mut connection, shown).await[0], "behind f 3 2 t");
    backend.announce(&current, 5).await.expect("announced");
    assert_eq!(
        texts(&mut connection, shown).await,
        ["current t 5 0 f"],
        "what went without a word is forgotten"
    );
    backend.withdraw(current.id).await.expect("withdrawn");
    assert_eq!(texts(&mut connection, shown).await, [""; 0]);
    backend.close().await;
}

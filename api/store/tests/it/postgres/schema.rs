//! The schema, its migrations, and the plans of the statements.

use std::sync::Arc;

use horchestra_core::kind::{Key, Kind};
use horchestra_store::postgres::{self, statements};
use horchestra_store::{Backend, HistoryOf};
use horchestra_testkit::empty_database;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::database::{connect, database};
use crate::fixture::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_migrate_at_once_and_the_first_namespace_is_made_once() {
    let database = Arc::new(empty_database().await.expect("a database"));
    let mut processes = JoinSet::new();
    for _ in 0..8 {
        let database = Arc::clone(&database);
        processes.spawn(async move { postgres::migrate(database.url()).await });
    }
    while let Some(ended) = processes.join_next().await {
        ended.expect("no panic").expect("migrated");
    }
    let backend = connect(&database);
    let changes = backend.changes(0, 10).await.expect("the log");
    assert_eq!(changes.head.revision, 1);
    let entry = &changes.rows[0].change.entry;
    assert_eq!(entry.key, Key::cluster(Kind::Namespace, "default"));
    assert_eq!(entry.object().expect("JSON").uid(), entry.uid.to_string());
    let history = backend.history(HistoryOf::Uid(entry.uid)).await.expect("the history");
    assert_eq!(history.len(), 1);

    // Deleted by somebody, it does not come back.
    let gone = item(vec![delete(entry)]);
    backend.commit(&[gone], Uuid::new_v4()).await.expect("an answer").items.remove(0).expect("deleted");
    postgres::migrate(database.url()).await.expect("migrated again");
    assert_eq!(backend.head().await.expect("a head").revision, 2);
    backend.close().await;
}

pub fn parameters(sql: &str) -> usize {
    let number = |rest: &str| {
        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<usize>().unwrap_or(0)
    };
    sql.split('$').skip(1).map(number).max().unwrap_or(0)
}

#[tokio::test]
async fn every_statement_prepares_and_none_that_is_keyed_reads_whole_tables() {
    let database = database().await;
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    sqlx::raw_sql(statements::SESSION).execute(&mut connection).await.expect("set");
    for statement in statements::ALL {
        let name = statement.name;
        let prepare = format!("prepare {name} as {}", statement.sql);
        sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut connection).await.expect(name);
        let arguments = vec!["null"; parameters(statement.sql)].join(", ");
        let arguments = if arguments.is_empty() { arguments } else { format!("({arguments})") };
        let explain = format!("explain (costs off) execute {name}{arguments}");
        let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await.expect(name);
        let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        let whole = plan
            .iter()
            .any(|line| line.contains("Seq Scan on objects") || line.contains("Seq Scan on events"));
        assert!(!(whole && statement.keyed), "{name}: {plan:#?}");
    }
    let mut names: Vec<_> = statements::ALL.iter().map(|statement| statement.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), statements::ALL.len(), "names are labels of metrics");
}

async fn whole_reads(connection: &mut PgConnection) -> i64 {
    let row = sqlx::query(
        "select coalesce(sum(seq_scan), 0)::bigint from pg_stat_user_tables \
         where schemaname = 'horchestra' and (relname in ('objects', 'history') or relname like 'events_%')",
    );
    row.fetch_one(connection).await.expect("statistics").get(0)
}

#[tokio::test]
async fn commits_and_guards_read_no_whole_table_either() {
    let database = database().await;
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    let before = whole_reads(&mut connection).await;
    let backend = connect(&database);
    let all = |name: &str| {
        guarded(
            vec![create(&app(name), "1")],
            vec![
                horchestra_store::Guard::Unchanged(app(name), 0),
                horchestra_store::Guard::NamespaceEmpty("elsewhere".into()),
                horchestra_store::Guard::EventsAtMost { namespace: "elsewhere".into(), limit: 3 },
                horchestra_store::Guard::Unclaimed {
                    space: "ids".into(),
                    value: "7".into(),
                    owner: Uuid::nil(),
                },
                horchestra_store::Guard::NoEdge {
                    relation: horchestra_store::Relation::Secret,
                    target: secret("s"),
                },
            ],
        )
    };
    for round in 0..5 {
        let batch: Vec<_> = (0..20).map(|n| all(&format!("a{round}-{n}"))).collect();
        let done = backend.commit(&batch, Uuid::new_v4()).await.expect("an answer");
        assert!(done.items.iter().all(Result::is_ok), "{:?}", done.items);
        let lone = backend.commit(&[all(&format!("b{round}"))], Uuid::new_v4()).await.expect("an answer");
        assert!(lone.items[0].is_ok());
        let loaded = backend.load(&[Kind::Application]).await.expect("loaded");
        let updates: Vec<_> = loaded.entries.iter().map(|found| item(vec![update(found, "2")])).collect();
        let done = backend.commit(&updates, Uuid::new_v4()).await.expect("an answer");
        assert!(done.items.iter().all(Result::is_ok));
    }
    // Loading is the one that may; it goes by an index here, as whole scans are off.
    backend.close().await;
    assert_eq!(whole_reads(&mut connection).await, before);
}

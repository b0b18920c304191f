//! A database is looked over: what is well with a sound one, and what is found in one that somebody meddled with.

use horchestra_store::Backend;
use horchestra_store::postgres::{ExamineError, NAMED, examine};
use horchestra_testkit::empty_database;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection};
use uuid::Uuid;

use super::database::{connect, database};
use crate::fixture::*;

/// What somebody does by hand, and what is said then.
const MEDDLING: &[(&str, &str)] = &[
    (
        "update horchestra.objects set body = 'x' where name = 'a1'",
        "Application shop/a1: the head says revision",
    ),
    ("delete from horchestra.objects where name = 'a2'", "Application shop/a2: the log changes it"),
    (
        "update horchestra.objects set rv = 40000 where name = 'a3'",
        "Application shop/a3: the head says revision 40000",
    ),
    (
        "insert into horchestra.objects select gen_random_uuid(), 0, 0, generation, cpu, memory, 0, kind, deleting, ns, \
         'gone', node, phase, index, managed, body from horchestra.objects where name = 'a4'",
        "Application shop/gone: the log deletes it",
    ),
    (
        "insert into horchestra.objects select uid, rv - 1, core_rv, generation, cpu, memory, edge_hash, kind, deleting, \
         ns, name, node, phase, index, managed, body from horchestra.objects where name = 'a5'",
        "Application shop/a5: there are 2 of it",
    ),
    ("delete from horchestra.events where name = 'a6'", "the log has"),
];

#[tokio::test]
async fn heads_that_are_not_as_the_log_says_are_found() {
    let database = database().await;
    let backend = connect(&database);
    let names = ["a1", "a2", "a3", "a4", "a5", "a6", "gone"];
    let items: Vec<_> = names.iter().map(|name| item(vec![create(&app(name), "1")])).collect();
    backend.commit(&items, Uuid::new_v4()).await.expect("an answer");
    let loaded = backend.load(&[horchestra_core::kind::Kind::Application]).await.expect("loaded");
    let gone = loaded.entries.iter().find(|entry| entry.key.name == "gone").expect("there");
    backend.commit(&[item(vec![delete(gone)])], Uuid::new_v4()).await.expect("an answer");
    backend.close().await;

    let sound = examine(database.url(), None).await.expect("looked over");
    assert_eq!((sound.disagreements.clone(), sound.compared), (Vec::new(), 6));
    assert_eq!((sound.schema.newest, sound.encoding.as_str()), (Some(sound.schema.known), "UTF8"));
    assert_eq!((sound.read_only, sound.lends, sound.hears), (false, false, Some(true)));
    assert!(sound.version_number >= 140_000 && sound.clock_ahead.abs() < 60_000_000, "{sound:?}");

    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    for (statement, said) in MEDDLING {
        sqlx::raw_sql(AssertSqlSafe(*statement)).execute(&mut connection).await.expect(statement);
        let found = examine(database.url(), None).await.expect("looked over").disagreements;
        assert!(found.iter().any(|found| found.starts_with(said)), "{said} in {found:#?}");
    }
    let all = "update horchestra.objects set body = 'x'; insert into horchestra.objects select gen_random_uuid(), n, n, 1, 0, 0, \
               0, 3, false, 'x', 'n' || n, null, null, '', null, '' from generate_series(100, 200) n";
    sqlx::raw_sql(all).execute(&mut connection).await.expect(all);
    assert_eq!(examine(database.url(), None).await.expect("looked over").disagreements.len(), NAMED);
}

#[tokio::test]
async fn a_database_that_is_away_or_empty_is_told_of() {
    let empty = empty_database().await.expect("a database");
    let found = examine(empty.url(), None).await.expect("looked over");
    assert_eq!((found.schema.newest, found.compared), (None, 0));
    assert!(matches!(examine("nonsense", None).await, Err(ExamineError::Url(_))));
    assert!(matches!(examine("postgres://x@127.0.0.1:1/none", None).await, Err(ExamineError::Connect(_))));
}

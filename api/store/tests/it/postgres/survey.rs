//! What the server tells of itself.

use std::time::Duration;

use horchestra_store::{Backend, Survey};
use horchestra_testkit::eventually;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::database::{connect, database};

fn number(survey: &Survey, what: &str, of: &str) -> Option<f64> {
    survey.rows.iter().find(|row| row.0 == what && row.1 == of).map(|row| row.2)
}

#[tokio::test]
async fn the_server_tells_of_tables_leases_and_what_holds_it_up() {
    let database = database().await;
    let backend = connect(&database);
    let lease =
        backend.acquire_lease("probe", Uuid::new_v4(), Duration::from_secs(60)).await.unwrap().unwrap();
    let survey = backend.survey().await.unwrap();
    for table in ["objects", "events", "history", "samples"] {
        for what in ["table_bytes", "table_rows", "table_dead_rows"] {
            assert!(
                number(&survey, what, table).is_some_and(|value| value >= 0.0),
                "{what} {table}: {survey:?}"
            );
        }
    }
    let tables: Vec<&str> =
        survey.rows.iter().filter(|row| row.0 == "table_bytes").map(|row| row.1.as_str()).collect();
    assert!(!tables.iter().any(|table| table.starts_with("events_")), "partitions are one table: {tables:?}");
    assert_eq!(number(&survey, "lease_held", "probe"), Some(1.0));
    for (what, least, most) in [
        ("partitions", 1.0, 100.0),
        ("notifications", 0.0, 0.1),
        ("lock_waits", 0.0, 0.0),
        ("connections", 1.0, 1_000.0),
        ("connections_limit", 2.0, 10_000.0),
        ("transaction_age", 1.0, 2e9),
    ] {
        let value = number(&survey, what, "");
        assert!(value.is_some_and(|value| (least..=most).contains(&value)), "{what}: {value:?}");
    }
    // Everything that there is a name for has a number, and the other way round.
    let named =
        survey.gauges().len() + survey.gauges_by().iter().filter(|family| !family.2.1.is_empty()).count();
    let mut sorts: Vec<&str> = survey.rows.iter().map(|row| row.0.as_str()).collect();
    sorts.sort_unstable();
    sorts.dedup();
    assert_eq!(named, sorts.len(), "{sorts:?}");

    backend.release_lease(&lease).await.unwrap();
    let mut other = PgConnection::connect(database.url()).await.unwrap();
    sqlx::raw_sql("begin; select 1").execute(&mut other).await.unwrap();
    eventually(Duration::from_secs(20), async || {
        let survey = backend.survey().await.unwrap();
        number(&survey, "oldest_transaction", "").is_some_and(|age| age > 0.5)
    })
    .await;
    let survey = backend.survey().await.unwrap();
    assert_eq!(number(&survey, "lease_held", "probe"), Some(0.0), "given up");
    drop(other);
    backend.close().await;
}

use std::sync::atomic::{AtomicU32, Ordering};

use horchestra_testkit::{Template, empty_database, server_url};
use sqlx::{Connection, PgConnection};

async fn template(content: &[u8], runs: &AtomicU32) -> Template {
    Template::prepare("testkit", content, async |url| {
        runs.fetch_add(1, Ordering::SeqCst);
        let mut connection = PgConnection::connect(&url).await?;
        sqlx::raw_sql("CREATE TABLE things (name text); INSERT INTO things VALUES ('first')")
            .execute(&mut connection)
            .await?;
        Ok(()) // the connection is left open on purpose
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_is_migrated_once_and_copies_do_not_see_each_other() {
    let runs = AtomicU32::new(0);
    let content = format!("racing {}", std::process::id());
    let (one, two) = tokio::join!(template(content.as_bytes(), &runs), template(content.as_bytes(), &runs));
    assert_eq!(runs.load(Ordering::SeqCst), 1);

    let (one, two) = (one.database().await.unwrap(), two.database().await.unwrap());
    let mut first = PgConnection::connect(one.url()).await.unwrap();
    let mut second = PgConnection::connect(two.url()).await.unwrap();
    sqlx::query("INSERT INTO things VALUES ('second')").execute(&mut first).await.unwrap();
    for (connection, expected) in [(&mut first, 2_i64), (&mut second, 1)] {
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM things").fetch_one(connection).await.unwrap();
        assert_eq!(count, expected);
    }
}

#[tokio::test]
async fn a_failed_migration_is_tried_again_by_the_next() {
    let content = format!("failing {}", std::process::id());
    let failed =
        Template::prepare("testkit", content.as_bytes(), async |_| anyhow::bail!("broken on purpose")).await;
    assert!(failed.is_err());
    let runs = AtomicU32::new(0);
    template(content.as_bytes(), &runs).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_database_is_dropped_with_its_value_even_while_connected() {
    let database = empty_database().await.unwrap();
    let name = database.name().to_owned();
    let _connected = PgConnection::connect(database.url()).await.unwrap();
    drop(database);
    let mut server = PgConnection::connect(&server_url("postgres").await.unwrap()).await.unwrap();
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(&name)
        .fetch_one(&mut server)
        .await
        .unwrap();
    assert!(!exists);
}

//! A second witness in the database, beside [that of the gateways](super::super::gateways::witness): whoever writes for a
//! loop has to be the process that leads it at that moment.
//!
//! The product refuses such writes by the number of the term. The witness knows nothing of terms: it looks at which
//! process a lease was given to last, and which process a row comes from.

use anyhow::{Context, Result};
use sqlx::Connection;
use sqlx::postgres::PgConnection;

const SCHEMA: &str = include_str!("witness.sql");

/// Begins to look. The witness of the gateways has to be there.
pub async fn install(url: &str) -> Result<()> {
    let mut database = PgConnection::connect(url).await?;
    sqlx::raw_sql(SCHEMA).execute(&mut database).await.context("installing the witness of leaders")?;
    Ok(())
}

/// The database as this process is to reach it, so that the witness knows it.
pub fn named(url: &str, process: &str) -> String {
    let more = if url.contains('?') { '&' } else { '?' };
    format!("{url}{more}options[soak.process]={process}")
}

/// The process that leads a loop, and the number of its term.
pub async fn leader(database: &mut PgConnection, name: &str) -> Result<Option<(String, i64)>> {
    let query = "select l.process, l.epoch from soak.leaders l join horchestra.leases x using (name) \
        where l.name = $1 and l.held and l.process is not null and x.until > clock_timestamp()";
    Ok(sqlx::query_as(query).bind(name).fetch_optional(database).await?)
}

/// How often a loop was given to another process than before.
pub async fn changes_of_hands(database: &mut PgConnection) -> Result<i64> {
    let query = "select count(*) from (select process, lag(process) over (partition by name order by epoch) as before \
        from soak.terms where held) t where before is not null and process <> before";
    Ok(sqlx::query_scalar(query).fetch_one(database).await?)
}

/// What must not have happened: rows by a process that did not lead, terms that went back, sessions of a node that were
/// claimed twice under one number.
pub async fn violations(database: &mut PgConnection) -> Result<Vec<String>> {
    const QUERIES: [&str; 3] = [
        "select 'revision ' || rv || ': written for ' || of_loop || ' by ' || coalesce(writer, 'somebody') || ', which ' || \
         coalesce(leader || ' leads', 'nobody leads') from soak.stale order by rv",
        "select 'the term ' || epoch || ' of ' || name || ' was given away ' || count(*) || ' times' \
         from soak.terms where held group by name, epoch having count(*) > 1",
        "select 'the session ' || epoch || ' of ' || node || ' was claimed ' || count(*) || ' times' \
         from soak.claims group by node, epoch having count(*) > 1",
    ];
    let mut found = Vec::new();
    for query in QUERIES {
        found.extend(sqlx::query_scalar::<_, String>(query).fetch_all(&mut *database).await?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use horchestra_store::postgres;

    use super::*;

    const WRITE: &str = "insert into horchestra.events (rv, uid, audit, at, core_rv, generation, cpu, memory, prev_rv, \
        kind, op, deleting, ns, name, who, verb, index, body) values ($1, gen_random_uuid(), gen_random_uuid(), now(), \
        $1, 1, 0, 0, 0, 3, 1, false, 'default', 'a', 'system:loop:scheduler', 'bind', '', '{}')";

    async fn acquire(database: &mut PgConnection, holder: uuid::Uuid) -> Option<i64> {
        sqlx::query_scalar("select horchestra.acquire_lease('scheduler', $1, interval '1 minute')")
            .bind(holder)
            .fetch_one(database)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn whoever_writes_for_a_loop_that_another_one_leads_is_seen() {
        horchestra_runtime::crypto::install().unwrap();
        let database = horchestra_testkit::empty_database().await.unwrap();
        postgres::migrate(database.url()).await.unwrap();
        crate::soak::gateways::witness::install(database.url()).await.unwrap();
        install(database.url()).await.unwrap();
        let as_one = async |name: &str| PgConnection::connect(&named(database.url(), name)).await.unwrap();
        let (mut first, mut second) = (as_one("first").await, as_one("second").await);
        let mut looking = PgConnection::connect(database.url()).await.unwrap();
        let write = async |by: &mut PgConnection, revision: i64| {
            sqlx::query(WRITE).bind(revision).execute(by).await.unwrap();
        };
        let term = acquire(&mut first, uuid::Uuid::from_u128(1)).await.unwrap();
        assert_eq!(leader(&mut looking, "scheduler").await.unwrap(), Some(("first".to_owned(), term)));
        // The first revisions are those of the migration.
        write(&mut first, 101).await;
        assert_eq!(violations(&mut looking).await.unwrap(), Vec::<String>::new());
        // Its term runs out, and somebody else's begins.
        sqlx::query("update horchestra.leases set until = now()").execute(&mut looking).await.unwrap();
        let next = acquire(&mut second, uuid::Uuid::from_u128(2)).await.unwrap();
        assert!(next > term);
        write(&mut second, 102).await;
        write(&mut first, 103).await;
        let seen = violations(&mut looking).await.unwrap();
        assert_eq!(seen, ["revision 103: written for scheduler by first, which second leads"]);
        assert_eq!(changes_of_hands(&mut looking).await.unwrap(), 1);
        // After it was given up nobody writes.
        sqlx::query("select horchestra.release_lease('scheduler', $1, $2)")
            .bind(uuid::Uuid::from_u128(2))
            .bind(next)
            .execute(&mut second)
            .await
            .unwrap();
        write(&mut second, 104).await;
        assert_eq!(violations(&mut looking).await.unwrap().len(), 2);
        // A session that is claimed twice under one number.
        let claim = "insert into soak.claims values (now(), 'n1', 7, 'x', false)";
        for _ in 0..2 {
            sqlx::query(claim).execute(&mut looking).await.unwrap();
        }
        let seen = violations(&mut looking).await.unwrap();
        assert_eq!(seen.last().map(String::as_str), Some("the session 7 of n1 was claimed 2 times"));
    }
}

//! A witness in the database: whoever writes on behalf of a node has to be the gateway that serves it at that moment.
//!
//! Triggers look at every row that gateways write for nodes, in the transaction that writes it: reports (rows of the
//! log), heartbeats, samples and the records of what nodes may hold. The gateway is known by the name of its
//! connections, which is another one for each process; the one that serves a node is the one that claimed its session
//! last. What is written under the lock that orders all changes has to agree to the letter. For the rest it counts
//! whether the statement began after the session had changed hands: one that was under way then is allowed. An address
//! of a workload must not go to another one before it has been free for ten minutes.

use std::collections::HashMap;

use anyhow::{Context, Result};
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

const SCHEMA: &str = include_str!("witness.sql");

/// What was seen.
#[derive(Clone, Debug, Default)]
pub struct Testimony {
    /// Rows that were looked at.
    pub checked: i64,
    pub claims: i64,
    /// Sessions that another gateway had held.
    pub taken_over: i64,
    /// Rows by somebody who did not serve the node any more.
    pub strays: Vec<String>,
    /// Addresses of workloads, by uid.
    pub leases: HashMap<Uuid, String>,
}

/// Begins to look.
pub async fn install(url: &str) -> Result<()> {
    let mut database = PgConnection::connect(url).await?;
    sqlx::raw_sql(SCHEMA).execute(&mut database).await.context("installing the witness")?;
    Ok(())
}

/// Nodes whose gateways are within their terms, and have connections: a process that was killed has none.
pub async fn served(database: &mut PgConnection) -> Result<i64> {
    let query = "select count(*) from horchestra.node_sessions s join horchestra.gateways g on g.id = s.gateway \
        where g.until > clock_timestamp() \
        and exists (select from pg_stat_activity a where a.application_name = g.application)";
    Ok(sqlx::query_scalar(query).fetch_one(database).await?)
}

/// How many sessions changed hands so far.
pub async fn taken_over(database: &mut PgConnection) -> Result<i64> {
    Ok(sqlx::query_scalar("select count(*) from soak.claims where taken_over").fetch_one(database).await?)
}

/// All that was seen.
pub async fn testimony(url: &str) -> Result<Testimony> {
    let mut database = PgConnection::connect(url).await?;
    let checked = sqlx::query_scalar("select last_value from soak.checked").fetch_one(&mut database).await?;
    let claims = sqlx::query_scalar("select count(*) from soak.claims").fetch_one(&mut database).await?;
    let taken_over = taken_over(&mut database).await?;
    let strays: Vec<(String,)> = sqlx::query_as(
        "select at || ': ' || what || ' of ' || node || ' by ' || writer || ', which ' || \
         coalesce('is served by ' || owner, 'nobody serves') from soak.strays order by at",
    )
    .fetch_all(&mut database)
    .await?;
    let leases: Vec<(Uuid, String)> =
        sqlx::query_as("select owner, host(address) from horchestra.address_leases where owner is not null")
            .fetch_all(&mut database)
            .await?;
    let strays = strays.into_iter().map(|(text,)| text).collect();
    Ok(Testimony { checked, claims, taken_over, strays, leases: leases.into_iter().collect() })
}

#[cfg(test)]
mod tests {
    use horchestra_store::postgres;
    use sqlx::postgres::PgConnectOptions;

    use super::*;

    const CLAIM: &str = "insert into horchestra.node_sessions (node, epoch, session, gateway, peer, certificate, opened_at) \
        values ('n1', 1, gen_random_uuid(), gen_random_uuid(), '', '', now()) on conflict (node) \
        do update set epoch = node_sessions.epoch + 1, gateway = excluded.gateway";
    const BEAT: &str = "insert into horchestra.heartbeats values ('n1', now(), 0, 0) \
        on conflict (node) do update set at = excluded.at";

    #[tokio::test]
    async fn whoever_writes_for_a_node_that_another_one_serves_is_seen() {
        horchestra_runtime::crypto::install().unwrap();
        let database = horchestra_testkit::empty_database().await.unwrap();
        postgres::migrate(database.url()).await.unwrap();
        install(database.url()).await.unwrap();
        let as_one = async |name: &str| {
            let options: PgConnectOptions = database.url().parse().unwrap();
            PgConnection::connect_with(&options.application_name(name)).await.unwrap()
        };
        let (mut first, mut second) = (as_one("first").await, as_one("second").await);
        let strays = async || testimony(database.url()).await.unwrap().strays;
        for statement in [CLAIM, BEAT, BEAT] {
            sqlx::query(statement).execute(&mut first).await.unwrap();
        }
        assert_eq!(strays().await, Vec::<String>::new());
        // The node moves. What was under way then is allowed, what begins later is not.
        sqlx::query(CLAIM).execute(&mut second).await.unwrap();
        sqlx::query(BEAT).execute(&mut first).await.unwrap();
        assert_eq!(strays().await, Vec::<String>::new());
        let earlier = "update soak.owners set since = since - interval '5 seconds'";
        sqlx::query(earlier).execute(&mut second).await.unwrap();
        sqlx::query(BEAT).execute(&mut second).await.unwrap();
        sqlx::query(BEAT).execute(&mut first).await.unwrap();
        let seen = strays().await;
        assert!(seen.len() == 1 && seen[0].contains("heartbeat of n1 by first"), "{seen:?}");
        let Testimony { checked, claims, taken_over, .. } = testimony(database.url()).await.unwrap();
        assert_eq!((checked, claims, taken_over), (5, 2, 1));
    }
}

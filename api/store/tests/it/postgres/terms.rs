//! Terms are prolonged whatever else a process asks of the database.

use std::sync::Arc;
use std::time::Duration;

use horchestra_store::postgres::{Options, PostgresBackend, statements};
use horchestra_store::{Backend, SessionClaim};
use horchestra_testkit::eventually;
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

use super::database::database;

const LONG: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_is_prolonged_while_every_other_connection_waits() {
    let database = database().await;
    let options = Options { connections: 2, ..Options::default() };
    let backend = PostgresBackend::open(database.url(), options).expect("a well-formed URL");
    let (gateway, holder) = (Uuid::new_v4(), Uuid::new_v4());
    backend.renew_gateway(gateway, "127.0.0.1:1", LONG).await.expect("answered");
    let lease = backend.acquire_lease("loop", holder, LONG).await.expect("answered").expect("free");

    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    for statement in ["begin", "lock table horchestra.samples in access exclusive mode"] {
        sqlx::query(statement).execute(&mut connection).await.expect("locked");
    }
    let reads: Vec<_> = (0..4)
        .map(|_| {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move { backend.samples(&["node".to_owned()], LONG).await })
        })
        .collect();
    eventually(SOON, async || {
        let pools = backend.pools();
        pools
            .iter()
            .any(|pool| pool.pool == "general" && pool.open == 2 && pool.idle == 0 && pool.waiting > 0)
    })
    .await;
    assert!(backend.renew_gateway(gateway, "127.0.0.1:1", LONG).await.expect("answered"));
    assert!(backend.renew_lease(&lease, LONG).await.expect("answered"));
    assert!(reads.iter().any(|read| !read.is_finished()), "nothing waits any more: this shows nothing");
    sqlx::query("rollback").execute(&mut connection).await.expect("unlocked");
    backend.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_a_gateway_that_nobody_can_see_is_free_after_its_term() {
    let database = database().await;
    let options = |application: &str| Options { application: application.to_owned(), ..Options::default() };
    let open = |name: &str| PostgresBackend::open(database.url(), options(name)).expect("a well-formed URL");
    let (first, second) = (open("first"), open("second"));
    let [unseen, misnamed, seen, next] = [(); 4].map(|()| Uuid::new_v4());
    for gateway in [unseen, misnamed, seen, next] {
        first.renew_gateway(gateway, "127.0.0.1:1", LONG).await.expect("answered");
    }
    // As from a process whose connections are lent, or show another name: this connection has none of its own.
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    for (gateway, name, application) in [(unseen, "a", None), (misnamed, "b", Some("gone"))] {
        let query = sqlx::query_scalar::<_, bool>(statements::NAME_GATEWAY.sql);
        let named = query.bind(gateway).bind(name).bind(application).fetch_one(&mut connection).await;
        assert!(named.expect("answered"), "nobody bears {name}");
        assert!(!second.name_gateway(next, name).await.expect("answered"), "its term runs");
        second.renew_gateway(gateway, "127.0.0.1:1", Duration::ZERO).await.expect("answered");
        assert!(second.name_gateway(next, name).await.expect("answered"), "its term is over");
    }
    // One that was seen is known to be gone.
    assert!(first.name_gateway(seen, "c").await.expect("answered"));
    assert!(!second.name_gateway(next, "c").await.expect("answered"), "it lives");
    first.close().await;
    eventually(SOON, async || second.name_gateway(next, "c").await.expect("answered")).await;
    second.close().await;
}

/// The clock is set by so much.
async fn set_clock(database_url: &str, by: &str) {
    let mut connection = PgConnection::connect(database_url).await.expect("a connection");
    for table in ["leases", "gateways"] {
        let later = format!("update horchestra.{table} set until = until - interval '{by}'");
        sqlx::query(sqlx::AssertSqlSafe(later)).execute(&mut connection).await.expect("set");
    }
    connection.close().await.expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_died_while_the_clock_was_set_back_is_not_waited_for() {
    let database = database().await;
    let backend = PostgresBackend::open(database.url(), Options::default()).expect("a well-formed URL");
    let term = Duration::from_millis(100);
    let [dead, lives, next] = [(); 3].map(|()| Uuid::new_v4());
    let acquire =
        async |name: &str, holder: Uuid| backend.acquire_lease(name, holder, term).await.expect("answered");
    acquire("loop", dead).await.expect("free");
    let held = acquire("other", lives).await.expect("free");
    for gateway in [dead, lives, next] {
        backend.renew_gateway(gateway, "127.0.0.1:1", LONG).await.expect("answered");
    }
    let claim = async |node: &str, gateway: Uuid| {
        let (node, peer, certificate) = (node.to_owned(), "127.0.0.1:2".to_owned(), "00".repeat(32));
        let claims = vec![SessionClaim { node, gateway, peer, certificate }];
        backend.claim_sessions(claims, LONG).await.expect("answered").remove(0)
    };
    for (node, gateway) in [("n1", dead), ("n2", lives)] {
        claim(node, gateway).await.expect("free");
    }
    set_clock(database.url(), "-1 hour").await;
    // Who lives says so.
    assert!(backend.renew_lease(&held, LONG).await.expect("answered"));
    assert!(backend.renew_gateway(lives, "127.0.0.1:1", LONG).await.expect("answered"));
    assert_eq!(acquire("loop", next).await, None, "it might be about to");
    let left = backend.lease_left("loop").await.expect("answered").expect("held");
    assert!(left <= Duration::from_secs(120), "{left:?}");
    set_clock(database.url(), "2 minutes").await;
    assert!(acquire("loop", next).await.is_some());
    assert_eq!(acquire("other", next).await, None);
    claim("n1", next).await.expect("its gateway has gone");
    assert_eq!(claim("n2", next).await, None);
    backend.close().await;
}

//! The table of samples: unlogged, and no larger than what is in it, however often that is replaced.

use std::time::Duration;

use horchestra_store::{Backend, Samples, SessionClaim, SessionGrant};
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Row};
use uuid::Uuid;

use super::database::{connect, database};

const NODES: usize = 200;
/// After which the table must have come to rest, and how many without growth are a rest.
const ROUNDS: usize = 200;
const STILL: usize = 8;
/// Of a node with twenty workloads, as documents are.
const BYTES: usize = 4_500;

async fn size(connection: &mut PgConnection) -> i64 {
    let query = sqlx::query("select pg_relation_size('horchestra.samples')");
    query.fetch_one(connection).await.expect("the table").get(0)
}

/// Text that packs about as well as a document of samples.
fn document(seed: usize) -> Vec<u8> {
    let entry = |number: usize| {
        let counter = (seed * 7_919 + number * 104_729) % 1_000_003;
        format!(
            r#"{{"ns":"team","name":"app-{number}","usage":{{"cpu":{counter},"memory":{}}}}},"#,
            counter * 31
        )
    };
    let mut text: Vec<u8> = (0..).flat_map(|number| entry(number).into_bytes()).take(BYTES).collect();
    text.shrink_to_fit();
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_replaced_in_place() {
    let database = database().await;
    let backend = connect(&database);
    let gateway = Uuid::new_v4();
    backend.renew_gateway(gateway, "127.0.0.1:1", Duration::from_secs(600)).await.expect("renewed");
    let nodes = (0..NODES).map(|number| format!("node-{number}"));
    let claim = |node| SessionClaim { node, gateway, peer: "x".into(), certificate: "x".into() };
    let claims = nodes.clone().map(claim).collect();
    let granted = backend.claim_sessions(claims, Duration::from_secs(60)).await.expect("answered");
    let grants = granted.into_iter().map(|grant| grant.expect("free"));
    let sessions: Vec<(String, SessionGrant)> = nodes.zip(grants).collect();
    let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
    let mut sizes = Vec::new();
    // Rows that died are used again once nobody can see them any more; until then there has to be room for them.
    let resting = |sizes: &[i64]| {
        sizes.len() > STILL && sizes[sizes.len() - STILL..].windows(2).all(|two| two[0] == two[1])
    };
    while !resting(&sizes) {
        let round = sizes.len();
        assert!(round < ROUNDS, "it grows and grows: {sizes:?}");
        let samples: Vec<Samples> = sessions
            .iter()
            .enumerate()
            .map(|(number, (node, grant))| Samples {
                node: node.clone(),
                grant: grant.clone(),
                body: document(round * NODES + number).into(),
            })
            .collect();
        backend.record_samples(&samples).await.expect("kept");
        sizes.push(size(&mut connection).await);
    }
    let query = "select relpersistence::text, pg_relation_size(reltoastrelid), \
                 (select sum(octet_length(body)) from horchestra.samples)::bigint \
                 from pg_class where oid = 'horchestra.samples'::regclass";
    let row = sqlx::query(query).fetch_one(&mut connection).await.expect("the table");
    let (persistence, aside, plain): (String, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(persistence, "u", "a crash may take it");
    assert_eq!(plain, i64::try_from(NODES * BYTES).expect("small"));
    assert_eq!(aside, 0, "everything is in the rows");
    backend.close().await;
}

//! A database that answers and takes no writes: it is said once, clients are told why, and it is over by itself.

use std::time::Duration;

use horchestra_testkit::{Cluster, ClusterOptions, eventually};
use hyper::Method;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::client::APPLICATIONS;
use crate::guide::programs;
use crate::replicas::{Part, Replicas};

const SOON: Duration = Duration::from_secs(90);
const API: Part = Part::Api(0);

/// Runs this on the database, and has everybody connect anew.
async fn set(server: &Cluster, statement: &str) {
    let mut connection = PgConnection::connect(&server.url("template1")).await.unwrap();
    for statement in [
        statement,
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'postgres' and pid <> pg_backend_pid()",
    ] {
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.unwrap();
    }
    connection.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_writes_is_told_why_nothing_is_written() {
    let server = Cluster::start(ClusterOptions::default()).unwrap();
    let mut replicas = Replicas::lay_out(vec![("DATABASE_URL", server.url("postgres"))], &[API]).await;
    replicas.prepare(&programs());
    replicas.start(API, &programs()).await;
    let client = replicas.client();
    let write = async |name: &str| {
        let app = json!({"metadata": {"name": name}, "spec": {"image": "x"}});
        // A connection may be closed on whoever has nothing to complain of yet.
        client
            .call(Method::POST, APPLICATIONS, Some(&app))
            .await
            .unwrap_or_else(|error| (0, json!(error.to_string())))
    };
    set(&server, "alter database postgres set default_transaction_read_only = on").await;
    let why = "the database is read only and takes no writes, nothing was written";
    eventually(SOON, async || {
        let (code, answer) = write("refused").await;
        let told = code == 503 && answer["message"].as_str().is_some_and(|text| text.contains(why));
        if told { Ok(()) } else { Err(format!("{code} {answer}; {}", replicas.log(API))) }
    })
    .await;
    eventually(SOON, async || {
        client.call(Method::GET, APPLICATIONS, None).await.is_ok_and(|(code, _)| code == 200)
    })
    .await;
    eventually(SOON, async || replicas.metric(API, "horchestra_store_unwritable ").await == Some(1.0)).await;
    assert_eq!(write("refused").await.0, 503);
    let said = "the database answers and takes no writes, since it is read only";
    assert_eq!(replicas.log(API).matches(said).count(), 1, "{}", replicas.log(API));

    set(&server, "alter database postgres reset default_transaction_read_only").await;
    let mut number = 0;
    eventually(SOON, async || {
        number += 1;
        let (code, answer) = write(&format!("again-{number}")).await;
        if code != 201 {
            return Err(answer.to_string());
        }
        let log = replicas.log(API);
        if log.contains("the database takes writes again") { Ok(()) } else { Err(log) }
    })
    .await;
    assert_eq!(replicas.log(API).matches(said).count(), 1, "{}", replicas.log(API));
}

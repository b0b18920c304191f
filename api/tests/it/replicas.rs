//! Two replicas on one PostgreSQL: what one has acknowledged, the other shows.

use horchestra_service::ServiceConfig;
use horchestra_store::postgres::{self, Options, PostgresBackend};
use horchestra_store::{Store, StoreOptions};
use horchestra_testkit::{Template, TestDatabase};
use serde_json::{Value, json};

use crate::client::{Client, Next};
use crate::crud::app;
use crate::stack::{Setup, Stack};

const APPS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";

fn revision(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// An empty database with the schema of the store.
pub async fn database() -> TestDatabase {
    let template = Template::prepare("api", &postgres::fingerprint(), async |url| {
        postgres::migrate(&url).await.map_err(anyhow::Error::from)
    })
    .await
    .unwrap();
    template.database().await.unwrap()
}

pub async fn replica(database: &TestDatabase) -> (Stack, Client) {
    replica_with(database, ServiceConfig::default()).await
}

/// One more API server on the database, and its operator.
pub async fn replica_with(database: &TestDatabase, service: ServiceConfig) -> (Stack, Client) {
    let backend = PostgresBackend::open(database.url(), Options::default()).unwrap();
    let store = Store::open(backend, StoreOptions::default());
    let stack = Stack::with(Setup { store: Some(store), service, ..Setup::default() }).await;
    // The certificates of each replica are its own, so each has a client of its own.
    let client = stack.master();
    (stack, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_write_is_seen_through_the_other_replica() {
    let database = database().await;
    let (here, writer) = replica(&database).await;
    let (there, reader) = replica(&database).await;
    assert_eq!(writer.post(APPS, &app("web")).await.status, 201, "the namespace default exists");
    let path = format!("{APPS}/web");
    for number in 0..200 {
        let change = json!({"metadata": {"annotations": {"number": number.to_string()}}});
        let written = writer.merge(&path, &change).await.json();
        let read = reader.get(&path).await.json();
        assert_eq!(read, written, "write {number}");
        let list = reader.get(&format!("{APPS}?fieldSelector=metadata.name%3Dweb")).await.json();
        assert_eq!(list["items"][0]["metadata"]["resourceVersion"], written["metadata"]["resourceVersion"]);
    }
    here.store.shutdown().await;
    there.store.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_and_watches_go_on_at_the_other_replica() {
    let database = database().await;
    let (mut here, first) = replica(&database).await;
    let (there, second) = replica(&database).await;
    for name in ["a", "b", "c"] {
        assert_eq!(first.post(APPS, &app(name)).await.status, 201);
    }
    let page = first.get(&format!("{APPS}?limit=1")).await.json();
    second.post(APPS, &app("aa")).await;
    let token = page["metadata"]["continue"].as_str().unwrap();
    let token: String = form_urlencoded::byte_serialize(token.as_bytes()).collect();
    let rest = second.get(&format!("{APPS}?continue={token}")).await.json();
    assert_eq!(revision(&rest), revision(&page));
    let names: Vec<&str> = rest["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["b", "c"], "the page is of the revision of the first one");

    let from = revision(&page);
    let mut watch =
        first.lines(&format!("{APPS}?watch=1&allowWatchBookmarks=true&resourceVersion={from}"), &[]).await;
    assert_eq!(watch.event().await, ("ADDED".to_owned(), "aa".to_owned()));
    here.begin_stop();
    let bookmark = watch.frame().await;
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(watch.next().await, Next::End);
    second.delete(&format!("{APPS}/aa")).await;
    let at = revision(&bookmark["object"]);
    let mut resumed = second.lines(&format!("{APPS}?watch=1&resourceVersion={at}"), &[]).await;
    assert_eq!(resumed.event().await, ("DELETED".to_owned(), "aa".to_owned()), "nothing lost, nothing twice");
    here.stop().await;
    here.store.shutdown().await;
    there.store.shutdown().await;
}

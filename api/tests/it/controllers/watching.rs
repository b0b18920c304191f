//! Watchers and caches: the state first, then every change, and the way back after a loss.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use horchestra_service::ServiceConfig;
use horchestra_store::{MemoryDatabase, Store, StoreOptions};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::runtime::{WatchStreamExt, reflector};
use serde_json::{Value, json};

use super::{Application, applications, connect};
use crate::client::DEADLINE;
use crate::stack::{Setup, Stack};

/// Both ways to begin: a list and then a watch, and a watch that lists.
fn strategies() -> [Config; 2] {
    [Config::default().page_size(2), Config::default().streaming_lists()]
}

async fn create(api: &Api<Application>, name: &str, labels: &[(&str, &str)]) -> Application {
    let app = Application::new(name, "nginx:1").labelled(labels);
    api.create(&PostParams::default(), &app).await.unwrap()
}

async fn merge(api: &Api<Application>, name: &str, patch: Value) -> Application {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap()
}

/// What a watcher tells next, in short: `apply web 7`.
async fn told(
    stream: &mut (impl Stream<Item = watcher::Result<Event<Application>>> + Unpin),
) -> Result<String, watcher::Error> {
    let of = |what: &str, app: &Application| format!("{what} {} {}", app.name(), app.spec.image);
    let event = tokio::time::timeout(DEADLINE, stream.next()).await.expect("an event").expect("a stream");
    Ok(match event? {
        Event::Init => "init".to_owned(),
        Event::InitApply(app) => of("init-apply", &app),
        Event::InitDone => "init-done".to_owned(),
        Event::Apply(app) => of("apply", &app),
        Event::Delete(app) => of("delete", &app),
    })
}

#[tokio::test]
async fn the_state_comes_first_whole_and_then_every_change_in_order() {
    for config in strategies() {
        let (_stack, api) = applications().await;
        for name in ["a", "b", "c"] {
            create(&api, name, &[]).await;
        }
        let mut stream = pin!(watcher(api.clone(), config.clone()));
        let mut begun = Vec::new();
        while begun.last().is_none_or(|last| last != "init-done") {
            begun.push(told(&mut stream).await.unwrap());
        }
        let expected =
            ["init", "init-apply a nginx:1", "init-apply b nginx:1", "init-apply c nginx:1", "init-done"];
        assert_eq!(begun, expected, "{config:?}");
        create(&api, "d", &[]).await;
        merge(&api, "a", json!({"spec": {"image": "nginx:2"}})).await;
        api.delete("b", &DeleteParams::default()).await.unwrap();
        for expected in ["apply d nginx:1", "apply a nginx:2", "delete b nginx:1"] {
            assert_eq!(told(&mut stream).await.unwrap(), expected, "{config:?}");
        }
    }
}

#[tokio::test]
async fn an_empty_collection_is_known_to_be_empty_at_once() {
    for config in strategies() {
        let (_stack, api) = applications().await;
        let mut stream = pin!(watcher(api.clone(), config.clone()));
        assert_eq!(told(&mut stream).await.unwrap(), "init", "{config:?}");
        assert_eq!(told(&mut stream).await.unwrap(), "init-done", "{config:?}");
    }
}

#[tokio::test]
async fn who_selects_sees_objects_come_and_go_as_they_were() {
    for config in strategies() {
        let (_stack, api) = applications().await;
        create(&api, "a", &[("tier", "front")]).await;
        create(&api, "b", &[("tier", "back")]).await;
        let mut stream = pin!(watcher(api.clone(), config.labels("tier=front")));
        for expected in ["init", "init-apply a nginx:1", "init-done"] {
            assert_eq!(told(&mut stream).await.unwrap(), expected);
        }
        merge(&api, "b", json!({"metadata": {"labels": {"tier": "front"}}})).await;
        let left = json!({"metadata": {"labels": {"tier": "back"}}, "spec": {"image": "nginx:2"}});
        merge(&api, "a", left).await;
        api.delete("a", &DeleteParams::default()).await.unwrap();
        api.delete("b", &DeleteParams::default()).await.unwrap();
        for expected in ["apply b nginx:1", "delete a nginx:1", "delete b nginx:1"] {
            assert_eq!(told(&mut stream).await.unwrap(), expected);
        }
    }
}

#[tokio::test]
async fn metadata_alone_can_be_watched() {
    for config in strategies() {
        let (stack, api) = applications().await;
        create(&api, "a", &[("x", "1")]).await;
        let metadata: Api<PartialObjectMeta<Application>> = Api::namespaced(connect(&stack).await, "default");
        let mut stream = pin!(watcher(metadata, config).touched_objects());
        for (value, label) in [("1", None), ("2", Some("2"))] {
            if let Some(label) = label {
                merge(&api, "a", json!({"metadata": {"labels": {"x": label}}})).await;
            }
            let next = tokio::time::timeout(DEADLINE, stream.next()).await.expect("an event").unwrap();
            let metadata = next.unwrap().metadata;
            assert_eq!(
                (metadata.name.as_deref(), metadata.labels.unwrap()["x"].as_str()),
                (Some("a"), value)
            );
        }
    }
}

#[tokio::test]
async fn bookmarks_tell_how_far_a_quiet_watch_is() {
    let service = ServiceConfig { bookmark_interval: Duration::from_millis(50), ..ServiceConfig::default() };
    let stack = Stack::with(Setup { service, ..Setup::default() }).await;
    stack.make_namespaces().await;
    let api: Api<Application> = Api::namespaced(connect(&stack).await, "default");
    let from = create(&api, "a", &[("tier", "front")]).await;
    let params = WatchParams::default().labels("tier=front");
    let mut stream = pin!(api.watch(&params, from.revision()).await.unwrap());
    let elsewhere = create(&api, "b", &[("tier", "back")]).await;
    loop {
        let event = tokio::time::timeout(DEADLINE, stream.next()).await.expect("a bookmark").unwrap();
        match event.unwrap() {
            WatchEvent::Bookmark(mark) if mark.metadata.resource_version == elsewhere.revision() => break,
            WatchEvent::Bookmark(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A watcher that sees nothing of what happens, while the log moves on and is cut off behind it, is told so
/// when it comes back, and begins anew by itself.
#[tokio::test]
async fn a_watcher_that_missed_too_much_begins_anew() {
    let database = MemoryDatabase::new();
    let options = StoreOptions { ring_events: 4, ..StoreOptions::default() };
    let store = Store::open(database.connect(), options);
    let stack = Stack::with(Setup { store: Some(store), ..Setup::default() }).await;
    stack.make_namespaces().await;
    let api: Api<Application> = Api::namespaced(connect(&stack).await, "default");
    create(&api, "a", &[("tier", "front")]).await;
    // Each watch ends after a second, and nothing but a change tells it where to go on.
    let config = Config::default().labels("tier=front").timeout(1).disable_bookmarks();
    let mut stream = pin!(watcher(api.clone(), config));
    let state = ["init", "init-apply a nginx:1", "init-done"];
    for expected in state {
        assert_eq!(told(&mut stream).await.unwrap(), expected);
    }
    create(&api, "b", &[("tier", "back")]).await;
    for at in 0..10 {
        merge(&api, "b", json!({"metadata": {"labels": {"at": at.to_string()}}})).await;
    }
    database.compact(stack.store.fresh().await.unwrap().revision());
    match told(&mut stream).await {
        Err(watcher::Error::WatchError(status)) => assert_eq!(status.code, 410, "{status:?}"),
        other => panic!("no loss but {other:?}"),
    }
    for expected in state {
        assert_eq!(told(&mut stream).await.unwrap(), expected);
    }
    merge(&api, "a", json!({"spec": {"image": "nginx:2"}})).await;
    assert_eq!(told(&mut stream).await.unwrap(), "apply a nginx:2");
}

#[tokio::test]
async fn a_cache_equals_the_list_after_any_amount_of_change() {
    for config in strategies() {
        let (_stack, api) = applications().await;
        for at in 0..20 {
            create(&api, &format!("a{at}"), &[]).await;
        }
        let (reader, writer) = reflector::store();
        let stream = reflector(writer, watcher(api.clone(), config).default_backoff());
        let cache = tokio::spawn(stream.for_each(|event| async { drop(event.unwrap()) }));
        tokio::time::timeout(DEADLINE, reader.wait_until_ready()).await.expect("the cache").unwrap();
        let churn = (0..4).map(|worker| {
            let api = api.clone();
            async move {
                for step in 0..25 {
                    let name = format!("a{}", (worker * 5 + step) % 20);
                    match step % 5 {
                        0 => drop(api.delete(&name, &DeleteParams::default()).await),
                        1 => {
                            let app = Application::new(&name, "nginx:1");
                            drop(api.create(&PostParams::default(), &app).await);
                        }
                        _ => {
                            let patch = Patch::Merge(
                                json!({"metadata": {"labels": {"at": format!("{worker}-{step}")}}}),
                            );
                            drop(api.patch(&name, &PatchParams::default(), &patch).await);
                        }
                    }
                }
            }
        });
        futures::future::join_all(churn).await;
        let listed = api.list(&ListParams::default()).await.unwrap();
        let by_name = |app: &Application| (app.name().to_owned(), app.revision().to_owned());
        let wanted: BTreeMap<String, String> = listed.items.iter().map(by_name).collect();
        assert!(!wanted.is_empty());
        horchestra_testkit::eventually(DEADLINE, async || {
            let held: BTreeMap<String, String> = reader.state().iter().map(|app| by_name(app)).collect();
            held == wanted
        })
        .await;
        cache.abort();
    }
}

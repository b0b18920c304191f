//! ApplicationSets, whose controller sees to their children.

use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_service::Propagation::{Background, Foreground, Orphan};
use horchestra_service::{Order, RequestContext, WriteOptions};
use serde_json::{Value, json};

use super::world::{World, on_both, operator, reference, term};

fn key(kind: Kind, name: &str) -> Key {
    Key::namespaced(kind, "default", name)
}

/// A set with the child `s-web`, and a Secret that names it as its owner without being a child.
async fn set(world: &World) -> Key {
    world.create(Kind::Namespace, "", json!({"metadata": {"name": "default"}})).await;
    let set = json!({"metadata": {"name": "s"}, "spec": {"applications": [{"name": "web", "spec": {"image": "x"}}]}});
    let set = world.create(Kind::ApplicationSet, "default", set).await;
    let mut owner = reference(&set.key, &set.uid.to_string());
    let secret = json!({"metadata": {"name": "x", "ownerReferences": [owner]}, "data": {"a": "YQ=="}});
    world.create(Kind::Secret, "default", secret).await;
    owner["controller"] = json!(true);
    let child = json!({
        "metadata": {
            "name": "s-web", "ownerReferences": [owner], "annotations": {"horchestra.io/appset-spec-hash": "1"},
            "labels": {"horchestra.io/application-set": "s", "horchestra.io/component": "web", "mine": "1"},
        },
        "spec": {"image": "x"},
    });
    let controller = RequestContext::new(term(world.service.store(), "applicationset").await.caller());
    world.create_as(&controller, Kind::Application, "default", child).await;
    set.key.clone()
}

async fn finalizers(world: &World, key: &Key) -> Value {
    world.get(key).await.expect("it is there")["metadata"]["finalizers"].clone()
}

async fn force(world: &World, key: &Key, finalizers: &[&str]) {
    let finalizers = finalizers.iter().map(|name| (*name).to_owned()).collect();
    let order = Order { finalizers: Some(finalizers), ..Order::default() };
    world.service.act(&operator(), key, Door::Finalize, &order, &WriteOptions::default()).await.unwrap();
}

#[tokio::test]
async fn children_are_the_controllers_while_their_set_is_there() {
    let (web, secret) = (key(Kind::Application, "s-web"), key(Kind::Secret, "x"));
    for (policy, marks, secret_stays) in [
        (Background, json!(["horchestra.io/child-teardown"]), true),
        (Foreground, json!(["horchestra.io/child-teardown", "foregroundDeletion"]), false),
        (Orphan, json!(["horchestra.io/child-teardown", "orphan"]), true),
    ] {
        let world = World::memory().await;
        let set = set(&world).await;
        assert!(!world.delete(&set, policy).await.erased);
        world.settle().await;
        assert_eq!(finalizers(&world, &set).await, marks, "{policy:?}");
        let child = world.get(&web).await.expect("nobody but the controller deletes it");
        assert_eq!(child["metadata"]["ownerReferences"][0]["name"], "s", "{policy:?}");
        let left = world.get(&secret).await;
        assert_eq!(left.is_some(), secret_stays, "{policy:?}");
        if policy == Orphan {
            assert!(left.unwrap()["metadata"].get("ownerReferences").is_none(), "it is left behind");
        }
    }
}

#[tokio::test]
async fn a_set_that_is_deleted_in_the_foreground_goes_after_its_children() {
    on_both(async |world| {
        let set = set(world).await;
        world.delete(&set, Foreground).await;
        // The controller is done, as far as it knows.
        force(world, &set, &["horchestra.io/child-teardown"]).await;
        world.settle().await;
        assert_eq!(finalizers(world, &set).await, json!(["foregroundDeletion"]), "there is a child yet");
        world.delete(&key(Kind::Application, "s-web"), Background).await;
        world.settle().await;
        assert!(world.get(&set).await.is_none());
    })
    .await;
}

#[tokio::test]
async fn children_of_a_set_that_is_gone_are_collected_or_freed() {
    for orphan in [false, true] {
        on_both(async |world| {
            let set = set(world).await;
            world.delete(&set, if orphan { Orphan } else { Background }).await;
            // Somebody forces it out before its controller has done anything.
            force(world, &set, &["horchestra.io/child-teardown", "orphan"]).await;
            assert!(world.get(&set).await.is_none());
            world.settle().await;
            let web = world.get(&key(Kind::Application, "s-web")).await;
            assert_eq!(web.is_some(), orphan);
            if let Some(web) = web {
                let metadata = &web["metadata"];
                assert!(metadata.get("ownerReferences").is_none(), "{metadata}");
                assert_eq!(metadata["labels"], json!({"mine": "1"}), "nothing calls it a child any more");
                assert!(metadata.get("annotations").is_none(), "{metadata}");
            }
        })
        .await;
    }
}

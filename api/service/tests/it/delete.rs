use horchestra_core::kind::{Key, Kind};
use horchestra_service::{DeleteOptions, Deleted, ListRequest, Preconditions, Propagation};
use serde_json::{Value, json};

use crate::support::*;

#[tokio::test]
async fn what_nothing_holds_is_erased() {
    let world = World::new().await;
    let created = world.create(application("web")).await.unwrap().entry;
    let mut watch = watch_after(&world.service, Kind::Application, created.revision).await;
    let deleted = world.delete(&app("web")).await.unwrap();
    assert!(deleted.erased);
    assert!(deleted.entry.revision > created.revision, "a deletion takes a revision");
    assert_eq!(deleted.entry.uid, created.uid);
    assert_eq!(next_short(&mut watch).await, format!("DELETED web {}", deleted.entry.revision));
    assert_eq!(world.get(&app("web")).await.unwrap_err().code(), 404);
    assert_eq!(world.delete(&app("web")).await.unwrap_err().code(), 404);
    let again = world.create(application("web")).await.unwrap().entry;
    assert_ne!(again.uid, created.uid);
    assert_eq!(again.generation, 1);
}

#[tokio::test]
async fn what_something_holds_is_marked_once_and_erased_with_the_last_finalizer() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    let created = world.create(body).await.unwrap().entry;
    let mut watch = watch_after(&world.service, Kind::Application, created.revision).await;
    let marked = world.delete(&app("web")).await.unwrap();
    assert!(!marked.erased && marked.entry.deleting);
    let stored = world.get(&app("web")).await.unwrap();
    assert!(stored["metadata"]["deletionTimestamp"].as_str().unwrap().ends_with('Z'));
    assert_eq!(stored["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked.entry.generation, created.generation);
    let again = world.delete(&app("web")).await.unwrap();
    assert_eq!(again.entry.revision, marked.entry.revision, "the second request writes nothing");
    let one_less =
        world.merge(&app("web"), json!({"metadata": {"finalizers": ["example.com/b"]}})).await.unwrap();
    assert!(!one_less.erased);
    let gone = world.merge(&app("web"), json!({"metadata": {"finalizers": null}})).await.unwrap();
    assert!(gone.erased, "the change that removes the last holder erases");
    assert_eq!(world.get(&app("web")).await.unwrap_err().code(), 404);
    for expected in [
        format!("MODIFIED web {}", marked.entry.revision),
        format!("MODIFIED web {}", one_less.entry.revision),
        format!("DELETED web {}", gone.entry.revision),
    ] {
        assert_eq!(next_short(&mut watch).await, expected);
    }
    assert!(watch.ready().is_none(), "exactly one deletion");
}

#[tokio::test]
async fn preconditions_are_exact() {
    let world = World::new().await;
    let created = world.create(application("web")).await.unwrap().entry;
    let status = json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}});
    let reported = world.put_status(&app("web"), &status).await.unwrap().entry;
    let delete = |uid: Option<String>, resource_version: Option<String>| {
        let service = world.service.clone();
        async move {
            let preconditions = Preconditions { uid, resource_version };
            let options = DeleteOptions { preconditions, ..DeleteOptions::default() };
            service.delete(&admin(), &app("web"), &options).await.map_err(|status| status.code())
        }
    };
    let other = uuid::Uuid::new_v4().to_string();
    assert_eq!(delete(Some(other), None).await.unwrap_err(), 409);
    assert_eq!(delete(None, Some(created.revision.to_string())).await.unwrap_err(), 409);
    let (uid, revision) = (created.uid.to_string(), reported.revision.to_string());
    assert!(delete(Some(uid), Some(revision)).await.unwrap().erased);
}

#[tokio::test]
async fn options_of_a_delete() {
    let world = World::new().await;
    let mut body = application("held");
    body["metadata"]["finalizers"] = json!(["example.com/a"]);
    world.create(body).await.unwrap();
    world.create(application("free")).await.unwrap();
    let delete = |name: &'static str, options: DeleteOptions| {
        let service = world.service.clone();
        async move { service.delete(&admin(), &app(name), &options).await }
    };
    let negative = DeleteOptions { grace_period_seconds: Some(-1), ..DeleteOptions::default() };
    assert_eq!(delete("free", negative).await.unwrap_err().code(), 422);
    let dry = DeleteOptions { dry_run: true, ..DeleteOptions::default() };
    assert!(delete("free", dry.clone()).await.unwrap().erased);
    assert!(!delete("held", dry).await.unwrap().erased);
    assert!(world.get(&app("free")).await.is_ok());
    assert!(world.get(&app("held")).await.unwrap()["metadata"].get("deletionTimestamp").is_none());
    let grace = DeleteOptions { grace_period_seconds: Some(5), ..DeleteOptions::default() };
    let marked = tree(&delete("held", grace).await.unwrap().entry);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 5);
    for propagation in [Propagation::Background, Propagation::Foreground, Propagation::Orphan] {
        let name = "free";
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        assert!(delete(name, options).await.unwrap().erased, "{propagation:?} on a kind without dependents");
        world.create(application(name)).await.unwrap();
    }
}

#[tokio::test]
async fn a_namespace_that_holds_something_stays_and_says_what() {
    let world = World::new().await;
    for name in ["a", "b", "c", "d"] {
        world.create(application(name)).await.unwrap();
    }
    world.create(json!({"kind": "Application", "metadata": {"name": "x", "namespace": "other"}, "spec": {"image": "x"}})).await.unwrap();
    let status = world.delete(&namespace("other")).await.unwrap_err();
    assert_eq!(status.code(), 403);
    assert!(status.message.contains("application x"), "{status}");
    let status = world.delete(&namespace("default")).await.unwrap_err();
    assert_eq!(status.code(), 403, "the default namespace stays");
    world.delete(&Key::namespaced(Kind::Application, "other", "x")).await.unwrap();
    assert!(world.delete(&namespace("other")).await.unwrap().erased);
    let body = json!({"kind": "Application", "metadata": {"name": "x", "namespace": "other"}, "spec": {"image": "x"}});
    assert_eq!(world.create(body).await.unwrap_err().code(), 404);

    world.create(json!({"kind": "Namespace", "metadata": {"name": "many"}})).await.unwrap();
    for name in ["a", "b", "c", "d"] {
        world
            .create(json!({"metadata": {"name": name, "namespace": "many"}, "spec": {"image": "x"}}))
            .await
            .unwrap();
    }
    let status = world.delete(&namespace("many")).await.unwrap_err();
    assert!(status.message.contains("application a, b, c, …"), "{status}");
}

#[tokio::test]
async fn nothing_is_put_into_a_namespace_that_is_being_deleted_and_it_goes_empty() {
    let world = World::new().await;
    let body = json!({"kind": "Namespace", "metadata": {"name": "held", "finalizers": ["example.com/a"]}});
    world.create(body).await.unwrap();
    assert!(!world.delete(&namespace("held")).await.unwrap().erased);
    let body = json!({"metadata": {"name": "x", "namespace": "held"}, "spec": {"image": "x"}});
    let status = world.create(body).await.unwrap_err();
    assert_eq!(status.code(), 403);
    assert_eq!(status.details.causes[0].reason, "NamespaceTerminating");
    assert!(world.merge(&namespace("held"), json!({"metadata": {"finalizers": null}})).await.unwrap().erased);
}

#[tokio::test]
async fn a_placed_application_is_held_by_its_node_and_deletable_without_it() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let mut body = application("web");
    body["spec"]["placement"] = json!({"nodeName": "node-1"});
    world.create(body).await.unwrap();
    world.delete(&node("node-1")).await.unwrap();
    let marked = world.delete(&app("web")).await.unwrap();
    assert!(!marked.erased);
    assert_eq!(tree(&marked.entry)["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
    // Housekeeping on a deleting object is not refused for the lack of its node.
    world.merge(&app("web"), json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    let patch = json!({"metadata": {"finalizers": null}});
    let kept = world.merge(&app("web"), patch).await.unwrap();
    assert!(!kept.erased, "no client clears the hold of the node");
    // Another node would confirm at once what it has never run.
    for node in [json!("node-2"), json!(""), Value::Null] {
        let moved =
            world.merge(&app("web"), json!({"spec": {"placement": {"nodeName": node}}})).await.unwrap();
        assert_eq!(tree(&moved.entry)["spec"]["placement"]["nodeName"], "node-1");
    }
    let listing = world.list(ListRequest::of(Kind::Application)).await.unwrap();
    assert_eq!(names(&listing), ["web"]);
}

#[tokio::test]
async fn a_collection_goes_as_far_as_it_is_selected() {
    let world = World::new().await;
    for (name, side) in [("a", "left"), ("b", "right"), ("c", "left")] {
        let metadata = json!({"name": name, "labels": {"side": side}});
        world.create(json!({"metadata": metadata, "spec": {"image": "x"}})).await.unwrap();
    }
    let mut held = application("held");
    held["metadata"]["labels"] = json!({"side": "left"});
    held["metadata"]["finalizers"] = json!(["example.com/a"]);
    world.create(held).await.unwrap();
    let request = ListRequest { label_selector: "side=left".into(), ..ListRequest::of(Kind::Application) };
    let dry = DeleteOptions { dry_run: true, ..DeleteOptions::default() };
    let deleted = world.service.delete_collection(&admin(), request.clone(), &dry).await.unwrap();
    assert_eq!(deleted.len(), 3);
    assert_eq!(world.list(request.clone()).await.unwrap().entries.len(), 3, "a dry run deletes nothing");
    let options = DeleteOptions::default();
    let deleted = world.service.delete_collection(&admin(), request, &options).await.unwrap();
    let found: Vec<(&str, bool)> =
        deleted.iter().map(|one| (one.entry.key.name.as_str(), one.erased)).collect();
    assert_eq!(found, [("a", true), ("c", true), ("held", false)]);
    let left = world.list(ListRequest::of(Kind::Application)).await.unwrap();
    assert_eq!(names(&left), ["b", "held"]);
}

#[tokio::test]
async fn every_kind_of_a_namespace_keeps_it_but_events() {
    let role = json!({"kind": "Role", "name": "r"});
    let specs = json!({
        "Application": {"image": "x"},
        "ApplicationSet": {"applications": [{"name": "a", "spec": {"image": "x"}}]},
        "Service": {"ports": [{"port": 1}]},
        "PersistentVolume": {},
        "SecretStore": {"server": "x"},
        "Role": {"rules": []},
        "RoleBinding": {"subjects": [], "roleRef": role},
    });
    let kinds = horchestra_core::registry::served().iter().map(|spec| spec.kind);
    for kind in kinds.filter(|kind| kind.namespaced() && *kind != Kind::Event) {
        let world = World::new().await;
        let mut object = json!({"kind": kind.name(), "metadata": {"name": "x", "namespace": "other"}});
        if let Some(spec) = specs.get(kind.name()) {
            object["spec"] = spec.clone();
        }
        world.create(object).await.unwrap();
        let status = world.delete(&namespace("other")).await.unwrap_err();
        assert_eq!(status.code(), 403, "{kind}: {status}");
        let held = format!("{} x", kind.name().to_lowercase());
        assert!(status.message.contains(&held), "{kind}: {status}");
    }
}

async fn delete_as(world: &World, key: &Key, propagation: Option<Propagation>) -> Deleted {
    let options = DeleteOptions { propagation, ..DeleteOptions::default() };
    world.service.delete(&admin(), key, &options).await.unwrap()
}

fn volume(name: &str) -> Key {
    Key::namespaced(Kind::PersistentVolume, "default", name)
}

/// A volume, and one that it owns.
async fn owner_with_dependent(world: &World) -> Key {
    let owner =
        world.create(json!({"kind": "PersistentVolume", "metadata": {"name": "p"}, "spec": {}})).await;
    let uid = owner.unwrap().entry.uid.to_string();
    let reference =
        json!({"apiVersion": "horchestra.io/v1", "kind": "PersistentVolume", "name": "p", "uid": uid});
    let metadata = json!({"name": "a", "ownerReferences": [reference]});
    world.create(json!({"kind": "PersistentVolume", "metadata": metadata, "spec": {}})).await.unwrap();
    volume("p")
}

#[tokio::test]
async fn an_owner_waits_for_its_dependents_where_the_policy_says_so() {
    use Propagation::{Background, Foreground, Orphan};
    for (policy, finalizers) in [
        (None, None),
        (Some(Background), None),
        (Some(Foreground), Some(json!(["foregroundDeletion"]))),
        (Some(Orphan), Some(json!(["orphan"]))),
    ] {
        let world = World::new().await;
        let key = owner_with_dependent(&world).await;
        let deleted = delete_as(&world, &key, policy).await;
        assert_eq!(deleted.erased, finalizers.is_none(), "{policy:?}");
        if let Some(finalizers) = finalizers {
            let marked = world.get(&key).await.unwrap();
            assert_eq!(marked["metadata"]["finalizers"], finalizers, "{policy:?}");
            assert!(marked["metadata"]["deletionTimestamp"].is_string());
        }
        let dependent = world.get(&volume("a")).await.unwrap();
        assert!(dependent["metadata"].get("deletionTimestamp").is_none(), "that is for the collection");
    }
}

#[tokio::test]
async fn a_later_request_changes_the_policy_to_orphan_and_to_nothing_else() {
    use Propagation::{Background, Foreground, Orphan};
    for (first, second, finalizers) in [
        (Foreground, Background, "foregroundDeletion"),
        (Foreground, Orphan, "orphan"),
        (Orphan, Foreground, "orphan"),
        (Orphan, Background, "orphan"),
        (Orphan, Orphan, "orphan"),
    ] {
        let world = World::new().await;
        let key = owner_with_dependent(&world).await;
        let marked = delete_as(&world, &key, Some(first)).await;
        let again = delete_as(&world, &key, Some(second)).await;
        let object = tree(&again.entry);
        assert_eq!(object["metadata"]["finalizers"], json!([finalizers]), "{first:?} {second:?}");
        let since = &tree(&marked.entry)["metadata"]["deletionTimestamp"];
        assert_eq!(&object["metadata"]["deletionTimestamp"], since, "{first:?} {second:?}");
        let same = again.entry.revision == marked.entry.revision;
        assert_eq!(same, second != Orphan || first == Orphan, "{first:?} {second:?}");
    }
}

#[tokio::test]
async fn what_others_hold_waits_for_dependents_only_if_it_has_any() {
    for policy in [Propagation::Foreground, Propagation::Orphan] {
        let world = World::new().await;
        let mut body = application("web");
        body["metadata"]["finalizers"] = json!(["example.com/a"]);
        world.create(body).await.unwrap();
        let marked = tree(&delete_as(&world, &app("web"), Some(policy)).await.entry);
        assert_eq!(marked["metadata"]["finalizers"], json!(["example.com/a"]), "{policy:?}");
    }
}

#[tokio::test]
async fn a_set_keeps_its_hold_under_every_policy() {
    use Propagation::{Background, Foreground, Orphan};
    let key = Key::namespaced(Kind::ApplicationSet, "default", "s");
    for (policy, finalizers) in [
        (None, json!(["horchestra.io/child-teardown"])),
        (Some(Background), json!(["horchestra.io/child-teardown"])),
        (Some(Foreground), json!(["horchestra.io/child-teardown", "foregroundDeletion"])),
        (Some(Orphan), json!(["horchestra.io/child-teardown", "orphan"])),
    ] {
        let world = World::new().await;
        let spec = json!({"applications": [{"name": "a", "spec": {"image": "x"}}]});
        world
            .create(json!({"kind": "ApplicationSet", "metadata": {"name": "s"}, "spec": spec}))
            .await
            .unwrap();
        let marked = tree(&delete_as(&world, &key, policy).await.entry);
        assert_eq!(marked["metadata"]["finalizers"], finalizers, "{policy:?}");
    }
}

#[tokio::test]
async fn nobody_waits_for_events() {
    for policy in [Propagation::Foreground, Propagation::Orphan] {
        let world = World::new().await;
        let uid = world.create(application("web")).await.unwrap().entry.uid.to_string();
        let owner =
            json!({"apiVersion": "horchestra.io/v1", "kind": "Application", "name": "web", "uid": uid});
        let event = json!({
            "kind": "Event", "metadata": {"name": "e", "ownerReferences": [owner]},
            "involvedObject": {"kind": "Application", "name": "web", "namespace": "default"},
        });
        world.create(event).await.unwrap();
        assert!(delete_as(&world, &app("web"), Some(policy)).await.erased, "{policy:?}");
    }
}

/// A dependent that comes at the same time is either seen by the deletion or sees that its owner is gone; never
/// does an owner that was to leave it behind vanish without a mark.
#[tokio::test]
async fn no_dependent_comes_in_between_unseen() {
    for round in 0..20 {
        let world = World::new().await;
        let body = json!({"kind": "PersistentVolume", "metadata": {"name": "p"}, "spec": {}});
        let uid = world.create(body).await.unwrap().entry.uid.to_string();
        let reference =
            json!({"apiVersion": "horchestra.io/v1", "kind": "PersistentVolume", "name": "p", "uid": uid});
        let metadata = json!({"name": "a", "ownerReferences": [reference]});
        let replica = world.replica().await;
        let key = volume("p");
        let options = DeleteOptions { propagation: Some(Propagation::Orphan), ..DeleteOptions::default() };
        let who = admin();
        let deleting = replica.delete(&who, &key, &options);
        let adding = world.create(json!({"kind": "PersistentVolume", "metadata": metadata, "spec": {}}));
        let (deleted, added) = tokio::join!(deleting, adding);
        let (deleted, added) = (deleted.unwrap(), added.unwrap());
        let came_first = added.entry.revision < deleted.entry.revision;
        assert_eq!(deleted.erased, !came_first, "round {round}");
    }
}

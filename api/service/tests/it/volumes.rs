use horchestra_core::kind::{Key, Kind};
use serde_json::{Value, json};

use crate::support::*;

fn volume(name: &str) -> Key {
    Key::namespaced(Kind::PersistentVolume, "default", name)
}

fn volume_of(name: &str, shared: bool) -> Value {
    json!({"kind": "PersistentVolume", "metadata": {"name": name}, "spec": {"shared": shared}})
}

fn mounting(name: &str, volumes: &[&str]) -> Value {
    let mounts: Vec<Value> = volumes
        .iter()
        .enumerate()
        .map(|(at, volume)| json!({"mountPath": format!("/v{at}"), "volume": {"type": "pv", "name": volume}}))
        .collect();
    json!({"metadata": {"name": name}, "spec": {"image": "x", "volumes": mounts}})
}

#[tokio::test]
async fn a_volume_has_one_user_unless_it_is_shared() {
    let world = World::new().await;
    world.create(volume_of("data", false)).await.unwrap();
    world.create(volume_of("pool", true)).await.unwrap();
    world.create(mounting("one", &["data", "absent", "pool"])).await.unwrap();
    for (what, object, code, text) in [
        ("mounted already", mounting("two", &["data"]), 403, "\"one\""),
        ("mounted already, and not there yet", mounting("two", &["absent"]), 403, "\"one\""),
        ("the default name of another", mounting("absent", &[""]), 403, "\"one\""),
        ("shared", mounting("two", &["pool"]), 201, ""),
        ("its own, twice", mounting("three", &["own", "own"]), 201, ""),
        (
            "memory of the same name",
            json!({"metadata": {"name": "four"}, "spec": {"image": "x",
            "volumes": [{"mountPath": "/d", "volume": {"type": "tmpfs", "name": "data"}}]}}),
            201,
            "",
        ),
    ] {
        match world.create(object).await {
            Ok(_) => assert_eq!(code, 201, "{what}"),
            Err(status) => {
                assert_eq!(status.code(), code, "{what}: {status}");
                assert!(status.message.contains(text), "{what}: {status}");
            }
        }
    }
    let mut elsewhere = mounting("two", &["data"]);
    elsewhere["metadata"]["namespace"] = json!("other");
    world.create(elsewhere).await.unwrap();
    world.merge(&app("one"), json!({"spec": {"image": "y"}})).await.unwrap();
    let taken = world.merge(&app("four"), mounting("four", &["data"])).await.unwrap_err();
    assert_eq!(taken.code(), 403, "{taken}");
}

#[tokio::test]
async fn sharing_cannot_be_taken_back_from_several() {
    let world = World::new().await;
    world.create(volume_of("pool", true)).await.unwrap();
    world.create(mounting("one", &["pool"])).await.unwrap();
    world.create(mounting("two", &["pool"])).await.unwrap();
    let unshare = |value: Value| world.merge_owned(volume("pool"), json!({"spec": {"shared": value}}));
    for value in [json!(false), Value::Null] {
        let status = unshare(value).await.unwrap_err();
        assert_eq!(status.code(), 403);
        assert!(status.message.contains("\"one\", \"two\""), "{status}");
    }
    world.delete(&app("two")).await.unwrap();
    unshare(json!(false)).await.unwrap();
    assert_eq!(world.create(mounting("two", &["pool"])).await.unwrap_err().code(), 403);
}

#[tokio::test]
async fn a_mounted_volume_stays() {
    let world = World::new().await;
    world.create(volume_of("pool", true)).await.unwrap();
    world.create(mounting("one", &["pool"])).await.unwrap();
    world.create(mounting("pool", &[""])).await.unwrap();
    world.create(mounting("stranger", &["private"])).await.unwrap();
    let status = world.delete(&volume("pool")).await.unwrap_err();
    assert_eq!(status.code(), 403);
    assert!(
        status.message.contains("\"one\", \"pool\" mounts") && !status.message.contains("stranger"),
        "{status}"
    );
    for name in ["one", "pool"] {
        world.delete(&app(name)).await.unwrap();
    }
    assert!(world.delete(&volume("pool")).await.unwrap().erased);
}

#[tokio::test]
async fn only_a_mount_of_the_volume_protects_it() {
    let world = World::new().await;
    world.create(volume_of("data", false)).await.unwrap();
    let mount = |volume: Value| json!({"mountPath": "/d", "volume": volume});
    let mut memory = application("memory");
    memory["spec"]["volumes"] = json!([mount(json!({"type": "tmpfs", "name": "data"}))]);
    world.create(memory).await.unwrap();
    let mut elsewhere = mounting("one", &["data"]);
    elsewhere["metadata"]["namespace"] = json!("other");
    world.create(elsewhere).await.unwrap();
    assert!(world.delete(&volume("data")).await.unwrap().erased);

    world.create(mounting("one", &["data"])).await.unwrap();
    world.create(volume_of("data", false)).await.expect("what is mounted can be made");
    world.merge(&volume("data"), json!({"spec": {"size": "1Gi"}})).await.expect("and changed");
}

#[tokio::test]
async fn nothing_new_is_mounted_from_a_volume_that_is_going() {
    let world = World::new().await;
    let mut held = volume_of("data", true);
    held["metadata"]["finalizers"] = json!(["example.com/backup"]);
    world.create(held).await.unwrap();
    assert!(!world.delete(&volume("data")).await.unwrap().erased);
    assert_eq!(world.create(mounting("one", &["data"])).await.unwrap_err().code(), 403);
    assert!(!world.delete(&volume("data")).await.unwrap().erased, "asked again, nothing changes");
    let released = world.merge(&volume("data"), json!({"metadata": {"finalizers": null}})).await.unwrap();
    assert!(released.erased);
    world.create(mounting("one", &["data"])).await.unwrap();
}

#[tokio::test]
async fn a_secret_that_is_referred_to_stays() {
    let world = World::new().await;
    let key = |name: &str| Key::namespaced(Kind::Secret, "default", name);
    for name in ["env", "file", "maybe", "free"] {
        world.create(json!({"kind": "Secret", "metadata": {"name": name}})).await.unwrap();
    }
    let web = json!({"metadata": {"name": "web"}, "spec": {"image": "x",
        "env": [{"name": "A", "secretRef": {"name": "env", "key": "a"}},
            {"secretRef": {"name": "maybe", "key": "*", "optional": true}}],
        "volumes": [{"mountPath": "/f", "volume": {"type": "secret", "name": "file"}}]}});
    world.create(web).await.unwrap();
    for (name, used) in [("env", true), ("file", true), ("maybe", true), ("free", false)] {
        match world.delete(&key(name)).await {
            Ok(deleted) => assert!(!used && deleted.erased, "{name}"),
            Err(status) => {
                assert_eq!((used, status.code()), (true, 403), "{name}: {status}");
                assert!(status.message.contains("application \"web\""), "{status}");
            }
        }
    }
    let mut mounts = application("db");
    mounts["spec"]["volumes"] = json!([{"mountPath": "/f", "volume": {"type": "secret", "name": "free"}}]);
    assert_eq!(world.create(mounts).await.unwrap_err().code(), 422, "as a volume too");
    let mut needs = application("db");
    needs["spec"]["env"] = json!([{"name": "A", "secretRef": {"name": "free", "key": "a"}}]);
    assert_eq!(world.create(needs.clone()).await.unwrap_err().code(), 422, "a needed Secret is missing");
    needs["spec"]["env"][0]["secretRef"]["optional"] = json!(true);
    world.create(needs).await.unwrap();
}

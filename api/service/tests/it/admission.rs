use horchestra_core::kind::{Key, Kind};
use serde_json::{Value, json};

use crate::support::*;

fn pinned(name: &str, node: &str, cpu: &str, memory: &str) -> Value {
    let mut object = sized(name, cpu, memory);
    object["spec"]["placement"] = json!({ "nodeName": node });
    object
}

#[tokio::test]
async fn what_an_author_pins_must_fit() {
    let world = World::new().await;
    world.node("big", "8", "16Gi").await;
    world.node("small", "4", "8Gi").await;
    world.create(json!({"kind": "Node", "metadata": {"name": "silent"}, "spec": {}})).await.unwrap();
    world.create(pinned("first", "small", "3", "1Gi")).await.unwrap();
    for (what, object, code, text) in [
        ("too much cpu", pinned("a", "small", "2", "1Gi"), 403, "cpu 5 of 4"),
        ("too much memory", pinned("b", "big", "1", "20Gi"), 403, "memory"),
        ("the rest", pinned("c", "small", "1", "1Gi"), 201, ""),
        ("another node", pinned("d", "big", "5", "1Gi"), 201, ""),
        ("a node that reports nothing", pinned("e", "silent", "100", "1Ti"), 201, ""),
        ("nothing asked for", pinned("f", "small", "0", "0"), 201, ""),
    ] {
        match world.create(object).await {
            Ok(_) => assert_eq!(code, 201, "{what}"),
            Err(status) => {
                assert_eq!(status.code(), code, "{what}: {status}");
                assert!(status.message.contains(text), "{what}: {status}");
            }
        }
    }
}

#[tokio::test]
async fn limits_count_where_no_request_is_and_other_namespaces_count_too() {
    let world = World::new().await;
    world.node("small", "4", "8Gi").await;
    let mut elsewhere = pinned("web", "small", "3", "1Gi");
    elsewhere["metadata"]["namespace"] = json!("other");
    world.create(elsewhere).await.unwrap();
    let limited = json!({"metadata": {"name": "web"}, "spec": {"image": "x",
        "placement": {"nodeName": "small"}, "resources": {"limits": {"cpu": "2"}}}});
    assert_eq!(world.create(limited).await.unwrap_err().code(), 403);
    world.create(pinned("db", "small", "500m", "1Gi")).await.unwrap();
    let grown = world.merge(&app("db"), json!({"spec": {"resources": {"requests": {"cpu": "1"}}}})).await;
    assert!(grown.is_ok(), "what it had is not counted twice");
    let too_much =
        world.merge(&app("db"), json!({"spec": {"resources": {"requests": {"cpu": "1100m"}}}})).await;
    assert_eq!(too_much.unwrap_err().code(), 403);
}

#[tokio::test]
async fn a_node_that_shrank_does_not_block_edits_that_ask_for_nothing() {
    let world = World::new().await;
    let session = world.node("small", "4", "8Gi").await;
    world.create(pinned("web", "small", "3", "1Gi")).await.unwrap();
    let report = json!({"ready": true, "capacity": {"cpu": "2", "memory": "8Gi"}});
    world.service.report_node(&session, "small", &report).await.unwrap();
    world.merge(&app("web"), json!({"metadata": {"labels": {"a": "b"}}})).await.unwrap();
    world.merge(&app("web"), json!({"spec": {"image": "y"}})).await.unwrap();
    let less = world.merge(&app("web"), json!({"spec": {"resources": {"requests": {"cpu": "1"}}}})).await;
    assert!(less.is_ok(), "what fits now is fine");
    let more = world.merge(&app("web"), json!({"spec": {"resources": {"requests": {"cpu": "3"}}}})).await;
    assert_eq!(more.unwrap_err().code(), 403);
}

#[tokio::test]
async fn a_pin_can_be_set_moved_and_cleared() {
    let world = World::new().await;
    world.node("one", "4", "8Gi").await;
    world.node("two", "4", "8Gi").await;
    world.create(application("web")).await.unwrap();
    let pin =
        |value: Value| world.merge_owned(app("web"), json!({"spec": {"placement": {"nodeName": value}}}));
    let stored = tree(&pin(json!("one")).await.unwrap().entry);
    assert_eq!(stored["metadata"]["generation"], 2);
    assert_eq!(stored["metadata"]["finalizers"], json!(["horchestra.io/node-teardown"]));
    pin(json!("two")).await.unwrap();
    assert_eq!(pin(json!("three")).await.unwrap_err().code(), 422);
    let stored = tree(&pin(Value::Null).await.unwrap().entry);
    assert!(stored["metadata"].get("finalizers").is_none());
    assert!(world.delete(&app("web")).await.unwrap().erased);
}

#[tokio::test]
async fn a_new_placement_starts_from_nothing() {
    let world = World::new().await;
    let one = world.node("one", "4", "8Gi").await;
    world.node("two", "4", "8Gi").await;
    let created = world.create(pinned("web", "one", "1", "1Gi")).await.unwrap().entry;
    let scheduled = |object: &Value| object["status"]["conditions"][0].clone();
    let stored = tree(&created);
    assert_eq!(stored["status"]["phase"], "Pending");
    assert_eq!(
        (&scheduled(&stored)["type"], &scheduled(&stored)["status"]),
        (&json!("Scheduled"), &json!("True"))
    );
    let report = horchestra_service::ApplicationReport {
        phase: "Running".into(),
        observed_generation: 1,
        ..horchestra_service::ApplicationReport::default()
    };
    world.service.report_application(&one, &app("web"), created.uid, report.clone()).await.unwrap();
    let moved = world.merge(&app("web"), json!({"spec": {"placement": {"nodeName": "two"}}})).await.unwrap();
    let stored = tree(&moved.entry);
    assert_eq!(stored["status"]["phase"], "Pending", "what the old node said is void");
    assert!(stored["status"].get("observedGeneration").is_none());
    assert_eq!(stored["status"]["conditions"].as_array().unwrap().len(), 1);
    let late = world.service.report_application(&one, &app("web"), created.uid, report).await;
    assert!(late.is_err(), "and it is not heard any more");
    let unpinned = tree(&world.merge(&app("web"), json!({"spec": {"placement": null}})).await.unwrap().entry);
    assert_eq!(unpinned["status"], json!({"phase": "Pending"}));
}

#[tokio::test]
async fn odd_metadata_is_stored_with_a_warning() {
    let world = World::new().await;
    let mut body = application("web");
    body["metadata"]["labels"] = json!({"not a key": "x", "good": "-bad-"});
    body["metadata"]["ownerReferences"] = json!([{"kind": "Thing", "name": "x"}]);
    let written = world.create(body).await.unwrap();
    assert_eq!(written.warnings.len(), 3, "{:?}", written.warnings);
    assert_eq!(tree(&written.entry)["metadata"]["labels"]["not a key"], "x");
    let again = world.merge(&app("web"), json!({"spec": {"image": "y"}})).await.unwrap();
    assert!(again.warnings.is_empty(), "not about what is there already: {:?}", again.warnings);
}

#[tokio::test]
async fn only_a_door_freezes() {
    let world = World::new().await;
    let mut body = application("web");
    body["spec"]["frozen"] = json!(true);
    let created = tree(&world.create(body).await.unwrap().entry);
    assert!(created["spec"].get("frozen").is_none());
    let written = world.merge(&app("web"), json!({"spec": {"frozen": true}})).await.unwrap();
    assert_eq!(tree(&written.entry), created, "a write of it is none");
}

#[tokio::test]
async fn what_nodes_will_not_do_is_stored_with_a_warning() {
    let world = World::new().await;
    let mount = |path: &str, sub_path: &str| json!({"mountPath": path, "subPath": sub_path, "volume": {"type": "pv"}});
    let mut body = application("web");
    body["spec"]["volumes"] = json!([mount("/a", "../x"), mount("/b", "x")]);
    let written = world.create(body).await.unwrap();
    assert_eq!(written.warnings.len(), 1, "{:?}", written.warnings);
    assert!(written.warnings[0].contains("spec.volumes[0].subPath"), "{:?}", written.warnings);
    let edited = world.merge(&app("web"), json!({"spec": {"image": "y"}})).await.unwrap();
    assert!(edited.warnings.is_empty(), "it is known by now: {:?}", edited.warnings);
    let more = json!({"spec": {"volumes": [mount("/a", "../x"), mount("/a", "x")]}});
    let edited = world.merge(&app("web"), more).await.unwrap();
    assert_eq!(edited.warnings.len(), 1, "{:?}", edited.warnings);
    assert!(edited.warnings[0].contains("spec.volumes[1].mountPath"), "{:?}", edited.warnings);

    let set = json!({"kind": "ApplicationSet", "metadata": {"name": "s"}, "spec": {
        "common": {"volumes": [mount("/c", "/")]},
        "applications": [{"name": "a", "spec": {"image": "x", "volumes": [mount("/a", ".."), mount("/a", "x")]}}]}});
    let places = [
        "spec.applications[0].spec.volumes[0].subPath",
        "spec.applications[0].spec.volumes[1].mountPath",
        "spec.common.volumes[0].subPath",
    ];
    let store = json!({"kind": "SecretStore", "metadata": {"name": "s"}, "spec": {"server": "x", "auth": {"method": "magic"}}});
    let dotted = json!({"kind": "Namespace", "metadata": {"name": "a.b"}});
    for (object, places) in [(set, &places[..]), (store, &["spec.auth.method"]), (dotted, &["metadata.name"])]
    {
        let written = world.create(object.clone()).await.unwrap();
        assert_eq!(written.warnings.len(), places.len(), "{object}: {:?}", written.warnings);
        let told = written.warnings.iter().zip(places).all(|(text, place)| text.starts_with(place));
        assert!(told, "{object}: {:?}", written.warnings);
    }
}

/// Creates the object or is refused with this; nothing is stored of what is refused.
async fn judged(world: &World, what: &str, object: Value, refusal: Option<(u16, &str)>) {
    let key = app(object["metadata"]["name"].as_str().unwrap());
    match (world.create(object).await, refusal) {
        (Ok(_), None) => {
            world.delete(&key).await.unwrap();
        }
        (Ok(_), Some(refusal)) => panic!("{what}: admitted, not refused with {refusal:?}"),
        (Err(status), None) => panic!("{what}: {status}"),
        (Err(status), Some((code, text))) => {
            assert_eq!(status.code(), code, "{what}: {status}");
            assert!(status.message.contains(text), "{what}: {status}");
            assert_eq!(world.get(&key).await.unwrap_err().code(), 404, "{what}");
        }
    }
}

#[tokio::test]
async fn nothing_gets_out_of_its_line_in_a_unit_file() {
    let world = World::new().await;
    let with = |members: Value| {
        let mut object = application("web");
        for (member, value) in members.as_object().unwrap() {
            object["spec"][member] = value.clone();
        }
        object
    };
    let command = |first: &str| with(json!({"command": [first]}));
    let env = |entries: Value| with(json!({ "env": entries }));
    let all =
        |prefix: &str| json!({"secretRef": {"name": "s", "key": "*", "prefix": prefix, "optional": true}});
    let one = |name: &str| json!({"name": name, "secretRef": {"name": "s", "key": "k", "optional": true}});
    for (what, object, refusal) in [
        ("run without supervision", command("+sh"), Some((403, "command[0]"))),
        ("run with rights", command("!sh"), Some((403, "command[0]"))),
        ("run under another name", command("@sh"), Some((403, "command[0]"))),
        ("run without variables", command(":sh"), Some((403, "command[0]"))),
        ("run whatever comes of it", command("-sh"), Some((403, "command[0]"))),
        ("a line break in the program", command("a\nb"), Some((403, "command[0]"))),
        ("a line break in an argument", with(json!({"args": ["a", "b\rc"]})), Some((403, "args[1]"))),
        ("a line break in a name", env(json!([{"name": "A\n"}])), Some((403, "env[0]"))),
        ("a line break in a value", env(json!([{"name": "A", "value": "x\ny"}])), Some((403, "env[0]"))),
        ("a variable twice", env(json!([{"name": "A"}, {"name": "A", "value": "x"}])), Some((403, "\"A\""))),
        ("a variable from two sources", env(json!([{"name": "A"}, one("A")])), Some((403, "\"A\""))),
        ("all of a secret twice", env(json!([all("P_"), all("P_")])), Some((403, "env[1]"))),
        ("a variable of no name", env(json!([{"name": "pg.password"}])), Some((422, "spec.env[0].name"))),
        ("a shell and its arguments", with(json!({"command": ["/bin/sh"], "args": ["-c", "echo hi"]})), None),
        (
            "values that are equal",
            env(json!([{"name": "A", "value": "x"}, {"name": "B", "value": "x"}])),
            None,
        ),
        (
            "every kind of source",
            env(json!([{"name": "A", "value": "x"}, one("B"), all("PG_"), all("")])),
            None,
        ),
    ] {
        judged(&world, what, object, refusal).await;
    }
}

#[tokio::test]
async fn where_there_is_no_block_ids_are_the_authors_and_nobody_is_root() {
    let world = World::new().await;
    world.plant(json!({"kind": "Namespace", "metadata": {"name": "bare"}})).await;
    let key = |name: &str| Key::namespaced(Kind::Application, "bare", name);
    let asking = |name: &str, context: Value| json!({"metadata": {"name": name, "namespace": "bare"}, "spec": {"image": "x", "securityContext": context}});
    for (name, context, user, group) in [
        ("unsaid", Value::Null, 65_532, 65_532),
        ("empty", json!({}), 65_532, 65_532),
        ("plain", json!({"runAsUser": 1000, "runAsGroup": 1000}), 1000, 1000),
        ("lowest", json!({"runAsUser": 1}), 1, 65_532),
        (
            "highest",
            json!({"runAsUser": 4_294_967_294_i64, "runAsGroup": 4_294_967_294_i64}),
            4_294_967_294_i64,
            4_294_967_294_i64,
        ),
    ] {
        let made = tree(&world.create(asking(name, context)).await.unwrap().entry);
        let expected = json!({"runAsUser": user, "runAsGroup": group});
        assert_eq!(made["spec"]["securityContext"], expected, "{name}");
    }
    for member in ["runAsUser", "runAsGroup"] {
        for id in [0, -1, -4_294_901_760, 4_294_967_295, 4_294_967_296, 4_295_032_828, 1_099_511_627_776_i64]
        {
            let status = world.create(asking("root", json!({ member: id }))).await.unwrap_err();
            assert_eq!(status.code(), 403, "{member} {id}: {status}");
            let text = &status.message;
            assert!(text.contains(member) && text.contains("between 1 and 4294967294"), "{text}");
            assert_eq!(world.get(&key("root")).await.unwrap_err().code(), 404);
        }
    }
    let kept = world.merge(&key("plain"), json!({"spec": {"securityContext": null}})).await.unwrap();
    let kept = tree(&kept.entry);
    assert_eq!(kept["spec"]["securityContext"]["runAsUser"], 1000, "an id stays with its application");
}

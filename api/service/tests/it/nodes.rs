use horchestra_core::doors::Door;
use horchestra_core::kind::Kind;
use horchestra_service::{
    At, Body, DeleteOptions, HoldVerdict, ListRequest, Order, Ready, ReadyVerdict, WriteOptions,
};
use serde_json::{Value, json};

use crate::support::*;

fn condition<'a>(node: &'a Value, kind: &str) -> &'a Value {
    let conditions = node["status"]["conditions"].as_array().expect("conditions");
    conditions.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn a_node_that_registers_itself_is_cordoned_and_not_admitted() {
    let world = World::new().await;
    let session = world.session("node-1").await;
    let status = json!({"ready": true, "capacity": {"cpu": "8", "memory": "16Gi"},
        "platform": {"os": "linux", "arch": "amd64"}, "labels": {"tier": "gold"}, "heartbeat": "2026-01-01T00:00:00Z"});
    let registered = world.service.register_node(&session, "node-1", &status).await.unwrap();
    let stored = tree(&registered.entry);
    assert_eq!(stored["spec"], json!({"unschedulable": true}));
    assert_eq!(condition(&stored, "Admitted")["status"], "False");
    assert_eq!(stored["status"]["labels"]["horchestra.io/arch"], "amd64");
    assert!(stored["status"]["labels"].get("tier").is_none());
    assert!(stored["status"].get("heartbeat").is_none(), "a heartbeat is never stored");
    assert!(stored["metadata"].get("labels").is_none());
    let again = world.service.register_node(&session, "node-1", &status).await.unwrap();
    assert!(!again.changed, "registering again is a report");
    let other = world.session("node-2").await;
    assert!(world.service.register_node(&other, "node-1", &status).await.is_err(), "only of itself");
    assert!(world.service.report_node(&admin(), "node-1", &status).await.is_err());

    world.service.cordon(&admin(), "node-1", false).await.unwrap();
    let stored = world.get(&node("node-1")).await.unwrap();
    assert_eq!(condition(&stored, "Admitted")["reason"], "Uncordoned");
    assert_eq!(condition(&stored, "Admitted")["status"], "True");
    world.service.cordon(&admin(), "node-1", true).await.unwrap();
    let stored = world.get(&node("node-1")).await.unwrap();
    assert_eq!(stored["spec"]["unschedulable"], true);
    assert_eq!(condition(&stored, "Admitted")["status"], "True", "cordoning does not take it back");
    let report = world.service.report_node(&session, "node-1", &status).await.unwrap();
    assert!(!report.changed, "a report clears neither the cordon nor a verdict");
}

#[tokio::test]
async fn a_held_node_can_be_admitted_while_it_stays_cordoned() {
    let world = World::new().await;
    let session = world.session("node-1").await;
    world.service.register_node(&session, "node-1", &json!({"ready": true})).await.unwrap();
    let admitted = world.service.admit(&admin(), "node-1").await.unwrap();
    let stored = tree(&admitted.entry);
    assert_eq!(condition(&stored, "Admitted")["status"], "True");
    assert_eq!(stored["spec"]["unschedulable"], true);
    let again = world.service.admit(&admin(), "node-1").await.unwrap();
    assert_eq!(again.entry.revision, admitted.entry.revision);
    assert_eq!(world.service.admit(&admin(), "nope").await.unwrap_err().code(), 404);
}

#[tokio::test]
async fn admitting_a_node_releases_the_hold_on_it_and_on_no_other() {
    let world = World::new().await;
    for name in ["node-1", "node-2"] {
        world.node(name, "4", "8Gi").await;
    }
    let store = world.service.store();
    store.engage_hold(None, "HistoryLost", "why").await.unwrap();
    let held = async || {
        let holds = store.holds().await.unwrap();
        ["node-1", "node-2"].map(|name| holds.of(name).is_some())
    };
    let shows = world.lease("push-holds").await;
    let verdict = || Some(HoldVerdict { reason: "HistoryLost".into(), message: "what to do".into() });
    let shown = world.service.show_hold(&shows, "node-1", verdict()).await.unwrap();
    assert_eq!(condition(&tree(&shown.entry), "Held")["message"], "what to do");
    assert!(!world.service.show_hold(&shows, "node-1", verdict()).await.unwrap().changed);

    // What would be refused releases nothing, and neither does a trial.
    let trial = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let key = node("node-1");
    let named = |uid: &str| Order { uid: Some(uid.to_owned()), ..Order::default() };
    let other = named("7b0c8a52-94ad-4f0e-8a3f-0d9f6f0c1a11");
    let refused = world.service.act(&admin(), &key, Door::Admit, &other, &WriteOptions::default()).await;
    assert_eq!(refused.unwrap_err().code(), 409);
    world.service.act(&admin(), &key, Door::Admit, &Order::default(), &trial).await.unwrap();
    assert_eq!(held().await, [true, true]);
    // Uncordoning is everyday business.
    world.service.cordon(&admin(), "node-1", true).await.unwrap();
    world.service.cordon(&admin(), "node-1", false).await.unwrap();
    assert_eq!(held().await, [true, true]);

    let admitted = tree(&world.service.admit(&admin(), "node-1").await.unwrap().entry);
    assert_eq!(
        (condition(&admitted, "Held"), &condition(&admitted, "Admitted")["status"]),
        (&Value::Null, &json!("True"))
    );
    assert_eq!(held().await, [false, true]);
    let taken_off = world.service.show_hold(&shows, "node-1", None).await.unwrap();
    assert!(!taken_off.changed);
}

#[tokio::test]
async fn a_node_that_an_operator_makes_is_admitted_and_reports_into_it() {
    let world = World::new().await;
    let body =
        json!({"kind": "Node", "metadata": {"name": "node-1", "labels": {"tier": "gold"}}, "spec": {}});
    let created = tree(&world.create(body).await.unwrap().entry);
    assert_eq!(condition(&created, "Admitted")["reason"], "CreatedByOperator");
    let session = world.session("node-1").await;
    let status = json!({"ready": true, "capacity": {"cpu": "2"}});
    world.service.register_node(&session, "node-1", &status).await.unwrap();
    let stored = world.get(&node("node-1")).await.unwrap();
    assert_eq!(stored["metadata"]["labels"], json!({"tier": "gold"}));
    assert_eq!(stored["status"]["capacity"], json!({"cpu": "2"}));
    assert_eq!(condition(&stored, "Admitted")["status"], "True");
    assert!(stored["spec"].get("unschedulable").is_none());
}

#[tokio::test]
async fn verdicts_are_written_when_they_change() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let judge = world.lease("node-lifecycle").await;
    let verdict = |ready, reason: &str| ReadyVerdict { ready, reason: reason.into(), message: String::new() };
    let first = world.service.set_node_ready(&judge, "node-1", verdict(Ready::True, "Heard")).await.unwrap();
    assert!(first.changed);
    let again = world.service.set_node_ready(&judge, "node-1", verdict(Ready::True, "Heard")).await.unwrap();
    assert!(!again.changed);
    world.service.set_node_ready(&judge, "node-1", verdict(Ready::Unknown, "Silent")).await.unwrap();
    let stored = world.get(&node("node-1")).await.unwrap();
    assert_eq!(condition(&stored, "Ready")["status"], "Unknown");
    assert_eq!(condition(&stored, "Admitted")["status"], "True");
}

#[tokio::test]
async fn labels_of_the_system_are_refused_to_everybody() {
    let world = World::new().await;
    let body = json!({"kind": "Node", "metadata": {"name": "n", "labels":
        {"tier": "a", "horchestra.io/os": "x", "horchestra.io/arch": "y"}}, "spec": {}});
    for _ in 0..3 {
        let status = world.create(body.clone()).await.unwrap_err();
        assert_eq!(status.code(), 403);
        assert!(status.message.ends_with("horchestra.io/arch, horchestra.io/os"), "{status}");
    }
    world.node("node-1", "4", "8Gi").await;
    let patch = json!({"metadata": {"labels": {"horchestra.io/hostname": "x"}}});
    assert_eq!(world.merge(&node("node-1"), patch).await.unwrap_err().code(), 403);
    world.merge(&node("node-1"), json!({"metadata": {"labels": {"zone": "a"}}})).await.unwrap();
}

#[tokio::test]
async fn a_node_that_makes_its_own_node_over_http_is_cordoned_and_not_admitted() {
    let world = World::new().await;
    let own = identity("node-1", &["system:nodes"]);
    let body = json!({"kind": "Node", "metadata": {"name": "node-1"}, "spec": {}});
    let made = world.create_as(&own, body).await.unwrap();
    let stored = tree(&made.entry);
    assert_eq!(stored["spec"]["unschedulable"], true);
    assert_eq!(condition(&stored, "Admitted")["reason"], "SelfRegistered");
    world.merge(&node("node-1"), json!({"spec": {"unschedulable": null}})).await.unwrap();
    let stored = world.get(&node("node-1")).await.unwrap();
    assert_eq!(condition(&stored, "Admitted")["status"], "True");
}

#[tokio::test]
async fn a_nodes_certificate_writes_little() {
    let world = World::new().await;
    let own = identity("node-1", &["system:nodes"]);
    let create = |object: Value| world.create_as(&own, object);
    for (what, object) in [
        ("an application", application("web")),
        ("another node", json!({"kind": "Node", "metadata": {"name": "node-2"}, "spec": {}})),
        (
            "a cordon",
            json!({"kind": "Node", "metadata": {"name": "node-1"}, "spec": {"unschedulable": true}}),
        ),
        ("labels", json!({"kind": "Node", "metadata": {"name": "node-1", "labels": {"a": "b"}}, "spec": {}})),
    ] {
        let status = create(object).await.unwrap_err();
        assert_eq!(status.code(), 403, "{what}: {status}");
    }
    let created =
        create(json!({"kind": "Node", "metadata": {"name": "node-1"}, "spec": {}})).await.unwrap().entry;
    assert!(condition_or_null(&tree(&created), "Admitted") != json!("True"), "nobody admits itself");
    let put = |object: Value, context| {
        let service = world.service.clone();
        async move {
            let body = Body::Json(object.to_string().into());
            let result = service.update(&context, &node("node-1"), body, &WriteOptions::default()).await;
            result.map_or_else(|status| status.code(), |_| 200)
        }
    };
    let cordoned = json!({"unschedulable": true});
    let spec = json!({"metadata": {"name": "node-1"}, "spec": {}});
    assert_eq!(put(spec, own.clone()).await, 403, "no node uncordons itself");
    let labels = json!({"metadata": {"name": "node-1", "labels": {"a": "b"}}, "spec": cordoned});
    assert_eq!(put(labels, own.clone()).await, 403);
    let notes = json!({"metadata": {"name": "node-1", "annotations": {"a": "b"}}, "spec": cordoned});
    assert_eq!(put(notes, own.clone()).await, 200);
    let both = identity("node-1", &["system:nodes", "system:masters"]);
    let spec = json!({"metadata": {"name": "node-1"}, "spec": {}});
    assert_eq!(put(spec, both).await, 403, "also a node that is an administrator");
    // Status writes about others are confined alike.
    world.create(application("web")).await.unwrap();
    let body =
        Body::Json(json!({"metadata": {"name": "web"}, "status": {"phase": "Failed"}}).to_string().into());
    let status =
        world.service.update_status(&own, &app("web"), body, &WriteOptions::default()).await.unwrap_err();
    assert_eq!(status.code(), 403);
}

#[tokio::test]
async fn a_node_writes_its_own_status_and_nobody_elses() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let session = world.node("node-2", "4", "8Gi").await;
    // Whose certificate it is, of which Node, and what comes of it.
    for (who, groups, of, code) in [
        ("node-1", ["system:nodes"].as_slice(), "node-1", 200),
        ("node-1", &["system:nodes"], "node-2", 403),
        ("node-1", &["system:nodes", "system:masters"], "node-2", 403),
        ("admin", &["system:masters"], "node-2", 200),
    ] {
        let mut stored = world.get(&node(of)).await.unwrap();
        stored["status"]["os"] = json!(format!("said by {who} of {of}"));
        let body = Body::Json(stored.to_string().into());
        let options = WriteOptions::default();
        let written = world.service.update_status(&identity(who, groups), &node(of), body, &options).await;
        assert_eq!(written.map_or_else(|status| status.code(), |_| 200), code, "{who} of {of}");
        let now = world.get(&node(of)).await.unwrap();
        assert_eq!(now["status"]["os"] == stored["status"]["os"], code == 200, "{who} of {of}");
    }
    // Who is no node is not held to any of this: neither an administrator nor the control plane itself.
    let edit = json!({"metadata": {"labels": {"zone": "a"}}, "spec": {"unschedulable": true}});
    world.merge(&node("node-1"), edit).await.unwrap();
    let report = json!({"ready": true, "os": "reported"});
    world.service.report_node(&session, "node-2", &report).await.unwrap();
    assert_eq!(world.get(&node("node-2")).await.unwrap()["status"]["os"], "reported");
}

#[tokio::test]
async fn a_nodes_certificate_deletes_no_other_node() {
    let world = World::new().await;
    for name in ["node-1", "node-2"] {
        world.create(json!({"kind": "Node", "metadata": {"name": name}, "spec": {}})).await.unwrap();
    }
    world.create(application("web")).await.unwrap();
    let own = identity("node-1", &["system:nodes"]);
    let options = DeleteOptions::default();
    for (key, code) in [(node("node-2"), 403), (app("web"), 403), (node("node-1"), 200)] {
        let deleted = world.service.delete(&own, &key, &options).await;
        assert_eq!(deleted.map_or_else(|status| status.code(), |_| 200), code, "{key}");
    }
}

#[tokio::test]
async fn a_reserved_label_that_is_there_is_in_nobodys_way() {
    let world = World::new().await;
    let labels = json!({"horchestra.io/arch": "shadow", "zone": "a"});
    let status = json!({"capacity": {}, "allocated": {}, "ready": false});
    let stored =
        json!({"kind": "Node", "metadata": {"name": "n", "labels": labels}, "spec": {}, "status": status});
    world.plant(stored.clone()).await;
    let session = world.session("n").await;
    let report = json!({"ready": true, "platform": {"os": "linux", "arch": "arm64"}});
    world.service.report_node(&session, "n", &report).await.unwrap();
    let mut written = stored;
    written["status"]["ready"] = json!(true);
    world.put_status(&node("n"), &written).await.unwrap();
    let edit = world.merge(&node("n"), json!({"metadata": {"labels": {"zone": "b"}}})).await.unwrap_err();
    assert_eq!(edit.code(), 403, "{edit}");
    assert!(edit.message.ends_with("horchestra.io/arch"), "{edit}");
    assert!(world.delete(&node("n")).await.unwrap().erased);
}

fn condition_or_null(node: &Value, kind: &str) -> Value {
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions
        .into_iter()
        .find(|condition| condition["type"] == kind)
        .map_or(Value::Null, |found| found["status"].clone())
}

#[tokio::test]
async fn heartbeats_show_in_reads_and_never_come_back_in() {
    let world = World::new().await;
    world.node("node-1", "4", "8Gi").await;
    let config = horchestra_service::ServiceConfig {
        heartbeat_refresh: std::time::Duration::ZERO,
        ..horchestra_service::ServiceConfig::default()
    };
    let service = horchestra_service::Service::new(world.service.store().clone(), config);
    let beat = horchestra_store::Heartbeat {
        node: "node-1".into(),
        allocated_cpu: 1_500_000_000,
        allocated_memory: 1 << 30,
    };
    service.store().record_heartbeats(std::slice::from_ref(&beat)).await.unwrap();
    let shown = tree(&service.get(&node("node-1"), At::Fresh).await.unwrap());
    let heartbeat = shown["status"]["heartbeat"].as_str().expect("a heartbeat").to_owned();
    assert!(heartbeat.ends_with('Z') && heartbeat.len() == 20, "{heartbeat}");
    assert_eq!(shown["status"]["allocated"], json!({"cpu": "1500m", "memory": "1Gi"}));
    let listing = service.list(ListRequest::of(Kind::Node)).await.unwrap();
    assert_eq!(tree(&listing.entries[0]), shown);
    let revision = shown["metadata"]["resourceVersion"].clone();
    world.database.advance(std::time::Duration::from_secs(5));
    service.store().record_heartbeats(&[beat]).await.unwrap();
    let later = tree(&service.get(&node("node-1"), At::Fresh).await.unwrap());
    assert_ne!(later["status"]["heartbeat"], json!(heartbeat));
    assert_eq!(later["metadata"]["resourceVersion"], revision, "a heartbeat is no change");
    // Whoever writes back what was shown writes nothing.
    let written = world.put(&node("node-1"), &later).await.unwrap();
    assert_eq!(written.entry.revision.to_string(), revision.as_str().unwrap());
    let written = world.put_status(&node("node-1"), &later).await.unwrap();
    assert_eq!(written.entry.revision.to_string(), revision.as_str().unwrap());
}

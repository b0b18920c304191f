//! What is in a push. That nothing else is, is judged with every push that any test here hears.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use horchestra_core::Object;
use horchestra_core::kind::Kind;
use horchestra_proto::node::v1::AppStatus;
use serde_json::{Value, json};

use super::client::{Node, report};
use super::stage::{Case, Stage, job, together, volume_key};
use crate::world::{NAMESPACE, app_key};

fn secret_volume(name: &str) -> Value {
    json!({"mountPath": format!("/{name}"), "volume": {"type": "secret", "name": name}})
}

fn variable(name: &str, optional: bool) -> Value {
    json!({"name": name.to_uppercase(), "secretRef": {"name": name, "key": "k", "optional": optional}})
}

async fn secret_in(stage: &Stage, namespace: &str, name: &str) {
    let secret = json!({"metadata": {"name": name}, "stringData": {"k": name, "unused": "x"}});
    stage.world.create(Kind::Secret, namespace, secret).await;
}

#[tokio::test]
async fn an_application_is_sent_whole_and_only_to_its_node() {
    let stage = Stage::new().await;
    for node in ["n1", "n2"] {
        stage.world.create_node(node).await;
    }
    for (name, node) in [("mine", "n1"), ("theirs", "n2"), ("nobodys", "")] {
        stage.world.create_app(name, node, json!({"args": ["a"], "serviceName": ""})).await;
    }
    let notes = json!({"note": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}"});
    stage
        .world
        .merge(&app_key("mine"), json!({"metadata": {"annotations": notes, "labels": {"a": "b"}}}))
        .await;
    let mut node = stage.dial("n1").await;
    let push = node.push_where(|push| push.apps.values().any(|app| app.to_string().contains("note"))).await;
    assert_eq!(push.names(), ["mine"]);
    let (sent, stored) = (push.app("mine").unwrap(), stage.world.app("mine").await);
    for path in
        ["/metadata/uid", "/metadata/generation", "/metadata/labels", "/metadata/namespace", "/spec/args"]
    {
        assert_eq!(sent.pointer(path), stored.pointer(path), "{path}");
    }
    assert_eq!(sent["metadata"]["annotations"], json!({"note": "x"}));
}

#[tokio::test]
async fn every_volume_of_the_fleet_is_named_and_a_nodes_own_are_whole() {
    let stage = Stage::new().await;
    for node in ["n1", "n2"] {
        stage.world.create_node(node).await;
        stage.create_volume(&format!("on-{node}"), node).await;
    }
    stage.create_volume("nowhere", "").await;
    let labels = json!({"metadata": {"labels": {"secret": "of others"}}});
    stage.world.merge(&volume_key("on-n2"), labels).await;
    let mut node = stage.dial("n1").await;
    let push = node.push().await;
    // That the others are names alone is judged with every push.
    let names: Vec<&String> = push.volumes.keys().collect();
    assert_eq!(names, ["team/nowhere", "team/on-n1", "team/on-n2"]);
    let own = &push.volumes["team/on-n1"];
    assert_eq!(own["spec"], json!({"node": "n1", "size": "1Gi", "mode": "0750"}));
    assert!(own["metadata"]["uid"].is_string());
}

#[tokio::test]
async fn of_secrets_those_are_sent_that_applications_here_name() {
    let stage = Stage::new().await;
    stage.create_namespace("other").await;
    for node in ["n1", "n2"] {
        stage.world.create_node(node).await;
    }
    for name in ["mounted", "variable", "optional", "unnamed", "elsewhere", "withheld"] {
        secret_in(&stage, NAMESPACE, name).await;
    }
    secret_in(&stage, "other", "mounted").await;
    stage.world.create_app("mounts", "n1", json!({"volumes": [secret_volume("mounted")]})).await;
    let env =
        json!({"env": [variable("variable", false), variable("optional", true), variable("missing", true)]});
    stage.world.create_app("reads", "n1", env).await;
    stage.world.create_app("other-node", "n2", json!({"volumes": [secret_volume("elsewhere")]})).await;
    let mut ends = job(0);
    ends["volumes"] = json!([secret_volume("withheld")]);
    stage.world.create_app("ends", "n1", ends).await;
    let mut node = stage.dial("n1").await;
    assert!(node.push().await.secrets.contains_key("team/withheld"));
    node.pass([AppStatus { attempts: 1, ..report(NAMESPACE, "ends", "Succeeded", 1) }]).await;
    let push = node.push().await;
    let names: Vec<&String> = push.secrets.keys().collect();
    assert_eq!(names, ["team/mounted", "team/optional", "team/variable"]);
    let data = push.secrets["team/mounted"]["data"].as_object().unwrap();
    assert_eq!(data.len(), 2, "whole, not only the keys that are named");
    assert_eq!(STANDARD.decode(data["k"].as_str().unwrap()).unwrap(), b"mounted");
    // One that comes later is sent when it comes.
    secret_in(&stage, NAMESPACE, "missing").await;
    assert!(node.push().await.secrets.contains_key("team/missing"));
}

#[tokio::test]
async fn of_stores_those_are_sent_that_such_secrets_are_in() {
    let stage = Stage::new().await;
    stage.world.create_node("n1").await;
    for store in ["named", "unnamed"] {
        stage.world.create_store(store, "cert").await;
    }
    stage.world.create_vault_secret("fetched", "named").await;
    secret_in(&stage, NAMESPACE, "inline").await;
    stage.world.create_app("inline", "n1", json!({"volumes": [secret_volume("inline")]})).await;
    let mut node = stage.dial("n1").await;
    let push = node.push().await;
    assert!(push.stores.is_empty() && push.raw.workload_tokens.is_empty());
    stage.edit("inline", json!({"volumes": [secret_volume("inline"), secret_volume("fetched")]})).await;
    let push = node.push().await;
    assert_eq!(push.stores.keys().collect::<Vec<_>>(), ["team/named"]);
    assert_eq!(push.stores["team/named"]["spec"]["auth"]["method"], "cert");
}

#[tokio::test]
async fn what_an_application_needs_comes_in_the_same_push() {
    let stage = Stage::with(|_| ()).await;
    let mut node = stage.serving("n1", &[]).await;
    for round in 0..5 {
        let (app, volume, secret) =
            (format!("app-{round}"), format!("volume-{round}"), format!("secret-{round}"));
        stage.create_volume(&volume, "n1").await;
        secret_in(&stage, NAMESPACE, &secret).await;
        let mounted = json!({"mountPath": "/v", "volume": {"type": "pv", "name": volume}});
        let spec = json!({"hostNetwork": false, "volumes": [mounted, secret_volume(&secret)]});
        stage.world.create_app(&app, "n1", spec).await;
        let push = node.push_where(|push| push.has(&app)).await;
        assert!(push.volumes[&format!("team/{volume}")]["spec"]["node"] == "n1", "{push:?}");
        assert!(push.secrets.contains_key(&format!("team/{secret}")), "{push:?}");
        assert!(push.address(&app).is_some(), "{push:?}");
    }
}

#[tokio::test]
async fn without_the_database_nothing_is_sent_and_with_it_all_of_it() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    for volume in ["a", "b"] {
        stage.create_volume(volume, "n1").await;
        node.push().await;
    }
    secret_in(&stage, NAMESPACE, "s").await;
    // Secrets are read when they are needed: this one cannot be.
    stage.gateway.backend().set_cut_off(true);
    stage.edit("web", json!({"volumes": [secret_volume("s")]})).await;
    stage.world.delete(&volume_key("a")).await;
    node.hears_nothing().await;
    assert!(node.is_open().await);
    stage.gateway.backend().set_cut_off(false);
    let push = node.push_where(|push| !push.secrets.is_empty()).await;
    assert_eq!((push.names(), push.volumes.len()), (vec!["web"], 1));
}

/// A job or a service, what its node reports of it, and whether it is sent after that.
type Outcome = (&'static str, fn() -> Value, &'static [fn(&str) -> AppStatus], bool);

fn ran(name: &str, phase: &str, attempts: i32, exit_code: i32) -> AppStatus {
    AppStatus { attempts, exit_code, finished_at_unix_nano: 1, ..report(NAMESPACE, name, phase, 1) }
}

const OUTCOMES: &[Outcome] = &[
    ("done", || job(0), &[|name| ran(name, "Succeeded", 1, 0)], false),
    ("failed-for-good", || job(0), &[|name| ran(name, "Failed", 1, 7)], false),
    ("failed-with-retries", || job(2), &[|name| ran(name, "Failed", 2, 7)], true),
    (
        "retries-spent",
        || job(2),
        &[|name| ran(name, "Failed", 2, 7), |name| ran(name, "Failed", 3, 7)],
        false,
    ),
    ("running", || job(0), &[|name| ran(name, "Running", 1, 0)], true),
    ("unheard-of", || job(0), &[], true),
    ("without-evidence", || job(0), &[|name| report(NAMESPACE, name, "Failed", 1)], true),
    ("failed-service", || json!({}), &[|name| ran(name, "Failed", 0, 1)], true),
    (
        "failed-on-failure",
        || json!({"lifecycle": {"restartPolicy": "OnFailure"}}),
        &[|name| ran(name, "Failed", 0, 1)],
        true,
    ),
    (
        "of-an-earlier-generation",
        || job(0),
        &[|name| AppStatus { observed_generation: 0, ..ran(name, "Succeeded", 1, 0) }],
        true,
    ),
];

#[tokio::test]
async fn a_job_that_has_run_to_its_end_is_withheld_and_nothing_else_is() {
    let stage = Stage::new().await;
    let stage = &stage;
    together(OUTCOMES.iter().map(|(name, spec, reports, sent)| -> Case<'_> {
        Box::pin(async move {
            let mut node: Node = stage.serving(name, &[(name, spec())]).await;
            for (number, report) in reports.iter().enumerate() {
                let report = report(name);
                let stored = report.attempts;
                node.pass([report]).await;
                if number + 1 < reports.len() {
                    stage.until_app(name, |app| app["status"]["attempts"] == stored).await;
                }
            }
            stage.heard(&node).await;
            if *sent {
                node.hears_nothing().await;
                assert!(node.is_open().await, "{name}");
                return;
            }
            assert!(node.push().await.apps.is_empty(), "{name}");
            // Edited, it is another one to run, with a budget of its own.
            stage.edit(name, json!({"args": ["again"]})).await;
            let push = node.push().await;
            let again = push.app(name).unwrap_or_else(|| panic!("{name}: {push:?}"));
            assert_eq!(again["metadata"]["generation"], 2, "{name}");
            assert_eq!(again["status"]["attempts"], 0, "{name}");
            // And one that is deleted is sent, so that the node can say that it is gone.
            node.pass([AppStatus { observed_generation: 2, ..ran(name, "Succeeded", 1, 0) }]).await;
            assert!(node.push().await.apps.is_empty(), "{name}");
            stage.delete_app(name).await;
            assert!(node.push().await.is_deleting(name), "{name}");
        })
    }))
    .await;
}

#[tokio::test]
async fn what_agents_would_not_decode_is_not_sent() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({"args": ["good"]}))]).await;
    stage.create_volume("mine", "n1").await;
    assert!(node.push().await.volumes["team/mine"]["spec"]["node"] == "n1");
    // Past all rules, as an import would bring it.
    let huge = json!("1e-100000000");
    super::store_as_it_is(&stage, &app_key("web"), |app: &mut Object| {
        let spec = app.0.get_mut("spec").unwrap();
        spec["args"] = json!(["bad"]);
        spec["resources"] = json!({"requests": {"cpu": huge}});
    })
    .await;
    super::store_as_it_is(&stage, &volume_key("mine"), |volume: &mut Object| {
        volume.0.get_mut("spec").unwrap()["size"] = huge.clone();
    })
    .await;
    stage.world.create_app("later", "n1", json!({})).await;
    let push = node.push_where(|push| push.has("later")).await;
    assert_eq!(push.app("web").unwrap()["spec"]["args"], json!(["good"]), "as it was last");
    // The volume is named, so that its data stays, and no more.
    let volume = &push.volumes["team/mine"];
    assert!(volume["spec"].as_object().is_some_and(serde_json::Map::is_empty), "{volume}");
    let told = stage.world.told("Undecodable", "web").await;
    assert_eq!(told.len(), 1, "{told:?}");
}

//! Secrets and SecretStores: which of them nodes are sent, when, and what becomes of what does not open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use horchestra_agent::scripted::ScriptedNode;
use horchestra_auth::SecretKeys;
use horchestra_auth::sealing::RingFile;
use horchestra_core::kind::{Key, Kind};
use horchestra_nodegate::tokens::Tokens;
use horchestra_proto::node::v1::{AppStatus, DesiredState};
use horchestra_testkit::{TempDir, eventually};
use serde_json::{Value, json};

use crate::events::told;
use crate::world::{
    A_WHILE, NAMESPACE, SOON, TestGateway, World, app_key, assert_no_push, named, names, report, secret_key,
};

/// Objects of a push by `namespace/name`.
pub fn by_name(objects: &[bytes::Bytes]) -> BTreeMap<String, Value> {
    let decoded = objects.iter().map(|bytes| serde_json::from_slice::<Value>(bytes).unwrap());
    let name = |object: &Value, member: &str| object["metadata"][member].as_str().unwrap().to_owned();
    decoded
        .map(|object| (format!("{}/{}", name(&object, "namespace"), name(&object, "name")), object))
        .collect()
}

pub fn secrets(desired: &DesiredState) -> BTreeMap<String, Value> {
    by_name(&desired.secrets)
}

/// A value of a pushed Secret.
pub fn value(desired: &DesiredState, secret: &str, key: &str) -> Option<String> {
    let secrets = secrets(desired);
    let encoded = secrets.get(&format!("{NAMESPACE}/{secret}"))?["data"][key].as_str()?;
    Some(String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap())
}

fn store_names(desired: &DesiredState) -> Vec<String> {
    by_name(&desired.secret_stores).into_keys().collect()
}

pub fn mount(name: &str) -> Value {
    json!({"volumes": [{"mountPath": "/m", "volume": {"type": "secret", "name": name}}]})
}

fn variable(name: &str, optional: bool) -> Value {
    json!({"env": [{"name": "A", "secretRef": {"name": name, "key": "k", "optional": optional}}]})
}

async fn join(world: &World, gateway: &TestGateway, node: &str, apps: usize) -> (ScriptedNode, DesiredState) {
    let mut scripted = world.connect(gateway, node).await;
    let desired = scripted.desired_where(SOON, |desired| desired.applications.len() == apps).await.unwrap();
    (scripted, desired)
}

#[tokio::test]
async fn a_node_is_sent_what_its_applications_name_and_nothing_else() {
    let world = World::new().await;
    for node in ["n1", "n2", "n3"] {
        world.create_node(node).await;
    }
    world.create(Kind::Namespace, "", json!({"metadata": {"name": "other"}})).await;
    for name in ["mounted", "variable", "maybe", "of-n2", "of-nobody", "of-a-job", "of-another-namespace"] {
        world.create_secret(name, json!({"k": name, "not-named": "x"})).await;
    }
    let elsewhere = json!({"metadata": {"name": "mounted"}, "stringData": {"k": "of another namespace"}});
    world.create(Kind::Secret, "other", elsewhere).await;
    for (secret, store) in [("far", "vault-cert"), ("far-of-n2", "vault-n2"), ("lost", "no-such-store")] {
        world.create_vault_secret(secret, store).await;
    }
    for store in ["vault-cert", "vault-n2", "vault-nobody"] {
        world.create_store(store, "cert").await;
    }
    world.create_app("a", "n1", mount("mounted")).await;
    world.create_app("b", "n1", variable("variable", false)).await;
    world.create_app("c", "n1", variable("maybe", true)).await;
    world.create_app("d", "n1", variable("missing", true)).await;
    world.create_app("e", "n1", mount("far")).await;
    world.create_app("f", "n1", mount("lost")).await;
    world.create_app("g", "n2", mount("of-n2")).await;
    world.create_app("h", "n2", mount("far-of-n2")).await;
    let mut job = mount("of-a-job");
    job["lifecycle"] = json!({"restartPolicy": "Never"});
    world.create_app("job", "n1", job).await;
    world.create_app("plain", "n3", json!({})).await;

    let gateway = world.gateway().await;
    let (mut node, with_job) = join(&world, &gateway, "n1", 7).await;
    assert!(secrets(&with_job).contains_key("team/of-a-job"), "the job is to run");
    let done = AppStatus { attempts: 1, ..report("job", "Succeeded", 1) };
    node.app_status(done).await.unwrap();
    let desired =
        node.desired_where(SOON, |desired| !names(desired).contains(&"job".to_owned())).await.unwrap();
    let sent = secrets(&desired);
    for (name, expected, why) in [
        ("team/mounted", true, "a volume names it"),
        ("team/variable", true, "a variable names it"),
        ("team/maybe", true, "an optional reference to one that exists"),
        ("team/far", true, "one whose values the node fetches"),
        ("team/lost", true, "also when there is no such store"),
        ("team/missing", false, "an optional reference to one that does not exist"),
        ("other/mounted", false, "the same name in another namespace"),
        ("team/of-nobody", false, "nobody names it"),
        ("team/of-a-job", false, "its job has ended"),
        ("team/of-n2", false, "an Application of another node names it"),
        ("team/far-of-n2", false, "an Application of another node names it"),
    ] {
        assert_eq!(sent.contains_key(name), expected, "{name}: {why}");
    }
    assert_eq!(sent.len(), 5);
    assert_eq!(store_names(&desired), ["team/vault-cert"], "named by what is sent, and no other");
    assert_eq!(value(&desired, "mounted", "k").as_deref(), Some("mounted"));
    assert_eq!(value(&desired, "mounted", "not-named").as_deref(), Some("x"), "whole");
    assert!(sent["team/far"].get("data").is_none(), "it holds no values");
    assert_eq!(sent["team/far"]["type"], "horchestra.io/vault");
    for secret in sent.values() {
        assert_eq!((&secret["kind"], &secret["apiVersion"]), (&json!("Secret"), &json!("horchestra.io/v1")));
        assert!(secret.get("sealed").is_none() && secret["metadata"].get("managedFields").is_none());
    }
    assert!(desired.workload_tokens.is_empty(), "this gateway has no keys for tokens");

    let (_other, desired) = join(&world, &gateway, "n2", 2).await;
    assert_eq!(secrets(&desired).into_keys().collect::<Vec<_>>(), ["team/far-of-n2", "team/of-n2"]);
    assert_eq!(store_names(&desired), ["team/vault-n2"]);
    let (_third, desired) = join(&world, &gateway, "n3", 1).await;
    assert!(desired.secrets.is_empty() && desired.secret_stores.is_empty(), "nothing for who names nothing");
}

#[tokio::test]
async fn what_was_applied_last_is_not_sent_along() {
    let world = World::new().await;
    world.create_node("n1").await;
    let annotations =
        json!({"kubectl.kubernetes.io/last-applied-configuration": "repeats all", "note": "kept"});
    let secret = json!({"metadata": {"name": "s", "annotations": annotations}, "stringData": {"k": "v"}});
    world.create(Kind::Secret, NAMESPACE, secret).await;
    world.create_app("web", "n1", mount("s")).await;
    let gateway = world.gateway().await;
    let (_node, desired) = join(&world, &gateway, "n1", 1).await;
    assert_eq!(secrets(&desired)["team/s"]["metadata"]["annotations"], json!({"note": "kept"}));
}

/// What is changed; whether the node hears of it; what it is then sent.
type Change<'a> = (&'a str, Key, Value, Option<fn(&DesiredState) -> bool>);

#[tokio::test]
async fn a_node_hears_of_changes_that_it_could_tell_and_of_no_others() {
    let world = World::new().await;
    for node in ["n1", "n2"] {
        world.create_node(node).await;
    }
    for name in ["used", "unused"] {
        world.create_secret(name, json!({"k": "1"})).await;
    }
    for store in ["one", "two", "three"] {
        world.create_store(store, "cert").await;
    }
    world.create_vault_secret("far", "one").await;
    world.create_app("a", "n1", mount("used")).await;
    world.create_app("b", "n1", mount("far")).await;
    world.create_app("c", "n1", variable("later", true)).await;
    world.create_app("d", "n2", json!({})).await;
    let gateway = world.gateway().await;
    let (mut node, desired) = join(&world, &gateway, "n1", 3).await;
    assert_eq!(store_names(&desired), ["team/one"]);
    let (mut bystander, _) = join(&world, &gateway, "n2", 1).await;

    let store = |name: &str| Key::namespaced(Kind::SecretStore, NAMESPACE, name);
    let data = |value: &str| json!({"stringData": {"k": value}});
    let annotate = |name: &str, value: &str| json!({"metadata": {"annotations": {name: value}}});
    let changes: [Change<'_>; 10] = [
        (
            "a value",
            secret_key("used"),
            data("2"),
            Some(|desired| value(desired, "used", "k").unwrap() == "2"),
        ),
        ("a value that nobody uses", secret_key("unused"), data("2"), None),
        ("a label", secret_key("used"), json!({"metadata": {"labels": {"a": "b"}}}), None),
        ("the same value again", secret_key("used"), data("2"), None),
        (
            "the store, which moves no generation",
            secret_key("far"),
            annotate("secrets.horchestra.io/store", "two"),
            Some(|desired| store_names(desired) == ["team/two"]),
        ),
        (
            "the path",
            secret_key("far"),
            annotate("secrets.horchestra.io/path", "apps/y"),
            Some(|desired| {
                secrets(desired)["team/far"]["metadata"]["annotations"]["secrets.horchestra.io/path"]
                    == "apps/y"
            }),
        ),
        (
            "the server of the store",
            store("two"),
            json!({"spec": {"server": "https://other.example"}}),
            Some(|desired| {
                by_name(&desired.secret_stores)["team/two"]["spec"]["server"] == "https://other.example"
            }),
        ),
        (
            "an annotation of the store",
            store("two"),
            annotate("note", "x"),
            Some(|desired| {
                by_name(&desired.secret_stores)["team/two"]["metadata"]["annotations"]["note"] == "x"
            }),
        ),
        ("a store that is named no more", store("one"), annotate("note", "x"), None),
        ("a store that never was named", store("three"), annotate("note", "x"), None),
    ];
    for (what, key, patch, hears) in changes {
        world.merge(&key, patch).await;
        match hears {
            Some(as_expected) => {
                let desired = node.desired(SOON).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(as_expected(&desired), "{what}");
            }
            None => {
                // Whatever the gateway makes of it, it has made when it knows of what came after.
                let after = gateway.gateway.gate.store.fresh().await.unwrap().revision();
                gateway.gateway.gate.index.reach(after).await;
            }
        }
    }
    world.create_secret("later", json!({"k": "v"})).await;
    let desired = node.desired(SOON).await.unwrap();
    assert_eq!(value(&desired, "later", "k").as_deref(), Some("v"), "an optional one has come");
    assert!(world.delete(&Key::namespaced(Kind::SecretStore, NAMESPACE, "two")).await);
    assert!(store_names(&node.desired(SOON).await.unwrap()).is_empty());
    assert_no_push(&mut node).await;
    assert!(bystander.arrived().is_empty(), "none of it was for the other node");
}

#[tokio::test]
async fn an_application_and_what_it_uses_come_in_one_message() {
    let world = World::new().await;
    world.create_node("n1").await;
    let gateway = world.gateway().await;
    let mut node = world.connect(&gateway, "n1").await;
    node.desired(SOON).await.unwrap();
    for number in 0..5 {
        let name = |what: &str| format!("{what}-{number}");
        world.create_store(&name("store"), "cert").await;
        world.create_vault_secret(&name("far"), &name("store")).await;
        world.create_secret(&name("near"), json!({"k": "v"})).await;
        let pv = json!({"metadata": {"name": name("data")}, "spec": {"node": "n1", "size": "1Gi"}});
        world.create(Kind::PersistentVolume, NAMESPACE, pv).await;
        let volume = |path: &str, kind: &str, of: &str| json!({"mountPath": path, "volume": {"type": kind, "name": name(of)}});
        let volumes =
            [volume("/a", "secret", "far"), volume("/b", "secret", "near"), volume("/c", "pv", "data")];
        world.create_app(&name("app"), "n1", json!({ "volumes": volumes })).await;
    }
    loop {
        let desired = node.desired(SOON).await.unwrap();
        for app in names(&desired) {
            let number = app.rsplit('-').next().unwrap();
            let has = |objects: &[bytes::Bytes], what: &str| {
                by_name(objects).contains_key(&format!("{NAMESPACE}/{what}-{number}"))
            };
            assert!(has(&desired.secrets, "far") && has(&desired.secrets, "near"), "{app}");
            assert!(
                has(&desired.secret_stores, "store") && has(&desired.persistent_volumes, "data"),
                "{app}"
            );
        }
        if desired.applications.len() == 5 {
            return;
        }
    }
}

#[tokio::test]
async fn without_the_database_nothing_is_sent_and_then_all_of_it() {
    let world = World::new().await;
    world.create_node("n1").await;
    world.create_secret("s", json!({"k": "1"})).await;
    world.create_app("web", "n1", mount("s")).await;
    let gateway = world.gateway().await;
    let (mut node, _) = join(&world, &gateway, "n1", 1).await;
    gateway.backend().set_cut_off(true);
    world.merge(&secret_key("s"), json!({"stringData": {"k": "2"}})).await;
    world.merge(&app_key("web"), json!({"spec": {"args": ["2"]}})).await;
    assert_no_push(&mut node).await;
    assert!(node.is_open());
    gateway.backend().set_cut_off(false);
    let desired = node.desired(SOON).await.unwrap();
    assert_eq!(value(&desired, "s", "k").as_deref(), Some("2"));
    assert_eq!(named(&desired)[0].1["spec"]["args"], json!(["2"]), "of one moment");
}

#[tokio::test]
async fn secrets_count_towards_what_agents_can_receive() {
    let world = World::new().await;
    world.create_node("n1").await;
    world.create_secret("s", json!({"k": "1"})).await;
    world.create_app("web", "n1", mount("s")).await;
    let gateway = world.gateway_with(|settings| settings.push_limit = 16 << 10).await;
    let (mut node, _) = join(&world, &gateway, "n1", 1).await;
    world.merge(&secret_key("s"), json!({"stringData": {"k": "x".repeat(20 << 10)}})).await;
    assert_no_push(&mut node).await;
    eventually(SOON, async || gateway.gateway.gate.metrics.pushes_withheld.get() == 1).await;
    world.merge(&secret_key("s"), json!({"stringData": {"k": "small"}})).await;
    assert_eq!(value(&node.desired(SOON).await.unwrap(), "s", "k").as_deref(), Some("small"));
}

/// Keys of a file that can be changed.
struct Keys {
    folder: TempDir,
    file: RingFile,
}

impl Keys {
    fn new() -> Keys {
        let keys = Keys { folder: TempDir::new().unwrap(), file: RingFile::generate().unwrap() };
        keys.file.create(&keys.path()).unwrap();
        keys
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("keys")
    }

    fn load(&self) -> Arc<SecretKeys> {
        Arc::new(SecretKeys::load(&self.path()).unwrap())
    }
}

#[tokio::test]
async fn a_secret_that_does_not_open_holds_up_those_who_use_it_and_nobody_else() {
    let mut world = World::new().await;
    let mut keys = Keys::new();
    let gateways_keys = keys.load();
    let added = keys.file.add().unwrap();
    keys.file.seal_with(&added).unwrap();
    // The operator has the new key, the gateway does not yet.
    let ahead = TempDir::new().unwrap();
    keys.file.create(&ahead.path().join("keys")).unwrap();
    world.operate_with(Arc::new(SecretKeys::load(&ahead.path().join("keys")).unwrap()));
    world.create(Kind::Namespace, "", json!({"metadata": {"name": "default"}})).await;
    world.create_node("n1").await;
    world.create_secret("s", json!({"k": "v"})).await;
    let uses = json!({
        "env": [
            {"name": "A", "secretRef": {"name": "s", "key": "k", "optional": true}},
            {"name": "B", "secretRef": {"name": "not-there", "key": "k", "optional": true}},
        ],
        "volumes": [
            {"mountPath": "/m", "volume": {"type": "secret", "name": "s", "optional": true}},
            {"mountPath": "/n", "volume": {"type": "secret", "name": "not-there", "optional": true}},
        ],
    });
    world.create_app("uses-it", "n1", uses).await;
    world.create_app("web", "n1", json!({})).await;
    let quick = |settings: &mut horchestra_nodegate::settings::Settings| {
        settings.retry_every = Duration::from_millis(300);
    };
    let gateway = world.gateway_of(Some(gateways_keys), Tokens::default(), quick).await;
    let (mut node, desired) = join(&world, &gateway, "n1", 2).await;
    assert!(desired.secrets.is_empty());
    let spec = named(&desired)[0].1["spec"].clone();
    let optional = |reference: &Value| reference.get("optional") == Some(&json!(true));
    assert!(!optional(&spec["env"][0]["secretRef"]), "a node that lacks it leaves the workload as it is");
    assert!(!optional(&spec["volumes"][0]["volume"]));
    assert!(optional(&spec["env"][1]["secretRef"]), "one that does not exist is another matter");
    assert!(optional(&spec["volumes"][1]["volume"]));
    let event = eventually(SOON, async || told(&world, "SecretUnopened").await.pop()).await;
    assert_eq!(event["involvedObject"]["name"], "s");
    assert!(event["message"].as_str().unwrap().contains(&added), "it says which key is missing: {event}");

    // The node is served as ever.
    world.create_app("next", "n1", json!({})).await;
    assert_eq!(names(&node.desired(SOON).await.unwrap()), ["next", "uses-it", "web"]);
    world.merge(&app_key("web"), json!({"spec": {"args": ["2"]}})).await;
    node.desired(SOON).await.unwrap();
    tokio::time::sleep(A_WHILE).await;
    assert!(node.arrived().is_empty(), "trying again changes nothing as long as it does not open");
    assert_eq!(told(&world, "SecretUnopened").await.len(), 1, "told once");

    // The key arrives.
    keys.file.replace(&keys.path()).unwrap();
    let desired = node.desired(SOON).await.unwrap();
    assert_eq!(value(&desired, "s", "k").as_deref(), Some("v"));
    let apps = named(&desired);
    let (_, app) = apps.iter().find(|(name, _)| name == "uses-it").unwrap();
    assert!(optional(&app["spec"]["env"][0]["secretRef"]), "as it was written");
}

#[tokio::test]
async fn a_gateway_without_keys_serves_whatever_needs_none() {
    let world = World::new().await;
    world.create_node("n1").await;
    world.create_secret("s", json!({"k": "v"})).await;
    world.create_app("uses-it", "n1", mount("s")).await;
    world.create_app("web", "n1", json!({})).await;
    let gateway = world.gateway_of(None, Tokens::default(), |_| ()).await;
    let (_node, desired) = join(&world, &gateway, "n1", 2).await;
    assert!(desired.secrets.is_empty());
    assert!(gateway.gateway.gate.metrics.secrets_unopened.get() > 0);
    assert_eq!(gateway.gateway.gate.opened.size(), 0);
}

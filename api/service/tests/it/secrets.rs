use horchestra_core::kind::{Key, Kind};
use horchestra_service::ServiceConfig;
use horchestra_store::HistoryOf;
use serde_json::{Value, json};

use crate::support::*;

fn secret(name: &str) -> Key {
    Key::namespaced(Kind::Secret, "default", name)
}

fn with(members: Value) -> Value {
    let mut object = json!({"kind": "Secret", "metadata": {"name": "s"}});
    for (member, value) in members.as_object().unwrap() {
        object[member] = value.clone();
    }
    object
}

#[tokio::test]
async fn texts_are_stored_as_data_and_a_patch_of_them_too() {
    let world = World::new().await;
    let body = with(json!({"stringData": {"user": "ledger"}, "data": {"pw": "eA=="}}));
    let stored = tree(&world.create(body).await.unwrap().entry);
    assert_eq!(stored["data"], json!({"user": "bGVkZ2Vy", "pw": "eA=="}));
    assert_eq!((stored.get("stringData"), &stored["type"]), (None, &json!("Opaque")));
    let patched = world.merge(&secret("s"), json!({"stringData": {"pw": "y"}, "data": {"user": null}})).await;
    let patched = tree(&patched.unwrap().entry);
    assert_eq!(patched["data"], json!({"pw": "eQ=="}));
    assert_eq!(patched["metadata"]["generation"], 2, "what is kept outside of a spec is wanted as well");
}

#[tokio::test]
async fn an_immutable_secret_stays_as_it_is() {
    let world = World::new().await;
    world.create(with(json!({"data": {"a": "eA=="}, "immutable": true}))).await.unwrap();
    for (what, patch, fields) in [
        ("another value", json!({"data": {"a": "eQ=="}}), &["data"][..]),
        ("one more", json!({"stringData": {"b": ""}}), &["data"]),
        ("none", json!({"data": null}), &["data"]),
        ("no flag", json!({"immutable": null}), &["immutable"]),
        ("a false flag", json!({"immutable": false, "data": {"a": "eQ=="}}), &["data", "immutable"]),
    ] {
        let status = world.merge(&secret("s"), patch).await.unwrap_err();
        let named: Vec<&str> = status.details.causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!((status.code(), named.as_slice()), (422, fields), "{what}: {status}");
        assert!(!status.to_value().to_string().contains("eQ=="), "{what}");
    }
    let same = json!({"stringData": {"a": "x"}, "metadata": {"labels": {"l": "v"}}});
    let written = world.merge(&secret("s"), same).await.unwrap();
    assert_eq!(tree(&written.entry)["metadata"]["labels"], json!({"l": "v"}));
    assert!(world.delete(&secret("s")).await.unwrap().erased);
}

#[tokio::test]
async fn a_secret_holds_values_or_says_where_they_are() {
    let world = World::new().await;
    let metadata = json!({"name": "s", "annotations": {"secrets.horchestra.io/path": "x"}});
    world.create(with(json!({"metadata": metadata, "stringData": {"a": "x"}}))).await.unwrap();
    let vault = "horchestra.io/vault";
    let both = world.merge(&secret("s"), json!({ "type": vault })).await.unwrap_err();
    assert_eq!((both.code(), both.details.causes[0].field.as_str()), (422, "type"), "{both}");
    world.merge(&secret("s"), json!({"type": vault, "data": null})).await.unwrap();
    let both = world.merge(&secret("s"), json!({"stringData": {"a": "x"}})).await.unwrap_err();
    assert_eq!((both.code(), both.details.causes[0].field.as_str()), (422, "data"), "{both}");
}

#[tokio::test]
async fn roles_of_a_store_need_their_gate() {
    let role = |annotation: &str| {
        let metadata = json!({"name": "s", "annotations": {annotation: "database/app"}});
        with(json!({"type": "horchestra.io/vault", "metadata": metadata}))
    };
    let (fixed, own) = ("secrets.horchestra.io/static-role", "secrets.horchestra.io/dynamic-role");
    for (gates, annotation, code) in [
        ("", "secrets.horchestra.io/path", 0),
        ("", fixed, 403),
        ("VaultStaticRoles=false", fixed, 403),
        ("VaultStaticRoles=true", fixed, 0),
        ("VaultStaticRoles=true", own, 403),
        ("VaultDynamicSecrets=true", own, 0),
    ] {
        let config = ServiceConfig { gates: gates.parse().unwrap(), ..ServiceConfig::default() };
        let world = World::with(config).await;
        match world.create(role(annotation)).await {
            Ok(_) => assert_eq!(code, 0, "{gates} {annotation}"),
            Err(status) => {
                assert_eq!(status.code(), code, "{gates} {annotation}: {status}");
                let text = &status.message;
                assert!(text.contains("--feature-gates=Vault") && text.contains(annotation), "{text}");
            }
        }
    }
    let world = World::new().await;
    let both = json!({"name": "s", "annotations": {fixed: "db/app", "secrets.horchestra.io/path": "x"}});
    let status =
        world.create(with(json!({"type": "horchestra.io/vault", "metadata": both}))).await.unwrap_err();
    assert_eq!(status.code(), 422, "two sources are a mistake, whatever the gates: {status}");
}

#[tokio::test]
async fn the_history_of_a_secret_tells_who_changed_it_and_nothing_of_what_was_in_it() {
    let world = World::new().await;
    world.create(with(json!({"data": {"a": "eA=="}}))).await.unwrap();
    world.merge(&secret("s"), json!({"data": {"a": "eQ=="}})).await.unwrap();
    world.delete(&secret("s")).await.unwrap();
    let rows = world.service.store().history(HistoryOf::Key(secret("s"))).await.unwrap();
    let told: Vec<(&str, &str, bool)> =
        rows.iter().map(|row| (row.who.verb.as_str(), row.who.user.as_str(), row.deleted)).collect();
    assert_eq!(told, [("delete", "admin", true), ("patch", "admin", false), ("create", "admin", false)]);
    assert!(rows.iter().all(|row| row.body.is_empty()), "{rows:?}");
}

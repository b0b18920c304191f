//! Secrets: open at the edge, sealed everywhere else.

use std::sync::Arc;

use horchestra_auth::sealing::RingFile;
use horchestra_auth::{KeyRing, SecretKeys};
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object;
use horchestra_core::sealed::Seal;
use horchestra_core::status::Status;
use horchestra_service::sealing::{UNREADABLE, missing_keys, reload, reseal};
use horchestra_service::{
    At, Body, Contents, DeleteOptions, ListRequest, Part, Patch, PatchType, Service, WatchEvent,
    WatchRequest, WriteOptions,
};
use horchestra_store::{Backend, Entry};
use horchestra_testkit::TempDir;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::*;

/// Base64 of "hunter2" and of another value.
const FIRST: &str = "aHVudGVyMg==";
const SECOND: &str = "czNjcjN0";

fn db() -> Key {
    Key::namespaced(Kind::Secret, "default", "db")
}

fn secret(value: &str) -> Value {
    json!({
        "kind": "Secret",
        "metadata": {
            "name": "db", "labels": {"app": "shop"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": value,
                "secrets.horchestra.io/keys": "password"},
        },
        "data": {"password": value},
    })
}

fn stored(service: &Service, key: &Key) -> Arc<Entry> {
    service.store().snapshot().get(key).expect("it is stored")
}

fn text(entry: &Entry) -> String {
    String::from_utf8(entry.encoded().to_vec()).unwrap()
}

fn password(object: &Value) -> &str {
    object["data"]["password"].as_str().unwrap_or_default()
}

fn code(answer: Result<impl Sized, Status>) -> u16 {
    answer.map_or_else(|status| status.code(), |_| 200)
}

#[tokio::test]
async fn a_secret_is_open_at_the_edge_and_sealed_in_between() {
    let world = World::new().await;
    let from = world.service.store().snapshot().revision();
    let created = world.create(secret(FIRST)).await.unwrap();
    assert_eq!(password(&tree(&created.entry)), FIRST);
    let held = stored(&world.service, &db());
    assert!(!text(&held).contains(FIRST) && !text(&held).contains("password\":"), "{}", text(&held));
    assert!(Seal::of(&held.body).is_some());
    assert_eq!((held.managed.clone(), held.revision), (None, created.entry.revision));

    let got = world.get(&db()).await.unwrap();
    assert_eq!(got, tree(&created.entry), "nothing got lost, nothing was added");
    let listed = world.list(ListRequest::of(Kind::Secret)).await.unwrap();
    assert_eq!(tree(&listed.entries[0]), got);

    let mut changed = got.clone();
    changed["data"]["password"] = json!(SECOND);
    let updated = world.put(&db(), &changed).await.unwrap();
    assert_eq!((password(&tree(&updated.entry)), updated.entry.generation), (SECOND, 2));
    let patched = world.merge(&db(), json!({"data": {"user": FIRST}})).await.unwrap();
    let shown = tree(&patched.entry);
    assert_eq!(
        (password(&shown), shown["data"]["user"].as_str()),
        (SECOND, Some(FIRST)),
        "on the open object"
    );
    world.delete(&db()).await.unwrap();

    let mut watch = watch_after(&world.service, Kind::Secret, from).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(match next(&mut watch).await {
            WatchEvent::Added(entry) => ("ADDED", password(&tree(&entry)).to_owned()),
            WatchEvent::Modified(entry) => ("MODIFIED", password(&tree(&entry)).to_owned()),
            WatchEvent::Deleted(entry) => ("DELETED", password(&tree(&entry)).to_owned()),
            other => panic!("{other:?}"),
        });
    }
    let expected = [("ADDED", FIRST), ("MODIFIED", SECOND), ("MODIFIED", SECOND), ("DELETED", SECOND)];
    assert_eq!(seen, expected.map(|(what, value)| (what, value.to_owned())));
}

#[tokio::test]
async fn nothing_changes_when_the_contents_are_the_same() {
    let world = World::new().await;
    let created = world.create(secret(FIRST)).await.unwrap().entry;
    let digest = || Seal::of(&stored(&world.service, &db()).body).unwrap().digest;
    let first = digest();
    let same = world.put(&db(), &secret(FIRST)).await.unwrap().entry;
    assert_eq!((same.revision, same.generation), (created.revision, 1));
    assert_eq!(password(&tree(&same)), FIRST, "the answer is open all the same");

    let labelled = world.merge(&db(), json!({"metadata": {"labels": {"app": "other"}}})).await.unwrap().entry;
    assert!(labelled.revision > created.revision);
    assert_eq!((labelled.generation, digest()), (1, first), "labels are no contents");
    let changed = world.merge(&db(), json!({"data": {"password": SECOND}})).await.unwrap().entry;
    assert_eq!(changed.generation, 2);
    assert_ne!(digest(), first);
    world.merge(&db(), json!({"data": {"password": FIRST}})).await.unwrap();
    assert_eq!(digest(), first, "as it was before");
}

#[tokio::test]
async fn without_keys_contents_are_out_of_reach_and_the_clear_part_is_not() {
    let world = World::new().await;
    let mut held = secret(FIRST);
    held["metadata"]["finalizers"] = json!(["example.org/hold"]);
    world.create(held).await.unwrap();
    let bare = served_with(world.database.connect(), None).await;
    let options = WriteOptions::default();
    let patch = || Patch { kind: PatchType::Merge, document: json!({"data": null}).to_string().into() };
    let body = |name: &str| {
        let mut object = secret(FIRST);
        object["metadata"]["name"] = json!(name);
        Body::Json(object.to_string().into())
    };
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let kind = Kind::Secret;
    assert_eq!(code(bare.get(&db(), At::Fresh).await), 503);
    assert_eq!(code(bare.list(ListRequest::of(kind)).await), 503);
    assert_eq!(code(bare.create(&admin(), kind, "default", body("new"), &options).await), 503);
    assert_eq!(code(bare.create(&admin(), kind, "default", body("new"), &dry).await), 503);
    assert_eq!(code(bare.update(&admin(), &db(), body("db"), &options).await), 503);
    assert_eq!(code(bare.patch(&admin(), &db(), Part::Main, patch(), &options).await), 503);
    let refused = bare.get(&db(), At::Fresh).await.unwrap_err();
    assert!(refused.message.contains("--secret-keys"), "{}", refused.message);
    assert!(refused.details.retry_after_seconds.is_some());
    let mut watch = bare.watch(WatchRequest::of(kind)).await.unwrap();
    assert_eq!(next_short(&mut watch).await, "FAILED 503");
    assert!(watch.next().await.is_none(), "and it ends");

    let clear = bare.get_clear(&db(), At::Fresh).await.unwrap();
    let shown = tree(&clear);
    assert_eq!((&shown["type"], &shown["metadata"]["labels"]["app"]), (&json!("Opaque"), &json!("shop")));
    assert_eq!(shown["metadata"]["annotations"], json!({"secrets.horchestra.io/keys": "password"}));
    let selected = ListRequest {
        label_selector: "app=shop".into(),
        field_selector: "type=Opaque".into(),
        contents: Contents::Sealed,
        ..ListRequest::of(kind)
    };
    assert_eq!(bare.list(selected).await.unwrap().entries.len(), 1);
    let request = WatchRequest { contents: Contents::Sealed, ..WatchRequest::of(kind) };
    let mut watch = bare.watch(request).await.unwrap();
    assert!(next_short(&mut watch).await.starts_with("ADDED db"));

    // A deletion mark is about the clear part: it goes through, and the contents stay as they are.
    assert!(!bare.delete(&admin(), &db(), &DeleteOptions::default()).await.unwrap().erased);
    let marked = world.get(&db()).await.unwrap();
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(password(&marked), FIRST);
    assert!(world.merge(&db(), json!({"metadata": {"finalizers": []}})).await.unwrap().erased);
    assert_eq!(world.get(&db()).await.unwrap_err().code(), 404);
}

#[tokio::test]
async fn a_body_that_was_meddled_with_is_not_shown() {
    let world = World::new().await;
    world.create(secret(FIRST)).await.unwrap();
    let mut other = secret(SECOND);
    other["metadata"]["name"] = json!("other");
    world.create(other).await.unwrap();
    let backend = world.database.connect();
    let heads = backend.sealed_heads(Kind::Secret, ("", ""), 10).await.unwrap();
    let seal = Seal::of(&heads[1].body).unwrap();
    let mut forged = object::decode(&heads[0].body, 0).unwrap();
    seal.put(&mut forged);
    let body = object::encode(Kind::Secret, &forged);
    let moved = horchestra_store::sealing::Resealed { old: heads[0].clone(), body };
    assert_eq!(backend.reseal(&[moved]).await.unwrap(), 1);

    let reader = world.replica().await;
    let status = reader.get(&db(), At::Fresh).await.unwrap_err();
    assert_eq!(status.code(), 500);
    assert!(status.message.contains("default/db"), "{}", status.message);
    assert!(!status.message.contains(SECOND), "{}", status.message);
    let whole = Key::namespaced(Kind::Secret, "default", "other");
    assert_eq!(password(&tree(&reader.get(&whole, At::Fresh).await.unwrap())), SECOND);

    // It does not take the others with it: a list shows both, and says what one of them is.
    let listing = reader.list(ListRequest::of(Kind::Secret)).await.unwrap();
    assert_eq!(listing.warnings.len(), 1);
    assert!(listing.warnings[0].contains("default/db"), "{:?}", listing.warnings);
    let shown: Vec<Value> = listing.entries.iter().map(|entry| tree(entry)).collect();
    assert_eq!((shown.len(), password(&shown[1])), (2, SECOND));
    is_closed(&shown[0], "changed");
    let mut watch = reader.watch(WatchRequest::of(Kind::Secret)).await.unwrap();
    for (name, value) in [("db", ""), ("other", SECOND)] {
        let WatchEvent::Added(entry) = next(&mut watch).await else { panic!("not added") };
        let seen = tree(&entry);
        assert_eq!((seen["metadata"]["name"].as_str(), password(&seen)), (Some(name), value));
        assert_eq!(seen, shown[usize::from(name == "other")], "as in the list");
    }
    // Nobody puts that in the place of what is stored, nor makes another one of it.
    let (body, options) = (Body::Json(shown[0].to_string().into()), WriteOptions::default());
    assert_eq!(code(reader.update(&admin(), &db(), body, &options).await), 500);
    let mut copy = shown[0].clone();
    copy["metadata"] = json!({"name": "copy", "annotations": copy["metadata"]["annotations"]});
    let body = Body::Json(copy.to_string().into());
    assert_eq!(code(reader.create(&admin(), Kind::Secret, "default", body, &options).await), 422);

    reader.delete(&admin(), &db(), &DeleteOptions::default()).await.unwrap();
}

/// Shown without its contents, for this reason.
fn is_closed(shown: &Value, why: &str) {
    let said = shown["metadata"]["annotations"][UNREADABLE].as_str().unwrap_or_default();
    assert!(said.contains(why), "{shown}");
    assert_eq!((&shown["type"], &shown["metadata"]["labels"]["app"]), (&json!("Opaque"), &json!("shop")));
    for member in ["data", "sealed"] {
        assert!(shown[member].is_null(), "{member} in {shown}");
    }
}

#[tokio::test]
async fn a_key_may_be_late_or_lost() {
    let world = World::new().await;
    let stranger = Arc::new(KeyRing::ephemeral().unwrap());
    let lost = stranger.sealing_key().to_owned();
    let elsewhere = served_with(world.database.connect(), Some(stranger)).await;
    let create = async |service: &Service, name: &str| {
        let mut object = secret(FIRST);
        object["metadata"]["name"] = json!(name);
        let body = Body::Json(object.to_string().into());
        service.create(&admin(), Kind::Secret, "default", body, &WriteOptions::default()).await.unwrap();
    };
    create(&elsewhere, "db").await;
    let ring = Arc::new(KeyRing::ephemeral().unwrap());

    // Another replica has the key, and this one may be about to: asked again, all of it is there.
    let late = served_with(world.database.connect(), Some(Arc::clone(&ring))).await;
    create(&late, "own").await;
    for refused in
        [late.get(&db(), At::Fresh).await.map(drop), late.list(ListRequest::of(Kind::Secret)).await.map(drop)]
    {
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), 503);
        assert!(refused.details.retry_after_seconds.is_some() && refused.message.contains(&lost));
    }
    let mut watch = late.watch(WatchRequest::of(Kind::Secret)).await.unwrap();
    assert_eq!(next_short(&mut watch).await, "FAILED 503");

    // An operator has said that it will not come.
    let mut keys = SecretKeys::from(ring);
    keys.give_up([lost.clone()]);
    let without = served_by(world.database.connect(), keys).await;
    assert_eq!(code(without.get(&db(), At::Fresh).await), 503);
    let listing = without.list(ListRequest::of(Kind::Secret)).await.unwrap();
    let shown: Vec<Value> = listing.entries.iter().map(|entry| tree(entry)).collect();
    is_closed(&shown[0], &lost);
    assert_eq!((password(&shown[1]), listing.warnings.len()), (FIRST, 1));
    without.delete(&admin(), &db(), &DeleteOptions::default()).await.unwrap();
    assert!(without.list(ListRequest::of(Kind::Secret)).await.unwrap().warnings.is_empty());
}

/// A key file that changes under running processes.
#[tokio::test]
async fn a_rotation_needs_no_restart_and_refuses_nobody() {
    let world = World::new().await;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("secret-keys");
    let mut file = RingFile::ensure(&path).unwrap();
    let old = file.sealing().to_owned();
    let one = served_by(world.database.connect(), SecretKeys::load(&path).unwrap()).await;
    let other = served_by(world.database.connect(), SecretKeys::load(&path).unwrap()).await;
    let body = Body::Json(secret(FIRST).to_string().into());
    let options = WriteOptions::default();
    one.create(&admin(), Kind::Secret, "default", body, &options).await.unwrap();
    let revision = one.store().fresh().await.unwrap().revision();
    let shown = tree(&one.get(&db(), At::Fresh).await.unwrap());
    let everybody_reads = async || {
        for service in [&one, &other] {
            assert_eq!(tree(&service.get(&db(), At::Fresh).await.unwrap()), shown);
            let mut watch = watch_after(service, Kind::Secret, revision - 1).await;
            assert!(next_short(&mut watch).await.starts_with("ADDED db"));
        }
    };
    let keys = one.config().secret_keys.clone().unwrap();

    let new = file.add().unwrap();
    file.seal_with(&new).unwrap();
    file.replace(&path).unwrap();
    assert!(reload(&keys, one.store()).await.unwrap());
    let mut second = secret(SECOND);
    second["metadata"]["name"] = json!("second");
    let body = Body::Json(second.to_string().into());
    one.create(&admin(), Kind::Secret, "default", body, &options).await.unwrap();
    // The other one has not looked at the file since.
    let second = Key::namespaced(Kind::Secret, "default", "second");
    assert_eq!(password(&tree(&other.get(&second, At::Fresh).await.unwrap())), SECOND);
    everybody_reads().await;

    let done = reseal(&*world.database.connect(), &keys.ring()).await.unwrap();
    assert!(done.complete() && done.objects == 1, "{done:?}");
    everybody_reads().await;
    file.remove(&old).unwrap();
    file.replace(&path).unwrap();
    for service in [&one, &other] {
        assert!(reload(service.config().secret_keys.as_ref().unwrap(), service.store()).await.unwrap());
    }
    // Their caches hold what the old key sealed.
    let held = Seal::of(&stored(&one, &db()).body).unwrap();
    assert_eq!(held.key, old);
    everybody_reads().await;
    let fresh = served_by(world.database.connect(), SecretKeys::load(&path).unwrap()).await;
    assert_eq!(tree(&fresh.get(&db(), At::Fresh).await.unwrap()), shown);
}

/// A ring, and the same after a rotation: (before, both keys with the new one sealing, the new one alone).
fn rotated() -> [Arc<KeyRing>; 3] {
    let mut file = RingFile::generate().unwrap();
    let ring = |file: &RingFile| Arc::new(KeyRing::new(file).unwrap());
    let before = ring(&file);
    let old = file.sealing().to_owned();
    let new = file.add().unwrap();
    file.seal_with(&new).unwrap();
    let both = ring(&file);
    file.remove(&old).unwrap();
    [before, both, ring(&file)]
}

#[tokio::test]
async fn a_rotation_needs_no_revision_and_lets_the_old_key_go() {
    let world = World::new().await;
    let [before, both, after] = rotated();
    let old = served_with(world.database.connect(), Some(before.clone())).await;
    for name in ["a", "b", "c"] {
        let mut object = secret(FIRST);
        object["metadata"]["name"] = json!(name);
        let body = Body::Json(object.to_string().into());
        old.create(&admin(), Kind::Secret, "default", body, &WriteOptions::default()).await.unwrap();
    }
    let a = Key::namespaced(Kind::Secret, "default", "a");
    let shown = tree(&old.get(&a, At::Fresh).await.unwrap());
    let revision = old.store().fresh().await.unwrap().revision();
    let missing = missing_keys(old.store(), Some(&after)).await.unwrap().expect("the old one");
    assert_eq!((missing.0.len(), missing.0[0].objects), (1, 3));
    assert!(missing.to_string().contains(before.sealing_key()), "{missing}");
    assert_eq!(missing_keys(old.store(), Some(&both)).await.unwrap(), None);
    assert!(missing_keys(old.store(), None).await.unwrap().is_some());
    let too_early = served_with(world.database.connect(), Some(after.clone())).await;
    assert_eq!(code(too_early.get(&a, At::Fresh).await), 503);

    let backend = world.database.connect();
    let done = reseal(&*backend, &both).await.unwrap();
    assert_eq!((done.objects, done.log, done.current, done.failed), (3, 3, 0, 0));
    assert!(done.complete());
    let again = reseal(&*backend, &both).await.unwrap();
    assert_eq!((again.objects, again.log, again.current), (0, 0, 6), "nothing is left to do");
    assert_eq!(missing_keys(old.store(), Some(&after)).await.unwrap(), None);

    let new = served_with(world.database.connect(), Some(after)).await;
    assert_eq!(new.store().fresh().await.unwrap().revision(), revision);
    assert_eq!(tree(&new.get(&a, At::Fresh).await.unwrap()), shown, "the very same, revision included");
    let mut watch = watch_after(&new, Kind::Secret, revision - 3).await;
    for name in ["a", "b", "c"] {
        assert!(next_short(&mut watch).await.starts_with(&format!("ADDED {name}")), "the log opens, too");
    }
    // A process from before the rotation has the old bytes in its cache, and writes on.
    let patch = Patch { kind: PatchType::Merge, document: json!({"data": {"x": SECOND}}).to_string().into() };
    old.patch(&admin(), &a, Part::Main, patch, &WriteOptions::default()).await.unwrap();
    let left = reseal(&*backend, &both).await.unwrap();
    assert_eq!((left.objects, left.complete()), (1, true), "found by the next run");
}

#[tokio::test]
async fn what_does_not_open_is_reported_and_the_rest_is_sealed_anew() {
    let world = World::new().await;
    let stranger = served_with(world.database.connect(), Some(Arc::new(KeyRing::ephemeral().unwrap()))).await;
    let body = Body::Json(secret(FIRST).to_string().into());
    stranger.create(&admin(), Kind::Secret, "default", body, &WriteOptions::default()).await.unwrap();
    let [before, both, _] = rotated();
    let mut own = secret(SECOND);
    own["metadata"]["name"] = json!("own");
    let old = served_with(world.database.connect(), Some(before)).await;
    let body = Body::Json(own.to_string().into());
    old.create(&admin(), Kind::Secret, "default", body, &WriteOptions::default()).await.unwrap();
    let done = reseal(&*world.database.connect(), &both).await.unwrap();
    assert_eq!((done.objects, done.failed, done.left.len(), done.complete()), (1, 2, 1, false));
    let said = format!("{:?}", done.failures);
    assert!(said.contains("default/db") && !said.contains(FIRST), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_and_rotations_do_not_get_in_each_others_way() {
    const WRITES: usize = 15;
    let world = World::new().await;
    let mut turned = RingFile::generate().unwrap();
    let old = turned.sealing().to_owned();
    let new = turned.add().unwrap();
    turned.seal_with(&new).unwrap();
    let both = Arc::new(KeyRing::new(&turned).unwrap());
    turned.seal_with(&old).unwrap();
    let names = ["s0", "s1", "s2"].map(|name| Key::namespaced(Kind::Secret, "default", name));
    let mut writers = JoinSet::new();
    for key in names.clone() {
        let service = served_with(world.database.connect(), Some(both.clone())).await;
        let mut object = secret(FIRST);
        object["metadata"]["name"] = json!(key.name);
        let body = Body::Json(object.to_string().into());
        service.create(&admin(), Kind::Secret, "default", body, &WriteOptions::default()).await.unwrap();
        writers.spawn(async move {
            for n in 0..WRITES {
                let patch = json!({"data": {format!("k{n}"): SECOND}}).to_string();
                let patch = Patch { kind: PatchType::Merge, document: patch.into() };
                service.patch(&admin(), &key, Part::Main, patch, &WriteOptions::default()).await.unwrap();
            }
        });
    }
    // Keys take turns at sealing until the writers are done; then one more round.
    let back = Arc::new(KeyRing::new(&turned).unwrap());
    let backend = world.database.connect();
    while !writers.is_empty() {
        for ring in [&back, &both] {
            reseal(&*backend, ring).await.unwrap();
        }
        while let Some(ended) = writers.try_join_next() {
            ended.expect("every write went through");
        }
    }
    let last = reseal(&*backend, &both).await.unwrap();
    assert!(last.complete(), "{last:?}");
    let reader = served_with(world.database.connect(), Some(both)).await;
    for key in &names {
        let shown = tree(&reader.get(key, At::Fresh).await.unwrap());
        let data = shown["data"].as_object().unwrap();
        assert_eq!(data.len(), WRITES + 1, "{shown}");
        assert_eq!(shown["metadata"]["generation"], WRITES as i64 + 1);
    }
}

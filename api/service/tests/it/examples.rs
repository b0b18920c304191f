//! The manifests that we show people, as they would be applied: read strictly, judged by schema and by every
//! rule, into a world that holds what they need.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use horchestra_core::admit::{self, Media};
use horchestra_core::registry;
use horchestra_service::{Body, ServiceConfig, WriteOptions};
use serde_json::json;

use crate::support::*;

/// The manifests of a folder, in the order of their names, as `kubectl apply` takes them.
fn manifests(folder: &str) -> Vec<(String, String)> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "local", "examples", folder].iter().collect();
    let mut manifests: Vec<(String, String)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap()))
        .collect();
    manifests.sort();
    manifests
}

/// Kind and namespace that a manifest names.
fn addressed(text: &str) -> (horchestra_core::Kind, String) {
    let document = admit::read(Media::Yaml, text.as_bytes()).unwrap();
    let object = document.object.into_value();
    (kind_of(&object), object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn there_is_an_example_of_every_kind() {
    let shown: BTreeSet<_> = manifests("kinds").iter().map(|(_, text)| addressed(text).0).collect();
    for spec in registry::served().iter().filter(|spec| !spec.kind.group().is_empty()) {
        assert!(shown.contains(&spec.kind), "no example of {}", spec.kind);
    }
}

#[tokio::test]
async fn every_example_is_taken_as_it_stands() {
    let world = World::new().await;
    apply(&world, manifests("kinds")).await;
    let gated = ServiceConfig { gates: "VaultStaticRoles=true".parse().unwrap(), ..ServiceConfig::default() };
    let world = World::with(gated).await;
    world.create(json!({"kind": "Namespace", "metadata": {"name": "shop"}})).await.unwrap();
    apply(&world, manifests("kinds/gated")).await;
}

async fn apply(world: &World, manifests: Vec<(String, String)>) {
    let options = WriteOptions::default();
    assert!(!manifests.is_empty());
    for (path, text) in manifests {
        let (kind, namespace) = addressed(&text);
        let body = Body::Yaml(text.into());
        let written = world.service.create(&admin(), kind, &namespace, body.clone(), &options).await;
        let written = written.unwrap_or_else(|status| panic!("{path}: {status}"));
        assert!(written.warnings.is_empty(), "{path}: {:?}", written.warnings);
        let again = world.service.update(&admin(), &written.entry.key, body, &options).await.unwrap();
        assert_eq!(again.entry.revision, written.entry.revision, "{path}: applied again, it changes nothing");
    }
}

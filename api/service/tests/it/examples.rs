//! The manifests that we show people, as they would be applied: read strictly, judged by schema and by every
//! rule, into a world that holds what they need.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use horchestra_core::admit::{self, Media};
use horchestra_core::registry;
use horchestra_service::{Body, ServiceConfig, WriteOptions};

use crate::support::*;

/// In an order in which what is needed comes first.
const MANIFESTS: &[&str] = &[
    "namespace",
    "node",
    "service",
    "secret-store",
    "secret",
    "vault-secret",
    "vault-role-secret",
    "persistent-volume",
    "application",
    "application-set",
    "role",
    "role-binding",
    "cluster-role",
    "cluster-role-binding",
    "certificate-signing-request",
];

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "local", "examples", "kinds"].iter().collect()
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap()
}

/// Kind and namespace that a manifest names.
fn addressed(text: &str) -> (horchestra_core::Kind, String) {
    let document = admit::read(Media::Yaml, text.as_bytes()).unwrap();
    let object = document.object.into_value();
    (kind_of(&object), object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn there_is_an_example_of_every_kind_and_no_stray_one() {
    let listed: BTreeSet<String> = MANIFESTS.iter().map(|name| format!("{name}.yaml")).collect();
    let found: BTreeSet<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(listed, found);
    let shown: BTreeSet<_> = MANIFESTS.iter().map(|name| addressed(&read(name)).0).collect();
    for spec in registry::served().iter().filter(|spec| !spec.kind.group().is_empty()) {
        assert!(shown.contains(&spec.kind), "no example of {}", spec.kind);
    }
}

#[tokio::test]
async fn every_example_is_taken_as_it_stands() {
    let config =
        ServiceConfig { gates: "VaultStaticRoles=true".parse().unwrap(), ..ServiceConfig::default() };
    let world = World::with(config).await;
    for name in MANIFESTS {
        let text = read(name);
        let (kind, namespace) = addressed(&text);
        let body = Body::Yaml(text.into());
        let written =
            world.service.create(&admin(), kind, &namespace, body.clone(), &WriteOptions::default()).await;
        let written = written.unwrap_or_else(|status| panic!("{name}: {status}"));
        assert!(written.warnings.is_empty(), "{name}: {:?}", written.warnings);
        let again = world.service.update(&admin(), &written.entry.key, body, &WriteOptions::default()).await;
        assert_eq!(
            again.unwrap().entry.revision,
            written.entry.revision,
            "{name}: applied again, it changes nothing"
        );
    }
}

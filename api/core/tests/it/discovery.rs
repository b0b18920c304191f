use horchestra_core::discovery::{self, DiscoveryVersion};
use horchestra_core::registry;
use serde_json::{Value, json};

use crate::pretty;

#[test]
fn documents() {
    let all = json!({
        "/api": discovery::core_versions(),
        "/api/v1": discovery::core_resources(),
        "/apis": discovery::group_list(),
        "/apis/events.k8s.io/v1": discovery::resources("events.k8s.io", "v1"),
        "/apis/horchestra.io": discovery::group("horchestra.io"),
        "/apis/horchestra.io/v1": discovery::resources("horchestra.io", "v1"),
        "/api aggregated": discovery::aggregated_core(DiscoveryVersion::V2),
        "/apis aggregated": discovery::aggregated_groups(DiscoveryVersion::V2),
    });
    insta::assert_snapshot!("discovery", pretty(&all));
}

#[test]
fn what_is_not_served_has_no_document() {
    assert!(discovery::group("nosuch").is_none());
    assert!(discovery::group("").is_none());
    assert!(discovery::resources("horchestra.io", "v2").is_none());
    assert!(discovery::resources("nope.group", "v1").is_none());
}

#[test]
fn each_group_is_the_same_in_its_own_document_as_in_the_list() {
    for entry in discovery::group_list()["groups"].as_array().unwrap() {
        assert_eq!(&discovery::group(entry["name"].as_str().unwrap()).unwrap(), entry);
        assert!(entry["versions"].as_array().unwrap().contains(&entry["preferredVersion"]));
    }
}

#[test]
fn core_nodes_and_namespaces_stay_unlisted() {
    let document = discovery::core_resources();
    let names: Vec<&str> =
        document["resources"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["events", "pods", "pods/log"]);
    assert!(!discovery::aggregated_core(DiscoveryVersion::V2).to_string().contains("nodes"));
}

#[test]
fn the_aggregated_form_says_its_version_and_the_same_as_the_plain_one() {
    for version in [DiscoveryVersion::V2, DiscoveryVersion::V2Beta1] {
        let document = discovery::aggregated_groups(version);
        assert_eq!(document["apiVersion"], format!("apidiscovery.k8s.io/{}", version.name()));
        assert!(version.content_type().contains(&format!("v={};", version.name())));
        for group in document["items"].as_array().unwrap() {
            for group_version in group["versions"].as_array().unwrap() {
                let name = group["metadata"]["name"].as_str().unwrap();
                let plain = discovery::resources(name, group_version["version"].as_str().unwrap()).unwrap();
                assert_eq!(flatten(group_version), plain_entries(&plain));
            }
        }
    }
}

/// Name, scope, kind and verbs of every resource and subresource.
type Entry = (String, bool, Value, Value);

fn plain_entries(document: &Value) -> Vec<Entry> {
    let resources = document["resources"].as_array().unwrap();
    resources
        .iter()
        .map(|it| {
            (
                it["name"].as_str().unwrap().to_owned(),
                it["namespaced"] == true,
                it["kind"].clone(),
                it["verbs"].clone(),
            )
        })
        .collect()
}

fn flatten(version: &Value) -> Vec<Entry> {
    let mut entries = Vec::new();
    for resource in version["resources"].as_array().unwrap() {
        let namespaced = resource["scope"] == "Namespaced";
        let name = resource["resource"].as_str().unwrap().to_owned();
        entries.push((
            name.clone(),
            namespaced,
            resource["responseKind"]["kind"].clone(),
            resource["verbs"].clone(),
        ));
        for sub in resource["subresources"].as_array().into_iter().flatten() {
            let name = format!("{name}/{}", sub["subresource"].as_str().unwrap());
            entries.push((name, namespaced, sub["responseKind"]["kind"].clone(), sub["verbs"].clone()));
        }
    }
    entries
}

#[test]
fn no_name_of_a_kind_is_taken_twice() {
    let mut names: Vec<&str> = registry::served()
        .iter()
        .flat_map(|spec| [spec.plural(), spec.singular].into_iter().chain(spec.short_names.iter().copied()))
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for spec in registry::served() {
        let found = registry::by_resource(spec.kind.group(), spec.kind.version(), spec.plural()).unwrap();
        assert_eq!(found.kind, spec.kind);
        assert!(std::ptr::eq(registry::spec(spec.kind).unwrap(), found));
        assert!(!spec.description().is_empty());
    }
    assert!(registry::by_resource("horchestra.io", "v1", "applicationlists").is_none());
}

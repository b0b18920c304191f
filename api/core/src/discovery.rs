//! Discovery: the documents from which clients learn what is served.
//!
//! All of them are pure functions of the registry of kinds (and the list of aliases), in a stable order, so
//! every replica of a version serves the same bytes. Only what is routed is listed: clients (and the
//! conformance checks) call each listed verb and expect not to be told that it is not there.
//!
//! Of the core group only Pods and Events are listed. Nodes and Namespaces are served there as well, but a client that
//! sees them listed sends `kubectl get nodes` (and every write) to the core group instead of to ours. For the same
//! reason the group of usage is listed last: it has `nodes` and `pods`, too.

use serde_json::{Value, json};

use crate::alias::ALIASES;
use crate::doors::Door;
use crate::kind::Kind;
use crate::registry::{KindSpec, described};
use crate::reviews::{self, REVIEWS, ReviewSpec};
use crate::usage::shown as usage;
use crate::versions::by_preference;

/// What can be done with every stored kind.
pub const VERBS: [&str; 8] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// What can be done with the status of a kind that has one.
pub const STATUS_VERBS: [&str; 3] = ["get", "patch", "update"];
/// What can be done with the status of this kind.
pub const fn status_verbs(kind: Kind) -> &'static [&'static str] {
    if kind.takes_status_writes() { &STATUS_VERBS } else { &["get"] }
}

/// What can be done with an alias.
pub const ALIAS_VERBS: [&str; 3] = ["get", "list", "watch"];

/// Version of the aggregated documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiscoveryVersion {
    V2,
    V2Beta1,
}

impl DiscoveryVersion {
    pub const fn name(self) -> &'static str {
        match self {
            DiscoveryVersion::V2 => "v2",
            DiscoveryVersion::V2Beta1 => "v2beta1",
        }
    }

    /// The media type of answers, as clients compare it.
    pub const fn content_type(self) -> &'static str {
        match self {
            DiscoveryVersion::V2 => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            DiscoveryVersion::V2Beta1 => {
                "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
            }
        }
    }
}

/// The served groups with their versions, in byte order of the group and the group of usage last, most preferred
/// version first.
pub fn groups() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    let kinds = described().map(|spec| (spec.group(), spec.version()));
    let reviews = REVIEWS.iter().map(|spec| (spec.group, spec.version));
    for (group, version) in kinds.chain(reviews).filter(|(group, _)| !group.is_empty()) {
        match groups.iter_mut().find(|(name, _)| *name == group) {
            Some((_, versions)) if versions.contains(&version) => {}
            Some((_, versions)) => versions.push(version),
            None => groups.push((group, vec![version])),
        }
    }
    groups.sort_unstable();
    for (_, versions) in &mut groups {
        versions.sort_by(|a, b| by_preference(a, b));
    }
    groups.push((usage::GROUP, vec![usage::VERSION]));
    groups
}

/// The kinds of one group version, in byte order of the plural.
pub fn kinds_of(group: &str, version: &str) -> Vec<&'static KindSpec> {
    let mut kinds: Vec<&KindSpec> =
        described().filter(|spec| spec.group() == group && spec.version() == version).collect();
    kinds.sort_unstable_by_key(|spec| spec.plural());
    kinds
}

/// `/api`
pub fn core_versions() -> Value {
    json!({"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `/api/v1`
pub fn core_resources() -> Value {
    let mut resources: Vec<Value> = kinds_of("", "v1").into_iter().flat_map(entries).collect();
    for alias in ALIASES.into_iter().filter(|alias| alias.advertised) {
        resources.push(json!({
            "name": alias.plural,
            "singularName": alias.singular,
            "namespaced": alias.kind.namespaced(),
            "kind": alias.name,
            "verbs": ALIAS_VERBS,
            "shortNames": alias.short_names,
        }));
    }
    resources.push(json!({
        "name": "pods/log",
        "singularName": "",
        "namespaced": true,
        "kind": "Pod",
        "verbs": ["get"],
    }));
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": resources})
}

/// `/apis`
pub fn group_list() -> Value {
    let groups: Vec<Value> =
        groups().into_iter().map(|(group, versions)| group_entry(group, &versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/<group>`, the same as the group's entry in `/apis`.
pub fn group(name: &str) -> Option<Value> {
    let (group, versions) = groups().into_iter().find(|(group, _)| *group == name)?;
    Some(group_entry(group, &versions))
}

fn group_entry(group: &str, versions: &[&str]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{group}/{version}"), "version": version}))
        .collect();
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": group,
        "preferredVersion": versions.first(),
        "versions": versions,
    })
}

/// `/apis/<group>/<version>`
pub fn resources(group: &str, version: &str) -> Option<Value> {
    let mut resources: Vec<Value> = kinds_of(group, version).into_iter().flat_map(entries).collect();
    resources.extend(reviews::of(group, version).map(review_entry));
    if (group, version) == (usage::GROUP, usage::VERSION) {
        resources.extend(usage::entries());
    }
    if resources.is_empty() {
        return None;
    }
    resources.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{group}/{version}"),
        "resources": resources,
    }))
}

/// The entries of a kind in the list of its group: itself, and its status.
fn entries(spec: &KindSpec) -> Vec<Value> {
    let entry = |name: &str, singular: &str, verbs: &[&str]| {
        json!({
            "name": name,
            "singularName": singular,
            "namespaced": spec.namespaced(),
            "group": spec.group(),
            "version": spec.version(),
            "kind": spec.kind.name(),
            "verbs": verbs,
        })
    };
    let mut resource = entry(spec.plural(), spec.singular, &VERBS);
    for (member, names) in [("shortNames", spec.short_names), ("categories", spec.categories)] {
        if !names.is_empty() {
            resource[member] = json!(names);
        }
    }
    let mut entries = vec![resource];
    if spec.has_status() {
        entries.push(entry(&format!("{}/status", spec.plural()), "", status_verbs(spec.kind)));
    }
    for door in Door::of(spec.kind) {
        let (group, version, kind) = door.answer(spec);
        let mut subresource = entry(&format!("{}/{}", spec.plural(), door.name()), "", door.verbs());
        subresource["group"] = json!(group);
        subresource["version"] = json!(version);
        subresource["kind"] = json!(kind);
        entries.push(subresource);
    }
    if spec.kind == Kind::Application {
        entries.push(usage::subresource_entry());
    }
    entries
}

fn review_entry(spec: &ReviewSpec) -> Value {
    json!({
        "name": spec.plural,
        "singularName": spec.singular,
        "namespaced": spec.namespaced,
        "group": spec.group,
        "version": spec.version,
        "kind": spec.kind,
        "verbs": reviews::VERBS,
    })
}

/// `/api`, aggregated.
pub fn aggregated_core(version: DiscoveryVersion) -> Value {
    let pod = json!({"group": "", "version": "v1", "kind": "Pod"});
    let mut resources: Vec<Value> = kinds_of("", "v1").into_iter().map(aggregated_kind).collect();
    for alias in ALIASES.into_iter().filter(|alias| alias.advertised) {
        resources.push(json!({
            "resource": alias.plural,
            "responseKind": {"group": "", "version": "v1", "kind": alias.name},
            "scope": scope(alias.kind.namespaced()),
            "singularResource": alias.singular,
            "verbs": ALIAS_VERBS,
            "shortNames": alias.short_names,
            "subresources": [{"subresource": "log", "responseKind": pod, "verbs": ["get"]}],
        }));
    }
    aggregated(version, vec![aggregated_group("", vec![("v1", resources)])])
}

/// `/apis`, aggregated.
pub fn aggregated_groups(version: DiscoveryVersion) -> Value {
    let items = groups().into_iter().map(|(group, versions)| {
        let versions = versions.into_iter().map(|version| {
            let kinds = kinds_of(group, version).into_iter().map(aggregated_kind);
            let measured =
                usage::RESOURCES.iter().filter(|_| (group, version) == (usage::GROUP, usage::VERSION));
            let reviews = reviews::of(group, version).map(aggregated_review);
            (version, kinds.chain(reviews).chain(measured.map(|it| aggregated_usage(it))).collect())
        });
        aggregated_group(group, versions.collect())
    });
    aggregated(version, items.collect())
}

fn aggregated(version: DiscoveryVersion, items: Vec<Value>) -> Value {
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{}", version.name()),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_group(name: &str, versions: Vec<(&str, Vec<Value>)>) -> Value {
    let versions: Vec<Value> = versions
        .into_iter()
        .map(|(version, resources)| {
            json!({"version": version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let mut metadata = json!({"creationTimestamp": null});
    if !name.is_empty() {
        metadata["name"] = Value::from(name);
    }
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_kind(spec: &KindSpec) -> Value {
    let kind = json!({
        "group": spec.group(),
        "version": spec.version(),
        "kind": spec.kind.name(),
    });
    let mut resource = json!({
        "resource": spec.plural(),
        "responseKind": kind,
        "scope": scope(spec.namespaced()),
        "singularResource": spec.singular,
        "verbs": VERBS,
    });
    for (member, names) in [("shortNames", spec.short_names), ("categories", spec.categories)] {
        if !names.is_empty() {
            resource[member] = json!(names);
        }
    }
    let mut subresources: Vec<(&str, Value)> = Door::of(spec.kind)
        .map(|door| {
            let (group, version, kind) = door.answer(spec);
            let kind = json!({"group": group, "version": version, "kind": kind});
            let name = door.name();
            (name, json!({"subresource": name, "responseKind": kind, "verbs": door.verbs()}))
        })
        .collect();
    if spec.has_status() {
        let status = json!({"subresource": "status", "responseKind": kind, "verbs": status_verbs(spec.kind)});
        subresources.push(("status", status));
    }
    if spec.kind == Kind::Application {
        let kind =
            json!({"group": spec.group(), "version": spec.version(), "kind": usage::APPLICATION_METRICS});
        let name = usage::SUBRESOURCE;
        subresources.push((name, json!({"subresource": name, "responseKind": kind, "verbs": ["get"]})));
    }
    subresources.sort_by_key(|(name, _)| *name);
    let subresources: Vec<Value> = subresources.into_iter().map(|(_, value)| value).collect();
    if !subresources.is_empty() {
        resource["subresources"] = Value::Array(subresources);
    }
    resource
}

fn aggregated_review(spec: &ReviewSpec) -> Value {
    json!({
        "resource": spec.plural,
        "responseKind": {"group": spec.group, "version": spec.version, "kind": spec.kind},
        "scope": scope(spec.namespaced),
        "singularResource": spec.singular,
        "verbs": reviews::VERBS,
    })
}

fn aggregated_usage(resource: &usage::Resource) -> Value {
    json!({
        "resource": resource.plural,
        "responseKind": {"group": usage::GROUP, "version": usage::VERSION, "kind": resource.name},
        "scope": scope(resource.kind.namespaced()),
        "singularResource": resource.singular,
        "verbs": usage::VERBS,
    })
}

const fn scope(namespaced: bool) -> &'static str {
    if namespaced { "Namespaced" } else { "Cluster" }
}

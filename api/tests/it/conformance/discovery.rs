//! Version and discovery.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Rows, stack};
use crate::client::Protocol;
use crate::stack::{Stack, Who};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[tokio::test]
async fn version_and_documents() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let version = client.get("/version").await.json();
    let digits = |member: &str| {
        version[member]
            .as_str()
            .is_some_and(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
    };
    rows.holds("major and minor are digits only", digits("major") && digits("minor"), &version);
    let core: Vec<&str> = version["gitVersion"]
        .as_str()
        .unwrap()
        .trim_start_matches('v')
        .split('+')
        .next()
        .unwrap()
        .split('.')
        .collect();
    rows.holds(
        "gitVersion is a semantic version",
        core.len() == 3 && core.iter().all(|part| part.parse::<u32>().is_ok()),
        &version,
    );
    for path in ["/version", "/api", "/apis", "/api/v1", "/apis/horchestra.io", "/apis/horchestra.io/v1"] {
        let (plain, slashed) = (client.get(path).await, client.get(&format!("{path}/")).await);
        let same = (plain.status, &plain.body) == (slashed.status, &slashed.body) && plain.status == 200;
        rows.holds("a trailing slash is the same document", same, (path, slashed));
    }
    for path in ["/apis/nosuch", "/apis/horchestra.io/v9", "/apis/apps", "/apis/apps/v1", "/api/v2"] {
        rows.code("an unknown group or version is 404", &client.get(path).await, 404, "NotFound");
    }
    for group in ["apiextensions.k8s.io", "admissionregistration.k8s.io", "flowcontrol.apiserver.k8s.io"] {
        let listed = client.get("/apis").await.text().contains(group);
        rows.holds("what does not apply is absent from discovery", !listed, group);
    }
    let core = client.get("/api").await.json();
    rows.same("the core group has v1", core["versions"].clone(), json!(["v1"]));
    rows.close();
}

#[tokio::test]
async fn groups_and_resources() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let list = client.get("/apis").await.json();
    rows.same("/apis is an APIGroupList", list["kind"].clone(), json!("APIGroupList"));
    let groups = list["groups"].as_array().unwrap();
    for group in groups {
        let name = group["name"].as_str().unwrap();
        let versions = group["versions"].as_array().unwrap();
        rows.holds(
            "the preferred version is one of the versions",
            versions.contains(&group["preferredVersion"]),
            group,
        );
        let one = client.get(&format!("/apis/{name}")).await.json();
        rows.holds("a group's document is its entry in the list", one == *group, &one);
        for version in versions {
            let group_version = version["groupVersion"].as_str().unwrap();
            let resources = client.get(&format!("/apis/{group_version}")).await.json();
            rows.same(
                "the document names its group and version",
                &resources["groupVersion"],
                &json!(group_version),
            );
            let mut seen = BTreeSet::new();
            let names: Vec<&str> = resources["resources"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it["name"].as_str().unwrap())
                .collect();
            rows.holds("resources are sorted", names.is_sorted(), &names);
            for resource in resources["resources"].as_array().unwrap() {
                let name = resource["name"].as_str().unwrap();
                rows.holds("each resource is listed once", seen.insert(name), name);
                rows.holds("each has kind, scope and verbs", complete(resource), resource);
                let sub = name.contains('/');
                let singular = resource["singularName"].as_str().unwrap();
                rows.holds("each has a singular name", sub || !singular.is_empty(), resource);
                rows.holds(
                    "no list kind is a resource",
                    !resource["name"].as_str().unwrap().ends_with("list"),
                    name,
                );
            }
        }
    }
    rows.close();
}

fn complete(resource: &Value) -> bool {
    resource["kind"].as_str().is_some_and(|kind| !kind.is_empty())
        && resource["namespaced"].is_boolean()
        && resource["verbs"].as_array().is_some_and(|verbs| !verbs.is_empty())
}

#[tokio::test]
async fn what_is_listed_of_applications() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let document = client.get("/apis/horchestra.io/v1").await.json();
    let find = |name: &str| {
        document["resources"]
            .as_array()
            .unwrap()
            .iter()
            .find(|it| it["name"] == name)
            .cloned()
            .unwrap_or_default()
    };
    let app = find("applications");
    rows.same("the kind", &app["kind"], &json!("Application"));
    rows.same("the singular", &app["singularName"], &json!("application"));
    rows.same("the short names", &app["shortNames"], &json!(["app", "apps"]));
    rows.same("the categories", &app["categories"], &json!(["all"]));
    for verb in ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"] {
        rows.holds("every verb is listed", app["verbs"].as_array().unwrap().contains(&json!(verb)), verb);
    }
    for (name, verbs) in [
        ("applications/status", json!(["get", "patch", "update"])),
        ("applications/freeze", json!(["create", "update"])),
        ("applications/thaw", json!(["create", "update"])),
        ("applications/rollback", json!(["create", "update"])),
        ("applications/revisions", json!(["get"])),
        ("nodes/cordon", json!(["create", "update"])),
        ("nodes/uncordon", json!(["create", "update"])),
        ("nodes/admit", json!(["create", "update"])),
        ("nodes/forget", json!(["create", "update"])),
        ("nodes/status", json!(["get", "patch", "update"])),
    ] {
        rows.same(name, find(name)["verbs"].clone(), verbs);
    }
    for absent in
        ["applications/scale", "namespaces/status", "nodes/freeze", "nodes/sessionlog", "applicationlists"]
    {
        rows.same("what is not served is not listed", find(absent), Value::Null);
    }
    let pods = client.get("/api/v1").await.json();
    let pods: Vec<&str> =
        pods["resources"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    rows.holds("pods and their logs are listed", pods.contains(&"pods") && pods.contains(&"pods/log"), &pods);
    rows.holds("no other group takes the names of our nodes", !pods.contains(&"nodes"), &pods);
    rows.close();
}

#[tokio::test]
async fn aggregated_documents_say_the_same() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let document = client.get_as("/apis", V2).await.json();
    rows.same("the version that was asked for", &document["apiVersion"], &json!("apidiscovery.k8s.io/v2"));
    for group in document["items"].as_array().unwrap() {
        let name = group["metadata"]["name"].as_str().unwrap();
        for version in group["versions"].as_array().unwrap() {
            rows.same("freshness", &version["freshness"], &json!("Current"));
            let plain =
                client.get(&format!("/apis/{name}/{}", version["version"].as_str().unwrap())).await.json();
            let mut listed = BTreeSet::new();
            for resource in version["resources"].as_array().unwrap() {
                let plural = resource["resource"].as_str().unwrap();
                listed.insert(plural.to_owned());
                rows.holds(
                    "a resource says what it answers",
                    resource["responseKind"]["kind"].is_string(),
                    resource,
                );
                rows.holds(
                    "and its scope",
                    ["Namespaced", "Cluster"].contains(&resource["scope"].as_str().unwrap()),
                    resource,
                );
                for sub in resource["subresources"].as_array().into_iter().flatten() {
                    listed.insert(format!("{plural}/{}", sub["subresource"].as_str().unwrap()));
                    rows.holds("so does a subresource", sub["responseKind"]["kind"].is_string(), sub);
                }
            }
            let wanted: BTreeSet<String> = plain["resources"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it["name"].as_str().unwrap().to_owned())
                .collect();
            rows.same("both forms list the same", listed, wanted);
        }
    }
    rows.close();
}

#[tokio::test]
async fn replicas_serve_the_same_bytes() {
    let (here, there) = (Stack::start().await, Stack::start().await);
    let mut rows = Rows::default();
    for path in
        ["/version", "/api", "/api/v1", "/apis", "/apis/horchestra.io/v1", "/openapi/v2", "/openapi/v3"]
    {
        let (one, other) = (here.master().get(path).await, there.master().get(path).await);
        rows.holds("the same document", one.body == other.body && one.status == 200, path);
        rows.same("the same entity tag", one.header("etag"), other.header("etag"));
        let tag = one.header("etag").to_owned();
        let headers = [("if-none-match", tag.as_str())];
        let again = there.master().send(http::Method::GET, path, &headers, "").await;
        rows.same("which the other one recognises", (again.status, again.body.len()), (304, 0));
    }
    rows.close();
}

#[tokio::test]
async fn without_credentials() {
    let stack = Stack::start().await;
    let mut rows = Rows::default();
    let stranger = stack.client(Who::Anonymous, Protocol::Http2);
    for path in ["/version", "/api", "/apis", "/openapi/v3", "/nonsense"] {
        rows.code("documents want an identity", &stranger.get(path).await, 401, "Unauthorized");
        let token = [("authorization", "Bearer nonsense")];
        let reply = stranger.send(http::Method::GET, path, &token, "").await;
        rows.code("a bad token is no identity, and that is 401", &reply, 401, "Unauthorized");
    }
    for (path, says) in [
        ("/livez", "ok"),
        ("/healthz", "ok"),
        ("/readyz", "ok"),
        ("/readyz?verbose", "[+]store-loaded"),
        ("/readyz/store-loaded", "ok"),
        ("/readyz?verbose&exclude=store-loaded", "[+]store-loaded excluded"),
        ("/livez?verbose", "ok"),
    ] {
        let reply = stranger.get(path).await;
        rows.holds(path, reply.status == 200 && reply.text().contains(says), &reply);
        rows.holds("probes answer in text", reply.header("content-type").starts_with("text/plain"), path);
    }
    let unknown = stranger.get("/readyz/nosuch").await;
    rows.same("an unknown check is 404", unknown.status, 404);
    rows.close();
}

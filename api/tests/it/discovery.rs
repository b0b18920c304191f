//! Version, discovery and OpenAPI: what clients ask before anything else.

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::stack::Stack;

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const V2BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
const SWAGGER: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

#[tokio::test]
async fn the_version_reads_as_a_kubernetes_level() {
    let stack = Stack::start().await;
    let client = stack.master();
    let version = client.get("/version").await.json();
    let digits = |name: &str| version[name].as_str().unwrap().bytes().all(|byte| byte.is_ascii_digit());
    assert!(digits("major") && digits("minor"), "{version}");
    assert!(version["gitVersion"].as_str().unwrap().starts_with("v1.32.0+horchestra-"), "{version}");
    for member in ["gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"] {
        assert!(!version[member].as_str().unwrap().is_empty(), "{member}");
    }
}

#[tokio::test]
async fn documents_answer_with_and_without_a_trailing_slash() {
    let stack = Stack::start().await;
    let client = stack.master();
    for path in ["/version", "/api", "/apis", "/apis/horchestra.io/v1"] {
        let plain = client.get(path).await;
        let slashed = client.get(&format!("{path}/")).await;
        assert_eq!((plain.status, slashed.status), (200, 200), "{path}");
        assert_eq!(plain.body, slashed.body, "{path}");
    }
    for path in ["/openapi/v3/", "/apis/horchestra.io/v1/nodes/", "/version//"] {
        assert_eq!(client.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn every_listed_group_and_verb_is_served() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let groups = client.get("/apis").await.json();
    assert_eq!(groups["kind"], "APIGroupList");
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"horchestra.io"), "{names:?}");
    // Its nodes and pods must be found behind all others of these names.
    assert_eq!(names.last(), Some(&"metrics.k8s.io"));
    for version in [V2, V2BETA1] {
        let groups = client.get_as("/apis", version).await.json();
        let last = groups["items"].as_array().unwrap().last().unwrap();
        assert_eq!(last["metadata"]["name"], "metrics.k8s.io", "{version}");
        let resources = last["versions"][0]["resources"].as_array().unwrap();
        let resources: Vec<&str> = resources.iter().map(|it| it["resource"].as_str().unwrap()).collect();
        assert_eq!(resources, ["nodes", "pods"], "{version}");
    }
    let mut documents = vec!["/api/v1".to_owned()];
    for group in groups["groups"].as_array().unwrap() {
        let name = group["name"].as_str().unwrap();
        let mut one = client.get(&format!("/apis/{name}")).await.json();
        one.as_object_mut().unwrap().remove("apiVersion");
        one.as_object_mut().unwrap().remove("kind");
        let mut listed = group.clone();
        listed.as_object_mut().unwrap().remove("apiVersion");
        listed.as_object_mut().unwrap().remove("kind");
        assert_eq!(one, listed);
        assert!(group["versions"].as_array().unwrap().contains(&group["preferredVersion"]));
        for version in group["versions"].as_array().unwrap() {
            documents.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    for document in documents {
        let list = client.get(&document).await.json();
        assert_eq!(list["kind"], "APIResourceList", "{document}");
        let version = document.trim_start_matches("/apis/").trim_start_matches("/api/");
        assert_eq!(list["groupVersion"], version);
        for resource in list["resources"].as_array().unwrap() {
            verbs_work(&client, &document, resource).await;
        }
    }
}

/// Every verb that is listed is a method of the path, and no other method is.
async fn verbs_work(client: &crate::client::Client, document: &str, resource: &Value) {
    let name = resource["name"].as_str().unwrap();
    let (plural, sub) = name.split_once('/').map_or((name, None), |(plural, sub)| (plural, Some(sub)));
    let place = if resource["namespaced"] == true { "/namespaces/team-a" } else { "" };
    let collection = format!("{document}{place}/{plural}");
    let item = match sub {
        Some(sub) => format!("{collection}/x/{sub}"),
        None => format!("{collection}/x"),
    };
    let verbs: Vec<&str> =
        resource["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap()).collect();
    let mut calls = vec![
        ("get", Method::GET, item.clone()),
        ("update", Method::PUT, item.clone()),
        ("patch", Method::PATCH, item.clone()),
    ];
    if sub.is_none() {
        calls.extend([
            ("delete", Method::DELETE, item),
            ("list", Method::GET, collection.clone()),
            ("create", Method::POST, collection.clone()),
            ("deletecollection", Method::DELETE, collection),
        ]);
    } else {
        calls.extend([("create", Method::POST, item.clone()), ("delete", Method::DELETE, item)]);
    }
    for (verb, method, path) in calls {
        let path = format!("{path}?dryRun=All");
        let reply = client.send(method.clone(), &path, &[], Bytes::new()).await;
        let routed = reply.status != 405 && !reply.text().contains("could not find the requested resource");
        assert_eq!(routed, verbs.contains(&verb), "{verb} of {name}: {method} {path}: {reply:?}");
    }
}

#[tokio::test]
async fn unknown_groups_and_versions_are_404() {
    let stack = Stack::start().await;
    let client = stack.master();
    for (path, kind, name) in [
        ("/apis/nope.group", "apigroups", "nope.group"),
        ("/apis/horchestra.io/v9", "apiresources", "horchestra.io/v9"),
        ("/openapi/v3/apis/example.com/v1", "openapi", "example.com/v1"),
    ] {
        let reply = client.get(path).await;
        assert_eq!((reply.status, reply.reason().as_str()), (404, "NotFound"), "{path}");
        assert_eq!(
            (&reply.json()["details"]["kind"], &reply.json()["details"]["name"]),
            (&json!(kind), &json!(name))
        );
    }
}

#[tokio::test]
async fn aggregated_discovery_is_negotiated() {
    let stack = Stack::start().await;
    let client = stack.master();
    for path in ["/api", "/apis"] {
        for (accept, version) in [
            (format!("{V2BETA1},application/json"), Some("v2beta1")),
            (format!("{V2},{V2BETA1},application/json"), Some("v2")),
            ("application/json".to_owned(), None),
            (
                "application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,application/json"
                    .to_owned(),
                None,
            ),
        ] {
            let reply = client.get_as(path, &accept).await;
            let body = reply.json();
            match version {
                Some(version) => {
                    assert_eq!(body["kind"], "APIGroupDiscoveryList", "{path} {accept}");
                    assert_eq!(body["apiVersion"], format!("apidiscovery.k8s.io/{version}"));
                    let content = reply.header("content-type");
                    assert!(content.contains("as=APIGroupDiscoveryList"), "{content}");
                    assert!(
                        content.contains(&format!("v={version};"))
                            || content.ends_with(&format!("v={version}")),
                        "{content}"
                    );
                }
                None => {
                    assert!(matches!(body["kind"].as_str(), Some("APIVersions" | "APIGroupList")), "{body}");
                    assert_eq!(reply.header("content-type"), "application/json");
                }
            }
            assert!(reply.header("vary").to_ascii_lowercase().contains("accept"));
        }
    }
}

#[tokio::test]
async fn pods_are_listed_and_core_nodes_are_not() {
    let stack = Stack::start().await;
    let list = stack.master().get("/api/v1").await.json();
    let names: Vec<&str> = list["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|resource| resource["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"pods") && names.contains(&"pods/log"), "{names:?}");
    assert!(!names.contains(&"nodes") && !names.contains(&"namespaces"), "{names:?}");
}

#[tokio::test]
async fn documents_have_entity_tags() {
    let stack = Stack::start().await;
    let client = stack.master();
    let index = client.get("/openapi/v3").await.json();
    let url = index["paths"]["apis/horchestra.io/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    assert!(url.contains("?hash="), "{url}");
    for (path, accept) in [
        ("/api", "application/json"),
        ("/apis", "application/json"),
        ("/apis", V2),
        ("/apis/horchestra.io/v1", "application/json"),
        ("/openapi/v2", "application/json"),
        ("/openapi/v2", SWAGGER),
        ("/openapi/v3", "application/json"),
        (url.as_str(), "application/json"),
    ] {
        let first = client.get_as(path, accept).await;
        let tag = first.header("etag").to_owned();
        assert!(first.status == 200 && tag.len() > 2, "{path}: {first:?}");
        let headers = [("accept", accept), ("if-none-match", tag.as_str())];
        let again = client.send(Method::GET, path, &headers, Bytes::new()).await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        assert_eq!(again.header("etag"), tag);
    }
}

#[tokio::test]
async fn swagger_comes_as_json_and_as_protobuf() {
    let stack = Stack::start().await;
    let client = stack.master();
    let json = client.get_as("/openapi/v2", "*/*").await;
    assert_eq!((json.header("content-type"), &json.json()["swagger"]), ("application/json", &json!("2.0")));
    let binary = client.get_as("/openapi/v2", SWAGGER).await;
    assert_eq!(
        binary.header("content-type"),
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
        "with a dot"
    );
    // Field 1, the version of Swagger, comes first.
    assert!(binary.body.starts_with(b"\x0a\x032.0"), "{:?}", &binary.body[..8]);
    assert_eq!(client.get_as("/openapi/v2", "application/xml").await.status, 406);
}

#[tokio::test]
async fn openapi_says_what_kubectl_looks_for() {
    let stack = Stack::start().await;
    let client = stack.master();
    let document = client.get("/openapi/v3/apis/horchestra.io/v1").await.json();
    let paths = &document["paths"];
    let item = &paths["/apis/horchestra.io/v1/namespaces/{namespace}/applications/{name}"]["patch"];
    assert_eq!(item["x-kubernetes-group-version-kind"]["kind"], "Application");
    let parameters: Vec<&str> = item["parameters"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|parameter| parameter["name"].as_str())
        .collect();
    for name in ["dryRun", "fieldManager", "fieldValidation"] {
        assert!(parameters.contains(&name), "{parameters:?}");
    }
    assert!(paths["/apis/horchestra.io/v1/nodes/{name}"]["patch"].is_object());
}

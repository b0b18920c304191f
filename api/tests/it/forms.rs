//! Forms of answers: Table, metadata, YAML, gzip, and what cannot be had.

use std::io::Read;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::crud::app;
use crate::stack::Stack;

const APPS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const KUBECTL: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

#[tokio::test]
async fn tables_are_made_for_lists_and_single_objects() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let empty = client.get_as(APPS, KUBECTL).await.json();
    assert_eq!((&empty["kind"], &empty["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(empty["rows"], json!([]));
    assert!(empty["metadata"]["resourceVersion"].is_string());
    client.post(APPS, &app("web")).await;

    let list = client.get_as(APPS, KUBECTL).await.json();
    let columns = list["columnDefinitions"].as_array().unwrap();
    let names: Vec<&str> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[names.len() - 1]), ("Name", "Age"), "{names:?}");
    assert_eq!(columns[0]["format"], "name");
    for column in columns {
        for member in ["name", "type", "format", "description", "priority"] {
            assert!(!column[member].is_null(), "{member} of {column}");
        }
    }
    let row = &list["rows"][0];
    assert_eq!(row["cells"].as_array().unwrap().len(), columns.len());
    assert_eq!(row["cells"][0], "web");
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(row["object"]["metadata"]["name"], "web");
    assert!(row["object"]["metadata"]["creationTimestamp"].is_string());

    let one = client.get_as(&format!("{APPS}/web"), TABLE).await.json();
    assert_eq!((&one["kind"], one["rows"].as_array().unwrap().len()), (&json!("Table"), 1));
    let beta = client.get_as(APPS, "application/json;as=Table;v=v1beta1;g=meta.k8s.io").await.json();
    assert_eq!(beta["apiVersion"], "meta.k8s.io/v1beta1");
    for (include, kind) in [
        ("None", Value::Null),
        ("Object", json!("Application")),
        ("Metadata", json!("PartialObjectMetadata")),
    ] {
        let table = client.get_as(&format!("{APPS}?includeObject={include}"), TABLE).await.json();
        assert_eq!(table["rows"][0]["object"]["kind"], kind, "{include}");
    }
    assert_eq!(client.get_as(&format!("{APPS}?includeObject=x"), TABLE).await.status, 400);

    client.post(APPS, &app("web2")).await;
    let page = client.get_as(&format!("{APPS}?limit=1"), TABLE).await.json();
    assert!(page["metadata"]["continue"].is_string());
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
}

#[tokio::test]
async fn metadata_alone_can_be_had() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    client.post(APPS, &app("web")).await;
    let accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    let list = client.get_as(APPS, accept).await.json();
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&json!("PartialObjectMetadataList"), &json!("meta.k8s.io/v1"))
    );
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert_eq!(list["items"][0]["metadata"]["name"], "web");
    assert_eq!(list["items"][0]["spec"], Value::Null);
    let one = client
        .get_as(&format!("{APPS}/web"), "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
        .await;
    assert_eq!(one.json()["kind"], "PartialObjectMetadata");
}

#[tokio::test]
async fn yaml_goes_in_and_out() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let body =
        "metadata:\n  name: web\nspec:\n  image: nginx:1\n  env:\n  - name: MODE\n    value: \"0400\"\n";
    let headers = [("content-type", "application/yaml"), ("accept", "application/yaml")];
    let created = client.send(Method::POST, APPS, &headers, body).await;
    assert_eq!((created.status, created.header("content-type")), (201, "application/yaml"), "{created:?}");
    assert!(created.text().contains("\n  name: web\n"), "{}", created.text());
    let read = client.get(&format!("{APPS}/web")).await.json();
    assert_eq!(read["spec"]["env"], json!([{"name": "MODE", "value": "0400"}]));
    let failure = client.get_as(&format!("{APPS}/ghost"), "application/yaml").await;
    assert_eq!(failure.reason(), "NotFound", "errors are JSON whatever was asked for");
}

#[tokio::test]
async fn what_cannot_be_had_is_406_and_what_is_beside_it_is_served() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    for (path, accept, code) in [
        (APPS, "application/xml", 406),
        (APPS, "application/vnd.kubernetes.protobuf", 406),
        (APPS, "application/vnd.kubernetes.protobuf, */*", 200),
        (APPS, "application/vnd.kubernetes.protobuf,application/json", 200),
        (APPS, "*/*", 200),
        ("/version", TABLE, 406),
        ("/apis", TABLE, 406),
        (&format!("{APPS}?watch=1"), "application/yaml", 406),
    ] {
        let reply = client.get_as(path, accept).await;
        assert_eq!(reply.status, code, "{path} {accept}: {reply:?}");
        if code == 406 {
            assert_eq!(reply.reason(), "NotAcceptable");
        }
    }
    let without_type = client.send(Method::POST, APPS, &[], app("plain").to_string()).await;
    assert_eq!(without_type.status, 201, "a body without a type is JSON");
}

#[tokio::test]
async fn large_answers_are_compressed_on_request() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    for number in 0..8 {
        let mut app = app(&format!("big-{number}"));
        app["metadata"]["annotations"] = json!({"note": "x".repeat(30_000)});
        assert_eq!(client.post(APPS, &app).await.status, 201);
    }
    let gzip = [("accept-encoding", "gzip")];
    let squeezed = client.send(Method::GET, APPS, &gzip, Bytes::new()).await;
    assert_eq!(squeezed.header("content-encoding"), "gzip");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&squeezed.body[..]).read_to_string(&mut text).unwrap();
    let plain = client.get(APPS).await;
    assert_eq!(plain.header("content-encoding"), "");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), plain.json());
    let small = client.send(Method::GET, &format!("{APPS}/big-1"), &gzip, Bytes::new()).await;
    assert_eq!(small.header("content-encoding"), "");
}

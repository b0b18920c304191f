//! Unknown and duplicate fields, and what else is wrong with a document.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use super::{APPS, Rows, app, stack};
use crate::client::{Client, Reply};

const WEB: &str = "/apis/horchestra.io/v1/namespaces/default/applications/web";
const MERGE: &str = "application/merge-patch+json";
const OPERATIONS: &str = "application/json-patch+json";

/// A document with an unknown field and one that comes twice.
const ODD: &str = r#"{"metadata":{"name":"web"},"spec":{"image":"a","image":"b","surprise":1}}"#;

async fn send(client: &Client, method: &Method, content: &str, mode: &str, body: &str) -> Reply {
    let path = if method == Method::POST { APPS } else { WEB };
    let mode = if mode.is_empty() { String::new() } else { format!("?fieldValidation={mode}") };
    client.send(method.clone(), &format!("{path}{mode}"), &[("content-type", content)], body.to_owned()).await
}

fn fields(reply: &Reply) -> BTreeSet<String> {
    let causes = reply.json()["details"]["causes"].as_array().cloned().unwrap_or_default();
    causes.iter().map(|cause| cause["field"].as_str().unwrap_or("").to_owned()).collect()
}

#[tokio::test]
async fn every_way_of_writing_is_judged() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let yaml = "metadata: {name: web}\nspec: {image: a, image: b, surprise: 1}\n";
    let merge = r#"{"spec":{"image":"a","image":"b","surprise":1}}"#;
    let operations = r#"[{"op":"add","path":"/spec/surprise","value":1}]"#;
    for (row, method, content, body, named) in [
        ("create", Method::POST, "application/json", ODD, vec!["spec.image", "spec.surprise"]),
        ("create from YAML", Method::POST, "application/yaml", yaml, vec!["spec.image", "spec.surprise"]),
        ("update", Method::PUT, "application/json", ODD, vec!["spec.image", "spec.surprise"]),
        ("merge patch", Method::PATCH, MERGE, merge, vec!["spec.image", "spec.surprise"]),
        ("operations", Method::PATCH, OPERATIONS, operations, vec!["spec.surprise"]),
    ] {
        let post = method == Method::POST;
        if !post {
            client.post(APPS, &app("web")).await;
        }
        for mode in ["", "Strict"] {
            let reply = send(&client, &method, content, mode, body).await;
            rows.code(&format!("{row}: strict refuses"), &reply, 400, "BadRequest");
            rows.same("and names all", fields(&reply), named.iter().map(|it| (*it).to_owned()).collect());
            rows.holds(
                "in one message",
                named.iter().all(|field| reply.message().contains(field)),
                reply.message(),
            );
        }
        let reply = send(&client, &method, content, "Warn", body).await;
        rows.holds(&format!("{row}: warn takes it"), reply.status == if post { 201 } else { 200 }, &reply);
        let warnings = reply.headers_of("warning");
        rows.same("with a warning for each", warnings.len(), named.len());
        rows.holds(
            "in the form of code 299",
            warnings.iter().all(|it| it.starts_with("299 - \"")),
            &warnings,
        );
        rows.same("drops what is unknown", &reply.json()["spec"]["surprise"], &Value::Null);
        if named.len() == 2 {
            rows.same("and keeps the last", &reply.json()["spec"]["image"], &json!("b"));
        }
        if post {
            client.delete(WEB).await;
        }
        let reply = send(&client, &method, content, "Ignore", body).await;
        rows.holds(&format!("{row}: ignore takes it"), reply.status == if post { 201 } else { 200 }, &reply);
        rows.same("in silence", reply.headers_of("warning").len(), 0);
        client.delete(WEB).await;
    }
    rows.code(
        "any other mode",
        &send(&client, &Method::POST, "application/json", "Bogus", ODD).await,
        422,
        "Invalid",
    );
    let fine = client.post(APPS, &app("web")).await;
    rows.same("a valid object", (fine.status, fine.headers_of("warning").len()), (201, 0));
    rows.close();
}

#[tokio::test]
async fn where_fields_are_looked_for() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    for (row, body, code, named) in [
        ("at the top", r#"{"metadata":{"name":"web"},"spec":{"image":"a"},"surprise":1}"#, 400, "surprise"),
        (
            "twice at the top",
            r#"{"metadata":{"name":"web"},"spec":{"image":"a"},"spec":{"image":"a"}}"#,
            400,
            "spec",
        ),
        (
            "twice in metadata",
            r#"{"metadata":{"name":"web","name":"web"},"spec":{"image":"a"}}"#,
            400,
            "metadata.name",
        ),
        (
            "in a list",
            r#"{"metadata":{"name":"web"},"spec":{"image":"a","env":[{"name":"A","x":1}]}}"#,
            400,
            "spec.env[0].x",
        ),
        (
            "twice in a list",
            r#"{"metadata":{"name":"web"},"spec":{"image":"a","ports":[{"port":1,"port":2}]}}"#,
            400,
            "spec.ports[0].port",
        ),
        (
            "twice in a free-form part",
            r#"{"metadata":{"name":"web"},"spec":{"image":"a","values":{"k":1,"k":2}}}"#,
            400,
            "spec.values.k",
        ),
        (
            "unknown in a free-form part",
            r#"{"metadata":{"name":"web"},"spec":{"image":"a","values":{"any":{"k":1}}}}"#,
            201,
            "",
        ),
        ("unknown in metadata", r#"{"metadata":{"name":"web","surprise":1},"spec":{"image":"a"}}"#, 201, ""),
        (
            "in another case",
            r#"{"metadata":{"name":"web"},"spec":{"image":"a","Image":"b"}}"#,
            400,
            "spec.Image",
        ),
        (
            "a second spelling of namespace",
            r#"{"metadata":{"name":"web","nameſpace":"team-a"},"spec":{"image":"a"}}"#,
            201,
            "",
        ),
    ] {
        let reply = send(&client, &Method::POST, "application/json", "", body).await;
        rows.holds(row, reply.status == code, &reply);
        if code == 400 {
            rows.holds("by its path", fields(&reply).contains(named), (named, fields(&reply)));
        } else {
            rows.same("in its place", &reply.json()["metadata"]["namespace"], &json!("default"));
            client.delete(WEB).await;
        }
    }
    rows.close();
}

#[tokio::test]
async fn faults_of_documents() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    for (row, body, code, reason) in [
        ("nothing", "", 400, "BadRequest"),
        ("half an object", "{", 400, "BadRequest"),
        ("no object", "[]", 400, "BadRequest"),
        ("more than an object", r#"{"metadata":{"name":"web"},"spec":{"image":"a"}} x"#, 400, "BadRequest"),
        ("a wrong type", r#"{"metadata":{"name":"web"},"spec":{"image":{}}}"#, 422, "Invalid"),
        (
            "a null in a list",
            r#"{"metadata":{"name":"web"},"spec":{"image":"a","env":[null]}}"#,
            422,
            "Invalid",
        ),
        ("a text with U+0000", r#"{"metadata":{"name":"web"},"spec":{"image":"a\u0000"}}"#, 422, "Invalid"),
        ("no spec", r#"{"metadata":{"name":"web"}}"#, 422, "Invalid"),
    ] {
        rows.code(row, &send(&client, &Method::POST, "application/json", "", body).await, code, reason);
    }
    let two = r#"{"metadata":{"name":"web"},"spec":{"image":"","ports":[{"port":70000}],"lifecycle":{"restartPolicy":"x"}}}"#;
    let reply = send(&client, &Method::POST, "application/json", "", two).await;
    let named: Vec<&str> = vec!["spec.image", "spec.lifecycle.restartPolicy", "spec.ports[0].port"];
    rows.same(
        "all faults at once",
        fields(&reply).into_iter().collect::<Vec<_>>(),
        named.iter().map(|it| (*it).to_owned()).collect(),
    );
    let nulls = r#"{"metadata":{"name":"web","labels":null},"spec":{"image":"a","command":null,"lifecycle":null,"args":null}}"#;
    let reply = send(&client, &Method::POST, "application/json", "", nulls).await;
    rows.same("null is absent", reply.status, 201);
    rows.same("and defaults apply", &reply.json()["spec"]["lifecycle"]["restartPolicy"], &json!("Always"));
    let yaml = "metadata:\n  name: yaml\nspec:\n  image: a\n  values: {mode: 0400, on: yes, ratio: 1.5}\n";
    let reply = send(&client, &Method::POST, "application/yaml", "", yaml).await;
    rows.same("YAML as kubectl reads it", &reply.json()["spec"]["values"]["mode"], &json!(256));
    rows.close();
}

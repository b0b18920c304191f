//! OpenAPI: what is described is what is enforced.

use serde_json::{Value, json};

use super::{APPS, Rows, app, stack};

const SWAGGER: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Every operation of a document, with its path and method.
fn operations(document: &Value) -> Vec<(&String, &String, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    paths
        .iter()
        .flat_map(|(path, item)| item.as_object().unwrap().iter().map(move |(method, it)| (path, method, it)))
        .filter(|(_, method, _)| method.as_str() != "parameters")
        .collect()
}

fn declares(operation: &Value, parameter: &str) -> bool {
    operation["parameters"].as_array().is_some_and(|all| all.iter().any(|it| it["name"] == parameter))
}

#[tokio::test]
async fn documents() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let binary = client.get_as("/openapi/v2", SWAGGER).await;
    rows.same(
        "the protobuf form is named with a dot",
        binary.header("content-type"),
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    );
    rows.holds("and is no JSON", serde_json::from_slice::<Value>(&binary.body).is_err(), binary.body.len());
    for accept in ["application/json", "*/*"] {
        let reply = client.get_as("/openapi/v2", accept).await;
        rows.same("version 2 in JSON", &reply.json()["swagger"], &json!("2.0"));
    }
    rows.code(
        "version 2 in XML",
        &client.get_as("/openapi/v2", "application/xml").await,
        406,
        "NotAcceptable",
    );

    let index = client.get("/openapi/v3").await.json();
    let groups = client.get("/apis").await.json();
    for group in groups["groups"].as_array().unwrap() {
        let version = group["preferredVersion"]["groupVersion"].as_str().unwrap();
        if version == "metrics.k8s.io/v1beta1" {
            rows.same(
                "what is measured is not described",
                &index["paths"][format!("apis/{version}")],
                &Value::Null,
            );
            continue;
        }
        let url = index["paths"][format!("apis/{version}")]["serverRelativeURL"].as_str().unwrap_or("");
        let expected = format!("/openapi/v3/apis/{version}?hash=");
        rows.holds("the index names every group version", url.starts_with(&expected), (version, url));
        let document = client.get(url).await.json();
        rows.holds(
            "each document is OpenAPI 3.0",
            document["openapi"].as_str().unwrap_or("").starts_with("3.0."),
            version,
        );
        rows.holds(
            "with a title and a version",
            document["info"]["title"].is_string() && document["info"]["version"].is_string(),
            version,
        );
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for (name, schema) in schemas {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array().map_or(0, Vec::len);
            rows.same(&format!("{name} is of one kind"), kinds, 1);
        }
        let references: Vec<&str> = document_references(&document);
        for reference in references {
            let name = reference.trim_start_matches("#/components/schemas/");
            rows.holds("every reference leads somewhere", schemas.contains_key(name), reference);
        }
    }
    rows.code("an unknown document", &client.get("/openapi/v3/apis/example.com/v1").await, 404, "NotFound");
    rows.close();
}

fn document_references(value: &Value) -> Vec<&str> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(name, value)| match (name.as_str(), value.as_str()) {
                ("$ref", Some(reference)) => vec![reference],
                _ => document_references(value),
            })
            .collect(),
        Value::Array(list) => list.iter().flat_map(document_references).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn operations_and_their_parameters() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let v3 = client.get("/openapi/v3/apis/horchestra.io/v1").await.json();
    let v2 = client.get("/openapi/v2").await.json();
    for document in [&v3, &v2] {
        for (path, method, operation) in operations(document) {
            let place = format!("{method} {path}");
            let kind = &operation["x-kubernetes-group-version-kind"];
            rows.holds("operations name their kind", kind["kind"].is_string(), &place);
            rows.holds("and their action", operation["x-kubernetes-action"].is_string(), &place);
            if ["post", "put", "patch"].contains(&method.as_str()) {
                for parameter in ["dryRun", "fieldManager", "fieldValidation"] {
                    rows.holds(
                        "writes declare their parameters",
                        declares(operation, parameter),
                        (&place, parameter),
                    );
                }
            }
            if method == "delete" {
                for parameter in ["dryRun", "gracePeriodSeconds", "propagationPolicy"] {
                    rows.holds(
                        "deletions declare theirs",
                        declares(operation, parameter),
                        (&place, parameter),
                    );
                }
            }
        }
        let base = "/apis/horchestra.io/v1/namespaces/{namespace}/applications";
        for (path, method) in [
            (base.to_owned(), "delete"),
            (format!("{base}/{{name}}/freeze"), "post"),
            (format!("{base}/{{name}}/thaw"), "put"),
            (format!("{base}/{{name}}/rollback"), "post"),
            (format!("{base}/{{name}}/revisions"), "get"),
            ("/apis/horchestra.io/v1/nodes/{name}/cordon".to_owned(), "post"),
            ("/apis/horchestra.io/v1/namespaces/{name}/finalize".to_owned(), "post"),
            (format!("{base}/{{name}}/status"), "patch"),
        ] {
            rows.holds(
                "every route is described",
                document["paths"][&path][method].is_object(),
                (path, method),
            );
        }
    }
    rows.close();
}

#[tokio::test]
async fn what_the_schema_says_is_enforced() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let document = client.get("/openapi/v3/apis/horchestra.io/v1").await.json();
    let spec = &document["components"]["schemas"]["io.horchestra.v1.Application"]["properties"]["spec"];
    rows.same("the spec is closed", &spec["additionalProperties"], &json!(false));
    rows.same("the image is required", &spec["required"], &json!(["image"]));
    rows.holds("and not empty", spec["properties"]["image"]["minLength"] == 1, &spec["properties"]["image"]);
    let policy = &spec["properties"]["lifecycle"]["properties"]["restartPolicy"];
    rows.holds("values that are listed", policy["enum"].as_array().is_some_and(|all| all.len() == 3), policy);
    rows.same("and the default", &policy["default"], &json!("Always"));
    rows.same(
        "free-form parts are marked",
        &spec["properties"]["values"]["x-kubernetes-preserve-unknown-fields"],
        &json!(true),
    );
    let with = |pointer: &str, value: Value| {
        let mut body = app("x");
        *body.pointer_mut("/spec").unwrap() = json!({"image": "a"});
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        body.pointer_mut(parent).unwrap()[member] = value;
        body
    };
    for (row, body, code) in [
        ("a valid object", with("/spec/image", json!("b")), 201),
        ("an unknown property", with("/spec/surprise", json!(1)), 400),
        ("a wrong type", with("/spec/image", json!(1)), 422),
        ("a missing requirement", with("/spec", json!({})), 422),
        ("a value that is not listed", with("/spec/lifecycle", json!({"restartPolicy": "Sometimes"})), 422),
        ("a number out of range", with("/spec/ports", json!([{"port": 0}])), 422),
        ("anything in a free-form part", with("/spec/values", json!({"a": [1, {"b": null}], "c": 1.5})), 201),
    ] {
        let reply = client.post(APPS, &body).await;
        rows.same(row, reply.status, code);
        if code == 201 {
            client.delete(&format!("{APPS}/x")).await;
        }
    }
    rows.close();
}

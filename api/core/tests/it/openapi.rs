use std::collections::BTreeMap;

use horchestra_core::openapi::OpenApi;
use horchestra_core::registry;
use serde_json::Value;

use crate::pretty;

fn openapi() -> OpenApi {
    OpenApi::new("v1.2.3")
}

fn v3() -> Value {
    serde_json::from_slice(&openapi().document("apis/horchestra.io/v1").unwrap().bytes).unwrap()
}

/// The documents of all groups in one.
fn every_v3() -> Value {
    let mut all = serde_json::json!({"paths": {}, "components": {"schemas": {}}});
    for (_, document) in openapi().documents {
        let document: Value = serde_json::from_slice(&document.bytes).unwrap();
        for place in ["/paths", "/components/schemas"] {
            let part = document.pointer(place).unwrap().as_object().unwrap().clone();
            all.pointer_mut(place).unwrap().as_object_mut().unwrap().extend(part);
        }
    }
    all
}

fn v2() -> Value {
    serde_json::from_slice(&openapi().v2.bytes).unwrap()
}

#[test]
fn the_whole_document() {
    insta::assert_snapshot!("openapi_v3", pretty(&v3()));
}

#[test]
fn the_same_bytes_every_time() {
    let (a, b) = (openapi(), openapi());
    assert_eq!(a.index, b.index);
    assert_eq!(a.documents, b.documents);
    assert_eq!((a.v2, a.v2_protobuf), (b.v2, b.v2_protobuf));
}

#[test]
fn the_index_names_every_document_with_its_digest() {
    let openapi = openapi();
    let index: Value = serde_json::from_slice(&openapi.index.bytes).unwrap();
    let paths = index["paths"].as_object().unwrap();
    assert_eq!(paths.len(), openapi.documents.len());
    for (path, document) in &openapi.documents {
        assert_eq!(document.digest.len(), 64);
        let url = format!("/openapi/v3/{path}?hash={}", document.digest);
        assert_eq!(paths[path]["serverRelativeURL"], url);
    }
    assert!(openapi.document("apis/example.com/v1").is_none());
}

/// Every operation of a document with its path and method.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in
            item.as_object().unwrap().iter().filter(|(method, _)| *method != "parameters")
        {
            found.push((path.clone(), method.clone(), operation.clone()));
        }
    }
    found
}

fn query_parameters(operation: &Value) -> Vec<&str> {
    operation["parameters"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["in"] == "query")
        .map(|it| it["name"].as_str().unwrap())
        .collect()
}

#[test]
fn writes_declare_what_kubectl_looks_for() {
    for document in [every_v3(), v2()] {
        let mut patched = Vec::new();
        for (path, method, operation) in operations(&document) {
            let kind = &operation["x-kubernetes-group-version-kind"];
            assert!(kind.is_object(), "{path} {method}");
            assert!(operation["x-kubernetes-action"].is_string());
            let parameters = query_parameters(&operation);
            if ["post", "put", "patch"].contains(&method.as_str()) {
                for needed in ["dryRun", "fieldManager", "fieldValidation"] {
                    assert!(parameters.contains(&needed), "{path} {method} {needed}");
                }
            }
            assert_eq!(parameters.contains(&"force"), method == "patch", "{path} {method}");
            if method == "patch" {
                patched.push(kind["kind"].as_str().unwrap().to_owned());
            }
            for segment in
                path.split('/').filter_map(|it| it.strip_prefix('{')).map(|it| it.trim_end_matches('}'))
            {
                let declared = document["paths"][&path]["parameters"].as_array().unwrap();
                assert!(
                    declared
                        .iter()
                        .any(|it| it["name"] == segment && it["in"] == "path" && it["required"] == true)
                );
            }
        }
        let described = registry::described().filter(|spec| {
            document["swagger"].is_string() || (spec.group(), spec.version()) == ("horchestra.io", "v1")
        });
        for spec in described {
            assert!(patched.iter().any(|kind| kind == spec.kind.name()), "{}", spec.kind);
        }
    }
}

#[test]
fn only_patches_speak_of_an_apply() {
    for document in [every_v3(), v2()] {
        for (path, method, operation) in operations(&document) {
            let parameters = operation["parameters"].as_array().unwrap();
            let manager = parameters.iter().find(|it| it["name"] == "fieldManager");
            let text = manager.map_or("", |it| it["description"].as_str().unwrap());
            assert_eq!(text.contains("Required for an apply"), method == "patch", "{path} {method}");
        }
    }
}

#[test]
fn histories_refer_to_one_schema() {
    for (document, place) in [(every_v3(), "#/components/schemas/"), (v2(), "#/definitions/")] {
        let mut found = 0;
        for (path, _, operation) in operations(&document).iter().filter(|it| it.0.ends_with("/revisions")) {
            let answer = &operation["responses"]["200"];
            let schema = answer.get("schema").unwrap_or(&answer["content"]["application/json"]["schema"]);
            assert_eq!(schema["$ref"], format!("{place}io.horchestra.v1.RevisionList"), "{path}");
            found += 1;
        }
        assert!(found > 5, "{found}");
    }
    for (path, document) in openapi().documents {
        let text = String::from_utf8(document.bytes.to_vec()).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let defined = document["components"]["schemas"]["io.horchestra.v1.RevisionList"].is_object();
        assert_eq!(defined, text.contains("/revisions\""), "{path}");
    }
}

#[test]
fn both_shapes_of_events_are_described() {
    let openapi = openapi();
    for (path, name, members, base) in [
        ("api/v1", "core.v1.Event", ["involvedObject", "message"], "/api/v1"),
        ("apis/events.k8s.io/v1", "io.k8s.events.v1.Event", ["regarding", "note"], "/apis/events.k8s.io/v1"),
    ] {
        let document: Value = serde_json::from_slice(&openapi.document(path).unwrap().bytes).unwrap();
        let properties = &document["components"]["schemas"][name]["properties"];
        for member in members {
            assert!(properties[member]["description"].is_string(), "{path} {member}");
        }
        let item = format!("{base}/namespaces/{{namespace}}/events/{{name}}");
        assert!(document["paths"][&item]["patch"].is_object(), "{path}");
        assert!(v2()["definitions"][name].is_object() && v2()["paths"][&item].is_object());
    }
}

#[test]
fn operation_ids_are_unique() {
    for document in [every_v3(), v2()] {
        let operations = operations(&document);
        let ids: BTreeMap<&str, ()> =
            operations.iter().map(|(_, _, it)| (it["operationId"].as_str().unwrap(), ())).collect();
        assert_eq!(ids.len(), operations.len());
    }
}

#[test]
fn schemas_are_the_enforced_ones() {
    let document = v3();
    let application = &document["components"]["schemas"]["io.horchestra.v1.Application"];
    assert_eq!(application["x-kubernetes-group-version-kind"].as_array().unwrap().len(), 1);
    let spec = &application["properties"]["spec"];
    assert_eq!(spec["additionalProperties"], false);
    assert_eq!(spec["required"], serde_json::json!(["image"]));
    assert_eq!(spec["properties"]["image"]["minLength"], 1);
    let policy = &spec["properties"]["lifecycle"]["properties"]["restartPolicy"];
    assert_eq!(policy["enum"], serde_json::json!(["Always", "OnFailure", "Never"]));
    assert_eq!(policy["default"], "Always");
    assert_eq!(spec["properties"]["values"]["x-kubernetes-preserve-unknown-fields"], true);
    assert_eq!(application["properties"]["metadata"].get("additionalProperties"), None);
    assert_eq!(application["required"], serde_json::json!(["metadata", "spec"]));
    let component = &document["components"]["schemas"]["io.horchestra.v1.ApplicationSet"]["properties"]["spec"]
        ["properties"]["applications"]["items"]["properties"]["spec"];
    assert_eq!(component["properties"]["lifecycle"], spec["properties"]["lifecycle"]);
    assert!(component["properties"].get("frozen").is_none(), "a component is not frozen on its own");
    let text = every_v3()["components"].to_string();
    assert!(!text.contains("$ref") && !text.contains("$schema"));
}

/// Every member at every depth is documented: it is what `kubectl explain` prints.
#[test]
fn every_member_has_a_description() {
    fn walk(path: &str, schema: &Value, missing: &mut Vec<String>) {
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if member["description"].as_str().unwrap_or("").is_empty() {
                missing.push(path.clone());
            }
            walk(&path, member, missing);
        }
        if schema["items"].is_object() {
            walk(&format!("{path}[]"), &schema["items"], missing);
        }
    }
    let mut missing = Vec::new();
    let schemas = every_v3()["components"]["schemas"].clone();
    for name in [
        "io.horchestra.v1.Application",
        "io.horchestra.rbac.v1.Role",
        "io.horchestra.certificates.v1.CertificateSigningRequest",
        "io.horchestra.secrets.v1.SecretStore",
    ] {
        assert!(schemas.get(name).is_some(), "{name}");
    }
    for (name, schema) in every_v3()["components"]["schemas"].as_object().unwrap() {
        assert_eq!(schema["x-kubernetes-group-version-kind"].as_array().unwrap().len(), 1, "{name}");
        walk(name, schema, &mut missing);
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The rules of the reader in kubectl up to 1.28: one schema that breaks one of them spoils the document.
#[test]
fn version_2_schemas_are_plain_enough() {
    fn walk(schema: &Value) {
        let schema = schema.as_object().unwrap();
        assert!(!schema.contains_key("$ref"));
        match schema.get("type").map(|it| it.as_str().unwrap()) {
            Some("array") => walk(&schema["items"]),
            Some("object") => {
                schema
                    .get("properties")
                    .and_then(Value::as_object)
                    .into_iter()
                    .flatten()
                    .for_each(|(_, it)| walk(it));
                if let Some(values) = schema.get("additionalProperties") {
                    walk(values);
                }
            }
            Some(primitive) => assert!(["string", "number", "integer", "boolean"].contains(&primitive)),
            None => {}
        }
    }
    v2()["definitions"].as_object().unwrap().values().for_each(walk);
}

/// Reads one protobuf message: fields by number, length-delimited ones as bytes.
fn read(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => varint(&mut bytes).to_le_bytes().to_vec(),
            1 => {
                let (value, rest) = bytes.split_at(8);
                bytes = rest;
                value.to_vec()
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                value.to_vec()
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag >> 3, value));
    }
    fields
}

fn all(message: &[u8], field: u64) -> Vec<Vec<u8>> {
    read(message).into_iter().filter(|(number, _)| *number == field).map(|(_, value)| value).collect()
}

fn only(message: &[u8], field: u64) -> Vec<u8> {
    let mut found = all(message, field);
    assert_eq!(found.len(), 1, "field {field}");
    found.remove(0)
}

fn text(message: &[u8], field: u64) -> String {
    String::from_utf8(only(message, field)).unwrap()
}

/// Name and value of each entry of a list of named messages.
fn named(message: &[u8], field: u64) -> Vec<(String, Vec<u8>)> {
    all(message, field).into_iter().map(|entry| (text(&entry, 1), only(&entry, 2))).collect()
}

#[test]
fn the_protobuf_form_says_the_same() {
    let bytes = openapi().v2_protobuf.bytes;
    let json = v2();
    assert_eq!(text(&bytes, 1), "2.0");
    assert_eq!(text(&only(&bytes, 2), 2), "v1.2.3");

    let paths = named(&only(&bytes, 8), 2);
    let names: Vec<&String> = paths.iter().map(|(name, _)| name).collect();
    assert_eq!(names, json["paths"].as_object().unwrap().keys().collect::<Vec<_>>());
    for (name, item) in &paths {
        for operation in all(item, 8) {
            let extensions = named(&operation, 13);
            let kind = extensions.iter().find(|(name, _)| name == "x-kubernetes-group-version-kind").unwrap();
            assert!(serde_json::from_str::<Value>(&text(&kind.1, 2)).unwrap().is_object());
            let query: Vec<String> = all(&operation, 8)
                .iter()
                .flat_map(|it| all(&only(it, 1), 2))
                .map(|plain| only(&plain, 3))
                .map(|query| {
                    assert_eq!((text(&query, 2), text(&query, 6).is_empty()), ("query".to_owned(), false));
                    text(&query, 4)
                })
                .collect();
            assert!(query.contains(&"fieldValidation".to_owned()), "{name}");
        }
    }

    let definitions = named(&only(&bytes, 9), 1);
    let names: Vec<&String> = definitions.iter().map(|(name, _)| name).collect();
    assert_eq!(names, json["definitions"].as_object().unwrap().keys().collect::<Vec<_>>());
    for (name, schema) in &definitions {
        compare(name, schema, &json["definitions"][name]);
    }
}

fn compare(path: &str, message: &[u8], json: &Value) {
    let one = |field| all(message, field).pop().map(|it| String::from_utf8(it).unwrap());
    assert_eq!(one(2).as_deref(), json["format"].as_str(), "{path}");
    assert_eq!(one(4).as_deref(), json["description"].as_str(), "{path}");
    let type_name = all(message, 22).pop().map(|item| text(&item, 1));
    assert_eq!(type_name.as_deref(), json["type"].as_str(), "{path}");
    let permitted: Vec<Value> =
        all(message, 20).iter().map(|any| serde_json::from_str(&text(any, 2)).unwrap()).collect();
    assert_eq!(permitted, json["enum"].as_array().cloned().unwrap_or_default(), "{path}");
    let default = all(message, 5).pop().map(|any| serde_json::from_str::<Value>(&text(&any, 2)).unwrap());
    assert_eq!(default.as_ref(), json.get("default"), "{path}");
    let minimum = all(message, 9).pop().map(|it| f64::from_le_bytes(it.try_into().unwrap()));
    assert_eq!(minimum, json["minimum"].as_f64(), "{path}");
    let required: Vec<String> =
        all(message, 19).into_iter().map(|it| String::from_utf8(it).unwrap()).collect();
    assert_eq!(required.len(), json["required"].as_array().map_or(0, Vec::len), "{path}");
    if let Some(item) = all(message, 23).pop() {
        compare(&format!("{path}[]"), &only(&item, 1), &json["items"]);
    }
    if let Some(item) = all(message, 21).pop() {
        compare(&format!("{path}{{}}"), &only(&item, 1), &json["additionalProperties"]);
    }
    let properties = all(message, 25).pop().map(|it| named(&it, 1)).unwrap_or_default();
    assert_eq!(properties.len(), json["properties"].as_object().map_or(0, serde_json::Map::len), "{path}");
    for (name, member) in properties {
        compare(&format!("{path}.{name}"), &member, &json["properties"][&name]);
    }
}

//! Schemas as OpenAPI writes them.

use serde_json::{Map, Value, json};

use crate::doors;
use crate::kind::CORE_GROUP;
use crate::registry::KindSpec;
use crate::reviews::ReviewSpec;
use crate::schema::{ListType, Schema, Shape, StringCheck};

/// Which version of OpenAPI is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    V2,
    V3,
}

/// What a kind is called.
#[derive(Clone, Copy)]
pub(super) struct Named {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
}

impl From<&KindSpec> for Named {
    fn from(spec: &KindSpec) -> Named {
        Named { group: spec.group(), version: spec.version(), kind: spec.kind.name() }
    }
}

impl From<&ReviewSpec> for Named {
    fn from(spec: &ReviewSpec) -> Named {
        Named { group: spec.group, version: spec.version, kind: spec.kind }
    }
}

/// The key of a kind's schema: the group's labels reversed, the version and the kind.
pub(super) fn name(named: Named) -> String {
    let group: Vec<&str> = named.group.split('.').rev().filter(|label| !label.is_empty()).collect();
    let group = if group.is_empty() { "core".to_owned() } else { group.join(".") };
    format!("{group}.{}.{}", named.version, named.kind)
}

/// What `x-kubernetes-group-version-kind` says of a kind.
pub(super) fn group_version_kind(named: Named) -> Value {
    json!({"group": named.group, "version": named.version, "kind": named.kind})
}

/// The key of the schema of what [`doors::Door::Revisions`] answers, whatever the kind.
pub(super) const REVISION_LIST: &str = "io.horchestra.v1.RevisionList";

pub(super) fn of_revision_list() -> Value {
    let mut schema = doors::revision_list_schema();
    schema["x-kubernetes-group-version-kind"] =
        json!([{"group": CORE_GROUP, "version": "v1", "kind": doors::REVISION_LIST}]);
    schema
}

pub(super) fn of_kind(spec: &KindSpec, form: Form) -> Value {
    let mut schema = write(spec.schema(), form);
    schema["x-kubernetes-group-version-kind"] = json!([group_version_kind(spec.into())]);
    schema
}

/// A review: whatever else is in it is passed over, so no form closes its objects.
pub(super) fn of_review(spec: &ReviewSpec) -> Value {
    let mut schema = write(spec.schema(), Form::V2);
    schema["x-kubernetes-group-version-kind"] = json!([group_version_kind(spec.into())]);
    schema
}

fn write(schema: &Schema, form: Form) -> Value {
    let mut out = Map::new();
    let mut put = |member: &str, value: Value| {
        out.insert(member.to_owned(), value);
    };
    if !schema.description.is_empty() {
        put("description", Value::from(schema.description.as_str()));
    }
    if let Some(default) = &schema.default {
        put("default", default.clone());
    }
    if schema.atomic {
        put("x-kubernetes-map-type", json!("atomic"));
    }
    match &schema.shape {
        Shape::Anything => {}
        Shape::FreeForm => {
            put("type", json!("object"));
            put("x-kubernetes-preserve-unknown-fields", json!(true));
        }
        Shape::Object(object) => {
            put("type", json!("object"));
            let members = object.properties.iter();
            let properties: Map<String, Value> =
                members.clone().map(|it| (it.name.clone(), write(&it.schema, form))).collect();
            put("properties", Value::Object(properties));
            let required: Vec<&str> = members.filter(|it| it.required).map(|it| it.name.as_str()).collect();
            if !required.is_empty() {
                put("required", json!(required));
            }
            if !object.lenient && form == Form::V3 {
                put("additionalProperties", json!(false));
            }
        }
        Shape::Map(values) => {
            put("type", json!("object"));
            put("additionalProperties", write(values, form));
        }
        Shape::Array { items, max_items, list } => {
            put("type", json!("array"));
            put("items", write(items, form));
            if let Some(most) = max_items {
                put("maxItems", json!(most));
            }
            match list {
                ListType::Atomic => put("x-kubernetes-list-type", json!("atomic")),
                ListType::Set => put("x-kubernetes-list-type", json!("set")),
                ListType::Map(keys) => {
                    put("x-kubernetes-list-type", json!("map"));
                    put("x-kubernetes-list-map-keys", json!(keys));
                }
            }
        }
        Shape::String(text) => {
            put("type", json!("string"));
            if !text.values.is_empty() {
                put("enum", json!(text.values));
            }
            if let Some(least) = text.min_length {
                put("minLength", json!(least));
            }
            if let Some(most) = text.max_length {
                put("maxLength", json!(most));
            }
            match text.check {
                Some(StringCheck::Time | StringCheck::MicroTime) => put("format", json!("date-time")),
                Some(StringCheck::Base64) => put("format", json!("byte")),
                Some(StringCheck::Quantity) | None => {}
            }
        }
        Shape::Integer { minimum, maximum, format } => {
            put("type", json!("integer"));
            put("format", json!(format));
            let (least, most) = match *format {
                "int32" => (i64::from(i32::MIN), i64::from(i32::MAX)),
                _ => (i64::MIN, i64::MAX),
            };
            if *minimum != least {
                put("minimum", json!(minimum));
            }
            if *maximum != most {
                put("maximum", json!(maximum));
            }
        }
        Shape::Number => put("type", json!("number")),
        Shape::Boolean => put("type", json!("boolean")),
    }
    Value::Object(out)
}

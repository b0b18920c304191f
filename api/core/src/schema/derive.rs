//! From a Rust type to a [`Schema`].

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::{ListType, ObjectShape, Property, Schema, Shape, StringCheck, StringShape};

/// The schema of a kind's struct, completed with `apiVersion` and `kind`.
///
/// Attributes that say more than types can: `x-default` (default of the member), `x-check` (what a text must
/// parse as), `x-numeric-guard` (see [`ObjectShape::numeric_guard`]), `x-kubernetes-list-type`,
/// `x-kubernetes-list-map-keys`, `x-kubernetes-map-type`, `x-kubernetes-preserve-unknown-fields`.
pub fn derive<T: JsonSchema>() -> Schema {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    let root = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = convert(root.as_value());
    if let Shape::Object(object) = &mut schema.shape {
        for property in &mut object.properties {
            match property.name.as_str() {
                "metadata" => lenient(&mut property.schema),
                // Written apart from the rest: no author has to give one.
                "status" => property.required = false,
                _ => {}
            }
        }
        object.properties.push(text_property(
            "apiVersion",
            "Group and version in which the object is written, such as `horchestra.io/v1`.",
        ));
        object.properties.push(text_property("kind", "Kind of the object."));
        object.properties.sort_by(|a, b| a.name.cmp(&b.name));
    }
    schema
}

fn text_property(name: &str, description: &str) -> Property {
    let schema = Schema {
        description: description.to_owned(),
        shape: Shape::String(StringShape::default()),
        ..Schema::default()
    };
    Property { name: name.to_owned(), required: false, schema }
}

/// Metadata never refuses an unknown member, at any depth.
fn lenient(schema: &mut Schema) {
    match &mut schema.shape {
        Shape::Object(object) => {
            object.lenient = true;
            object.properties.iter_mut().for_each(|property| lenient(&mut property.schema));
        }
        Shape::Map(values) => lenient(values),
        Shape::Array { items, .. } => lenient(items),
        _ => {}
    }
}

fn convert(value: &Value) -> Schema {
    let Some(map) = value.as_object() else { return Schema::default() };
    // An optional struct is "this or null"; null is dealt with before schemas are looked at.
    if let Some(alternatives) = map.get("anyOf").and_then(Value::as_array) {
        let mut inner = alternatives
            .iter()
            .find(|alternative| alternative["type"] != "null")
            .map(convert)
            .unwrap_or_default();
        if let Some(description) = map.get("description").and_then(Value::as_str) {
            inner.description = one_line(description);
        }
        inner.default = map.get("x-default").cloned().or(inner.default);
        inner.atomic |= is_atomic(map);
        return inner;
    }
    Schema {
        description: map.get("description").and_then(Value::as_str).map(one_line).unwrap_or_default(),
        default: map.get("x-default").cloned(),
        shape: shape(map),
        atomic: is_atomic(map),
    }
}

fn is_atomic(map: &Map<String, Value>) -> bool {
    map.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic")
}

/// Doc comments are wrapped for the source; readers wrap for themselves. Blank lines stay.
fn one_line(text: &str) -> String {
    text.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}

fn shape(map: &Map<String, Value>) -> Shape {
    let type_name = match map.get("type") {
        Some(Value::String(name)) => name.as_str(),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or("")
        }
        _ => "",
    };
    match type_name {
        "object" => object_shape(map),
        "array" => Shape::Array {
            items: Box::new(map.get("items").map(convert).unwrap_or_default()),
            max_items: map.get("maxItems").and_then(Value::as_u64).and_then(|most| most.try_into().ok()),
            list: list_type(map),
        },
        "string" => Shape::String(string_shape(map)),
        "integer" => integer_shape(map),
        "number" => Shape::Number,
        "boolean" => Shape::Boolean,
        _ => Shape::Anything,
    }
}

fn object_shape(map: &Map<String, Value>) -> Shape {
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        return Shape::FreeForm;
    }
    if let Some(values) = map.get("additionalProperties").filter(|values| values.is_object()) {
        return Shape::Map(Box::new(convert(values)));
    }
    let required: Vec<&str> = map
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let mut properties: Vec<Property> = map
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, value)| Property {
            name: name.clone(),
            required: required.contains(&name.as_str()),
            schema: convert(value),
        })
        .collect();
    properties.sort_by(|a, b| a.name.cmp(&b.name));
    Shape::Object(ObjectShape {
        properties,
        lenient: false,
        numeric_guard: map.get("x-numeric-guard") == Some(&Value::Bool(true)),
    })
}

fn list_type(map: &Map<String, Value>) -> ListType {
    match map.get("x-kubernetes-list-type").and_then(Value::as_str) {
        Some("set") => ListType::Set,
        Some("map") => ListType::Map(
            map.get("x-kubernetes-list-map-keys")
                .and_then(Value::as_array)
                .map(|keys| keys.iter().filter_map(Value::as_str).map(str::to_owned).collect())
                .unwrap_or_default(),
        ),
        _ => ListType::Atomic,
    }
}

fn string_shape(map: &Map<String, Value>) -> StringShape {
    StringShape {
        values: map
            .get("enum")
            .and_then(Value::as_array)
            .map(|values| values.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default(),
        min_length: map.get("minLength").and_then(Value::as_u64),
        max_length: map.get("maxLength").and_then(Value::as_u64),
        check: match map.get("x-check").and_then(Value::as_str) {
            Some("quantity") => Some(StringCheck::Quantity),
            Some("time") => Some(StringCheck::Time),
            Some("micro-time") => Some(StringCheck::MicroTime),
            Some("base64") => Some(StringCheck::Base64),
            _ => None,
        },
    }
}

fn integer_shape(map: &Map<String, Value>) -> Shape {
    let (least, most, format) = match map.get("format").and_then(Value::as_str) {
        Some("int32") => (i64::from(i32::MIN), i64::from(i32::MAX), "int32"),
        _ => (i64::MIN, i64::MAX, "int64"),
    };
    Shape::Integer {
        minimum: map.get("minimum").and_then(Value::as_i64).unwrap_or(least),
        maximum: map.get("maximum").and_then(Value::as_i64).unwrap_or(most),
        format,
    }
}

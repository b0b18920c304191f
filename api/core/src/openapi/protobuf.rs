//! A version 2 document in protobuf: the messages of `openapi.v2`, as kubectl up to 1.28 demands them.
//!
//! The encoder walks the JSON document, so both encodings say the same. It knows the messages and members
//! that our documents use, by their field numbers. Two traps of the message set are worth a word: in `Paths`
//! extensions are field 1 and entries field 2, in `Responses` it is the other way round; and query
//! parameters have one field more than path parameters in the middle, which shifts what follows. A library
//! for it was refused: there is none, and code generation for one document is more than this file.

use serde_json::{Map, Value};

/// Encodes a Swagger 2.0 document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Message::default();
    out.text(1, &document["swagger"]);
    out.message(2, |info| {
        info.text(1, &document["info"]["title"]);
        info.text(2, &document["info"]["version"]);
    });
    out.message(8, |paths| {
        for (path, item) in members(&document["paths"]) {
            paths.message(2, |named| {
                named.string(1, path);
                named.message(2, |message| path_item(message, item));
            });
        }
    });
    out.message(9, |definitions| named_schemas(definitions, &document["definitions"]));
    out.0
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8 & 0x7f) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn string(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    /// A text member, if it is one.
    fn text(&mut self, field: u32, value: &Value) {
        if let Some(text) = value.as_str() {
            self.string(field, text);
        }
    }

    fn texts(&mut self, field: u32, value: &Value) {
        for text in items(value) {
            self.text(field, text);
        }
    }

    fn flag(&mut self, field: u32, value: &Value) {
        if value == &Value::Bool(true) {
            self.varint(u64::from(field) << 3);
            self.varint(1);
        }
    }

    fn integer(&mut self, field: u32, value: &Value) {
        if let Some(number) = value.as_u64() {
            self.varint(u64::from(field) << 3);
            self.varint(number);
        }
    }

    fn double(&mut self, field: u32, value: &Value) {
        if let Some(number) = value.as_f64() {
            self.varint(u64::from(field) << 3 | 1);
            self.0.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    /// A value of any type travels as text; JSON is YAML.
    fn any(&mut self, field: u32, value: &Value) {
        self.message(field, |any| any.string(2, &value.to_string()));
    }

    fn extensions(&mut self, field: u32, map: Option<&Map<String, Value>>) {
        let extensions = map.into_iter().flatten().filter(|(name, _)| name.starts_with("x-"));
        for (name, value) in extensions {
            self.message(field, |named| {
                named.string(1, name);
                named.any(2, value);
            });
        }
    }
}

fn path_item(out: &mut Message, item: &Value) {
    for (field, method) in [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")] {
        if let Some(value) = item.get(method) {
            out.message(field, |message| operation(message, value));
        }
    }
    parameters(out, 9, &item["parameters"]);
}

fn operation(out: &mut Message, value: &Value) {
    out.texts(1, &value["tags"]);
    out.text(3, &value["description"]);
    out.text(5, &value["operationId"]);
    out.texts(6, &value["produces"]);
    out.texts(7, &value["consumes"]);
    parameters(out, 8, &value["parameters"]);
    out.message(9, |responses| {
        for (code, response) in members(&value["responses"]) {
            responses.message(1, |named| {
                named.string(1, code);
                named.message(2, |value| {
                    value.message(1, |message| {
                        message.text(1, &response["description"]);
                        if let Some(body) = response.get("schema") {
                            message.message(2, |item| item.message(1, |out| schema(out, body)));
                        }
                    });
                });
            });
        }
    });
    out.extensions(13, value.as_object());
}

/// Each parameter is wrapped three deep.
fn parameters(out: &mut Message, field: u32, list: &Value) {
    for parameter in items(list) {
        out.message(field, |item| {
            item.message(1, |wrapped| {
                if parameter["in"] == "body" {
                    wrapped.message(1, |body| {
                        body.text(1, &parameter["description"]);
                        body.text(2, &parameter["name"]);
                        body.text(3, &parameter["in"]);
                        body.flag(4, &parameter["required"]);
                        body.message(5, |out| schema(out, &parameter["schema"]));
                    });
                } else {
                    wrapped.message(2, |plain| plain_parameter(plain, parameter));
                }
            });
        });
    }
}

fn plain_parameter(out: &mut Message, parameter: &Value) {
    // A query parameter has a member more than one of a path, before its type.
    let (form, type_field) = if parameter["in"] == "path" { (4, 5) } else { (3, 6) };
    out.message(form, |message| {
        message.flag(1, &parameter["required"]);
        message.text(2, &parameter["in"]);
        message.text(3, &parameter["description"]);
        message.text(4, &parameter["name"]);
        message.text(type_field, &parameter["type"]);
    });
}

fn named_schemas(out: &mut Message, map: &Value) {
    for (name, value) in members(map) {
        out.message(1, |named| {
            named.string(1, name);
            named.message(2, |message| schema(message, value));
        });
    }
}

fn schema(out: &mut Message, value: &Value) {
    out.text(1, &value["$ref"]);
    out.text(2, &value["format"]);
    out.text(4, &value["description"]);
    if let Some(default) = value.get("default") {
        out.any(5, default);
    }
    out.double(7, &value["maximum"]);
    out.double(9, &value["minimum"]);
    out.integer(11, &value["maxLength"]);
    out.integer(12, &value["minLength"]);
    out.integer(14, &value["maxItems"]);
    out.texts(19, &value["required"]);
    for permitted in items(&value["enum"]) {
        out.any(20, permitted);
    }
    if let Some(values) = value.get("additionalProperties") {
        out.message(21, |item| item.message(1, |out| schema(out, values)));
    }
    if value.get("type").is_some() {
        out.message(22, |item| item.text(1, &value["type"]));
    }
    if let Some(inner) = value.get("items") {
        out.message(23, |item| item.message(1, |out| schema(out, inner)));
    }
    if let Some(properties) = value.get("properties") {
        out.message(25, |message| named_schemas(message, properties));
    }
    out.extensions(31, value.as_object());
}

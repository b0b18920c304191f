//! One strict reader for JSON documents that come from outside.
//!
//! Guarantees: exactly one JSON object per body, nothing but white space after it; nesting is bounded; a
//! member that occurs twice is reported with its path (the last one wins, as everywhere in Kubernetes); a
//! U+0000 in any string or member name is refused with its path, because PostgreSQL cannot keep it. Member
//! names are compared exactly: no folding of case, so no second spelling of a name can slip past a check.
//!
//! One pass builds the tree; paths are put together only when there is something to report. Numbers beyond
//! 64 bits become floating point, as they do for every JSON client.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::object::Object;
use crate::path::{Step, write_step};

/// Most faults of one sort that are reported about one document. A hostile body could hold millions, and the
/// answer should not be larger than the question.
pub(crate) const MAX_FAULTS: usize = 500;

/// Deepest nesting of a YAML document; JSON is bounded alike by its reader.
pub(crate) const MAX_DEPTH: usize = 120;

/// A document as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    pub object: Object,
    /// Paths of members that occurred more than once, in the order of the document.
    pub duplicates: Vec<String>,
    /// Paths of strings (or member names) with a U+0000 in them.
    pub nul: Vec<String>,
}

/// Why there is no document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("the body is empty")]
    Empty,
    #[error("{0}")]
    Syntax(String),
    #[error("the body is {0}, not an object")]
    NotAnObject(&'static str),
}

/// Reads a JSON body.
pub fn json(body: &[u8]) -> Result<Document, DecodeError> {
    let (value, findings) = json_value(body)?;
    findings.into_document(value)
}

/// Reads any JSON value (a JSON patch is an array), with what there is to report about it.
pub(crate) fn json_value(body: &[u8]) -> Result<(Value, Findings), DecodeError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(DecodeError::Empty);
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let mut sink = Sink::default();
    let value = Seed { sink: &mut sink }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| DecodeError::Syntax(error.to_string()))?;
    Ok((value, sink.finish()))
}

/// What there is to report about a tree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub duplicates: Vec<String>,
    pub nul: Vec<String>,
}

impl Findings {
    pub(crate) fn into_document(self, value: Value) -> Result<Document, DecodeError> {
        match value {
            Value::Object(map) => {
                Ok(Document { object: Object(map), duplicates: self.duplicates, nul: self.nul })
            }
            other => Err(DecodeError::NotAnObject(type_name(&other))),
        }
    }
}

/// The JSON type of a value, with its article.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Duplicate,
    Nul,
}

enum OwnedStep {
    Member(String),
    Index(usize),
}

/// Collects faults. A fault starts with an empty path; every container on the way out adds its step, so a
/// clean document costs nothing.
#[derive(Default)]
pub(crate) struct Sink {
    faults: Vec<(Fault, Vec<OwnedStep>)>,
}

impl Sink {
    pub(crate) fn mark(&self) -> usize {
        self.faults.len()
    }

    /// Adds the step to every fault found since the mark.
    pub(crate) fn step_out(&mut self, mark: usize, step: Step<'_>) {
        for (_, steps) in &mut self.faults[mark..] {
            steps.push(match step {
                Step::Member(name) => OwnedStep::Member(name.to_owned()),
                Step::Index(index) => OwnedStep::Index(index),
            });
        }
    }

    pub(crate) fn look_at(&mut self, text: &str) {
        if text.contains('\0') {
            self.push(Fault::Nul);
        }
    }

    pub(crate) fn duplicate(&mut self) {
        self.push(Fault::Duplicate);
    }

    fn push(&mut self, fault: Fault) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push((fault, Vec::new()));
        }
    }

    pub(crate) fn finish(self) -> Findings {
        let mut findings = Findings::default();
        for (fault, steps) in self.faults {
            let mut path = String::new();
            for step in steps.iter().rev() {
                let first = path.is_empty();
                let step = match step {
                    OwnedStep::Member(name) => Step::Member(name),
                    OwnedStep::Index(index) => Step::Index(*index),
                };
                // Writing to a String cannot fail.
                let _ = write_step(&mut path, step, first);
            }
            let list = if fault == Fault::Nul { &mut findings.nul } else { &mut findings.duplicates };
            let path = path.replace('\0', "\\u0000");
            if !list.contains(&path) {
                list.push(path);
            }
        }
        findings
    }
}

struct Seed<'a> {
    sink: &'a mut Sink,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Value, E> {
        self.sink.look_at(value);
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        self.sink.look_at(&value);
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let mark = self.sink.mark();
            let Some(item) = access.next_element_seed(Seed { sink: &mut *self.sink })? else { break };
            self.sink.step_out(mark, Step::Index(list.len()));
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let mark = self.sink.mark();
            let value = access.next_value_seed(Seed { sink: &mut *self.sink })?;
            self.sink.look_at(&name);
            if map.contains_key(&name) {
                self.sink.duplicate();
            }
            self.sink.step_out(mark, Step::Member(&name));
            if name.len() > u16::MAX as usize {
                return Err(A::Error::custom("member name is too long"));
            }
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn duplicates_are_named_wherever_they_are() {
        let document = json(
            br#"{"a":1,"a":2,"spec":{"x":{"y":1,"y":2},"list":[{},{"k":1,"k":2,"k":3}]},
                "metadata":{"labels":{"l":"1","l":"2"}}}"#,
        )
        .unwrap();
        assert_eq!(document.duplicates, ["a", "spec.x.y", "spec.list[1].k", "metadata.labels.l"]);
        assert_eq!(document.object.get("a"), Some(&json!(2)));
    }

    #[test]
    fn a_body_full_of_faults_is_answered_briefly() {
        let body = format!("{{{}\"z\":1}}", "\"a\":1,\"b\":\"\\u0000\",".repeat(10_000));
        let document = json(body.as_bytes()).unwrap();
        assert!(document.duplicates.len() + document.nul.len() <= MAX_FAULTS);
        let body: String = (0..5_000).map(|n| format!("\"k{n}\":1,\"k{n}\":1,")).collect();
        assert_eq!(json(format!("{{{body}\"z\":1}}").as_bytes()).unwrap().duplicates.len(), MAX_FAULTS);
    }

    #[test]
    fn a_nul_is_named_in_values_and_in_names() {
        let document = json(br#"{"spec":{"args":["ok","a\u0000b"],"x\u0000":1}}"#).unwrap();
        assert_eq!(document.nul, ["spec.args[1]", "spec.x\\u0000"]);
        assert!(json(r#"{"emoji":"🦀\ud83e\udd80"}"#.as_bytes()).unwrap().nul.is_empty());
    }

    #[test]
    fn what_is_not_one_object_is_refused() {
        for body in
            ["", "  \n", "{", "{} {}", "{}x", "[1]", "null", "3", "\"x\"", "{\"a\":}", "{\"a\":\"\\ud800\"}"]
        {
            assert!(json(body.as_bytes()).is_err(), "{body:?}");
        }
        assert_eq!(json(b"[]").unwrap_err(), DecodeError::NotAnObject("an array"));
        assert_eq!(json(b" ").unwrap_err(), DecodeError::Empty);
        assert!(json(b"\xff\xfe{}").is_err());
    }

    #[test]
    fn depth_and_numbers_are_bounded() {
        let deep = format!("{}{}", "{\"a\":".repeat(100_000), "1");
        assert!(json(deep.as_bytes()).is_err());
        assert!(json(br#"{"a":1e400}"#).is_err());
        assert_eq!(json(br#"{"a":1e-100000000}"#).unwrap().object.get("a"), Some(&json!(0.0)));
        let many = format!("{{\"a\":{}}}", "9".repeat(4096));
        assert!(json(many.as_bytes()).is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[^\u{0}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{1,3}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn reads_what_was_written_and_reports_nothing(
            members in prop::collection::btree_map("[a-z]{1,4}", any_json(), 0..6),
        ) {
            let value = Value::Object(members.into_iter().collect());
            let document = json(value.to_string().as_bytes()).unwrap();
            prop_assert!(document.duplicates.is_empty() && document.nul.is_empty());
            prop_assert_eq!(document.object.into_value(), value);
        }

        #[test]
        fn never_panics(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = json(&body);
        }
    }
}

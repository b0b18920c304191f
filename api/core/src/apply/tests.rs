//! Apply, field sets and managers on a kind that has every sort of field.

use std::sync::LazyLock;

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

use super::*;
use crate::kind::{Key, Kind};
use crate::object::Object;
use crate::schema::{self, Schema};
use crate::time::Time;

mod oracle;
mod rules;

/// A kind with every sort of field.
#[derive(JsonSchema)]
#[allow(dead_code)]
struct Sample {
    metadata: crate::kinds::meta::ObjectMeta,
    spec: SampleSpec,
}

#[derive(JsonSchema)]
#[allow(dead_code)]
struct SampleSpec {
    flat: Option<Flat>,
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    list: Vec<Item>,
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["port", "protocol"]))]
    ports: Vec<Port>,
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    set: Vec<String>,
    atomic: Vec<i64>,
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    whole: Option<Flat>,
    #[schemars(schema_with = "crate::kinds::free_form")]
    open: Option<Map<String, Value>>,
}

#[derive(JsonSchema)]
#[allow(dead_code)]
struct Flat {
    x: Option<i64>,
    y: Option<i64>,
    z: Option<i64>,
}

#[derive(JsonSchema)]
#[allow(dead_code)]
struct Item {
    name: Option<String>,
    value: Option<i64>,
    extra: Option<i64>,
}

#[derive(JsonSchema)]
#[allow(dead_code)]
struct Port {
    port: i64,
    #[schemars(extend("x-default" = "TCP"))]
    protocol: String,
    name: Option<String>,
}

fn sample() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<Sample>);
    &SCHEMA
}

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap()
}

/// An object with this spec.
fn with(spec: Value) -> Object {
    object(json!({"apiVersion": "t/v1", "kind": "Sample", "metadata": {"name": "o"}, "spec": spec}))
}

fn at(second: i64) -> Time {
    Time::from_seconds(1_700_000_000 + second).unwrap()
}

fn applier(name: &str) -> Manager {
    Manager::new(name, Operation::Apply, "t/v1", "")
}

fn updater(name: &str) -> Manager {
    Manager::new(name, Operation::Update, "t/v1", "")
}

/// An object and its managers, and writes that follow each other in time.
#[derive(Clone, Debug)]
struct Story {
    live: Option<Object>,
    managed: Managed,
    now: i64,
}

impl Story {
    fn new() -> Story {
        Story { live: None, managed: Managed::new(), now: 0 }
    }

    fn try_apply(&mut self, name: &str, fields: &Object, force: bool) -> Result<(), Vec<Conflict>> {
        self.now += 1;
        let manager = applier(name);
        let configuration = Configuration { manager: &manager, fields, document: fields, force };
        let applied = apply(sample(), self.live.as_ref(), configuration, &self.managed, at(self.now))?;
        (self.live, self.managed) = (Some(applied.object), applied.managed);
        Ok(())
    }

    fn apply(&mut self, name: &str, spec: Value) {
        self.try_apply(name, &with(spec), false).unwrap();
    }

    fn force(&mut self, name: &str, spec: Value) {
        self.try_apply(name, &with(spec), true).unwrap();
    }

    /// Paths that an apply would conflict on.
    fn conflicts(&mut self, name: &str, spec: Value) -> Vec<String> {
        let found = self.try_apply(name, &with(spec), false).unwrap_err();
        let of = |conflict: &Conflict| -> Vec<String> {
            let leaves = conflict.fields.leaves();
            leaves.iter().map(|steps| format!("{} {}", conflict.manager.name, fields::path(steps))).collect()
        };
        found.iter().flat_map(of).collect()
    }

    fn update_object(&mut self, name: &str, new: Object) {
        self.now += 1;
        let change = compare(sample(), self.live.as_ref(), &new);
        self.managed.forget(&change.removed);
        self.managed.update(&updater(name), &change.touched(), at(self.now));
        self.live = Some(new);
    }

    fn update(&mut self, name: &str, spec: Value) {
        self.update_object(name, with(spec));
    }

    fn spec(&self) -> &Value {
        &self.live.as_ref().unwrap().0["spec"]
    }

    /// What a manager owns, in the FieldsV1 form below `f:spec`.
    fn owned(&self, manager: &Manager) -> Value {
        let fields = self.managed.fields(manager).map(FieldSet::to_json).unwrap_or_default();
        fields.get("f:spec").cloned().unwrap_or(Value::Null)
    }
}

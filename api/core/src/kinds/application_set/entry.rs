//! The registry entry of ApplicationSet.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::super::application::{spec_defaults, volume_defaults, volume_oddities};
use super::ApplicationSet;
use super::columns::COLUMNS;
use super::validate::violations;
use crate::kind::Kind;
use crate::object::Object;
use crate::registry::{Facts, KindSpec, Selectable};
use crate::schema::{self, Property, Schema, Shape};

/// Completes each component as the Application that it is to become, and what every child gets. A set
/// without a status has made nothing yet, and says so.
fn defaults(object: &mut Map<String, Value>) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        let components = spec.get_mut("applications").and_then(Value::as_array_mut);
        for component in components.into_iter().flatten() {
            if let Some(spec) = component.get_mut("spec").and_then(Value::as_object_mut) {
                spec_defaults(spec);
            }
        }
        if let Some(common) = spec.get_mut("common").and_then(Value::as_object_mut) {
            volume_defaults(common);
        }
    }
    object
        .entry("status")
        .or_insert_with(|| COUNTS.into_iter().map(|count| (count.to_owned(), json!(0))).collect());
}

/// Those of the components, and of what is common to them.
fn oddities(object: &Object) -> Vec<String> {
    let components = object.at(&["spec", "applications"]).and_then(Value::as_array);
    let mut found: Vec<String> = components
        .into_iter()
        .flatten()
        .enumerate()
        .flat_map(|(at, component)| {
            volume_oddities(component.get("spec"), &format!("spec.applications[{at}].spec"))
        })
        .collect();
    found.extend(volume_oddities(object.at(&["spec", "common"]), "spec.common"));
    found
}

fn facts(object: &Object) -> Facts {
    Facts { phase: object.str_at(&["status", "phase"]).to_owned(), ..Facts::default() }
}

/// The counts of a status, which a report of progress always has.
const COUNTS: [&str; 4] = ["desired", "current", "scheduled", "running"];

/// What the types cannot say. A component cannot be frozen on its own (that is done to the set, or to a
/// child). A status has its counts, though a reader gets by without them.
fn derive() -> Schema {
    let mut schema = schema::derive::<ApplicationSet>();
    let mut object = |path: &[&str], change: fn(&mut Vec<Property>)| {
        if let Some(Shape::Object(object)) = schema.at_mut(path).map(|schema| &mut schema.shape) {
            change(&mut object.properties);
        }
    };
    object(&["spec", "applications", "spec"], |members| members.retain(|member| member.name != "frozen"));
    object(&["status"], |members| {
        members.iter_mut().for_each(|member| member.required |= COUNTS.contains(&member.name.as_str()));
    });
    schema
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(derive);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["appset", "appsets"],
    categories: &["all"],
    columns: COLUMNS,
    selectable: &[Selectable { field: "status.phase", path: &["status", "phase"], absent: "Progressing" }],
    defaults,
    validate: violations,
    oddities,
    facts,
    ..KindSpec::base(Kind::ApplicationSet, "applicationset", "ApplicationSetList", schema)
};

//! The registry entry of Application.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::Application;
use super::columns::COLUMNS;
use super::oddities::application_oddities;
use super::validate::application_violations;
use crate::kind::Kind;
use crate::object::Object;
use crate::registry::{Facts, KindSpec, Reference, Selectable};
use crate::schema::{self, Schema};

/// Completes a spec (of an Application or of a component of a set) before the declared defaults: a
/// lifecycle to fill in, and no empty texts in volumes, which node agents cannot read.
pub(crate) fn spec_defaults(spec: &mut Map<String, Value>) {
    spec.entry("lifecycle").or_insert_with(|| Value::Object(Map::new()));
    volume_defaults(spec);
}

/// Takes empty texts out of the volumes of a spec, or of the common part of a set.
pub(crate) fn volume_defaults(spec: &mut Map<String, Value>) {
    let mounts = spec.get_mut("volumes").and_then(Value::as_array_mut);
    for mount in mounts.into_iter().flatten() {
        if let Some(volume) = mount.get_mut("volume").and_then(Value::as_object_mut) {
            for member in ["name", "audience"] {
                if volume.get(member).and_then(Value::as_str) == Some("") {
                    volume.remove(member);
                }
            }
        }
    }
}

fn defaults(object: &mut Map<String, Value>) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec_defaults(spec);
    }
}

fn facts(object: &Object) -> Facts {
    let Ok(application) = object.read::<Application>() else { return Facts::default() };
    let counted = application.counted_request();
    Facts {
        node: application.node_name().to_owned(),
        phase: application.status.phase.clone(),
        cpu_nano: counted.cpu.nano(),
        memory_bytes: counted.memory.int(),
    }
}

fn references(object: &Object) -> Vec<Reference> {
    let Ok(application) = object.read::<Application>() else { return Vec::new() };
    let mut references = Vec::new();
    if !application.node_name().is_empty() {
        references.push(Reference::Node(application.node_name().to_owned()));
    }
    if !application.spec.service_name.is_empty() {
        references.push(Reference::Service(application.spec.service_name.clone()));
    }
    references.extend(application.spec.secrets().into_iter().map(|(name, optional)| {
        if optional { Reference::SecretOptional(name.to_owned()) } else { Reference::Secret(name.to_owned()) }
    }));
    references.extend(application.volume_names().into_iter().map(|name| Reference::Volume(name.to_owned())));
    references
}

fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> = LazyLock::new(schema::derive::<Application>);
    &SCHEMA
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["app", "apps"],
    categories: &["all"],
    selectable: &[
        Selectable { field: "spec.placement.nodeName", path: &["spec", "placement", "nodeName"], absent: "" },
        Selectable { field: "status.phase", path: &["status", "phase"], absent: "Pending" },
    ],
    columns: COLUMNS,
    defaults,
    validate: application_violations,
    oddities: application_oddities,
    facts,
    references,
    ..KindSpec::base(Kind::Application, "application", "ApplicationList", schema)
};

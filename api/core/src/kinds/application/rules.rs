//! The registry entry of Application.

use super::{Application, VolumeType};
use crate::kind::Kind;
use crate::object::Object;
use crate::registry::{Facts, KindSpec, Reference, Selectable};

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
    let own_name = &application.metadata.name;
    let mut volumes: Vec<&String> = application
        .spec
        .volumes
        .iter()
        .filter(|mount| mount.volume.type_ == VolumeType::Pv)
        .map(|mount| if mount.volume.name.is_empty() { own_name } else { &mount.volume.name })
        .collect();
    volumes.sort();
    volumes.dedup();
    references.extend(volumes.into_iter().map(|name| Reference::Volume(name.clone())));
    references
}

pub(crate) static SPEC: KindSpec = KindSpec {
    short_names: &["app", "apps"],
    categories: &["all"],
    selectable: &[
        Selectable { field: "spec.placement.nodeName", path: &["spec", "placement", "nodeName"], absent: "" },
        Selectable { field: "status.phase", path: &["status", "phase"], absent: "" },
    ],
    facts,
    references,
    ..KindSpec::base(Kind::Application, "application", "ApplicationList")
};

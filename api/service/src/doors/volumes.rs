//! Volumes of placed Applications.
//!
//! A volume lies on one node, and its Applications run there. So the one that is placed first decides where it lies:
//! a volume that is missing is made on its node, and one that lies nowhere yet goes there. That comes in one
//! item with the binding: no volume is made, or fixed to a node, for an Application that is not placed there after
//! all. The volumes come before the Application in the item, so that who reads the log never sees an
//! Application on a node whose volumes are not there.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::{Application, VolumeType};
use horchestra_core::kinds::persistent_volume::PersistentVolume;
use horchestra_core::metadata;
use horchestra_core::object::Object;
use horchestra_store::{Class, Guard, Item, Op, Revision, Snapshot};
use serde_json::json;

use crate::caller::RequestContext;
use crate::errors::door_error;
use crate::placement;
use crate::request::DoorError;
use crate::service::Service;
use crate::write::draft::{columns, draft, spec_of};
use crate::write::{stamp_new, stored_object, tracking};

/// What placing an Application on a node does to its volumes, and what it rests on.
#[derive(Default)]
pub(super) struct Provision {
    pub ops: Vec<Op>,
    pub guards: Vec<Guard>,
}

/// Volumes of the Application as they have to be for it to run on the node. One that lies elsewhere, or goes
/// away, is another decision.
pub(super) fn provision(
    context: &RequestContext,
    view: &Snapshot,
    application: &Application,
    node: &str,
) -> Result<Provision, DoorError> {
    let spec = spec_of(Kind::PersistentVolume).map_err(DoorError::Refused)?;
    let mut provision = Provision::default();
    for name in application.volume_names() {
        let key = Key::namespaced(Kind::PersistentVolume, application.metadata.namespace.clone(), name);
        let Some(entry) = view.get(&key) else {
            let object = made(application, &key, node);
            let managed = tracking::of_component(spec, context, None, &object);
            let draft = draft(spec, &key, &object, columns(spec, &object), managed);
            provision.ops.push(Op::Create(draft.map_err(DoorError::Refused)?));
            continue;
        };
        let volume = entry.typed::<PersistentVolume>().map_err(|_| DoorError::Changed)?;
        if entry.deleting || (!volume.spec.node.is_empty() && volume.spec.node != node) {
            return Err(DoorError::Changed);
        }
        if volume.spec.node == node {
            provision.guards.push(Guard::Unchanged(key, entry.revision));
            continue;
        }
        let stored = stored_object(&entry).map_err(DoorError::Refused)?;
        let mut object = stored.clone();
        object.set_metadata("generation", json!(object.generation() + 1));
        if !object.get("spec").is_some_and(serde_json::Value::is_object) {
            object.0.insert("spec".to_owned(), json!({}));
        }
        object.0["spec"]["node"] = node.into();
        let managed = tracking::of_component(spec, context, Some((&entry, &stored)), &object);
        let draft = draft(spec, &key, &object, columns(spec, &object), managed);
        let draft = draft.map_err(DoorError::Refused)?;
        provision.ops.push(Op::Update { draft, expect: entry.revision, class: Class::Core });
    }
    Ok(provision)
}

/// A volume as the scheduler makes it: as large as its Application says, on the node.
fn made(application: &Application, key: &Key, node: &str) -> Object {
    let mut mounts = application.spec.volumes.iter().map(|mount| &mount.volume);
    let named = |name: &str| name == key.name || (name.is_empty() && application.metadata.name == key.name);
    let size = mounts.find_map(|volume| {
        volume.size.as_ref().filter(|_| volume.type_ == VolumeType::Pv && named(&volume.name))
    });
    let mut object = Object::default();
    stamp_new(&mut object, key);
    object.set_metadata("namespace", key.namespace.clone());
    let mut spec = json!({ "node": node });
    if let Some(size) = size {
        spec["size"] = json!(size);
    }
    object.0.insert("spec".to_owned(), spec);
    metadata::canonicalize(&mut object);
    object
}

impl Service {
    /// Provides the volumes of an Application that its author placed; answers how many were made or fixed to its
    /// node.
    pub(crate) async fn provide_volumes_of(
        &self,
        context: &RequestContext,
        key: &Key,
        revision: Revision,
    ) -> Result<usize, DoorError> {
        let view = self.inner.store.snapshot();
        let entry = view.get(key).ok_or(DoorError::Gone)?;
        if entry.revision != revision || entry.deleting {
            return Err(DoorError::Changed);
        }
        let object = stored_object(&entry).map_err(DoorError::Refused)?;
        let application = entry.typed::<Application>().map_err(|_| DoorError::Changed)?;
        let node = placement::node_of(&object);
        if node.is_empty() || placement::is_frozen(&object) {
            return Err(DoorError::Changed);
        }
        let Provision { ops, guards: volumes } = provision(context, &view, &application, node)?;
        let provided = ops.len();
        if provided == 0 {
            return Ok(0);
        }
        let mut guards: Vec<Guard> = context.caller.fence().into_iter().collect();
        guards.push(Guard::Unchanged(key.clone(), revision));
        guards.extend(volumes);
        let item = Item { ops, guards, who: context.attribution("create") };
        self.inner.store.commit(item).await.map_err(|error| door_error(key, &error))?;
        Ok(provided)
    }
}

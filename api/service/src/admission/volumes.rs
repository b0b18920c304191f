//! PersistentVolumes: one Application at a time, unless the volume is shared.
//!
//! The rule counts Applications by what they mount, whether or not the volume is there yet. Only what a write
//! adds is judged: an Application that mounts a volume already may be edited, whoever else mounts it. What
//! holds it against races: a write that adds a mount of an unshared volume rests on nobody mounting it; one
//! that adds a mount of a shared volume rests on the volume being unchanged; one that ends the sharing rests
//! on at most one mount.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::Application;
use horchestra_core::kinds::persistent_volume::PersistentVolume;
use horchestra_core::object::Object;
use horchestra_core::status::Status;
use horchestra_store::{Entry, Guard, Relation};

use super::protection::{applications, listed};
use super::{Attributes, Denial, Verdict};

pub(super) fn exclusive(
    attributes: &Attributes<'_>,
    object: &Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    match attributes.key.kind {
        _ if attributes.is_deleting() => Ok(()),
        Kind::Application => mounts(attributes, object, verdict),
        Kind::PersistentVolume => ends_sharing(attributes, object, verdict),
        _ => Ok(()),
    }
}

/// The volumes that an Application mounts.
fn volumes_of(object: &Object) -> Vec<String> {
    let application = object.read::<Application>().ok();
    let names = application.iter().flat_map(|application| application.volume_names());
    names.map(str::to_owned).collect()
}

fn mounts(attributes: &Attributes<'_>, object: &Object, verdict: &mut Verdict) -> Result<(), Denial> {
    let wanted = volumes_of(object);
    if wanted.is_empty() {
        return Ok(());
    }
    let before = attributes.old.map(volumes_of).unwrap_or_default();
    for name in wanted.into_iter().filter(|name| !before.contains(name)) {
        mount(attributes, &name, verdict)?;
    }
    Ok(())
}

fn mount(attributes: &Attributes<'_>, name: &str, verdict: &mut Verdict) -> Result<(), Denial> {
    let key = attributes.key;
    let volume = Key::namespaced(Kind::PersistentVolume, &*key.namespace, name);
    let stored = attributes.view.get(&volume);
    let changed = || {
        let why = format!("persistentvolume \"{name}\" has changed meanwhile, try again");
        Status::conflict(key.kind, &key.name, why)
    };
    match &stored {
        Some(entry) if entry.deleting => {
            return Err(Denial::Forbidden(format!("persistentvolume \"{name}\" is being deleted")));
        }
        Some(entry) if is_shared(entry) => {
            verdict.demand(Guard::Unchanged(volume, entry.revision), changed());
            return Ok(());
        }
        Some(_) => verdict.demand(Guard::Exists(volume.clone()), changed()),
        None => verdict.demand(Guard::Unchanged(volume.clone(), 0), changed()),
    }
    let taken = |by: &str| format!("persistentvolume \"{name}\" is not shared and {by} mounts it already");
    let holders = applications(attributes.view, &key.namespace, |other| {
        other.metadata.name != key.name && other.mounts(name)
    });
    if !holders.is_empty() {
        return Err(Denial::Forbidden(taken(&listed(&holders))));
    }
    let refusal = Status::forbidden(key.kind, &key.name, taken("another application"));
    verdict.demand(Guard::NoEdge { relation: Relation::Mounts, target: volume }, refusal);
    Ok(())
}

fn is_shared(entry: &Entry) -> bool {
    entry.typed::<PersistentVolume>().is_ok_and(|volume| volume.spec.shared)
}

/// A volume that is not shared (any more) has one user at most.
fn ends_sharing(attributes: &Attributes<'_>, object: &Object, verdict: &mut Verdict) -> Result<(), Denial> {
    let key = attributes.key;
    let shared = |object: &Object| object.at(&["spec", "shared"]).and_then(serde_json::Value::as_bool);
    let was_alone = attributes.old.is_some_and(|old| shared(old) != Some(true));
    if shared(object) == Some(true) || was_alone {
        return Ok(());
    }
    let users = applications(attributes.view, &key.namespace, |other| other.mounts(&key.name));
    let refusal = |by: &str| format!("spec.shared cannot be taken back: {by} mount the volume");
    if users.len() > 1 {
        return Err(Denial::Forbidden(refusal(&listed(&users))));
    }
    let status = Status::forbidden(key.kind, &key.name, refusal("several applications"));
    verdict.demand(Guard::EdgesAtMost { relation: Relation::Mounts, target: key.clone(), limit: 1 }, status);
    Ok(())
}

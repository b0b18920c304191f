//! Blocks of user ids for namespaces.

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::namespace::{Namespace, UID_RANGE_ANNOTATION};
use horchestra_core::object::Object;
use horchestra_core::ranges::{BLOCKS, IdBlock};
use horchestra_core::status::Status;
use horchestra_store::{Entry, Guard, Snapshot};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::super::{Attributes, Denial, Verdict};
use super::Allocator;

/// Blocks that namespaces have.
pub(in super::super) const SPACE: &str = "uid-block";
const ANNOTATION: [&str; 3] = ["metadata", "annotations", UID_RANGE_ANNOTATION];

/// The block of a stored namespace; `None` also for one that cannot be read.
pub(super) fn block_of(entry: &Entry) -> Option<IdBlock> {
    let namespace = entry.typed::<Namespace>().ok()?;
    namespace.metadata.annotations.get(UID_RANGE_ANNOTATION)?.parse().ok()
}

/// A namespace that has no block is given one; one that has keeps it.
pub(crate) fn assign_block(
    attributes: &Attributes<'_>,
    object: &mut Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    if attributes.key.kind != Kind::Namespace || !object.str_at(&ANNOTATION).is_empty() {
        return Ok(());
    }
    let stored = attributes.old.map_or("", |old| old.str_at(&ANNOTATION));
    if !stored.is_empty() {
        annotate(object, stored);
    } else if !attributes.is_deleting() {
        give_block(attributes.allocator, attributes.view, attributes.key, object, verdict)?;
    }
    Ok(())
}

/// Chooses the block of a namespace.
pub(super) fn give_block(
    allocator: &Allocator,
    view: &Snapshot,
    key: &Key,
    namespace: &mut Object,
    verdict: &mut Verdict,
) -> Result<IdBlock, Denial> {
    let Some((value, reserved)) = allocator.held.choose(view, SPACE, &(0..=BLOCKS as u128 - 1)) else {
        return Err(Denial::Forbidden(format!("all {BLOCKS} blocks of user ids are taken")));
    };
    let block = IdBlock::numbered(usize::try_from(value).unwrap_or(BLOCKS));
    verdict.reserved.push(reserved);
    annotate(namespace, &block.to_string());
    let refusal =
        Status::conflict(key.kind, &key.name, "others take blocks of user ids all the time, try again");
    claim(namespace, block, refusal, verdict)?;
    Ok(block)
}

/// A block that an author brings along is a block, and nobody's; and a block stays what it is.
pub(crate) fn check_block(
    attributes: &Attributes<'_>,
    object: &Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let key = attributes.key;
    let text = object.str_at(&ANNOTATION);
    let stored = attributes.old.map_or("", |old| old.str_at(&ANNOTATION));
    let chosen = verdict.reserved.iter().any(|reserved| reserved.is_of(SPACE));
    if key.kind != Kind::Namespace || text == stored || chosen {
        return Ok(());
    }
    let refused = |why: String| format!("annotation {UID_RANGE_ANNOTATION} {text:?}: {why}");
    if !stored.is_empty() {
        let why = format!("the block of a namespace does not change, it is {stored}");
        return Err(Denial::Forbidden(refused(why)));
    }
    let block: IdBlock = text.parse().map_err(|why: &str| Denial::Forbidden(refused(why.to_owned())))?;
    let taken = refused("it overlaps the block of another namespace".to_owned());
    if others(attributes.view, key).any(|other| other.overlaps(block)) {
        return Err(Denial::Forbidden(taken));
    }
    claim(object, block, Status::forbidden(key.kind, &key.name, taken), verdict)
}

fn others<'a>(view: &'a Snapshot, key: &'a Key) -> impl Iterator<Item = IdBlock> + 'a {
    view.list(Kind::Namespace, None).filter(|entry| entry.key != *key).filter_map(|entry| block_of(entry))
}

fn annotate(object: &mut Object, block: &str) {
    let annotations = object.metadata_mut().entry("annotations").or_insert_with(|| Value::Object(Map::new()));
    if !annotations.is_object() {
        *annotations = Value::Object(Map::new());
    }
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(UID_RANGE_ANNOTATION.to_owned(), block.into());
    }
}

/// Takes a block for a namespace. The guard is what keeps it from others; the claim is what guards see.
fn claim(namespace: &Object, block: IdBlock, refusal: Status, verdict: &mut Verdict) -> Result<(), Denial> {
    let owner = Uuid::parse_str(namespace.uid())
        .map_err(|_| Denial::Status(Status::internal("the object has no proper uid")))?;
    let (space, value) = (SPACE.to_owned(), block.to_string());
    verdict.demand(Guard::Unclaimed { space, value: value.clone(), owner }, refusal);
    verdict.claim_shared(SPACE, value, owner);
    Ok(())
}

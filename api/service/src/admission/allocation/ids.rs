//! User and group ids of workloads.

use std::sync::Arc;

use horchestra_core::apply::Managed;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::object::Object;
use horchestra_core::ranges::IdBlock;
use horchestra_core::status::Status;
use horchestra_store::{Class, Entry, Guard, Op};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::super::{Attributes, Denial, Operation, Verdict};
use super::Allocator;
use super::blocks::{block_of, give_block};
use crate::caller::API_MANAGER;
use crate::write::draft::{columns, draft, spec_of};
use crate::write::{stored_object, tracking};

const USER: &str = "runAsUser";
const GROUP: &str = "runAsGroup";
/// The Namespace that is there before anybody could give it a block.
const DEFAULT: &str = "default";

/// The ids that Applications of a namespace run as.
pub(in super::super) fn space(namespace: &str) -> String {
    format!("run-as-user/{namespace}")
}

fn id_of(object: &Object, member: &str) -> Option<i64> {
    object.at(&["spec", "securityContext", member])?.as_i64()
}

/// Fills in the ids that nobody chose: those that the Application has, else a user id of its own and the group of
/// its namespace. In a namespace without a block there is nothing to choose from.
pub(crate) fn choose_ids(
    attributes: &Attributes<'_>,
    object: &mut Object,
    verdict: &mut Verdict,
) -> Result<(), Denial> {
    let key = attributes.key;
    // A missing spec is the schema's to report.
    if key.kind != Kind::Application || !object.get("spec").is_some_and(Value::is_object) {
        return Ok(());
    }
    for member in [USER, GROUP] {
        let stored = attributes.old.and_then(|old| id_of(old, member));
        if let (true, Some(id)) = (is_open(object, member), stored) {
            set(object, member, id);
        }
    }
    if attributes.is_deleting() {
        return Ok(());
    }
    let namespace = Key::cluster(Kind::Namespace, key.namespace.as_str());
    let Some(entry) = attributes.view.get(&namespace) else { return Ok(()) };
    let block = match block_of(&entry) {
        Some(block) => block,
        None if key.namespace == DEFAULT && attributes.operation == Operation::Create => {
            give_default_block(attributes, &entry, verdict)?
        }
        None => return Ok(()),
    };
    verdict.block = Some(block);
    if is_open(object, GROUP) {
        set(object, GROUP, block.first());
    }
    let owner = Uuid::parse_str(object.uid())
        .map_err(|_| Denial::Status(Status::internal("the object has no proper uid")))?;
    let space = space(&key.namespace);
    let stored = attributes.old.and_then(|old| id_of(old, USER));
    let user = id_of(object, USER);
    if user.is_some() && user == stored {
        return Ok(());
    }
    // The block is that of this very namespace, not of an earlier one of the name.
    if !verdict.writes(&namespace) {
        let why = format!("namespace \"{}\" has changed meanwhile, try again", key.namespace);
        let refusal = Status::conflict(key.kind, &key.name, why);
        verdict.demand(Guard::Unchanged(namespace, entry.revision), refusal);
    }
    if stored.is_some() {
        verdict.release(&space, owner);
    }
    let Allocator { held, .. } = attributes.allocator;
    if let Some(id) = user {
        let number = u128::try_from(id).unwrap_or_default();
        if held.is_held(attributes.view, &space, number) {
            verdict.warn(format!(
                "spec.securityContext.{USER}: {id} is the user of another application of the namespace too, so \
                 they are not kept apart on a node"
            ));
        }
        verdict.claim_shared(&space, id.to_string(), owner);
        return Ok(());
    }
    if !is_open(object, USER) {
        // Something that is no id is the schema's to report.
        return Ok(());
    }
    let number = |id: i64| u128::try_from(id).unwrap_or_default();
    let chosen = held.choose(attributes.view, &space, &(number(block.first())..=number(block.last())));
    let Some((id, reserved)) = chosen else {
        let why = format!("all user ids of namespace \"{}\" ({block}) are taken", key.namespace);
        return Err(Denial::Forbidden(why));
    };
    verdict.reserved.push(reserved);
    let id = i64::try_from(id).unwrap_or(block.first());
    set(object, USER, id);
    let why = "others take user ids of the namespace all the time, try again";
    let refusal = Status::conflict(key.kind, &key.name, why);
    let guard = Guard::Unclaimed { space: space.clone(), value: id.to_string(), owner };
    verdict.demand(guard, refusal);
    verdict.claim_shared(&space, id.to_string(), owner);
    Ok(())
}

/// The ids of a workload are of its namespace's block. What is stored was judged when it came.
pub(crate) fn confine_ids(
    attributes: &Attributes<'_>,
    object: &Object,
    verdict: &Verdict,
) -> Result<(), Denial> {
    let Some(block) = verdict.block.filter(|_| attributes.key.kind == Kind::Application) else {
        return Ok(());
    };
    for member in [USER, GROUP] {
        let id = id_of(object, member);
        let stored = attributes.old.and_then(|old| id_of(old, member));
        if let Some(id) = id.filter(|id| Some(*id) != stored && !block.contains(*id)) {
            return Err(Denial::Forbidden(format!(
                "spec.securityContext.{member} {id} is outside namespace \"{}\", whose ids are {} to {}",
                attributes.key.namespace,
                block.first(),
                block.last()
            )));
        }
    }
    Ok(())
}

/// Whether nobody has said anything about the id.
fn is_open(object: &Object, member: &str) -> bool {
    match object.at(&["spec", "securityContext"]) {
        None => true,
        Some(Value::Object(context)) => !context.contains_key(member),
        Some(_) => false,
    }
}

fn set(object: &mut Object, member: &str, id: i64) {
    let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let context = spec.entry("securityContext").or_insert_with(|| Value::Object(Map::new()));
    if let Some(context) = context.as_object_mut() {
        context.insert(member.to_owned(), id.into());
    }
}

/// The first Application of `default` gives it its block, in one item with itself.
fn give_default_block(
    attributes: &Attributes<'_>,
    entry: &Arc<Entry>,
    verdict: &mut Verdict,
) -> Result<IdBlock, Denial> {
    let stored = stored_object(entry).map_err(Denial::Status)?;
    let mut namespace = stored.clone();
    let key = &entry.key;
    let block = give_block(attributes.allocator, attributes.view, key, &mut namespace, verdict)?;
    let spec = spec_of(key.kind).map_err(Denial::Status)?;
    let author = tracking::Author::Component {
        name: API_MANAGER,
        managed: Managed::from_stored(entry.managed.as_deref()),
    };
    let managed = tracking::managers(spec, Some((entry, &stored)), &namespace, author);
    let draft = draft(spec, key, &namespace, columns(spec, &namespace), managed).map_err(Denial::Status)?;
    // Before the claim, which belongs to it.
    verdict.ops.insert(0, Op::Update { draft, expect: entry.revision, class: Class::Core });
    Ok(block)
}

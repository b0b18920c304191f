//! Admission: what must be true of a write beyond its own shape, and what the server adds to it.
//!
//! A write runs through every plugin that the [`table`] lets run for its caller, its door and its
//! operation: first all changes ([`Plugin::mutate`]), in the order of the table, then all judgements
//! ([`Plugin::validate`]), in the same order; the first denial is the answer. Deletions are judged only.
//!
//! What admission guarantees: a rule about *other* objects is never "checked and hoped for". A plugin looks
//! at a view that may be behind, so its verdict is only a forecast; beside it, the plugin returns what the
//! forecast rests on as a [`Demand`], a guard that the store checks in the very moment of the commit. When
//! a guard fails, the whole write is judged again on a fresher view, and the rule then answers in its own
//! words. What it does not guarantee: that a denial was still right when the client reads it.
//!
//! Refused: plugins that talk to anything but the view (they would block the write path and could not be
//! run again at will), and exemptions inside plugins (who is exempt stands in the table, where a test walks
//! through every combination).

pub(crate) mod allocation;
mod capacity;
mod claims;
mod finalizers;
mod floor;
mod grounds;
mod network;
mod nodes;
mod ownership;
mod protection;
mod references;
mod requests;
mod rights;
mod secrets;
mod services;
mod sets;
pub(crate) mod table;
mod volumes;

use horchestra_core::gates::Gates;
use horchestra_core::kind::{Key, Kind};
use horchestra_core::metadata;
use horchestra_core::object::Object;
use horchestra_core::ranges::IdBlock;
use horchestra_core::status::Status;
use horchestra_store::{Columns, Guard, Op, Snapshot};
use serde_json::Value;
use uuid::Uuid;

pub(crate) use claims::{Claimed, claims_of};
pub(crate) use finalizers::{CHILD_TEARDOWN, NODE_TEARDOWN, refuse_deletion_mark, set_hold as set_finalizer};
pub(crate) use nodes::{
    ADMITTED, SELF_REGISTERED, SELF_REGISTERED_MESSAGE, ensure_status as ensure_node_status, set_admitted,
};
pub(crate) use ownership::release_child;
pub(crate) use table::{CallerClass, Door, Operation, Plugin};

use crate::caller::Caller;
use crate::placement;
use allocation::{Allocator, Reserved};

/// A write as plugins see it.
pub(crate) struct Attributes<'a> {
    pub caller: &'a Caller,
    pub class: CallerClass,
    pub door: Door,
    pub operation: Operation,
    pub key: &'a Key,
    /// The stored object; of a deletion also the object that is judged.
    pub old: Option<&'a Object>,
    pub old_columns: Option<&'a Columns>,
    pub view: &'a Snapshot,
    pub gates: Gates,
    pub allocator: &'a Allocator,
}

impl Attributes<'_> {
    pub(crate) fn is_deleting(&self) -> bool {
        self.old.is_some_and(Object::is_deleting)
    }
}

/// Why a write is not admitted.
#[derive(Debug)]
pub(crate) enum Denial {
    /// 403 with this reason.
    Forbidden(String),
    /// 422 with this reason.
    Invalid(String),
    /// An answer of another shape.
    Status(Status),
}

impl Denial {
    pub(crate) fn into_status(self, key: &Key) -> Status {
        match self {
            Denial::Forbidden(why) => Status::forbidden(key.kind, &key.name, why),
            Denial::Invalid(why) => Status::refused(key.kind, &key.name, why),
            Denial::Status(status) => status,
        }
    }
}

/// A guard and the answer that its rule gives should it fail time and again.
#[derive(Debug)]
pub(crate) struct Demand {
    pub guard: Guard,
    pub refusal: Status,
}

/// A value that the write takes for its object, and the answer when another object has it.
#[derive(Debug)]
pub(crate) struct Claim {
    pub space: String,
    pub value: String,
    pub refusal: Status,
    /// Whether the server chose the value: then another one will do.
    pub chosen: bool,
}

/// What plugins have to say besides yes.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub demands: Vec<Demand>,
    pub warnings: Vec<String>,
    /// What is claimed and given back with the write, in this order.
    pub ops: Vec<Op>,
    /// What to say of those claims that fail.
    pub claims: Vec<Claim>,
    /// Values that were chosen; they are set aside for as long as this is kept.
    pub reserved: Vec<Reserved>,
    /// The block of ids of the namespace, where the ids of a workload are confined to one.
    pub block: Option<IdBlock>,
}

impl Verdict {
    fn demand(&mut self, guard: Guard, refusal: Status) {
        self.demands.push(Demand { guard, refusal });
    }

    /// Takes a value for the object `owner` alone.
    fn claim(&mut self, space: &str, value: String, owner: Uuid, refusal: Status) {
        let chosen = self.reserved.iter().any(|reserved| reserved.is_of(space));
        let (space, shared) = (space.to_owned(), false);
        self.ops.push(Op::Claim { space: space.clone(), value: value.clone(), owner, shared });
        self.claims.push(Claim { space, value, refusal, chosen });
    }

    /// Takes a value for the object `owner`, beside others who take it in this way.
    fn claim_shared(&mut self, space: &str, value: String, owner: Uuid) {
        self.ops.push(Op::Claim { space: space.to_owned(), value, owner, shared: true });
    }

    /// Whether another object than the one that is judged is written along.
    fn writes(&self, key: &Key) -> bool {
        self.ops.iter().any(|op| op.key() == Some(key))
    }

    /// Gives back what `owner` holds of a space.
    fn release(&mut self, space: &str, owner: Uuid) {
        self.ops.push(Op::Release { space: space.to_owned(), owner });
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

/// Runs the changes of every plugin that applies.
pub(crate) fn mutate(
    attributes: &Attributes<'_>,
    object: &mut Object,
    verdict: &mut Verdict,
) -> Result<(), Status> {
    for plugin in Plugin::ALL {
        if plugin.mutates(attributes.class, attributes.door, attributes.operation) {
            plugin
                .mutate(attributes, object, verdict)
                .map_err(|denial| denial.into_status(attributes.key))?;
        }
    }
    metadata::canonicalize(object);
    Ok(())
}

/// Runs the judgement of every plugin that applies. `columns` are those of the object as it would be
/// stored.
pub(crate) fn validate(
    attributes: &Attributes<'_>,
    object: &Object,
    columns: &Columns,
    verdict: &mut Verdict,
) -> Result<(), Status> {
    for plugin in Plugin::ALL {
        if plugin.validates(attributes.class, attributes.door, attributes.operation) {
            plugin
                .validate(attributes, object, columns, verdict)
                .map_err(|denial| denial.into_status(attributes.key))?;
        }
    }
    Ok(())
}

impl Plugin {
    fn mutate(
        self,
        attributes: &Attributes<'_>,
        object: &mut Object,
        verdict: &mut Verdict,
    ) -> Result<(), Denial> {
        match self {
            Plugin::Stamping => {
                object.0.insert("apiVersion".to_owned(), attributes.key.kind.api_version().into());
                object.0.insert("kind".to_owned(), attributes.key.kind.name().into());
            }
            Plugin::RequestPolicy => requests::stamp(attributes, object, verdict),
            Plugin::ChildOwnership => ownership::carry_over(attributes, object, verdict),
            Plugin::ClientFinalizers => finalizers::keep_system(attributes, object, verdict)?,
            Plugin::DoorOwned => door_owned(attributes, object),
            Plugin::FinalizerHolds => finalizers::derive_holds(attributes, object),
            Plugin::PlacementStatus => placement_status(attributes, object),
            Plugin::IdAllocation => {
                allocation::assign_block(attributes, object, verdict)?;
                allocation::choose_ids(attributes, object, verdict)?;
            }
            Plugin::AddressAllocation => allocation::choose_address(attributes, object, verdict)?,
            Plugin::NoRootFloor => floor::fill(attributes, object),
            Plugin::NodeAdmission => nodes::admit(attributes, object),
            Plugin::SecretPolicy
            | Plugin::RequestCount
            | Plugin::NodePolicy
            | Plugin::NodeRestriction
            | Plugin::Oddities
            | Plugin::ObjectRules
            | Plugin::WorkloadNetwork
            | Plugin::SetExpansion
            | Plugin::ServiceNames
            | Plugin::ServiceAddress
            | Plugin::NamespaceExists
            | Plugin::NamespaceProtection
            | Plugin::NodeExists
            | Plugin::VolumeProtection
            | Plugin::VolumeExclusive
            | Plugin::SecretReferences
            | Plugin::SecretProtection
            | Plugin::ServiceReference
            | Plugin::ServiceProtection
            | Plugin::Capacity
            | Plugin::BindableSubjects
            | Plugin::RightsHandedOut
            | Plugin::SecretAccess
            | Plugin::ServiceAccess => {}
        }
        Ok(())
    }

    fn validate(
        self,
        attributes: &Attributes<'_>,
        object: &Object,
        columns: &Columns,
        verdict: &mut Verdict,
    ) -> Result<(), Denial> {
        match self {
            Plugin::Stamping
            | Plugin::ClientFinalizers
            | Plugin::DoorOwned
            | Plugin::FinalizerHolds
            | Plugin::PlacementStatus
            | Plugin::AddressAllocation
            | Plugin::NodeAdmission => Ok(()),
            Plugin::IdAllocation => {
                allocation::check_block(attributes, object, verdict)?;
                allocation::confine_ids(attributes, object, verdict)
            }
            Plugin::Oddities => oddities(attributes, object, verdict),
            Plugin::SecretPolicy => secrets::check(attributes, object),
            Plugin::RequestPolicy => requests::check(attributes, object),
            Plugin::RequestCount => requests::bound(attributes),
            Plugin::ChildOwnership => ownership::check(attributes, object),
            Plugin::NoRootFloor => floor::check(attributes, object),
            Plugin::ObjectRules => object_rules(attributes, object),
            Plugin::WorkloadNetwork => network::check(attributes, object),
            Plugin::SetExpansion => sets::check(attributes, object, verdict),
            Plugin::ServiceNames => services::check_names(attributes, object, verdict),
            Plugin::ServiceAddress => services::check_address(attributes, object, verdict),
            Plugin::NodePolicy => nodes::check_labels(attributes, object),
            Plugin::NodeRestriction => nodes::restrict(attributes, object),
            Plugin::NamespaceExists => references::namespace_exists(attributes, verdict),
            Plugin::NamespaceProtection => references::namespace_empty(attributes, verdict),
            Plugin::NodeExists => references::node_exists(attributes, object, verdict),
            Plugin::VolumeProtection => protection::volume_unused(attributes, verdict),
            Plugin::VolumeExclusive => volumes::exclusive(attributes, object, verdict),
            Plugin::SecretReferences => references::secrets_exist(attributes, object, verdict),
            Plugin::SecretProtection => protection::secret_unused(attributes, verdict),
            Plugin::ServiceReference => references::service_exists(attributes, object, verdict),
            Plugin::ServiceProtection => protection::service_unused(attributes, verdict),
            Plugin::Capacity => capacity::check(attributes, object, columns, verdict),
            Plugin::BindableSubjects => rights::bindable_subjects(attributes, object),
            Plugin::RightsHandedOut => rights::hands_out(attributes, object, verdict),
            Plugin::SecretAccess => rights::reads_secrets(attributes, object),
            Plugin::ServiceAccess => rights::joins_services(attributes, object),
        }
    }
}

/// The rules of one object alone, which the registry keeps.
fn object_rules(attributes: &Attributes<'_>, object: &Object) -> Result<(), Denial> {
    let spec = crate::write::draft::spec_of(attributes.key.kind).map_err(Denial::Status)?;
    horchestra_core::admit::validate(spec, object, attributes.old).map_err(Denial::Status)
}

/// Whether the kind has a `spec.frozen`.
fn can_be_frozen(kind: Kind) -> bool {
    matches!(kind, Kind::Application | Kind::ApplicationSet)
}

/// Takes out what only a door may change, so that nobody comes to own it by naming it.
pub(crate) fn strip_door_owned(kind: Kind, object: &mut Object) {
    if can_be_frozen(kind)
        && let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.remove("frozen");
    }
}

/// `spec.frozen` changes through its doors only; whatever else writes keeps it.
fn door_owned(attributes: &Attributes<'_>, object: &mut Object) {
    if !can_be_frozen(attributes.key.kind) {
        return;
    }
    let stored = attributes.old.and_then(|old| old.at(&["spec", "frozen"])).cloned();
    if let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut) {
        match stored {
            Some(frozen) => spec.insert("frozen".to_owned(), frozen),
            None => spec.remove("frozen"),
        };
    }
}

fn placement_status(attributes: &Attributes<'_>, object: &mut Object) {
    if attributes.key.kind != Kind::Application {
        return;
    }
    if let (true, Some(old)) = (attributes.is_deleting(), attributes.old) {
        // Only the node that runs it can say that it is gone: another one would say so at once.
        placement::keep(old, object);
        return;
    }
    let before = attributes.old.map_or("", placement::node_of);
    let now = placement::node_of(object);
    if before == now {
        return;
    }
    if now.is_empty() {
        placement::mark_unplaced(object);
    } else {
        placement::mark_placed(object, attributes.old.map_or(0, Object::generation) + 1);
    }
}

/// Warns about what is odd in what the write changes, not about what has been there all along.
fn oddities(attributes: &Attributes<'_>, object: &Object, verdict: &mut Verdict) -> Result<(), Denial> {
    let members = ["labels", "annotations", "ownerReferences"];
    let same = |old: &Object| {
        members.iter().all(|member| old.at(&["metadata", member]) == object.at(&["metadata", member]))
    };
    if !attributes.old.is_some_and(same) {
        verdict.warnings.extend(metadata::warnings(object));
    }
    let spec = crate::write::draft::spec_of(attributes.key.kind).map_err(Denial::Status)?;
    let known = attributes.old.map(spec.oddities).unwrap_or_default();
    verdict.warnings.extend((spec.oddities)(object).into_iter().filter(|odd| !known.contains(odd)));
    Ok(())
}

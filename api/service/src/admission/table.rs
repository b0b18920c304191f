//! Which plugin runs when: one table over who calls, through which door, and for which operation.

use horchestra_auth::identity::{MASTERS, NODES};
use horchestra_core::kind::Kind;

use crate::caller::Caller;

/// The callers that the table tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CallerClass {
    /// A client of the HTTP API that is none of the following.
    Client,
    /// A client in the group of administrators.
    Administrator,
    /// A client whose certificate is a node's (also when it is an administrator's as well).
    NodeIdentity,
    /// A control loop.
    Loop,
    /// A gateway, on its own behalf or on a node's.
    Gateway,
}

impl CallerClass {
    #[cfg(test)]
    pub(crate) const ALL: [CallerClass; 5] = [
        CallerClass::Client,
        CallerClass::Administrator,
        CallerClass::NodeIdentity,
        CallerClass::Loop,
        CallerClass::Gateway,
    ];

    pub(crate) fn of(caller: &Caller) -> CallerClass {
        match caller {
            Caller::Http(client) if client.identity.in_group(NODES) => CallerClass::NodeIdentity,
            Caller::Http(client) if client.identity.in_group(MASTERS) => CallerClass::Administrator,
            Caller::Http(_) => CallerClass::Client,
            // A recorder writes through its own door only; should it ever come here, it is held to what loops are.
            Caller::Loop { .. } | Caller::Recorder { .. } => CallerClass::Loop,
            Caller::Gateway { .. } | Caller::Node { .. } => CallerClass::Gateway,
        }
    }

    /// Comes over HTTP with an identity of its own.
    pub(crate) fn identified(self) -> bool {
        matches!(self, CallerClass::Client | CallerClass::Administrator | CallerClass::NodeIdentity)
    }

    /// Holds only what was granted.
    fn has_granted_rights(self) -> bool {
        matches!(self, CallerClass::Client | CallerClass::NodeIdentity)
    }
}

/// The way by which a write comes in. The narrow doors of loops and gateways (bind, reports, registration)
/// check what they change themselves and do not pass through plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Door {
    /// The object without its status.
    Main,
    /// The status alone.
    Status,
}

/// What a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Create,
    Update,
    Delete,
}

/// The plugins, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Plugin {
    /// apiVersion and kind are those of the route.
    Stamping,
    /// An immutable Secret stays, and gates decide what one may ask its store for.
    SecretPolicy,
    /// Who made a certificate request is the server's word; what it asks for stays.
    RequestPolicy,
    /// Nobody heaps up certificate requests.
    RequestCount,
    /// What belongs to a set, and that it does, is the set controller's.
    ChildOwnership,
    /// Finalizers of the system, and the deletion mark, are not a client's to touch.
    ClientFinalizers,
    /// What only a door may change is as stored.
    DoorOwned,
    /// Placed Applications are held until their node has let go; sets until their children are gone.
    FinalizerHolds,
    /// A new placement makes what an earlier one reported void; that of a deleting Application stays.
    PlacementStatus,
    /// A namespace has a block of user ids, and its workloads run under ids of that block.
    IdAllocation,
    /// A Service gets its address from the range of the cluster.
    AddressAllocation,
    /// Nothing runs as root; nothing smuggles lines into a unit file.
    NoRootFloor,
    /// Nodes that operators make or uncordon are admitted.
    NodeAdmission,
    /// What is odd, but was always stored, is stored with a warning.
    Oddities,
    /// What the kind demands of one object alone, beyond its schema.
    ObjectRules,
    /// A workload has a network of its own only where there is one.
    WorkloadNetwork,
    /// A set can be expanded, and nothing that it makes runs as root.
    SetExpansion,
    /// No name of a Service in the catalog is a node's.
    ServiceNames,
    /// The address of a Service is one, and nobody else's.
    ServiceAddress,
    /// Labels under the system's prefix are derived, never written.
    NodePolicy,
    /// A node's certificate is good for its own Node and little of that.
    NodeRestriction,
    /// Nothing is put into a namespace that does not exist.
    NamespaceExists,
    /// A namespace that holds something stays.
    NamespaceProtection,
    /// A placement names a node that exists.
    NodeExists,
    /// A PersistentVolume that is mounted stays.
    VolumeProtection,
    /// A PersistentVolume has one user, unless it is shared.
    VolumeExclusive,
    /// Required Secrets exist.
    SecretReferences,
    /// A Secret that is referred to stays.
    SecretProtection,
    /// The Service that is joined exists.
    ServiceReference,
    /// A Service that has members stays.
    ServiceProtection,
    /// A placement fits its node.
    Capacity,
    /// The group of the control plane's own processes is granted nothing.
    BindableSubjects,
    /// Nobody grants what they do not hold.
    RightsHandedOut,
    /// Nobody has a workload read a Secret that they may not read.
    SecretAccess,
    /// Nobody has a workload join a Service that they may not read.
    ServiceAccess,
}

impl Plugin {
    pub(crate) const ALL: [Plugin; 35] = [
        Plugin::Stamping,
        Plugin::SecretPolicy,
        Plugin::RequestPolicy,
        Plugin::RequestCount,
        Plugin::ChildOwnership,
        Plugin::ClientFinalizers,
        Plugin::DoorOwned,
        Plugin::FinalizerHolds,
        Plugin::PlacementStatus,
        Plugin::IdAllocation,
        Plugin::AddressAllocation,
        Plugin::NoRootFloor,
        Plugin::NodeAdmission,
        Plugin::Oddities,
        Plugin::ObjectRules,
        Plugin::WorkloadNetwork,
        Plugin::SetExpansion,
        Plugin::ServiceNames,
        Plugin::ServiceAddress,
        Plugin::NodePolicy,
        Plugin::NodeRestriction,
        Plugin::NamespaceExists,
        Plugin::NamespaceProtection,
        Plugin::NodeExists,
        Plugin::VolumeProtection,
        Plugin::VolumeExclusive,
        Plugin::SecretReferences,
        Plugin::SecretProtection,
        Plugin::ServiceReference,
        Plugin::ServiceProtection,
        Plugin::Capacity,
        Plugin::BindableSubjects,
        Plugin::RightsHandedOut,
        Plugin::SecretAccess,
        Plugin::ServiceAccess,
    ];

    /// Whether its changes are applied.
    pub(crate) fn mutates(self, caller: CallerClass, door: Door, operation: Operation) -> bool {
        if operation == Operation::Delete {
            return false;
        }
        match self {
            Plugin::Stamping => true,
            Plugin::RequestPolicy
            | Plugin::DoorOwned
            | Plugin::IdAllocation
            | Plugin::AddressAllocation
            | Plugin::NoRootFloor
            | Plugin::FinalizerHolds
            | Plugin::PlacementStatus => door == Door::Main,
            Plugin::ChildOwnership | Plugin::ClientFinalizers | Plugin::NodeAdmission => {
                door == Door::Main && caller.identified()
            }
            _ => false,
        }
    }

    /// Whether its judgement counts.
    pub(crate) fn validates(self, caller: CallerClass, door: Door, operation: Operation) -> bool {
        let written = door == Door::Main && operation != Operation::Delete;
        match self {
            Plugin::Stamping
            | Plugin::ClientFinalizers
            | Plugin::DoorOwned
            | Plugin::FinalizerHolds
            | Plugin::PlacementStatus
            | Plugin::AddressAllocation
            | Plugin::NodeAdmission => false,
            Plugin::ChildOwnership | Plugin::Oddities | Plugin::BindableSubjects => {
                written && caller.identified()
            }
            Plugin::RightsHandedOut | Plugin::SecretAccess | Plugin::ServiceAccess => {
                written && caller.has_granted_rights()
            }
            Plugin::RequestCount => written && operation == Operation::Create && caller.has_granted_rights(),
            Plugin::NoRootFloor => operation != Operation::Delete,
            Plugin::SecretPolicy
            | Plugin::RequestPolicy
            | Plugin::IdAllocation
            | Plugin::ObjectRules
            | Plugin::WorkloadNetwork
            | Plugin::SetExpansion
            | Plugin::ServiceNames
            | Plugin::ServiceAddress
            | Plugin::NodePolicy
            | Plugin::NodeExists
            | Plugin::VolumeExclusive
            | Plugin::SecretReferences
            | Plugin::ServiceReference
            | Plugin::Capacity => written,
            Plugin::NamespaceExists => door == Door::Main && operation == Operation::Create,
            Plugin::NamespaceProtection
            | Plugin::VolumeProtection
            | Plugin::SecretProtection
            | Plugin::ServiceProtection => operation == Operation::Delete,
            Plugin::NodeRestriction => caller == CallerClass::NodeIdentity,
        }
    }
}

/// Namespaced kinds whose objects keep their namespace from being deleted.
pub(crate) fn holds_namespace(kind: Kind) -> bool {
    kind.namespaced() && kind != Kind::Event
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every plugin × caller × door × operation, written out: a plugin that starts (or stops) running
    /// somewhere has to be put here by hand.
    #[test]
    fn every_combination_is_as_written_down() {
        use CallerClass::*;
        // Letters: c/u/d = create, update, delete through the main door, s = status written.
        // First what a plugin changes, then what it judges.
        let all = [Client, Administrator, NodeIdentity, Loop, Gateway];
        let people = [Client, Administrator, NodeIdentity];
        let granted = [Client, NodeIdentity];
        let expected: &[(Plugin, &[CallerClass], &str, &str)] = &[
            (Plugin::Stamping, &all, "cus", ""),
            (Plugin::SecretPolicy, &all, "", "cu"),
            (Plugin::RequestPolicy, &all, "cu", "cu"),
            (Plugin::RequestCount, &granted, "", "c"),
            (Plugin::ChildOwnership, &people, "cu", "cu"),
            (Plugin::ClientFinalizers, &people, "cu", ""),
            (Plugin::DoorOwned, &all, "cu", ""),
            (Plugin::FinalizerHolds, &all, "cu", ""),
            (Plugin::PlacementStatus, &all, "cu", ""),
            (Plugin::IdAllocation, &all, "cu", "cu"),
            (Plugin::AddressAllocation, &all, "cu", ""),
            (Plugin::NoRootFloor, &all, "cu", "cus"),
            (Plugin::NodeAdmission, &people, "cu", ""),
            (Plugin::Oddities, &people, "", "cu"),
            (Plugin::ObjectRules, &all, "", "cu"),
            (Plugin::WorkloadNetwork, &all, "", "cu"),
            (Plugin::SetExpansion, &all, "", "cu"),
            (Plugin::ServiceNames, &all, "", "cu"),
            (Plugin::ServiceAddress, &all, "", "cu"),
            (Plugin::NodePolicy, &all, "", "cu"),
            (Plugin::NodeRestriction, &[NodeIdentity], "", "cuds"),
            (Plugin::NamespaceExists, &all, "", "c"),
            (Plugin::NamespaceProtection, &all, "", "d"),
            (Plugin::NodeExists, &all, "", "cu"),
            (Plugin::VolumeProtection, &all, "", "d"),
            (Plugin::VolumeExclusive, &all, "", "cu"),
            (Plugin::SecretReferences, &all, "", "cu"),
            (Plugin::SecretProtection, &all, "", "d"),
            (Plugin::ServiceReference, &all, "", "cu"),
            (Plugin::ServiceProtection, &all, "", "d"),
            (Plugin::Capacity, &all, "", "cu"),
            (Plugin::BindableSubjects, &people, "", "cu"),
            (Plugin::RightsHandedOut, &granted, "", "cu"),
            (Plugin::SecretAccess, &granted, "", "cu"),
            (Plugin::ServiceAccess, &granted, "", "cu"),
        ];
        assert_eq!(expected.len(), Plugin::ALL.len(), "every plugin is written down");
        let ways = [
            ('c', Door::Main, Operation::Create),
            ('u', Door::Main, Operation::Update),
            ('d', Door::Main, Operation::Delete),
            ('s', Door::Status, Operation::Update),
        ];
        for (at, (plugin, callers, changes, judges)) in expected.iter().enumerate() {
            assert_eq!(*plugin, Plugin::ALL[at], "the order is the order of the table");
            for caller in CallerClass::ALL {
                for (letter, door, operation) in ways {
                    let runs = callers.contains(&caller);
                    assert_eq!(
                        plugin.mutates(caller, door, operation),
                        runs && changes.contains(letter),
                        "{plugin:?} changes for {caller:?} at {letter}"
                    );
                    assert_eq!(
                        plugin.validates(caller, door, operation),
                        runs && judges.contains(letter),
                        "{plugin:?} judges for {caller:?} at {letter}"
                    );
                }
            }
        }
    }
}

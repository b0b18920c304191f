//! Roles and bindings: who may do what.
//!
//! Two roles and two bindings, which differ in where they count. A Role grants in its own namespace, through
//! a RoleBinding beside it. A ClusterRole grants wherever it is bound: everywhere through a
//! ClusterRoleBinding, in one namespace through a RoleBinding. Rules only add up; nothing takes a permission
//! away. There are no roles from the start: a member of the group `system:masters` needs none and makes the
//! first.

mod cluster_role;
mod cluster_role_binding;
mod role;
mod role_binding;
mod rule;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use cluster_role::ClusterRole;
pub use cluster_role_binding::ClusterRoleBinding;
pub use role::Role;
pub use role_binding::RoleBinding;
pub use rule::{PolicyRule, Scope, rule_violations};

pub(crate) use cluster_role::SPEC as CLUSTER_ROLE;
pub(crate) use cluster_role_binding::SPEC as CLUSTER_ROLE_BINDING;
pub(crate) use role::SPEC as ROLE;
pub(crate) use role_binding::SPEC as ROLE_BINDING;

use crate::registry::Reference;

/// What a role grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleSpec {
    /// Rules, each of which grants something. May be empty.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub rules: Vec<PolicyRule>,
}

/// Who is granted which role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BindingSpec {
    /// Whom the role is granted to. May be empty.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub subjects: Vec<Subject>,
    /// The role that is granted. It need not exist: the binding grants nothing until it does. Can be
    /// changed.
    pub role_ref: RoleRef,
}

/// A user or a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    /// `User` or `Group`. Anything else is kept and grants nothing.
    pub kind: String,
    /// Name of the user (common name of the certificate, or `system:workload:<namespace>:<application>`) or
    /// of the group (organization of the certificate).
    pub name: String,
}

/// The role that a binding grants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleRef {
    /// `ClusterRole`, or in a RoleBinding also `Role` for one of its own namespace. Anything else is kept and
    /// grants nothing.
    pub kind: String,
    /// Name of the role.
    pub name: String,
}

impl BindingSpec {
    /// The role as a reference; `None` when it is of no kind that the binding can grant.
    fn reference(&self, namespaced: bool) -> Option<Reference> {
        let RoleRef { kind, name } = &self.role_ref;
        match kind.as_str() {
            _ if name.is_empty() => None,
            "Role" if namespaced => Some(Reference::Role(name.clone())),
            "ClusterRole" => Some(Reference::ClusterRole(name.clone())),
            _ => None,
        }
    }
}

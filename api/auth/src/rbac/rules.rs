//! What the words of a rule mean.

use std::sync::Arc;

use horchestra_core::kinds::rbac::{ClusterRole, PolicyRule, Role};

/// Most combinations of group, resource and name that a rule may spell out.
pub const COMBINATIONS_LIMIT: usize = 10_000;

/// Stands for everything, as a whole value.
pub(crate) const ALL: &str = "*";

/// The rules of a role.
#[derive(Clone, Debug)]
pub(crate) enum Rules {
    Role(Arc<Role>),
    ClusterRole(Arc<ClusterRole>),
}

impl Rules {
    pub(crate) fn as_slice(&self) -> &[PolicyRule] {
        match self {
            Rules::Role(role) => &role.spec.rules,
            Rules::ClusterRole(role) => &role.spec.rules,
        }
    }
}

/// Whether the rule is about this verb; `update` includes `patch`.
pub fn grants_verb(rule: &PolicyRule, verb: &str) -> bool {
    rule.verbs
        .iter()
        .any(|granted| granted == ALL || granted == verb || (granted == "update" && verb == "patch"))
}

/// Whether the rule is too large to count.
pub(super) fn oversized(rule: &PolicyRule) -> bool {
    let names = rule.resource_names.len().max(1);
    rule.api_groups.len().saturating_mul(rule.resources.len()).saturating_mul(names) > COMBINATIONS_LIMIT
}

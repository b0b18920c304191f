//! Who is granted which roles, and where.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use horchestra_core::kinds::rbac::{
    BindingSpec, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, Subject,
};

use super::rules::{Rules, oversized};
use crate::identity::{CONTROLLERS, Identity};

/// What one user or group is granted.
#[derive(Debug, Default)]
pub(super) struct Granted {
    pub everywhere: Vec<Rules>,
    /// By namespace. One in which a binding names the subject is there even if the role is not.
    pub within: BTreeMap<Arc<str>, Vec<Rules>>,
}

/// All grants at one moment. Users and groups are kept apart, so that a name never passes for the other.
#[derive(Debug, Default)]
pub struct Policy {
    users: HashMap<String, Granted>,
    groups: HashMap<String, Granted>,
}

impl Policy {
    /// The grants that name the caller or one of the caller's groups.
    pub(super) fn of<'a>(&'a self, identity: &'a Identity) -> impl Iterator<Item = &'a Granted> {
        let groups = identity.groups.iter().filter_map(|group| self.groups.get(group));
        self.users.get(&identity.name).into_iter().chain(groups)
    }

    fn granted(&mut self, subject: &Subject) -> Option<&mut Granted> {
        let subjects = match subject.kind.as_str() {
            "User" => &mut self.users,
            // What the control plane's own processes may do is not for rules to say.
            "Group" if subject.name != CONTROLLERS => &mut self.groups,
            _ => return None,
        };
        Some(subjects.entry(subject.name.clone()).or_default())
    }
}

/// Whether one of these subjects is the caller or one of the caller's groups.
pub fn is_named(subjects: &[Subject], identity: &Identity) -> bool {
    subjects.iter().any(|subject| match subject.kind.as_str() {
        "User" => subject.name == identity.name,
        "Group" => subject.name != CONTROLLERS && identity.in_group(&subject.name),
        _ => false,
    })
}

/// Collects rule objects, in any order, and makes a [`Policy`] of them.
#[derive(Debug, Default)]
pub struct PolicyBuilder {
    namespaces: HashSet<String>,
    roles: HashMap<(String, String), Arc<Role>>,
    cluster_roles: HashMap<String, Arc<ClusterRole>>,
    bindings: Vec<(String, Arc<RoleBinding>)>,
    cluster_bindings: Vec<Arc<ClusterRoleBinding>>,
}

impl PolicyBuilder {
    pub fn namespace(&mut self, name: &str) {
        self.namespaces.insert(name.to_owned());
    }

    pub fn role(&mut self, namespace: &str, name: &str, role: Arc<Role>) {
        report(&role.spec.rules, namespace, name);
        self.roles.insert((namespace.to_owned(), name.to_owned()), role);
    }

    pub fn cluster_role(&mut self, name: &str, role: Arc<ClusterRole>) {
        report(&role.spec.rules, "", name);
        self.cluster_roles.insert(name.to_owned(), role);
    }

    pub fn role_binding(&mut self, namespace: &str, binding: Arc<RoleBinding>) {
        self.bindings.push((namespace.to_owned(), binding));
    }

    pub fn cluster_role_binding(&mut self, binding: Arc<ClusterRoleBinding>) {
        self.cluster_bindings.push(binding);
    }

    pub fn build(self) -> Policy {
        let mut policy = Policy::default();
        for binding in &self.cluster_bindings {
            let BindingSpec { subjects, role_ref } = &binding.spec;
            let Some(rules) = self.cluster_role_of(&role_ref.kind, &role_ref.name) else { continue };
            for subject in subjects {
                if let Some(granted) = policy.granted(subject) {
                    granted.everywhere.push(rules.clone());
                }
            }
        }
        for (namespace, binding) in &self.bindings {
            if !self.namespaces.contains(namespace) {
                continue;
            }
            let BindingSpec { subjects, role_ref } = &binding.spec;
            let rules = match role_ref.kind.as_str() {
                "Role" => {
                    self.roles.get(&(namespace.clone(), role_ref.name.clone())).cloned().map(Rules::Role)
                }
                kind => self.cluster_role_of(kind, &role_ref.name),
            };
            let namespace: Arc<str> = Arc::from(namespace.as_str());
            for subject in subjects {
                if let Some(granted) = policy.granted(subject) {
                    granted.within.entry(Arc::clone(&namespace)).or_default().extend(rules.clone());
                }
            }
        }
        policy
    }

    fn cluster_role_of(&self, kind: &str, name: &str) -> Option<Rules> {
        if kind != "ClusterRole" {
            return None;
        }
        self.cluster_roles.get(name).cloned().map(Rules::ClusterRole)
    }
}

fn report(rules: &[PolicyRule], namespace: &str, name: &str) {
    if rules.iter().any(oversized) {
        tracing::error!(namespace, role = name, "a rule of this role is too large: it grants nothing");
    }
}

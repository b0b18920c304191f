//! Rule objects in a test, and the evaluator that says what they mean: no index, no engine, no cache.

use std::sync::Arc;

use horchestra_auth::rbac::{Policy, PolicyBuilder};
use horchestra_auth::{Attributes, Identity};
use horchestra_core::kinds::rbac::{
    BindingSpec, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, RoleSpec, Subject,
};

/// Rule objects. Texts beside a role or binding are its namespace (of Roles and RoleBindings) and name.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub namespaces: Vec<String>,
    pub roles: Vec<(String, String, Vec<PolicyRule>)>,
    pub cluster_roles: Vec<(String, Vec<PolicyRule>)>,
    pub bindings: Vec<(String, BindingSpec)>,
    pub cluster_bindings: Vec<BindingSpec>,
}

impl World {
    pub fn policy(&self) -> Policy {
        let mut policy = PolicyBuilder::default();
        for (namespace, spec) in self.bindings.iter().cloned() {
            policy.role_binding(&namespace, Arc::new(RoleBinding { spec, ..RoleBinding::default() }));
        }
        for spec in self.cluster_bindings.iter().cloned() {
            policy
                .cluster_role_binding(Arc::new(ClusterRoleBinding { spec, ..ClusterRoleBinding::default() }));
        }
        for (namespace, name, rules) in self.roles.iter().cloned() {
            policy.role(&namespace, &name, Arc::new(Role { spec: RoleSpec { rules }, ..Role::default() }));
        }
        for (name, rules) in self.cluster_roles.iter().cloned() {
            policy.cluster_role(
                &name,
                Arc::new(ClusterRole { spec: RoleSpec { rules }, ..ClusterRole::default() }),
            );
        }
        for namespace in &self.namespaces {
            policy.namespace(namespace);
        }
        policy.build()
    }

    /// Whether a rule grants what is asked, to the letter of the rules.
    pub fn grants(&self, who: &Identity, asked: &Attributes<'_>) -> bool {
        let cluster_role = |role: &RoleRef| {
            let named = self.cluster_roles.iter().rev().find(|(name, _)| *name == role.name);
            named.filter(|_| role.kind == "ClusterRole").map(|(_, rules)| rules)
        };
        for binding in self.cluster_bindings.iter().filter(|binding| names(binding, who)) {
            if cluster_role(&binding.role_ref)
                .is_some_and(|rules| rules.iter().any(|rule| covers(rule, asked)))
            {
                return true;
            }
        }
        let Attributes::Resource(resource) = asked else { return false };
        for (namespace, binding) in &self.bindings {
            if namespace != resource.namespace || !self.namespaces.contains(namespace) || !names(binding, who)
            {
                continue;
            }
            let role = &binding.role_ref;
            let rules = if role.kind == "Role" {
                let named =
                    self.roles.iter().rev().find(|(ns, name, _)| ns == namespace && *name == role.name);
                named.map(|(_, _, rules)| rules)
            } else {
                cluster_role(role)
            };
            if rules.is_some_and(|rules| rules.iter().any(|rule| covers(rule, asked))) {
                return true;
            }
        }
        false
    }
}

fn names(binding: &BindingSpec, who: &Identity) -> bool {
    binding.subjects.iter().any(|Subject { kind, name }| match kind.as_str() {
        "User" => *name == who.name,
        "Group" => name != "system:controllers" && who.groups.contains(name),
        _ => false,
    })
}

fn covers(rule: &PolicyRule, asked: &Attributes<'_>) -> bool {
    let has = |list: &[String], wanted: &str| list.iter().any(|one| one == "*" || one == wanted);
    match asked {
        Attributes::Path { verb, path } => {
            let matches = |url: &String| match url.strip_suffix('*') {
                Some(beginning) => path.starts_with(beginning),
                None => url == path,
            };
            has(&rule.verbs, verb) && rule.non_resource_urls.iter().any(matches)
        }
        Attributes::Resource(asked) => {
            let target = match asked.subresource {
                "" => asked.resource.to_owned(),
                subresource => format!("{}/{subresource}", asked.resource),
            };
            let verb = has(&rule.verbs, asked.verb) || (asked.verb == "patch" && has(&rule.verbs, "update"));
            let named = rule.resource_names.is_empty()
                || (!asked.name.is_empty() && rule.resource_names.iter().any(|name| name == asked.name));
            verb && has(&rule.api_groups, asked.group) && has(&rule.resources, &target) && named
        }
    }
}

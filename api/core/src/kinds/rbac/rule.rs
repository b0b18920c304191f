//! The rules of roles, and what is wrong with one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::null_as_default;
use super::RoleSpec;
use crate::object::Object;
use crate::status::Cause;

/// What one rule grants: verbs on resources, or verbs on paths that are no resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRule {
    /// What may be done, at least one. With resources: `get`, `list`, `watch`, `create`, `update`, `patch`,
    /// `delete`, `deletecollection`, and for roles also `escalate` and `bind`; `update` includes `patch`. With
    /// paths: the method of the request in lower case. `*` stands for all.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub verbs: Vec<String>,
    /// Groups of the resources, such as `horchestra.io`. `*` stands for all. Needs `resources`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub api_groups: Vec<String>,
    /// Resources by their plural, such as `applications`, or with a subresource, such as
    /// `applications/status`. A plural does not include its subresources; `*` stands for everything. Needs
    /// `apiGroups`.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resources: Vec<String>,
    /// Names of the only objects that the rule is about. Empty: all of them. A request that names no object
    /// (a create, or a list of everything) is then not granted.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_names: Vec<String>,
    /// Paths that are no resources, such as `/metrics`, in rules of a ClusterRole only. Each begins with `/`;
    /// a `*` at the end stands for any rest, a lone `*` for every path.
    #[serde(
        rename = "nonResourceURLs",
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub non_resource_urls: Vec<String>,
}

/// Where the rules of a role count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In one namespace, where paths that are no resources do not belong.
    Namespace,
    Cluster,
}

/// Every violation of the rules of a stored role.
pub(super) fn role_violations(object: &Object, scope: Scope) -> Vec<Cause> {
    let spec = object.get("spec").cloned().unwrap_or_default();
    match serde_json::from_value::<RoleSpec>(spec) {
        Ok(spec) => rule_violations(&spec.rules, scope),
        // The schema lets nothing through that does not read.
        Err(error) => vec![Cause::invalid("spec", "null", error)],
    }
}

/// Every violation of rules, found at `spec.rules`.
pub fn rule_violations(rules: &[PolicyRule], scope: Scope) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        rule.violations(&format!("spec.rules[{index}]"), scope, &mut causes);
    }
    causes
}

impl PolicyRule {
    fn violations(&self, at: &str, scope: Scope, causes: &mut Vec<Cause>) {
        let named = !self.resource_names.is_empty();
        let about_resources = !self.api_groups.is_empty() || !self.resources.is_empty() || named;
        let about_paths = !self.non_resource_urls.is_empty();
        let required = |field: String, why: &str| {
            Cause::new("FieldValueRequired", field, format!("Required value: {why}"))
        };
        match (about_resources, about_paths) {
            (true, true) => causes.push(Cause::new(
                "FieldValueForbidden",
                at,
                "Forbidden: a rule is about resources or about nonResourceURLs, not both",
            )),
            (false, false) => {
                causes.push(required(at.to_owned(), "either apiGroups and resources, or nonResourceURLs"));
            }
            (true, false) => {
                if self.api_groups.is_empty() {
                    causes.push(required(format!("{at}.apiGroups"), "resources are those of some group"));
                }
                if self.resources.is_empty() {
                    causes.push(required(format!("{at}.resources"), "a group alone grants nothing"));
                }
            }
            (false, true) => {}
        }
        if self.verbs.is_empty() {
            causes.push(required(format!("{at}.verbs"), "a rule without verbs grants nothing"));
        }
        if about_paths && scope == Scope::Namespace {
            causes.push(Cause::new(
                "FieldValueForbidden",
                format!("{at}.nonResourceURLs"),
                "Forbidden: paths lie in no namespace; use a ClusterRole",
            ));
        }
        for (place, url) in self.non_resource_urls.iter().enumerate() {
            if url != "*" && !url.starts_with('/') {
                let field = format!("{at}.nonResourceURLs[{place}]");
                causes.push(Cause::invalid(field, &format!("{url:?}"), "must begin with / or be *"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn fields(rule: Value, scope: Scope) -> Vec<String> {
        let mut rule = rule;
        if rule.get("verbs").is_none() {
            rule["verbs"] = json!(["get"]);
        }
        let rule: PolicyRule = serde_json::from_value(rule).unwrap();
        rule_violations(&[rule], scope).into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn rules_of_roles() {
        use Scope::{Cluster, Namespace};
        let resources = json!({"apiGroups": ["horchestra.io"], "resources": ["nodes"]});
        let cases: &[(&str, Value, Scope, &[&str])] = &[
            ("resources", resources.clone(), Namespace, &[]),
            ("resources in a cluster role", resources, Cluster, &[]),
            (
                "named resources",
                json!({"apiGroups": ["*"], "resources": ["*"], "resourceNames": ["a"]}),
                Namespace,
                &[],
            ),
            ("a path", json!({"nonResourceURLs": ["/metrics", "/a/*"]}), Cluster, &[]),
            ("every path", json!({"nonResourceURLs": ["*"]}), Cluster, &[]),
            (
                "both halves",
                json!({"apiGroups": ["a"], "resources": ["b"], "nonResourceURLs": ["/c"]}),
                Cluster,
                &["spec.rules[0]"],
            ),
            ("neither half", json!({}), Cluster, &["spec.rules[0]"]),
            ("no groups", json!({"resources": ["b"]}), Cluster, &["spec.rules[0].apiGroups"]),
            ("no resources", json!({"apiGroups": ["b"]}), Cluster, &["spec.rules[0].resources"]),
            (
                "names of nothing",
                json!({"resourceNames": ["a"]}),
                Namespace,
                &["spec.rules[0].apiGroups", "spec.rules[0].resources"],
            ),
            (
                "names of paths",
                json!({"resourceNames": ["a"], "nonResourceURLs": ["/c"]}),
                Cluster,
                &["spec.rules[0]"],
            ),
            (
                "no verbs",
                json!({"verbs": [], "apiGroups": ["a"], "resources": ["b"]}),
                Namespace,
                &["spec.rules[0].verbs"],
            ),
            (
                "a path in a namespace",
                json!({"nonResourceURLs": ["/metrics"]}),
                Namespace,
                &["spec.rules[0].nonResourceURLs"],
            ),
            (
                "a path without a slash",
                json!({"nonResourceURLs": ["/x", "metrics"]}),
                Cluster,
                &["spec.rules[0].nonResourceURLs[1]"],
            ),
            (
                "everything at once",
                json!({"verbs": [], "nonResourceURLs": ["metrics"]}),
                Namespace,
                &["spec.rules[0].verbs", "spec.rules[0].nonResourceURLs", "spec.rules[0].nonResourceURLs[0]"],
            ),
        ];
        for (what, rule, scope, expected) in cases {
            assert_eq!(fields(rule.clone(), *scope), *expected, "{what}");
        }
    }
}

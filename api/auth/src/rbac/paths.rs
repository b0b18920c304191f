//! Grants of paths that are no resources. casbin has no part in them: there are few, and each is one
//! comparison.

use horchestra_core::kinds::rbac::PolicyRule;

use super::rules::ALL;

/// Whether the rule grants the method (in lower case) on the path. A `*` at the end of a granted path stands
/// for any rest, an empty one included.
pub(super) fn grants(rule: &PolicyRule, verb: &str, path: &str) -> bool {
    rule.verbs.iter().any(|granted| granted == ALL || granted == verb)
        && rule.non_resource_urls.iter().any(|granted| match granted.strip_suffix('*') {
            Some(beginning) => path.starts_with(beginning),
            None => granted == path,
        })
}

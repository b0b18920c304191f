//! What one caller is granted, and the questions that were asked about it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use horchestra_core::kinds::rbac::PolicyRule;
use horchestra_core::registry;
use parking_lot::RwLock;

use super::enforcer::{Enforcer, Enforcers, Lines};
use super::policy::Policy;
use super::rules::{ALL, Rules, grants_verb, oversized};
use super::{AuthorizationError, paths};
use crate::attributes::ResourceAttributes;
use crate::identity::Identity;

/// The grants of one caller under one policy.
pub(crate) struct Profile {
    everywhere: Vec<Rules>,
    within: BTreeMap<Arc<str>, Vec<Rules>>,
    /// Verbs that some rule names. All others are granted by `*` alone and share its selections.
    verbs: HashSet<String>,
    sees_all: bool,
    /// By namespace (empty where only what counts everywhere does) and verb. As many as the rules make
    /// different, whatever is asked.
    selections: RwLock<HashMap<String, HashMap<String, Arc<Selection>>>>,
}

/// The rules about one verb in one namespace, as enforcers.
struct Selection {
    /// Rules about all objects.
    all: Option<Arc<Enforcer>>,
    /// Rules about objects of one name.
    named: HashMap<String, Arc<Enforcer>>,
}

impl Profile {
    pub(crate) fn new(policy: &Policy, identity: &Identity) -> Profile {
        let mut everywhere = Vec::new();
        let mut within: BTreeMap<Arc<str>, Vec<Rules>> = BTreeMap::new();
        for granted in policy.of(identity) {
            everywhere.extend(granted.everywhere.iter().cloned());
            for (namespace, rules) in &granted.within {
                within.entry(Arc::clone(namespace)).or_default().extend(rules.iter().cloned());
            }
        }
        let all_rules = || everywhere.iter().chain(within.values().flatten()).flat_map(Rules::as_slice);
        let mut verbs: HashSet<String> = all_rules().flat_map(|rule| rule.verbs.iter().cloned()).collect();
        if verbs.contains("update") {
            verbs.insert("patch".to_owned());
        }
        let sees_all = everywhere.iter().flat_map(Rules::as_slice).any(reads_a_namespaced_kind);
        Profile { everywhere, within, verbs, sees_all, selections: RwLock::default() }
    }

    /// Whether a rule grants this.
    pub(crate) fn allows(
        &self,
        asked: &ResourceAttributes<'_>,
        enforcers: &Enforcers,
    ) -> Result<bool, AuthorizationError> {
        let selection = self.selection(asked.namespace, asked.verb, enforcers)?;
        let target = target(asked);
        if let Some(all) = &selection.all
            && all.matches(asked.group, &target)?
        {
            return Ok(true);
        }
        match selection.named.get(asked.name) {
            Some(named) if !asked.name.is_empty() => named.matches(asked.group, &target),
            _ => Ok(false),
        }
    }

    /// Whether a rule grants the method (in lower case) on a path that is no resource.
    pub(crate) fn allows_path(&self, verb: &str, path: &str) -> bool {
        self.everywhere.iter().flat_map(Rules::as_slice).any(|rule| paths::grants(rule, verb, path))
    }

    /// The rules that count in a namespace (empty: outside of all), with what they include spelled out.
    pub(crate) fn rules(&self, namespace: &str) -> Vec<PolicyRule> {
        let local = self.within.get(namespace).into_iter().flatten().flat_map(Rules::as_slice);
        // Paths are granted everywhere or not at all.
        let local = local.filter(|rule| rule.non_resource_urls.is_empty());
        let everywhere = self.everywhere.iter().flat_map(Rules::as_slice);
        let mut rules: Vec<PolicyRule> =
            everywhere.chain(local).filter(|rule| !oversized(rule)).cloned().collect();
        for rule in &mut rules {
            let about_resources = rule.non_resource_urls.is_empty();
            if about_resources
                && grants_verb(rule, "patch")
                && !rule.verbs.iter().any(|verb| verb == "patch" || verb == ALL)
            {
                rule.verbs.push("patch".to_owned());
            }
        }
        rules
    }

    /// Whether the caller may know of every Namespace: something in namespaces may be read in all of them.
    pub(crate) fn sees_all_namespaces(&self) -> bool {
        self.sees_all
    }

    /// Whether a binding of this Namespace names the caller.
    pub(crate) fn is_bound_in(&self, namespace: &str) -> bool {
        self.within.contains_key(namespace)
    }

    fn selection(
        &self,
        namespace: &str,
        verb: &str,
        enforcers: &Enforcers,
    ) -> Result<Arc<Selection>, AuthorizationError> {
        let (namespace, local): (&str, &[Rules]) = match self.within.get(namespace) {
            Some(rules) => (namespace, rules),
            None => ("", &[]),
        };
        let verb = if self.verbs.contains(verb) { verb } else { ALL };
        let known = self.selections.read();
        if let Some(selection) = known.get(namespace).and_then(|verbs| verbs.get(verb)) {
            return Ok(Arc::clone(selection));
        }
        drop(known);
        let selection = Arc::new(self.select(local, verb, enforcers)?);
        let mut known = self.selections.write();
        known.entry(namespace.to_owned()).or_default().insert(verb.to_owned(), Arc::clone(&selection));
        Ok(selection)
    }

    fn select(
        &self,
        local: &[Rules],
        verb: &str,
        enforcers: &Enforcers,
    ) -> Result<Selection, AuthorizationError> {
        let mut all = Lines::new();
        let mut named: HashMap<&str, Lines<'_>> = HashMap::new();
        let rules = self.everywhere.iter().chain(local).flat_map(Rules::as_slice);
        for rule in rules.filter(|rule| grants_verb(rule, verb) && !oversized(rule)) {
            if rule.resource_names.is_empty() {
                add(&mut all, rule);
            }
            for name in &rule.resource_names {
                add(named.entry(name).or_default(), rule);
            }
        }
        let mut selection = Selection { all: enforcers.of(&all)?, named: HashMap::new() };
        for (name, lines) in named {
            if let Some(enforcer) = enforcers.of(&lines)? {
                selection.named.insert(name.to_owned(), enforcer);
            }
        }
        Ok(selection)
    }
}

fn add<'a>(lines: &mut Lines<'a>, rule: &'a PolicyRule) {
    for group in &rule.api_groups {
        lines.extend(rule.resources.iter().map(|resource| (group.as_str(), resource.clone())));
    }
}

/// `resource` or `resource/subresource`.
fn target<'a>(asked: &ResourceAttributes<'a>) -> Cow<'a, str> {
    if asked.subresource.is_empty() {
        Cow::Borrowed(asked.resource)
    } else {
        Cow::Owned(format!("{}/{}", asked.resource, asked.subresource))
    }
}

/// Whether the rule lets its holder read objects of some kind that lives in namespaces, all of them.
fn reads_a_namespaced_kind(rule: &PolicyRule) -> bool {
    let reads = rule.verbs.iter().any(|verb| matches!(verb.as_str(), "get" | "list" | "watch" | ALL));
    let selects = |resource: &String| {
        let plural = resource.split('/').next().unwrap_or_default();
        resource == ALL
            || registry::described().any(|spec| {
                spec.namespaced()
                    && spec.plural() == plural
                    && rule.api_groups.iter().any(|group| group == ALL || group == spec.group())
            })
    };
    reads
        && rule.resource_names.is_empty()
        && !rule.api_groups.is_empty()
        && !oversized(rule)
        && rule.resources.iter().any(selects)
}

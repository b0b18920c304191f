//! The engine against the plain evaluator, on random rules and random questions, hostile texts included.

use std::sync::Arc;

use horchestra_auth::rbac::{FixedPolicy, Policy, PolicyError, PolicySource, PolicyVersion};
use horchestra_auth::{Attributes, Authorizer, ResourceAttributes};
use horchestra_core::kinds::rbac::{BindingSpec, PolicyRule, RoleRef, Subject};
use parking_lot::Mutex;
use proptest::prelude::*;
use proptest::sample::select;

use crate::plain::World;
use crate::somebody;

/// Few enough that questions meet rules, nasty enough that anything which is not compared to the letter
/// shows: separators of policy files, quotes, line ends, patterns, scripts, JSON, what looks like numbers.
const TEXTS: [&str; 32] = [
    "*",
    "",
    "a",
    "b",
    "a/b",
    "a/*",
    "*/b",
    "**",
    "a*",
    ".*",
    "^a$",
    "[ab]",
    "a,b",
    "a, b",
    " a",
    "a ",
    "\"a\"",
    "a\"",
    "'",
    "\\",
    "a\nb",
    "\n",
    "p, a, b",
    "# a",
    "{\"a\": 1}",
    "{a}",
    "{}",
    "r.group",
    "true",
    "1",
    "a\0b",
    "ä",
];
const VERBS: [&str; 9] = ["get", "list", "update", "patch", "*", "escalate", "get,list", "GET", ""];
const NAMESPACES: [&str; 4] = ["team-a", "team-b", "gone", "*"];
const SUBJECTS: [&str; 6] =
    ["alice", "team", "system:authenticated", "alice,team", "system:controllers", "*"];
const ROLES: [&str; 4] = ["reader", "editor", "a\nb", "missing"];
const URLS: [&str; 7] = ["*", "/metrics", "/metrics*", "/metrics/*", "/", "/a b", ".*"];

fn text(of: &'static [&'static str]) -> impl Strategy<Value = String> {
    select(of).prop_map(str::to_owned)
}

fn texts(of: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(text(of), 0..=most)
}

fn rule() -> impl Strategy<Value = PolicyRule> {
    let names = prop_oneof![3 => Just(Vec::new()), 1 => texts(&TEXTS, 3)];
    let urls = prop_oneof![3 => Just(Vec::new()), 1 => texts(&URLS, 2)];
    (texts(&VERBS, 3), texts(&TEXTS, 3), texts(&TEXTS, 4), names, urls).prop_map(
        |(verbs, api_groups, resources, resource_names, non_resource_urls)| PolicyRule {
            verbs,
            api_groups,
            resources,
            resource_names,
            non_resource_urls,
        },
    )
}

fn binding() -> impl Strategy<Value = BindingSpec> {
    let subject = (text(&["User", "Group", "ServiceAccount"]), text(&SUBJECTS));
    let subject = subject.prop_map(|(kind, name)| Subject { kind, name });
    let role = (text(&["Role", "ClusterRole", "clusterrole"]), text(&ROLES));
    let role = role.prop_map(|(kind, name)| RoleRef { kind, name });
    (prop::collection::vec(subject, 0..4), role)
        .prop_map(|(subjects, role_ref)| BindingSpec { subjects, role_ref })
}

fn world() -> impl Strategy<Value = World> {
    let rules = || prop::collection::vec(rule(), 0..4);
    (
        prop::collection::vec((text(&NAMESPACES), text(&ROLES), rules()), 0..4),
        prop::collection::vec((text(&ROLES), rules()), 0..4),
        prop::collection::vec((text(&NAMESPACES), binding()), 0..5),
        prop::collection::vec(binding(), 0..3),
    )
        .prop_map(|(roles, cluster_roles, bindings, cluster_bindings)| World {
            namespaces: vec!["team-a".to_owned(), "team-b".to_owned(), "*".to_owned()],
            roles,
            cluster_roles,
            bindings,
            cluster_bindings,
        })
}

#[derive(Clone, Debug)]
enum Question {
    Resource { verb: String, group: String, resource: String, sub: String, namespace: String, name: String },
    Path { verb: String, path: String },
}

impl Question {
    fn asked(&self) -> Attributes<'_> {
        match self {
            Question::Resource { verb, group, resource, sub, namespace, name } => {
                Attributes::Resource(ResourceAttributes {
                    verb,
                    group,
                    resource,
                    subresource: sub,
                    namespace,
                    name,
                })
            }
            Question::Path { verb, path } => Attributes::path(verb, path),
        }
    }
}

fn question() -> impl Strategy<Value = Question> {
    let namespace = prop_oneof![1 => Just(String::new()), 3 => text(&NAMESPACES)];
    let sub = prop_oneof![3 => Just(String::new()), 1 => text(&["b", "*", ""])];
    let resource = (text(&VERBS), text(&TEXTS), text(&TEXTS), sub, namespace, text(&TEXTS)).prop_map(
        |(verb, group, resource, sub, namespace, name)| Question::Resource {
            verb,
            group,
            resource,
            sub,
            namespace,
            name,
        },
    );
    let paths = &["/metrics", "/metrics/", "/metrics/a", "/", "/a b", "*", "", "/x"];
    let path = (text(&VERBS), text(paths)).prop_map(|(verb, path)| Question::Path { verb, path });
    prop_oneof![4 => resource, 1 => path]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn decisions_are_those_of_the_plain_evaluator(
        world in world(),
        questions in prop::collection::vec(question(), 1..24),
        groups in prop::collection::vec(select(&["team", "*", "alice", "system:controllers"]), 0..3),
    ) {
        let authorizer = Authorizer::new(FixedPolicy::new(world.policy()));
        for who in [somebody("alice", &groups), somebody("bob", &groups), somebody("*", &[])] {
            // Twice: the second answer is one that was kept.
            for question in questions.iter().chain(&questions) {
                let asked = question.asked();
                let decision = authorizer.authorize(&who, &asked).unwrap();
                prop_assert_eq!(decision.allowed, world.grants(&who, &asked), "{:?} {:?}", who.name, question);
            }
        }
    }

    /// One authorizer over a sequence of policies: what it kept of one must not answer for another.
    #[test]
    fn nothing_survives_a_change_of_the_rules(
        worlds in prop::collection::vec(world(), 2..5),
        questions in prop::collection::vec(question(), 1..12),
    ) {
        let source = Arc::new(Changing::default());
        let authorizer = Authorizer::new(Arc::clone(&source));
        let alice = somebody("alice", &["team"]);
        for world in worlds {
            source.set(world.policy());
            for question in &questions {
                let asked = question.asked();
                let decision = authorizer.authorize(&alice, &asked).unwrap();
                prop_assert_eq!(decision.allowed, world.grants(&alice, &asked), "{:?}", question);
            }
        }
    }
}

/// Rules that change.
#[derive(Default)]
struct Changing(Mutex<(i64, Arc<Policy>)>);

impl Changing {
    fn set(&self, policy: Policy) {
        let mut state = self.0.lock();
        *state = (state.0 + 1, Arc::new(policy));
    }
}

impl PolicySource for Changing {
    fn version(&self) -> Option<PolicyVersion> {
        Some(PolicyVersion { history: 1, revision: self.0.lock().0 })
    }

    fn read(&self) -> Result<(PolicyVersion, Arc<Policy>), PolicyError> {
        let state = self.0.lock();
        Ok((PolicyVersion { history: 1, revision: state.0 }, Arc::clone(&state.1)))
    }
}

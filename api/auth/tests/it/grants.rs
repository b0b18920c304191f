use std::collections::BTreeSet;

use horchestra_auth::identity::{CONTROLLERS, MASTERS, NODES, WORKLOADS};
use horchestra_auth::rbac::FixedPolicy;
use horchestra_auth::{Attributes, Authorizer, Identity};
use horchestra_core::kind::Kind;

use crate::somebody;

const VERBS: [&str; 11] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "escalate",
    "bind",
    "*",
];

/// Groups and plurals: every stored kind, what is not stored, and look-alikes of what is granted.
fn resources() -> Vec<(&'static str, &'static str)> {
    let mut resources: Vec<_> = Kind::ALL.iter().map(|kind| (kind.group(), kind.plural())).collect();
    resources.extend([
        ("metrics.k8s.io", "nodes"),
        ("metrics.k8s.io", "pods"),
        ("", "nodes"),
        ("", "namespaces"),
        ("", "pods"),
        ("other.io", "nodes"),
        ("other.io", "namespaces"),
        ("other.io", "certificatesigningrequests"),
        ("authorization.k8s.io", "selfsubjectaccessreviews"),
        ("authorization.k8s.io", "selfsubjectrulesreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
        ("authentication.k8s.io", "selfsubjectreviews"),
        ("authentication.k8s.io", "selfsubjectaccessreviews"),
        ("authentication.k8s.io", "tokenreviews"),
        ("*", "*"),
        ("horchestra.io", "*"),
        ("horchestra.io", "Nodes"),
        ("horchestra.io", "nodes/sessionlog"),
    ]);
    resources
}

const SUBRESOURCES: [&str; 10] =
    ["", "status", "log", "metrics", "freeze", "cordon", "admit", "approve", "sessionlog", "*"];

/// A judge without any rule object.
fn no_rules() -> Authorizer {
    Authorizer::new(FixedPolicy::default())
}

/// Everything that `identity` may do, as `verb group/resource[#subresource]@namespace:name`.
fn allowed(identity: &Identity) -> BTreeSet<String> {
    let authorizer = no_rules();
    let mut allowed = BTreeSet::new();
    for (group, resource) in resources() {
        for subresource in SUBRESOURCES {
            for verb in VERBS {
                for namespace in ["", "team-a"] {
                    for name in ["", "x"] {
                        let asked = Attributes::resource(verb, group, resource, namespace, name)
                            .of_subresource(subresource);
                        if authorizer.authorize(identity, &asked).unwrap().allowed {
                            let sub = if subresource.is_empty() { "" } else { "#" };
                            allowed.insert(format!(
                                "{verb} {group}/{resource}{sub}{subresource}@{namespace}:{name}"
                            ));
                        }
                    }
                }
            }
        }
    }
    allowed
}

/// Verbs, `group/resource`, places.
type Line = (&'static [&'static str], &'static str, &'static [&'static str]);

fn expected(lines: &[Line]) -> BTreeSet<String> {
    let mut expected = BTreeSet::new();
    for (verbs, target, places) in lines {
        for verb in *verbs {
            for place in *places {
                expected.insert(format!("{verb} {target}@{place}"));
            }
        }
    }
    expected
}

const ANYWHERE: &[&str] = &[":", ":x", "team-a:", "team-a:x"];
const COLLECTIONS: &[&str] = &[":", "team-a:"];
const EVERYBODY: [Line; 4] = [
    (&["list", "watch"], "horchestra.io/namespaces", COLLECTIONS),
    (&["create"], "authorization.k8s.io/selfsubjectaccessreviews", ANYWHERE),
    (&["create"], "authorization.k8s.io/selfsubjectrulesreviews", ANYWHERE),
    (&["create"], "authentication.k8s.io/selfsubjectreviews", ANYWHERE),
];
const NODE: [Line; 2] = [
    (&["create"], "horchestra.io/nodes", ANYWHERE),
    (&["create", "get", "list"], "certificates.horchestra.io/certificatesigningrequests", ANYWHERE),
];
/// What the node called `x` may do besides.
const NODE_X: [Line; 1] = [(&["get", "update", "patch"], "horchestra.io/nodes", &[":x", "team-a:x"])];
const CONTROLLER: [Line; 2] = [
    (&["get"], "horchestra.io/nodes#sessionlog", ANYWHERE),
    // The same target in one word, as a review may spell it.
    (&["get"], "horchestra.io/nodes/sessionlog", ANYWHERE),
];

#[test]
fn each_group_may_do_exactly_what_is_listed() {
    let lists = |parts: &[&[Line]]| expected(&parts.concat());
    let cases: [(&str, &[&str], BTreeSet<String>); 9] = [
        ("bob", &[], lists(&[&EVERYBODY])),
        ("bob", &["team-a", "admins", "masters", "System:Masters", "system:master"], lists(&[&EVERYBODY])),
        // A name that looks like a group is only a name.
        (MASTERS, &[], lists(&[&EVERYBODY])),
        ("w", &[WORKLOADS], lists(&[&EVERYBODY])),
        ("node-1", &[NODES], lists(&[&EVERYBODY, &NODE])),
        ("x", &[NODES], lists(&[&EVERYBODY, &NODE, &NODE_X])),
        ("x", &[], lists(&[&EVERYBODY])),
        ("horchestra-api", &[CONTROLLERS], lists(&[&EVERYBODY, &CONTROLLER])),
        ("odd", &[CONTROLLERS, NODES], lists(&[&EVERYBODY, &NODE, &CONTROLLER])),
    ];
    for (name, groups, expected) in cases {
        let found = allowed(&somebody(name, groups));
        let differing: Vec<_> = found.symmetric_difference(&expected).collect();
        assert!(differing.is_empty(), "{name} {groups:?}: {differing:?}");
    }
}

#[test]
fn masters_may_do_everything_but_read_session_logs() {
    let authorizer = no_rules();
    let admin = somebody("admin", &[MASTERS]);
    let all = resources().len() * SUBRESOURCES.len() * VERBS.len() * 4;
    // Both spellings of the one target.
    let refused = 2 * VERBS.len() * 4;
    assert_eq!(allowed(&admin).len(), all - refused);
    for target in ["horchestra.io/nodes/sessionlog@", "horchestra.io/nodes#sessionlog@"] {
        assert!(!allowed(&admin).iter().any(|line| line.contains(target)), "{target}");
    }
    for path in ["/metrics", "/logs", "/nonsense", "/", "/debug/pprof"] {
        assert!(authorizer.authorize(&admin, &Attributes::path("post", path)).unwrap().allowed, "{path}");
    }
    // Somebody who is a controller as well reads them as one.
    let both = somebody("admin", &[MASTERS, CONTROLLERS]);
    let asked = Attributes::resource("get", "horchestra.io", "nodes", "", "n").of_subresource("sessionlog");
    assert!(authorizer.authorize(&both, &asked).unwrap().allowed);
}

#[test]
fn documents_are_open_to_everybody_with_an_identity_and_other_paths_are_not() {
    let authorizer = no_rules();
    let open = [
        "/api",
        "/api/",
        "/api/v1",
        "/api/v1/",
        "/apis",
        "/apis/",
        "/apis/horchestra.io",
        "/apis/horchestra.io/v1",
        "/apis/horchestra.io/v1/",
        "/version",
        "/version/",
        "/openapi",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/apis/horchestra.io/v1",
        "/livez",
        "/readyz",
    ];
    let closed = [
        "/",
        "",
        "//",
        "/metrics",
        "/logs",
        "/debug/pprof",
        "/bootstrap/token",
        "/healthz",
        "/servicediscovery/v1/catalog/services",
        "/api/v1/pods",
        "/api/v1/nodes",
        "/api/v2",
        "/apis/horchestra.io/v1/nodes",
        "/apis/horchestra.io/v1//",
        "/apis//v1",
        "/apis/../metrics",
        "/apis/horchestra.io/..",
        "/openapi/../metrics",
        "/openapi/v3/../../metrics",
        "/openapi//",
        "/openapi/%2e%2e/metrics",
        "/openapiv3",
        "/versions",
        "/version//",
        "/API",
        "apis",
    ];
    for groups in [&[][..], &[NODES], &[CONTROLLERS], &[WORKLOADS]] {
        let caller = somebody("bob", groups);
        let allowed = |asked: Attributes<'_>| authorizer.authorize(&caller, &asked).unwrap().allowed;
        for method in ["get", "post", "delete"] {
            for path in open {
                assert!(allowed(Attributes::path(method, path)), "{path}");
            }
            for path in closed {
                assert!(!allowed(Attributes::path(method, path)), "{path}");
            }
        }
    }
}

#[test]
fn a_refusal_says_who_what_where_and_what_to_do() {
    let authorizer = no_rules();
    let bob = somebody("bob", &[]);
    let refused = |asked: Attributes<'_>| authorizer.authorize(&bob, &asked).unwrap().reason.into_owned();
    assert_eq!(
        refused(Attributes::resource("list", "horchestra.io", "applications", "team-a", "")),
        "User \"bob\" cannot list resource \"applications\" in API group \"horchestra.io\" in the namespace \
         \"team-a\": nothing grants it; ask a member of system:masters"
    );
    assert_eq!(
        refused(Attributes::resource("get", "horchestra.io", "nodes", "", "n1").of_subresource("log")),
        "User \"bob\" cannot get resource \"nodes/log\" in API group \"horchestra.io\" at the cluster scope: \
         nothing grants it; ask a member of system:masters"
    );
    assert_eq!(
        refused(Attributes::path("get", "/metrics")),
        "User \"bob\" cannot get path \"/metrics\": nothing grants it; ask a member of system:masters"
    );
    let log = Attributes::resource("get", "horchestra.io", "nodes", "", "n1").of_subresource("sessionlog");
    assert!(refused(log).contains("only the control plane's own processes may"));
}

//! What a document of each kind may look like: read strictly, completed, and judged by the rules of the kind
//! alone. One line per case; the field of every violation is part of it.

use horchestra_core::admit::{self, FieldValidation, Media};
use horchestra_core::kind::Kind;
use horchestra_core::registry::{self, Reference};
use serde_json::{Value, json};

/// What comes of a document: the object as it would be stored, or code and fields of the refusal.
fn judged(kind: Kind, document: &Value) -> Result<Value, (u16, Vec<String>)> {
    let spec = registry::spec(kind).unwrap();
    let refusal = |status: horchestra_core::Status| {
        let fields = status.details.causes.iter().map(|cause| cause.field.clone()).collect();
        (status.code(), fields)
    };
    let document = admit::decode(spec, Media::Json, document.to_string().as_bytes()).map_err(refusal)?;
    let object = admit::complete(spec, document, None, FieldValidation::Strict).map_err(refusal)?.object;
    admit::validate(spec, &object, None).map_err(refusal)?;
    Ok(object.into_value())
}

type Case = (&'static str, Kind, Value, u16, &'static [&'static str]);

/// Code 0: accepted.
fn run(cases: Vec<Case>) {
    for (what, kind, mut document, code, fields) in cases {
        if document.get("metadata").is_none() {
            document["metadata"] = json!({"name": "x"});
        }
        match judged(kind, &document) {
            Ok(_) => assert_eq!((code, fields), (0, &[][..]), "{kind}, {what}: accepted"),
            Err((found, named)) => {
                assert_eq!(
                    (found, named.as_slice()),
                    (code, fields.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>().as_slice()),
                    "{kind}, {what}"
                );
            }
        }
    }
}

fn request() -> Value {
    json!({"request": "AAAA"})
}

#[test]
fn shapes() {
    use Kind::*;
    let set = |component: Value| json!({"spec": {"applications": [component]}});
    let store = json!({"server": "https://vault.example"});
    let mounts = |count: usize| {
        let mount = |at: usize| json!({"mountPath": format!("/v{at}"), "volume": {"type": "tmpfs"}});
        json!({"spec": {"image": "x", "volumes": (0..count).map(mount).collect::<Value>()}})
    };
    let variables = |count: usize| {
        let variable = |at: usize| json!({"name": format!("V{at}")});
        json!({"spec": {"image": "x", "env": (0..count).map(variable).collect::<Value>()}})
    };
    run(vec![
        ("only what is needed", Service, json!({"spec": {"ports": [{"port": 80}]}}), 0, &[]),
        ("no spec", Service, json!({}), 422, &["spec"]),
        ("no list of ports", Service, json!({"spec": {}}), 422, &["spec.ports"]),
        ("no ports", Service, json!({"spec": {"ports": []}}), 422, &["spec.ports"]),
        ("no number", Service, json!({"spec": {"ports": [{"name": "a"}]}}), 422, &["spec.ports[0].port"]),
        (
            "numbers out of range",
            Service,
            json!({"spec": {"ports": [{"port": 70000, "targetPort": -1}]}}),
            422,
            &["spec.ports[0].port", "spec.ports[0].targetPort"],
        ),
        (
            "an empty protocol",
            Service,
            json!({"spec": {"ports": [{"port": 1, "protocol": ""}]}}),
            422,
            &["spec.ports[0].protocol"],
        ),
        (
            "a protocol in lower case",
            Service,
            json!({"spec": {"ports": [{"port": 1, "protocol": "udp"}]}}),
            422,
            &["spec.ports[0].protocol"],
        ),
        (
            "a long name",
            Service,
            json!({"spec": {"ports": [{"port": 1, "name": "a".repeat(64)}]}}),
            422,
            &["spec.ports[0].name"],
        ),
        (
            "a selector",
            Service,
            json!({"spec": {"ports": [{"port": 1}], "selector": {}}}),
            400,
            &["spec.selector"],
        ),
        ("nothing but a spec", PersistentVolume, json!({"spec": {}}), 0, &[]),
        (
            "everything",
            PersistentVolume,
            json!({"spec": {"size": "10Gi", "node": "n", "mode": "0755", "reclaimPolicy": "Retain", "shared": true}}),
            0,
            &[],
        ),
        ("empty free texts", PersistentVolume, json!({"spec": {"node": "", "mode": ""}}), 0, &[]),
        ("an empty size", PersistentVolume, json!({"spec": {"size": ""}}), 422, &["spec.size"]),
        ("a number as size", PersistentVolume, json!({"spec": {"size": 5}}), 422, &["spec.size"]),
        (
            "an exponent bomb",
            PersistentVolume,
            json!({"spec": {"size": "1e-100000000"}}),
            422,
            &["spec.size"],
        ),
        (
            "a name that reads as a bomb",
            PersistentVolume,
            json!({"spec": {"node": "1e999"}}),
            422,
            &["spec.node"],
        ),
        ("a long number", PersistentVolume, json!({"spec": {"size": "1".repeat(4096)}}), 422, &["spec.size"]),
        (
            "an empty policy",
            PersistentVolume,
            json!({"spec": {"reclaimPolicy": ""}}),
            422,
            &["spec.reclaimPolicy"],
        ),
        (
            "an unknown policy",
            PersistentVolume,
            json!({"spec": {"reclaimPolicy": "Recycle"}}),
            422,
            &["spec.reclaimPolicy"],
        ),
        (
            "a class",
            PersistentVolume,
            json!({"spec": {"storageClassName": "fast"}}),
            400,
            &["spec.storageClassName"],
        ),
        ("a status", PersistentVolume, json!({"spec": {}, "status": {}}), 400, &["status"]),
        ("only a name", Secret, json!({}), 0, &[]),
        (
            "values",
            Secret,
            json!({"data": {"a": "eA=="}, "stringData": {"b": "y"}, "immutable": true}),
            0,
            &[],
        ),
        ("wrapped base64", Secret, json!({"data": {"a": "eHh4\neHh4\n"}}), 0, &[]),
        ("no base64", Secret, json!({"data": {"a": "x", "b": "eA=="}}), 422, &["data.a"]),
        ("a number as text", Secret, json!({"stringData": {"a": 1}}), 422, &["stringData.a"]),
        ("a key of digits", Secret, json!({"data": {"0": "x"}}), 422, &["data[0]"]),
        ("a key with a slash", Secret, json!({"stringData": {"a/b": "x"}}), 422, &["data"]),
        ("a spec", Secret, json!({"spec": {}}), 400, &["spec"]),
        ("only a server", SecretStore, json!({"spec": store}), 0, &[]),
        ("no server", SecretStore, json!({"spec": {"mount": "kv"}}), 422, &["spec.server"]),
        (
            "an odd version and method",
            SecretStore,
            json!({"spec": {"server": "x", "kvVersion": 7, "auth": {"method": "magic"}}}),
            0,
            &[],
        ),
        (
            "a version as text",
            SecretStore,
            json!({"spec": {"server": "x", "kvVersion": "2"}}),
            422,
            &["spec.kvVersion"],
        ),
        (
            "certificates that are no base64",
            SecretStore,
            json!({"spec": {"server": "x", "caBundle": "-----BEGIN"}}),
            422,
            &["spec.caBundle"],
        ),
        ("no rules", Role, json!({"spec": {"rules": []}}), 0, &[]),
        ("rules at the top", Role, json!({"rules": []}), 400, &["rules"]),
        (
            "no list of verbs",
            ClusterRole,
            json!({"spec": {"rules": [{"nonResourceURLs": ["/x"]}]}}),
            422,
            &["spec.rules[0].verbs"],
        ),
        (
            "a path in a namespace",
            Role,
            json!({"spec": {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}}),
            422,
            &["spec.rules[0].nonResourceURLs"],
        ),
        (
            "a path",
            ClusterRole,
            json!({"spec": {"rules": [{"verbs": ["get"], "nonResourceURLs": ["/x"]}]}}),
            0,
            &[],
        ),
        (
            "named objects",
            ClusterRole,
            json!({"spec": {"rules": [{"verbs": ["get"], "apiGroups": ["a"], "resources": ["b"], "resourceNames": ["c"]}]}}),
            0,
            &[],
        ),
        (
            "aggregation",
            ClusterRole,
            json!({"spec": {"rules": []}, "aggregationRule": {}}),
            400,
            &["aggregationRule"],
        ),
        (
            "a binding",
            RoleBinding,
            json!({"spec": {"subjects": [], "roleRef": {"kind": "Role", "name": "r"}}}),
            0,
            &[],
        ),
        ("no role", ClusterRoleBinding, json!({"spec": {"subjects": []}}), 422, &["spec.roleRef"]),
        (
            "no subjects",
            RoleBinding,
            json!({"spec": {"roleRef": {"kind": "Role", "name": "r"}}}),
            422,
            &["spec.subjects"],
        ),
        (
            "an odd subject",
            RoleBinding,
            json!({"spec": {"subjects": [{"kind": "Robot", "name": "r2"}], "roleRef": {"kind": "X", "name": "r"}}}),
            0,
            &[],
        ),
        (
            "a subject with a group",
            RoleBinding,
            json!({"spec": {"subjects": [{"kind": "User", "name": "u", "apiGroup": "x"}], "roleRef": {"kind": "Role", "name": "r", "apiGroup": "x"}}}),
            400,
            &["spec.roleRef.apiGroup", "spec.subjects[0].apiGroup"],
        ),
        ("a request", CertificateSigningRequest, json!({"spec": request()}), 0, &[]),
        ("no request", CertificateSigningRequest, json!({"spec": {}}), 422, &["spec.request"]),
        (
            "a request as text",
            CertificateSigningRequest,
            json!({"spec": {"request": "-----BEGIN CERTIFICATE REQUEST-----"}}),
            422,
            &["spec.request"],
        ),
        (
            "a signer",
            CertificateSigningRequest,
            json!({"spec": {"request": "", "signerName": "x"}}),
            400,
            &["spec.signerName"],
        ),
        ("64 volumes", Application, mounts(64), 0, &[]),
        ("65 volumes", Application, mounts(65), 422, &["spec.volumes"]),
        ("256 variables", Application, variables(256), 0, &[]),
        ("257 variables", Application, variables(257), 422, &["spec.env"]),
        (
            "a volume that is to be shared",
            Application,
            json!({"spec": {"image": "x", "volumes": [
                {"mountPath": "/a", "shared": true, "volume": {"type": "pv", "shared": true}}]}}),
            400,
            &["spec.volumes[0].shared", "spec.volumes[0].volume.shared"],
        ),
        ("one component", ApplicationSet, set(json!({"name": "a", "spec": {"image": "x"}})), 0, &[]),
        (
            "no image",
            ApplicationSet,
            set(json!({"name": "a", "spec": {}})),
            422,
            &["spec.applications[0].spec.image"],
        ),
        (
            "a misspelt member far down",
            ApplicationSet,
            set(json!({"name": "a", "spec": {"image": "x", "lifecycel": {}}})),
            400,
            &["spec.applications[0].spec.lifecycel"],
        ),
        (
            "a frozen component",
            ApplicationSet,
            set(json!({"name": "a", "spec": {"image": "x", "frozen": true}})),
            400,
            &["spec.applications[0].spec.frozen"],
        ),
        ("no components", ApplicationSet, json!({"spec": {"applications": []}}), 422, &["spec.applications"]),
        (
            "a status without counts",
            ApplicationSet,
            json!({"spec": {"applications": [{"name": "a", "spec": {"image": "x"}}]}, "status": {}}),
            422,
            &["status.current", "status.desired", "status.running", "status.scheduled"],
        ),
    ]);
}

/// Numbers and names as they can only be written by hand. None of them takes any time to refuse.
#[test]
fn literals_that_would_take_for_ever() {
    for (what, spec, code, field) in [
        ("a bare number", r#"{"size": 1e-100000000}"#, 422, "spec.size"),
        ("a bare number beyond all numbers", r#"{"size": 1e100000000}"#, 400, ""),
        ("an escape in the exponent", r#"{"size": "1\u0065-100000000"}"#, 422, "spec.size"),
        ("another letter in the name", r#"{"\u017fize": "1e-100000000"}"#, 400, "spec.ſize"),
        ("exa", r#"{"size": "1E"}"#, 0, ""),
        ("an exponent of nothing", r#"{"size": "64e000"}"#, 0, ""),
        ("a minus", r#"{"size": "-5Gi"}"#, 0, ""),
    ] {
        let spec_of = registry::spec(Kind::PersistentVolume).unwrap();
        let body = format!(r#"{{"metadata": {{"name": "x"}}, "spec": {spec}}}"#);
        let judged = admit::decode(spec_of, Media::Json, body.as_bytes())
            .and_then(|document| admit::complete(spec_of, document, None, FieldValidation::Strict));
        match judged {
            Ok(_) => assert_eq!(code, 0, "{what}"),
            Err(status) => {
                let named = status.details.causes.first().map_or("", |cause| cause.field.as_str());
                assert_eq!((status.code(), named), (code, field), "{what}: {status}");
            }
        }
    }
}

#[test]
fn sets() {
    let kind = Kind::ApplicationSet;
    let of = |components: Value| json!({"spec": {"applications": components}});
    let one = |members: Value| {
        let mut component = json!({"name": "api", "spec": {"image": "x"}});
        for (member, value) in members.as_object().unwrap() {
            component[member] = value.clone();
        }
        of(json!([component]))
    };
    let with = |members: Value| {
        let mut document = one(json!({}));
        for (member, value) in members.as_object().unwrap() {
            document["spec"][member] = value.clone();
        }
        document
    };
    let spread = json!({"nodeSpread": {}});
    let component = |name: &str| json!({"name": name, "spec": {"image": "x"}});
    let env =
        |count: usize| (0..count).map(|at| json!({"name": format!("V{at}"), "value": ""})).collect::<Value>();
    run(vec![
        ("two components", kind, of(json!([component("a"), component("b")])), 0, &[]),
        (
            "a name twice",
            kind,
            of(json!([component("a"), component("a")])),
            422,
            &["spec.applications[1].name"],
        ),
        ("a bad name", kind, of(json!([component("A_B")])), 422, &["spec.applications[0].name"]),
        ("no name", kind, of(json!([component("")])), 422, &["spec.applications[0].name"]),
        ("three replicas", kind, one(json!({"scale": {"replicas": 3}})), 0, &[]),
        (
            "no replicas",
            kind,
            one(json!({"scale": {"replicas": 0}})),
            422,
            &["spec.applications[0].scale.replicas"],
        ),
        (
            "replicas on nodes",
            kind,
            one(json!({"scale": {"replicas": 2, "nodeSpread": {}}})),
            422,
            &["spec.applications[0].scale.nodeSpread"],
        ),
        (
            "spread and pinned",
            kind,
            one(json!({"scale": spread, "spec": {"image": "x", "placement": {"nodeName": "n"}}})),
            422,
            &["spec.applications[0].spec.placement.nodeName"],
        ),
        (
            "replicas that share a volume",
            kind,
            one(
                json!({"scale": {"replicas": 2}, "spec": {"image": "x", "volumes": [{"mountPath": "/a", "volume": {"type": "pv", "name": "v"}}]}}),
            ),
            0,
            &[],
        ),
        (
            "one node for all",
            kind,
            with(json!({"placement": {"mode": "sameNode"}, "rollout": {"maxUnavailable": 1}})),
            0,
            &[],
        ),
        ("no mode", kind, with(json!({"placement": {"mode": ""}})), 0, &[]),
        (
            "an unknown mode",
            kind,
            with(json!({"placement": {"mode": "spread"}})),
            422,
            &["spec.placement.mode"],
        ),
        (
            "one node and all nodes",
            kind,
            json!({"spec": {"placement": {"mode": "sameNode"}, "applications": [{"name": "a", "spec": {"image": "x"}, "scale": spread}]}}),
            422,
            &["spec.applications[0].scale.nodeSpread"],
        ),
        (
            "a negative budget",
            kind,
            with(json!({"rollout": {"maxUnavailable": -1}})),
            422,
            &["spec.rollout.maxUnavailable"],
        ),
        (
            "patience and a deadline",
            kind,
            with(json!({"rollout": {"paused": true, "minReadySeconds": 5, "progressDeadlineSeconds": 6}})),
            0,
            &[],
        ),
        (
            "a deadline that nobody can meet",
            kind,
            with(json!({"rollout": {"minReadySeconds": 5, "progressDeadlineSeconds": 5}})),
            422,
            &["spec.rollout.progressDeadlineSeconds"],
        ),
        (
            "negative patience",
            kind,
            with(json!({"rollout": {"minReadySeconds": -1}})),
            422,
            &["spec.rollout.minReadySeconds"],
        ),
        (
            "a request above its limit",
            kind,
            one(
                json!({"spec": {"image": "x", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}}),
            ),
            422,
            &["spec.applications[0].spec.resources.requests.cpu"],
        ),
        (
            "a variable twice",
            kind,
            one(json!({"spec": {"image": "x", "env": [{"name": "A"}, {"name": "A"}]}})),
            422,
            &["spec.applications[0].spec.env[1]"],
        ),
        (
            "a line break",
            kind,
            one(json!({"spec": {"image": "x", "env": [{"name": "A", "value": "a\nb"}]}})),
            422,
            &["spec.applications[0].spec.env[0]"],
        ),
        (
            "a bad path that is common",
            kind,
            with(
                json!({"common": {"volumes": [{"mountPath": "a", "volume": {"type": "tmpfs"}}], "env": [{"name": "1"}]}}),
            ),
            422,
            &["spec.common.env[0].name", "spec.common.volumes[0].mountPath"],
        ),
        (
            "too much once it is merged",
            kind,
            json!({"spec": {"common": {"env": [{"name": "MORE"}]}, "applications": [{"name": "a", "spec": {"image": "x", "env": env(256)}}]}}),
            422,
            &["spec.applications[0].spec.env"],
        ),
        (
            "enough once it is merged",
            kind,
            json!({"spec": {"common": {"env": [{"name": "V1"}]}, "applications": [{"name": "a", "spec": {"image": "x", "env": env(256)}}]}}),
            0,
            &[],
        ),
        (
            "two ports without names",
            kind,
            one(json!({"spec": {"image": "x", "ports": [{"port": 1}, {"port": 2}]}})),
            422,
            &["spec.applications[0].spec.ports[0].name", "spec.applications[0].spec.ports[1].name"],
        ),
        (
            "the same of a job",
            kind,
            one(
                json!({"spec": {"image": "x", "lifecycle": {"restartPolicy": "Never"}, "ports": [{"port": 1}, {"port": 2}]}}),
            ),
            0,
            &[],
        ),
        (
            "the same with a Service of its own",
            kind,
            one(json!({"spec": {"image": "x", "serviceName": "s", "ports": [{"port": 1}, {"port": 2}]}})),
            0,
            &[],
        ),
        (
            "a port with a free name",
            kind,
            one(json!({"spec": {"image": "x", "ports": [{"name": "HTTP port", "port": 1}]}})),
            422,
            &["spec.applications[0].spec.ports[0].name"],
        ),
        (
            "a port with a long name",
            kind,
            one(json!({"spec": {"image": "x", "ports": [{"name": "a".repeat(64), "port": 1}]}})),
            422,
            &["spec.applications[0].spec.ports[0].name"],
        ),
        (
            "everything at once",
            kind,
            json!({"spec": {"placement": {"mode": "sameNode"}, "applications": [
            {"name": "-", "spec": {"image": "x"}, "scale": {"replicas": 1, "nodeSpread": {}}},
            {"name": "b", "spec": {"image": "x", "lifecycle": {"backoffLimit": 1}}}]}}),
            422,
            &[
                "spec.applications[0].name",
                "spec.applications[0].scale.nodeSpread",
                "spec.applications[0].scale.nodeSpread",
                "spec.applications[1].spec.lifecycle.backoffLimit",
            ],
        ),
    ]);
}

#[test]
fn what_is_filled_in() {
    let stored = |kind: Kind, mut document: Value| {
        document["metadata"] = json!({"name": "x"});
        let mut object = judged(kind, &document).unwrap();
        for member in ["apiVersion", "kind", "metadata"] {
            object.as_object_mut().unwrap().remove(member);
        }
        object
    };
    let lifecycle = json!({"restartPolicy": "Always", "terminationGracePeriodSeconds": 30});
    for (kind, given, expected) in [
        (
            Kind::Service,
            json!({"spec": {"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2, "protocol": "UDP"}]}}),
            json!({"spec": {"ports": [{"name": "a", "port": 1, "protocol": "TCP"},
                {"name": "b", "port": 2, "protocol": "UDP"}]}}),
        ),
        (
            Kind::Secret,
            json!({"type": "", "data": {"pw": "c2Vj\ncmV0", "user": "eA=="}, "stringData": {"user": "ledger"}}),
            json!({"type": "Opaque", "data": {"pw": "c2VjcmV0", "user": "bGVkZ2Vy"}}),
        ),
        (Kind::Secret, json!({"type": "x/y", "stringData": {}}), json!({"type": "x/y"})),
        (Kind::SecretStore, json!({"spec": {"server": "x"}}), json!({"spec": {"server": "x", "auth": {}}})),
        (
            Kind::PersistentVolume,
            json!({"spec": {"node": "", "mode": "", "size": "1024Mi"}}),
            json!({"spec": {"size": "1Gi"}}),
        ),
        (
            Kind::ApplicationSet,
            json!({"spec": {"applications": [
                {"name": "a", "spec": {"image": "x", "volumes": [{"mountPath": "/a", "volume": {"type": "pv", "name": ""}}]}},
                {"name": "b", "spec": {"image": "x", "lifecycle": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}}}]}}),
            json!({
                "spec": {"applications": [
                    {"name": "a", "spec": {"image": "x", "lifecycle": lifecycle, "volumes": [{"mountPath": "/a", "volume": {"type": "pv"}}]}},
                    {"name": "b", "spec": {"image": "x", "lifecycle": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}}}]},
                "status": {"desired": 0, "current": 0, "scheduled": 0, "running": 0},
            }),
        ),
        (
            Kind::RoleBinding,
            json!({"spec": {"subjects": [], "roleRef": {"kind": "Role", "name": "r"}}}),
            json!({"spec": {"subjects": [], "roleRef": {"kind": "Role", "name": "r"}}}),
        ),
    ] {
        assert_eq!(stored(kind, given.clone()), expected, "{kind}: {given}");
    }
}

#[test]
fn a_refusal_never_shows_a_value_of_a_secret() {
    for document in [
        json!({"data": {"a": "hunter2!"}}),
        json!({"data": {"a/b": "aHVudGVyMg=="}}),
        json!({"data": "hunter2"}),
        json!({"stringData": {"a": ["hunter2"]}}),
        json!({"type": "horchestra.io/vault", "stringData": {"a": "hunter2"}}),
        json!({"stringData": {"a": "x".repeat(1 << 20), "b": "hunter2"}}),
        json!({"immutable": "hunter2"}),
    ] {
        let spec = registry::spec(Kind::Secret).unwrap();
        let mut document = document;
        document["metadata"] = json!({"name": "x"});
        let body = document.to_string();
        let status = admit::decode(spec, Media::Json, body.as_bytes())
            .and_then(|document| admit::complete(spec, document, None, FieldValidation::Strict))
            .and_then(|admitted| admit::validate(spec, &admitted.object, None))
            .unwrap_err();
        let shown = status.to_value().to_string();
        assert!(!shown.contains("hunter2") && !shown.contains("aHVudGVyMg"), "{shown}");
    }
}

#[test]
fn fields_to_select_by_and_references() {
    let fields = |kind: Kind, value: Value| {
        let fields = registry::spec(kind).unwrap().selectable_fields(&crate::object(value));
        fields.into_iter().filter(|(field, _)| !field.starts_with("metadata.")).collect::<Vec<_>>()
    };
    for (kind, value, field, expected) in [
        (Kind::PersistentVolume, json!({"spec": {"node": "n1"}}), "spec.node", "n1"),
        (Kind::PersistentVolume, json!({"spec": {}}), "spec.node", ""),
        (Kind::Secret, json!({"type": "horchestra.io/vault"}), "type", "horchestra.io/vault"),
        (Kind::Secret, json!({}), "type", "Opaque"),
        (Kind::CertificateSigningRequest, json!({"status": {"phase": "Denied"}}), "status.phase", "Denied"),
        (Kind::CertificateSigningRequest, json!({}), "status.phase", "Pending"),
        (Kind::ApplicationSet, json!({"status": {"phase": "Ready"}}), "status.phase", "Ready"),
    ] {
        assert_eq!(fields(kind, value), [(field.to_owned(), expected.to_owned())], "{kind}");
    }
    let references = |kind: Kind, role: &str| {
        let role_ref = json!({"kind": role, "name": "r"});
        let object = json!({"metadata": {"name": "b"}, "spec": {"subjects": [], "roleRef": role_ref}});
        (registry::spec(kind).unwrap().references)(&crate::object(object))
    };
    let (local, wide) = (Reference::Role("r".into()), Reference::ClusterRole("r".into()));
    assert_eq!(references(Kind::RoleBinding, "Role"), std::slice::from_ref(&local));
    assert_eq!(references(Kind::RoleBinding, "ClusterRole"), std::slice::from_ref(&wide));
    assert_eq!(references(Kind::RoleBinding, "Robot"), []);
    assert_eq!(references(Kind::ClusterRoleBinding, "ClusterRole"), std::slice::from_ref(&wide));
    assert_eq!(references(Kind::ClusterRoleBinding, "Role"), []);
    assert_eq!((local.target(), wide.target()), ((Kind::Role, "r"), (Kind::ClusterRole, "r")));
}

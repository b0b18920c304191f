use proptest::prelude::*;

use super::*;

fn set(spec: Value) -> Object {
    Object::from_value(json!({
        "metadata": {"name": "metrics", "namespace": "billing", "uid": "u-1"},
        "spec": spec,
    }))
    .unwrap()
}

fn of(components: Value) -> Object {
    set(json!({ "applications": components }))
}

fn node(name: &str, labels: Value) -> SpreadNode {
    SpreadNode { name: name.to_owned(), labels: serde_json::from_value(labels).unwrap() }
}

fn nodes() -> Vec<SpreadNode> {
    vec![
        node("n1", json!({"pool": "general"})),
        node("n2", json!({"pool": "general", "zone": "z1"})),
        node("n3", json!({})),
    ]
}

fn names(set: &Object, nodes: &[SpreadNode]) -> Result<Vec<String>, ExpandError> {
    Ok(expand(set, nodes)?.children.iter().map(|child| child.name().to_owned()).collect())
}

fn component(name: &str) -> Value {
    json!({"name": name, "spec": {"image": "x"}})
}

fn scaled(name: &str, scale: Value) -> Value {
    json!({"name": name, "spec": {"image": "x"}, "scale": scale})
}

#[test]
fn children_are_named_after_set_component_and_place() {
    let general = json!({"nodeSpread": {"nodeSelector": {"pool": "general"}}});
    for (what, components, expected) in [
        ("one each", json!([component("b"), component("a")]), &["metrics-b", "metrics-a"][..]),
        (
            "numbered",
            json!([scaled("api", json!({"replicas": 3}))]),
            &["metrics-api-0", "metrics-api-1", "metrics-api-2"],
        ),
        ("numbered, one only", json!([scaled("api", json!({"replicas": 1}))]), &["metrics-api-0"]),
        ("none at all", json!([scaled("api", json!({"replicas": -1}))]), &[]),
        ("an empty scale", json!([scaled("api", json!({}))]), &["metrics-api"]),
        ("on chosen nodes", json!([scaled("scrape", general)]), &["metrics-scrape-n1", "metrics-scrape-n2"]),
        (
            "on every node",
            json!([scaled("scrape", json!({"nodeSpread": {}}))]),
            &["metrics-scrape-n1", "metrics-scrape-n2", "metrics-scrape-n3"],
        ),
    ] {
        assert_eq!(names(&of(components), &nodes()).unwrap(), expected, "{what}");
    }
    assert!(names(&of(json!([scaled("a", json!({"nodeSpread": {}}))])), &[]).unwrap().is_empty());
}

#[test]
fn what_cannot_be_expanded() {
    let api = scaled("api", json!({"replicas": 3}));
    let duplicate = |name: &str| Err(ExpandError::DuplicateChild(name.to_owned()));
    for (what, components, expected) in [
        ("no components", json!([]), Err(ExpandError::NoComponents)),
        ("a component called like a replica", json!([api, component("api-1")]), duplicate("metrics-api-1")),
        (
            "a component called like a spread child",
            json!([scaled("api", json!({"nodeSpread": {}})), component("api-n1")]),
            duplicate("metrics-api-n1"),
        ),
        (
            "too many replicas",
            json!([scaled("api", json!({"replicas": 501}))]),
            Err(ExpandError::TooManyChildren(501)),
        ),
        (
            "more replicas than there is memory",
            json!([scaled("a", json!({"replicas": i32::MAX})), scaled("b", json!({"replicas": i32::MAX}))]),
            Err(ExpandError::TooManyChildren(4_294_967_294)),
        ),
        ("many components", (0..505).map(|n| component(&format!("c{n}"))).collect(), {
            Err(ExpandError::TooManyChildren(505))
        }),
    ] {
        assert_eq!(names(&of(components), &nodes()), expected, "{what}");
    }
    let spread = json!([scaled("api", json!({"nodeSpread": {}})), component("api-n1")]);
    assert!(names(&of(spread), &[]).is_ok(), "without the node there is no clash");
    assert!(names(&of(json!([scaled("api", json!({"replicas": 500}))])), &[]).is_ok());
    assert!(matches!(names(&of(json!(3)), &[]), Err(ExpandError::Unreadable(_))));
}

#[test]
fn a_child_is_the_component_with_the_marks_of_the_set() {
    let expansion = expand(
        &set(json!({
            "common": {"labels": {"suite": "metrics", "tier": "any", SET_LABEL: "forged"},
                "annotations": {"contact": "sre", HASH_ANNOTATION: "forged"}},
            "applications": [{"name": "store", "metadata": {"labels": {"tier": "storage", COMPONENT_LABEL: "forged"},
                "annotations": {"note": "x"}}, "spec": {"image": "x", "frozen": true, "later": {"a": 1}}}],
        })),
        &[],
    )
    .unwrap();
    let child = &expansion.children[0];
    assert_eq!(
        child.object.clone().into_value(),
        json!({
            "apiVersion": "horchestra.io/v1",
            "kind": "Application",
            "metadata": {
                "name": "metrics-store",
                "namespace": "billing",
                "labels": {"suite": "metrics", "tier": "storage", SET_LABEL: "metrics", COMPONENT_LABEL: "store"},
                "annotations": {"contact": "sre", "note": "x", HASH_ANNOTATION: child.hash},
                "ownerReferences": [{"apiVersion": "horchestra.io/v1", "kind": "ApplicationSet", "name": "metrics",
                    "uid": "u-1", "controller": true}],
            },
            "spec": {"image": "x", "later": {"a": 1}},
        })
    );
    assert_eq!((child.component, child.init, child.node_name()), (0, false, ""));
    assert!(expansion.services.is_empty(), "no ports, no Service");
}

#[test]
fn spread_children_are_pinned() {
    let mut spread = scaled("scrape", json!({"nodeSpread": {}}));
    spread["spec"]["placement"] = json!({"priority": 5});
    let expansion = expand(&of(json!([spread])), &nodes()).unwrap();
    let child = &expansion.children[1];
    assert_eq!(child.node_name(), "n2");
    assert_eq!(child.object.at(&["spec", "placement", "priority"]), Some(&json!(5)));
}

#[test]
fn what_is_common_stands_behind_what_is_the_components_own() {
    let all =
        |secret: &str, prefix: &str| json!({"secretRef": {"name": secret, "key": "*", "prefix": prefix}});
    let expansion = expand(
        &set(json!({
            "common": {
                "env": [{"name": "A", "value": "common"}, {"name": "B", "value": "1"}, {"name": "B", "value": "2"},
                    all("own", ""), all("common", ""), all("common", "P_")],
                "volumes": [{"mountPath": "/a", "volume": {"type": "tmpfs"}}, {"mountPath": "/b", "volume": {"type": "tmpfs"}}],
            },
            "applications": [
                {"name": "full", "spec": {"image": "x", "env": [{"name": "A", "value": "own"}, all("own", "")],
                    "volumes": [{"mountPath": "/a", "volume": {"type": "pv"}}]}},
                {"name": "bare", "spec": {"image": "x"}},
            ],
        })),
        &[],
    )
    .unwrap();
    let spec = |at: usize| expansion.children[at].object.get("spec").unwrap().clone();
    assert_eq!(
        spec(0)["env"],
        json!([{"name": "A", "value": "own"}, all("own", ""), {"name": "B", "value": "1"}, all("common", ""), all("common", "P_")])
    );
    assert_eq!(
        spec(0)["volumes"],
        json!([{"mountPath": "/a", "volume": {"type": "pv"}}, {"mountPath": "/b", "volume": {"type": "tmpfs"}}])
    );
    assert_eq!(spec(1)["env"].as_array().unwrap().len(), 5);
    assert_eq!(spec(1)["volumes"].as_array().unwrap().len(), 2);
}

#[test]
fn the_digest_is_of_what_is_rendered() {
    let hashes = |set: &Object| -> Vec<String> {
        expand(set, &nodes()).unwrap().children.into_iter().map(|child| child.hash).collect()
    };
    let replicas = hashes(&of(json!([scaled("api", json!({"replicas": 3}))])));
    assert!(replicas.iter().all(|hash| *hash == replicas[0] && hash.len() == 64));
    let mut frozen = set(json!({"frozen": true, "applications": [component("api")]}));
    let plain = of(json!([component("api")]));
    assert_eq!(hashes(&frozen), hashes(&plain), "freezing is no change");
    frozen.set_metadata("labels", json!({"a": "b"}));
    assert_eq!(hashes(&frozen), hashes(&plain), "nor is what is said about the set");
    let changed = of(json!([{"name": "api", "spec": {"image": "y"}}]));
    assert_ne!(hashes(&changed), hashes(&plain));
    let ports = of(json!([{"name": "api", "spec": {"image": "x", "ports": [{"port": 1}]}}]));
    let joined =
        of(json!([{"name": "api", "spec": {"image": "x", "ports": [{"port": 1}], "serviceName": "s"}}]));
    assert_ne!(hashes(&ports), hashes(&joined), "the Service is part of it");
    let spread = hashes(&of(json!([scaled("api", json!({"nodeSpread": {}}))])));
    assert_ne!(spread[0], spread[1], "and so is the node");
}

#[test]
fn a_component_with_ports_gets_a_service() {
    let ports = json!([{"name": "write", "port": 8480}, {"name": "read", "port": 8481}]);
    let with = |members: Value| {
        let mut component = scaled("store", json!({"replicas": 2}));
        component["spec"]["ports"] = ports.clone();
        for (member, value) in members.as_object().unwrap() {
            component["spec"][member] = value.clone();
        }
        expand(&of(json!([component])), &[]).unwrap()
    };
    let expansion = with(json!({}));
    assert_eq!(
        expansion.services[0].object.clone().into_value(),
        json!({
            "apiVersion": "horchestra.io/v1",
            "kind": "Service",
            "metadata": {
                "name": "metrics-store",
                "namespace": "billing",
                "labels": {SET_LABEL: "metrics", COMPONENT_LABEL: "store"},
                "ownerReferences": [{"apiVersion": "horchestra.io/v1", "kind": "ApplicationSet", "name": "metrics",
                    "uid": "u-1", "controller": true}],
            },
            "spec": {"ports": ports},
        })
    );
    for child in &expansion.children {
        assert_eq!(child.object.str_at(&["spec", "serviceName"]), "metrics-store");
    }
    let joined = with(json!({"serviceName": "shared"}));
    assert!(joined.services.is_empty());
    assert_eq!(joined.children[0].object.str_at(&["spec", "serviceName"]), "shared");
    let init = with(json!({"lifecycle": {"restartPolicy": "Never"}}));
    assert!(init.services.is_empty() && init.children[0].init);
    assert_eq!(init.children[0].object.str_at(&["spec", "serviceName"]), "");
}

#[test]
fn names_of_objects() {
    assert_eq!(object_name("Web_App/1"), "web-app-1");
    assert_eq!(object_name("-.a.b.-"), "a.b");
    let long = "a".repeat(300);
    let (one, other) = (object_name(&format!("{long}x")), object_name(&format!("{long}y")));
    assert_eq!((one.len(), &one[..244], &one[244..245]), (253, &long[..244], "-"));
    assert_ne!(one, other);
    assert_eq!(object_name(&long), object_name(&long));
    let dotted = format!("{}.{}", "a".repeat(243), "b".repeat(60));
    assert_eq!(crate::names::subdomain_fault(&object_name(&dotted)), None);
}

fn arbitrary_component() -> impl Strategy<Value = Value> {
    let scale = prop_oneof![
        Just(Value::Null),
        (0i32..4).prop_map(|replicas| json!({"replicas": replicas})),
        Just(json!({"nodeSpread": {"nodeSelector": {"pool": "general"}}})),
        Just(json!({"nodeSpread": {}})),
    ];
    let env = proptest::collection::vec("[AB]", 0..3);
    let policy = prop_oneof![Just("Always"), Just("Never")];
    ("[ab](-[01n])?", scale, env, policy, any::<bool>()).prop_map(|(name, scale, env, policy, ports)| {
        let env: std::collections::BTreeSet<String> = env.into_iter().collect();
        let env: Vec<Value> = env.into_iter().map(|name| json!({"name": name, "value": "own"})).collect();
        let mut spec = json!({"image": "x", "env": env, "lifecycle": {"restartPolicy": policy}});
        if ports {
            spec["ports"] = json!([{"port": 80}]);
        }
        json!({"name": name, "spec": spec, "scale": scale})
    })
}

proptest! {
    /// Whatever the set: what comes out is complete, named apart, marked, and a function of the spec.
    #[test]
    fn an_expansion_keeps_its_promises(
        components in proptest::collection::vec(arbitrary_component(), 1..5),
        common in proptest::collection::vec("[ABC]", 0..4),
        used in 0usize..4,
    ) {
        let mut components = components;
        let mut taken = HashSet::new();
        components.retain(|component| taken.insert(component["name"].to_string()));
        let common: Vec<Value> = common.iter().map(|name| json!({"name": name, "value": "common"})).collect();
        let set = set(json!({"applications": components, "common": {"env": common}}));
        let nodes = &nodes()[..used.min(3)];
        let Ok(expansion) = expand(&set, nodes) else {
            // Only names can clash here.
            let clash = matches!(expand(&set, nodes), Err(ExpandError::DuplicateChild(_)));
            prop_assert!(clash);
            return Ok(());
        };
        prop_assert_eq!(&expand(&set, nodes).unwrap(), &expansion, "the same every time");

        let expected: usize = components.iter().map(|component| match &component["scale"] {
            scale if scale["nodeSpread"].is_object() => {
                let all = scale["nodeSpread"].get("nodeSelector").is_none();
                nodes.iter().filter(|node| all || node.labels.contains_key("pool")).count()
            }
            scale => scale["replicas"].as_u64().map_or(1, |replicas| usize::try_from(replicas).unwrap()),
        }).sum();
        prop_assert_eq!(expansion.children.len(), expected);
        let unique: HashSet<&str> = expansion.children.iter().map(Child::name).collect();
        prop_assert_eq!(unique.len(), expected);

        let mut specs: BTreeMap<String, String> = BTreeMap::new();
        for child in &expansion.children {
            let component = &components[child.component];
            let stem = format!("metrics-{}", component["name"].as_str().unwrap());
            prop_assert!(child.name().starts_with(&stem));
            prop_assert!(crate::names::subdomain_fault(child.name()).is_none());
            prop_assert_eq!(child.object.label(SET_LABEL), Some("metrics"));
            prop_assert_eq!(child.object.label(COMPONENT_LABEL), component["name"].as_str());
            prop_assert_eq!(child.object.str_at(&["metadata", "annotations", HASH_ANNOTATION]), &child.hash);
            let spec = child.object.get("spec").unwrap();
            prop_assert_eq!(specs.entry(child.hash.clone()).or_insert_with(|| spec.to_string()), &spec.to_string());
            let env: Vec<&str> = spec["env"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
            prop_assert_eq!(env.iter().collect::<HashSet<_>>().len(), env.len(), "no variable twice");
            let own = component["spec"]["env"].as_array().unwrap();
            prop_assert_eq!(&spec["env"].as_array().unwrap()[..own.len()], &own[..]);
            let joined = child.object.str_at(&["spec", "serviceName"]);
            prop_assert_eq!(joined.is_empty(), !expansion.services.iter().any(|service| service.name() == joined));
        }
    }
}

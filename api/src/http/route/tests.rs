use super::*;

fn served() -> Served {
    Served::new([Kind::Namespace, Kind::Node, Kind::Application, Kind::Event])
}

#[test]
fn paths_resolve_to_what_is_judged_and_served() {
    let ns = |name: &str| Some(name.to_owned());
    let cases = [
        ("/version", Route::Version),
        ("/version/", Route::Version),
        ("/api/", Route::CoreVersions),
        ("/apis/", Route::Groups),
        ("/apis/horchestra.io/v1/", Route::Resources { group: "horchestra.io".into(), version: "v1".into() }),
        (
            "/apis/horchestra.io/v1/applications",
            Route::Collection { kind: Kind::Application, namespace: None },
        ),
        (
            "/apis/horchestra.io/v1/namespaces/t/applications",
            Route::Collection { kind: Kind::Application, namespace: ns("t") },
        ),
        (
            "/apis/horchestra.io/v1/namespaces/t/applications/web/status",
            Route::ItemStatus { kind: Kind::Application, namespace: ns("t"), name: "web".into() },
        ),
        ("/apis/horchestra.io/v1/namespaces", Route::Collection { kind: Kind::Namespace, namespace: None }),
        (
            "/apis/horchestra.io/v1/namespaces/t",
            Route::Item { kind: Kind::Namespace, namespace: None, name: "t".into() },
        ),
        (
            "/apis/horchestra.io/v1/nodes/n1/status",
            Route::ItemStatus { kind: Kind::Node, namespace: None, name: "n1".into() },
        ),
        (
            "/apis/horchestra.io/v1/namespaces/t/applications/web/freeze",
            Route::ItemDoor {
                kind: Kind::Application,
                namespace: ns("t"),
                name: "web".into(),
                door: Door::Freeze,
            },
        ),
        (
            "/apis/horchestra.io/v1/namespaces/t/revisions",
            Route::ItemDoor {
                kind: Kind::Namespace,
                namespace: None,
                name: "t".into(),
                door: Door::Revisions,
            },
        ),
        ("/api/v1/pods/web/log", Route::PodLog { namespace: None, name: "web".into() }),
        ("/api/v1/namespaces/t/pods/web/log", Route::PodLog { namespace: ns("t"), name: "web".into() }),
        (
            "/api/v1/namespaces/t",
            Route::AliasItem { alias: Alias::Namespaces, namespace: None, name: "t".into() },
        ),
        ("/v1/catalog/services", Route::Catalog(Endpoint::Services)),
        ("/servicediscovery/v1/catalog/services", Route::Catalog(Endpoint::Services)),
        ("/servicediscovery/v1/health/service/web", Route::Catalog(Endpoint::Health("web".into()))),
        ("/v1/status/leader", Route::Catalog(Endpoint::Leader)),
        ("/api/v1/events", Route::Collection { kind: Kind::Event, namespace: None }),
        (
            "/api/v1/namespaces/t/events/e",
            Route::Item { kind: Kind::Event, namespace: ns("t"), name: "e".into() },
        ),
        ("/apis/events.k8s.io/v1/events", Route::AliasCollection { alias: Alias::Events, namespace: None }),
        (
            "/apis/events.k8s.io/v1/namespaces/t/events/e",
            Route::AliasItem { alias: Alias::Events, namespace: ns("t"), name: "e".into() },
        ),
        (
            "/apis/horchestra.io/v1/namespaces/t/applications/web/metrics",
            Route::ApplicationMetrics { namespace: "t".into(), name: "web".into() },
        ),
        (
            "/apis/metrics.k8s.io/v1beta1/nodes",
            Route::UsageCollection { resource: &usage::NODES, namespace: None },
        ),
        (
            "/apis/metrics.k8s.io/v1beta1/nodes/n1",
            Route::UsageItem { resource: &usage::NODES, namespace: None, name: "n1".into() },
        ),
        (
            "/apis/metrics.k8s.io/v1beta1/pods",
            Route::UsageCollection { resource: &usage::WORKLOADS, namespace: None },
        ),
        (
            "/apis/metrics.k8s.io/v1beta1/namespaces/t/pods",
            Route::UsageCollection { resource: &usage::WORKLOADS, namespace: ns("t") },
        ),
        (
            "/apis/metrics.k8s.io/v1beta1/namespaces/t/pods/web",
            Route::UsageItem { resource: &usage::WORKLOADS, namespace: ns("t"), name: "web".into() },
        ),
        ("/readyz/store", Route::Probe { probe: Probe::Ready, check: Some("store".into()) }),
    ];
    for (path, route) in cases {
        assert_eq!(served().resolve(path), Ok(route), "{path}");
    }
}

#[test]
fn tricks_and_foreign_groups_are_not_routed() {
    let cases = [
        ("/apis/horchestra.io/v1%2Fnamespaces/x", NoRoute::Encoded),
        ("/apis/horchestra.io/v1/namespaces/te%61m-a/applications", NoRoute::Encoded),
        ("/apis/horchestra.io/v1/namespaces/a%20b", NoRoute::Encoded),
        ("/apis/horchestra.io/v1/applications/", NoRoute::Unknown),
        ("/apis/horchestra.io/v1//applications", NoRoute::Unknown),
        ("/apis/horchestra.io/v1/../v1/applications", NoRoute::Unknown),
        ("/apis/bogus.io/v1/namespaces/default/applications", NoRoute::Unknown),
        ("/apis/horchestra.io/v9/nodes", NoRoute::Unknown),
        ("/apis/horchestra.io/v1/applications/web", NoRoute::Unknown),
        ("/apis/horchestra.io/v1/namespaces/t/nodes", NoRoute::Unknown),
        ("/apis/horchestra.io/v1/namespaces/t/status", NoRoute::Unknown),
        ("/apis/horchestra.io/v1/nodes/n1/sessionlog", NoRoute::Unknown),
        ("/apis/horchestra.io/v1/nodes/n1/log", NoRoute::Unknown),
        ("/apis/horchestra.io/v1/nodes/n1/metrics", NoRoute::Unknown),
        ("/apis/metrics.k8s.io/v1/nodes", NoRoute::Unknown),
        ("/apis/metrics.k8s.io/v1beta1/pods/web", NoRoute::Unknown),
        ("/apis/metrics.k8s.io/v1beta1/namespaces/t", NoRoute::Unknown),
        ("/apis/metrics.k8s.io/v1beta1/namespaces/t/nodes", NoRoute::Unknown),
        ("/apis/metrics.k8s.io/v1beta1/namespaces/t/nodes/n1", NoRoute::Unknown),
        ("/apis/metrics.k8s.io/v1beta1/namespaces/t/secrets", NoRoute::Unknown),
        ("/apis/metrics.k8s.io/v1beta1/secrets", NoRoute::Unknown),
        ("/apis/metrics.k8s.io/v1beta1/applications", NoRoute::Unknown),
        ("/apis/metrics.k8s.io/v1beta1/nodes/n1/log", NoRoute::Unknown),
        ("/apis/horchestra.io/v1/watch/applications", NoRoute::Unknown),
        ("/api/v1/namespaces/t/nodes", NoRoute::Unknown),
        ("/api/v1/namespaces/t/secrets", NoRoute::Unknown),
        ("/api/v1/events/x", NoRoute::Unknown),
        ("/apis/events.k8s.io/v1/events/x", NoRoute::Unknown),
        ("/apis/events.k8s.io/v1beta1/events", NoRoute::Unknown),
        ("/apis/events.k8s.io/v1/namespaces/t/pods", NoRoute::Unknown),
        ("/api/v1/namespaces/t/events/x/status", NoRoute::Unknown),
        ("/apis//v1/events", NoRoute::Unknown),
        ("/version//", NoRoute::Unknown),
        ("/", NoRoute::Unknown),
        ("//", NoRoute::Unknown),
        ("/livez/", NoRoute::Unknown),
        ("*", NoRoute::Unknown),
    ];
    for (path, why) in cases {
        assert_eq!(served().resolve(path), Err(why), "{path}");
    }
}

#[test]
fn what_an_issuer_serves_is_routed_where_there_is_one() {
    let paths = [
        ("/openid/v1/jwks", Issued::Keys),
        ("/.well-known/openid-configuration", Issued::Configuration),
        ("/apis/authentication.k8s.io/v1/tokenreviews", Issued::Review),
    ];
    for (path, what) in paths {
        assert_eq!(served().resolve(path), Err(NoRoute::Unknown), "{path}");
        assert_eq!(served().with_issuer(true).resolve(path), Ok(Route::Issued(what)), "{path}");
        let unnamed = served().with_issuer(false).resolve(path);
        assert_eq!(unnamed.is_ok(), what != Issued::Configuration, "{path}");
    }
}

#[test]
fn the_logs_of_agents_are_routed_where_they_are_served() {
    let path = "/apis/horchestra.io/v1/nodes/n1/log";
    let route = Route::NodeLog { name: "n1".into() };
    assert_eq!((route.kind(), route.subresource()), (Some(Kind::Node), "log"));
    assert_eq!(served().with_node_logs(true).resolve(path), Ok(route));
    assert_eq!(served().with_node_logs(false).resolve(path), Err(NoRoute::Unknown));
}

#[test]
fn watch_is_a_verb_of_collections_only() {
    let collection = Route::Collection { kind: Kind::Node, namespace: None };
    let item = Route::Item { kind: Kind::Node, namespace: None, name: "n".into() };
    assert_eq!(collection.verb(&Method::GET, true), Some(Verb::Watch));
    assert_eq!(collection.verb(&Method::HEAD, true), Some(Verb::List));
    assert_eq!(collection.verb(&Method::DELETE, true), Some(Verb::DeleteCollection));
    assert_eq!(item.verb(&Method::GET, true), Some(Verb::Get));
    assert_eq!(item.verb(&Method::POST, false), None);
    let everywhere = Route::Collection { kind: Kind::Application, namespace: None };
    assert_eq!(everywhere.verb(&Method::POST, false), None);
    assert_eq!(everywhere.verb(&Method::DELETE, false), None);
    for (alias, namespace, writes) in
        [(Alias::Events, Some("t"), true), (Alias::Events, None, false), (Alias::Pods, Some("t"), false)]
    {
        let collection = Route::AliasCollection { alias, namespace: namespace.map(str::to_owned) };
        assert_eq!(collection.verb(&Method::POST, false), writes.then_some(Verb::Create), "{alias:?}");
        assert_eq!(collection.verb(&Method::GET, true), Some(Verb::Watch), "{alias:?}");
    }
}

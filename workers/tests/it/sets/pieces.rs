//! What a set makes, keeps and takes away: children, Services, steps, one node for all.

use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use serde_json::{Value, json};

use super::world::*;

#[tokio::test]
async fn children_are_made_and_go_with_their_component() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [component("a", "x"), component("b", "x")]})).await;
    world.pass().await;
    assert_eq!(world.apps().await, ["web-a", "web-b"]);
    let child = world.tree(&app("web-a")).await;
    assert_eq!(child["metadata"]["labels"]["horchestra.io/component"], "a");
    assert_eq!(child["metadata"]["ownerReferences"][0]["controller"], true);
    world.converge().await;
    assert_eq!(world.summary("web").await, "Ready 2/2/2");

    world.put_set("web", json!({"applications": [component("a", "x")]})).await;
    world.converge().await;
    assert_eq!(world.apps().await, ["web-a"]);
    assert_eq!(world.summary("web").await, "Ready 1/1/1");
}

#[tokio::test]
async fn what_is_not_to_be_pruned_stays() {
    let mut world = World::new(&["n1"]).await;
    let kept = json!({"prune": false});
    let mut with_port = component("b", "x");
    with_port["spec"]["ports"] = json!([{"port": 80}]);
    world.put_set("web", json!({"applications": [component("a", "x"), with_port], "rollout": kept})).await;
    world.converge().await;
    world.put_set("web", json!({"applications": [component("a", "x")], "rollout": kept})).await;
    world.converge().await;
    assert_eq!(world.apps().await, ["web-a", "web-b"]);
    assert_eq!(world.names(Kind::Service).await, ["web-b"]);
}

#[tokio::test]
async fn only_what_is_owned_is_touched() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [component("a", "x")]})).await;
    let labelled = json!({"kind": "Application", "metadata": {"name": "stray"}, "spec": {"image": "x"}});
    world.create(labelled).await.unwrap();
    world.converge().await;
    assert_eq!(world.apps().await, ["stray", "web-a"], "a stranger is no child to prune");

    world.merge(&app("stray"), json!({"metadata": {"annotations": {"note": "mine"}}})).await;
    world
        .merge(
            &app("web-a"),
            json!({"metadata": {"labels": {"extra": "1"}, "annotations": {"note": "mine"}}}),
        )
        .await;
    world.converge().await;
    let child = world.tree(&app("web-a")).await;
    assert!(child["metadata"]["labels"].get("extra").is_none(), "an extra label is taken off");
}

#[tokio::test]
async fn an_extra_annotation_stays_until_the_next_update() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [component("a", "x")]})).await;
    world.converge().await;
    world.merge(&app("web-a"), json!({"metadata": {"annotations": {"note": "mine"}}})).await;
    world.converge().await;
    assert_eq!(world.tree(&app("web-a")).await["metadata"]["annotations"]["note"], "mine");
    world.put_set("web", json!({"applications": [component("a", "y")]})).await;
    world.converge().await;
    assert!(world.tree(&app("web-a")).await["metadata"]["annotations"].get("note").is_none());
}

#[tokio::test]
async fn a_child_deleted_by_hand_is_made_anew_once_it_is_gone() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [component("a", "x")]})).await;
    world.converge().await;
    let first = world.entry(&app("web-a")).await.unwrap().uid;
    world.delete(&app("web-a"), None).await;
    world.settle().await;
    assert_eq!(world.entry(&app("web-a")).await.unwrap().uid, first, "the name is taken until then");
    world.converge().await;
    assert_ne!(world.entry(&app("web-a")).await.unwrap().uid, first);
    assert_eq!(world.summary("web").await, "Ready 1/1/1");
}

#[tokio::test]
async fn spread_children_follow_the_nodes() {
    let mut world = World::new(&[]).await;
    for (node, role) in [("e1", "edge"), ("c1", "core"), ("e2", "edge")] {
        world.add_node(node, json!({"role": role})).await;
    }
    let spread = json!({"name": "a", "spec": {"image": "x"},
        "scale": {"nodeSpread": {"nodeSelector": {"role": "edge"}}}});
    world.put_set("web", json!({"applications": [spread]})).await;
    world.converge().await;
    assert_eq!(world.apps().await, ["web-a-e1", "web-a-e2"]);
    assert_eq!(world.tree(&app("web-a-e1")).await["spec"]["placement"]["nodeName"], "e1");

    world.service.cordon(&operator(), "e1", true).await.unwrap();
    world.merge(&Key::cluster(Kind::Node, "e2"), json!({"metadata": {"labels": {"role": "core"}}})).await;
    world.merge(&Key::cluster(Kind::Node, "c1"), json!({"metadata": {"labels": {"role": "edge"}}})).await;
    world.converge().await;
    assert_eq!(world.apps().await, ["web-a-c1", "web-a-e1"], "a cordon changes nothing, a label does");
    world.delete(&Key::cluster(Kind::Node, "c1"), None).await;
    world.converge().await;
    assert_eq!(world.apps().await, ["web-a-e1"], "a node that is gone takes its child along");
}

#[tokio::test]
async fn a_node_that_comes_later_can_make_a_set_clash_with_itself() {
    let mut world = World::new(&["n1"]).await;
    let spread = json!({"name": "a", "spec": {"image": "x"}, "scale": {"nodeSpread": {}}});
    world.put_set("web", json!({"applications": [spread, component("a-n2", "x")]})).await;
    world.converge().await;
    assert_eq!(world.summary("web").await, "Ready 2/2/2");
    let head = world.head().await;
    world.add_node("n2", json!({})).await;
    world.converge().await;
    assert_eq!(world.summary("web").await, "RenderError 2/2/2");
    assert_eq!(world.condition("web", "Rendered").await, "False RenderError");
    assert_eq!(world.condition("web", "Converged").await, "", "the one entry");
    assert!(world.message("web", "Rendered").await.contains("web-a-n2"));
    assert_eq!(world.written(head).await, Vec::<String>::new(), "nothing is touched");
}

#[tokio::test]
async fn a_pin_moves_a_child_and_its_removal_leaves_it_there() {
    let mut world = World::new(&["n1", "n2"]).await;
    let pinned = |node: &str| {
        let mut it = component("a", "x");
        it["spec"]["placement"] = json!({"nodeName": node});
        it
    };
    let node = async |world: &World| world.tree(&app("web-a")).await["spec"]["placement"]["nodeName"].clone();
    world.put_set("web", json!({"applications": [pinned("n2")]})).await;
    world.converge().await;
    assert_eq!(node(&world).await, "n2");
    world.put_set("web", json!({"applications": [component("a", "x")]})).await;
    world.converge().await;
    assert_eq!(node(&world).await, "n2");
    world.put_set("web", json!({"applications": [pinned("n1")]})).await;
    world.converge().await;
    assert_eq!(node(&world).await, "n1");
    assert_eq!(world.summary("web").await, "Ready 1/1/1");
}

#[tokio::test]
async fn what_others_added_to_a_child_survives_an_update() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [component("a", "x"), component("b", "x")]})).await;
    world.converge().await;
    let ids = async |world: &World| world.tree(&app("web-b")).await["spec"]["securityContext"].clone();
    let before = ids(&world).await;
    assert!(before["runAsUser"].is_i64());
    // The lower id of the first child is free by the time that the second one is changed.
    world.put_set("web", json!({"applications": [component("b", "x")]})).await;
    world.converge().await;
    world.put_set("web", json!({"applications": [component("b", "y")]})).await;
    world.converge().await;
    assert_eq!(world.images().await["web-b"], "y");
    assert_eq!(ids(&world).await, before);
    assert_eq!(world.tree(&app("web-b")).await["spec"]["placement"]["nodeName"], "n1");
}

// ---- Services ------------------------------------------------------------------------------------------

fn listening(name: &str, port: u16) -> Value {
    let mut it = component(name, "x");
    it["spec"]["ports"] = json!([{"name": "http", "port": port}]);
    it
}

#[tokio::test]
async fn a_component_with_ports_gets_a_service_that_is_then_left_alone() {
    let mut world = World::new(&["n1"]).await;
    let mut job = step("init", "x");
    job["spec"]["ports"] = json!([{"port": 1}]);
    world
        .put_set("web", json!({"applications": [job, listening("api", 8080), component("worker", "x")]}))
        .await;
    world.converge().await;
    assert_eq!(world.names(Kind::Service).await, ["web-api"]);
    let made = world.tree(&service("web-api")).await;
    assert_eq!(made["spec"]["ports"][0]["port"], 8080);
    assert_eq!(made["metadata"]["ownerReferences"][0]["name"], "web");
    assert_eq!(world.tree(&app("web-api")).await["spec"]["serviceName"], "web-api");
    assert!(world.tree(&app("web-worker")).await["spec"].get("serviceName").is_none());

    let revision = made["metadata"]["resourceVersion"].clone();
    world.merge(&app("web-worker"), json!({"metadata": {"annotations": {"wake": "up"}}})).await;
    world.settle().await;
    assert_eq!(world.tree(&service("web-api")).await["metadata"]["resourceVersion"], revision);

    world.put_set("web", json!({"applications": [listening("api", 9090)]})).await;
    world.converge().await;
    assert_eq!(world.tree(&service("web-api")).await["spec"]["ports"][0]["port"], 9090);
}

#[tokio::test]
async fn a_service_of_somebody_else_is_joined_and_left_as_it_is() {
    let mut world = World::new(&["n1"]).await;
    let theirs =
        json!({"kind": "Service", "metadata": {"name": "web-api"}, "spec": {"ports": [{"port": 443}]}});
    world.create(theirs).await.unwrap();
    let before = world.tree(&service("web-api")).await;
    let mut joins = component("b", "x");
    joins["spec"]["serviceName"] = json!("web-api");
    world.put_set("web", json!({"applications": [listening("api", 8080), joins]})).await;
    world.converge().await;
    assert_eq!(world.tree(&service("web-api")).await, before);
    assert_eq!(world.tree(&app("web-api")).await["spec"]["serviceName"], "web-api");
    assert_eq!(world.summary("web").await, "Ready 2/2/2", "that is no refusal");
}

#[tokio::test]
async fn a_service_goes_when_nobody_is_a_member_any_more() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [listening("api", 80), component("b", "x")]})).await;
    world.converge().await;
    let member = json!({"metadata": {"name": "guest"}, "spec": {"image": "x", "serviceName": "web-api"}});
    world.create(member).await.unwrap();
    world.put_set("web", json!({"applications": [component("b", "x")]})).await;
    world.converge().await;
    assert_eq!(world.names(Kind::Service).await, ["web-api"], "a guest still is");
    world.delete(&app("guest"), None).await;
    world.converge().await;
    assert_eq!(world.names(Kind::Service).await, Vec::<String>::new());
}

// ---- steps ---------------------------------------------------------------------------------------------

#[tokio::test]
async fn steps_run_in_their_order_and_before_everything_else() {
    let mut world = World::new(&["n1"]).await;
    let components = json!([component("api", "x"), step("schema", "x"), step("seed", "x")]);
    world.put_set("web", json!({"applications": components})).await;
    for (there, summary) in [
        (&["web-schema"][..], "Initializing 1/0/0"),
        (&["web-schema", "web-seed"], "Initializing 1/0/0"),
        (&["web-api", "web-schema", "web-seed"], "Progressing 1/1/0"),
    ] {
        world.settle().await;
        assert_eq!(world.apps().await, there);
        assert_eq!(world.summary("web").await, summary);
        world.schedule().await;
        world.run_nodes().await;
    }
    world.settle().await;
    assert_eq!(world.summary("web").await, "Ready 1/1/1");
    let children = world.status("web").await["children"].clone();
    assert_eq!(children[1], json!({"name": "web-schema", "node": "n1", "phase": "Succeeded"}));
    assert_eq!(world.condition("web", "Initialized").await, "", "there is nothing to say once it is so");
}

#[tokio::test]
async fn a_step_that_failed_says_so_with_its_exit_code() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [step("migrate", "x"), component("api", "x")]})).await;
    world.settle().await;
    world.schedule().await;
    world.report("web-migrate", "Failed", Some(7)).await;
    world.settle().await;
    assert_eq!(world.apps().await, ["web-migrate"]);
    assert_eq!(world.summary("web").await, "InitFailed 1/0/0");
    let message = world.message("web", "Initialized").await;
    assert!(message.contains("migrate") && message.contains('7'), "{message}");
    assert_eq!(world.written(0).await, ["create Application web-migrate"], "it is not run again");

    world.put_set("web", json!({"applications": [step("migrate", "y"), component("api", "x")]})).await;
    world.converge().await;
    assert_eq!(world.summary("web").await, "Ready 1/1/1");
}

#[tokio::test]
async fn the_first_child_of_a_step_that_is_not_done_decides() {
    for (failed, expected) in [("web-migrate-0", "InitFailed"), ("web-migrate-1", "Initializing")] {
        let mut world = World::new(&["n1"]).await;
        let mut migrate = step("migrate", "x");
        migrate["scale"] = json!({"replicas": 2});
        world.put_set("web", json!({"applications": [migrate, component("api", "x")]})).await;
        world.settle().await;
        world.schedule().await;
        world.report(failed, "Failed", Some(1)).await;
        world.settle().await;
        assert_eq!(world.status("web").await["phase"], expected, "{failed}");
    }
}

#[tokio::test]
async fn an_edited_step_closes_the_gate_and_what_runs_keeps_running() {
    let mut world = World::new(&["n1"]).await;
    let of = |init: &str, image: &str| json!({"applications": [step("init", init), component("api", image)]});
    world.put_set("web", of("x", "x")).await;
    world.converge().await;
    let uid = world.entry(&app("web-api")).await.unwrap().uid;
    world.put_set("web", of("y", "y")).await;
    world.settle().await;
    assert_eq!(world.images().await["web-init"], "y");
    assert_eq!(world.images().await["web-api"], "x", "it waits");
    assert!(!world.entry(&app("web-api")).await.unwrap().deleting, "and stays");
    assert_eq!(world.summary("web").await, "Initializing 1/1/1");
    world.converge().await;
    assert_eq!(world.images().await["web-api"], "y");
    assert_eq!(world.entry(&app("web-api")).await.unwrap().uid, uid);
    assert_eq!(world.summary("web").await, "Ready 1/1/1");
}

// ---- one node for all ------------------------------------------------------------------------------------

#[tokio::test]
async fn siblings_follow_the_first_to_its_node() {
    let mut world = World::new(&["n1", "n2"]).await;
    let components = json!([component("c", "x"), component("a", "x"), component("b", "x")]);
    world.put_set("web", json!({"applications": components, "placement": {"mode": "sameNode"}})).await;
    world.settle().await;
    assert_eq!(world.apps().await, ["web-a"]);
    assert_eq!(world.summary("web").await, "AwaitingAnchor 3/1/0");
    world.schedule().await;
    world.settle().await;
    assert_eq!(world.apps().await, ["web-a", "web-b", "web-c"]);
    let anchor = world.tree(&app("web-a")).await["spec"]["placement"]["nodeName"].clone();
    for name in ["web-b", "web-c"] {
        assert_eq!(world.tree(&app(name)).await["spec"]["placement"]["nodeName"], anchor, "{name}");
    }
    world.converge().await;
    assert_eq!(world.summary("web").await, "Ready 3/3/3");
}

#[tokio::test]
async fn a_new_first_child_holds_back_and_deletes_nobody() {
    let mut world = World::new(&["n1"]).await;
    let same = json!({"mode": "sameNode"});
    world
        .put_set(
            "web",
            json!({"applications": [component("b", "x"), component("c", "x")], "placement": same}),
        )
        .await;
    world.converge().await;
    let components = json!([component("a", "x"), component("b", "x"), component("c", "x")]);
    world.put_set("web", json!({"applications": components, "placement": same})).await;
    world.settle().await;
    assert_eq!(world.condition("web", "Converged").await, "False AwaitingAnchor");
    assert_eq!(world.apps().await, ["web-a", "web-b", "web-c"]);
    assert!(!world.entry(&app("web-b")).await.unwrap().deleting);
    world.converge().await;
    assert_eq!(world.summary("web").await, "Ready 3/3/3");
}

// ---- freeze ----------------------------------------------------------------------------------------------

#[tokio::test]
async fn a_frozen_set_makes_changes_and_deletes_nothing() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [component("a", "x"), component("b", "x")]})).await;
    world.converge().await;
    let digest = world.tree(&app("web-a")).await["metadata"]["annotations"].clone();
    world.act(&set("web"), Door::Freeze).await;
    world.converge().await;
    assert_eq!(world.summary("web").await, "Frozen 2/2/2");
    assert_eq!(world.condition("web", "Converged").await, "True Converged");
    assert_eq!(world.condition("web", "Frozen").await, "True Requested", "that of the door stays");

    let head = world.head().await;
    world.put_set("web", json!({"applications": [component("a", "y"), component("c", "x")]})).await;
    world.converge().await;
    assert_eq!(world.written(head).await, Vec::<String>::new());
    assert_eq!(world.condition("web", "Converged").await, "False Frozen");

    world.act(&set("web"), Door::Thaw).await;
    world.converge().await;
    assert_eq!(world.images().await, [("web-a".into(), "y".into()), ("web-c".into(), "x".into())].into());
    assert_eq!(world.summary("web").await, "Ready 2/2/2");
    assert_ne!(world.tree(&app("web-a")).await["metadata"]["annotations"], digest);
}

#[tokio::test]
async fn a_frozen_child_is_left_as_it_is() {
    let mut world = World::new(&["n1"]).await;
    world
        .put_set(
            "web",
            json!({"applications": [component("a", "x"), component("b", "x"), component("c", "x")]}),
        )
        .await;
    world.converge().await;
    world.act(&app("web-a"), Door::Freeze).await;
    world.act(&app("web-b"), Door::Freeze).await;
    world.put_set("web", json!({"applications": [component("a", "y"), component("c", "y")]})).await;
    world.converge().await;
    let images = world.images().await;
    assert_eq!((&*images["web-a"], &*images["web-c"]), ("x", "y"));
    assert!(images.contains_key("web-b"), "nor is it pruned");
    assert!(world.message("web", "Converged").await.contains("frozen"));
}

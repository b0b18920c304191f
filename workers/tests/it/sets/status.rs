//! What a set says of itself, and when it says nothing new.

use std::time::Duration;

use horchestra_core::kind::{Key, Kind};
use horchestra_testkit::eventually;
use horchestra_workers::substrate::Reconciler as _;
use serde_json::json;

use super::world::*;

#[tokio::test]
async fn a_name_that_is_taken_is_told_of_and_left_alone() {
    let mut world = World::new(&["n1"]).await;
    world.create(json!({"metadata": {"name": "web-a"}, "spec": {"image": "theirs"}})).await.unwrap();
    world.put_set("web", json!({"applications": [component("a", "x"), component("b", "x")]})).await;
    world.converge().await;
    assert_eq!(world.summary("web").await, "NameConflict 2/1/1");
    assert_eq!(world.condition("web", "Applied").await, "False NameConflict");
    assert!(world.message("web", "Applied").await.contains("application \"web-a\""));
    assert_eq!(world.images().await["web-a"], "theirs");
    let before = world.log(0).await.len();
    world.settle().await;
    assert_eq!(world.log(0).await.len(), before, "the same refusal is not written again");

    world.delete(&app("web-a"), None).await;
    world.converge().await;
    assert_eq!(world.images().await["web-a"], "x");
    assert_eq!(world.summary("web").await, "Ready 2/2/2");
    assert_eq!(world.condition("web", "Applied").await, "True Applied");
}

#[tokio::test]
async fn the_second_of_two_sets_that_make_one_name_is_told() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("a-b", json!({"applications": [component("c", "first")]})).await;
    world.settle().await;
    world.put_set("a", json!({"applications": [component("b-c", "second")]})).await;
    world.converge().await;
    assert_eq!(world.summary("a-b").await, "Ready 1/1/1");
    assert_eq!(world.summary("a").await, "NameConflict 1/0/0");
    assert_eq!(world.images().await["a-b-c"], "first");
}

#[tokio::test]
async fn a_refused_child_is_told_of_in_the_words_of_the_refusal() {
    let mut world = World::new(&["n1"]).await;
    let mut greedy = component("a", "x");
    greedy["spec"]["placement"] = json!({"nodeName": "n1"});
    greedy["spec"]["resources"] = json!({"requests": {"cpu": "65"}});
    let mut needy = component("b", "x");
    needy["spec"]["serviceName"] = json!("nowhere");
    world.put_set("web", json!({"applications": [greedy, needy, component("c", "x")]})).await;
    world.converge().await;
    assert_eq!(world.apps().await, ["web-c"], "the others are made all the same");
    assert_eq!(world.summary("web").await, "Refused 3/1/1");
    let message = world.message("web", "Applied").await;
    assert!(message.contains("cpu 65 of 64") && message.contains("nowhere"), "{message}");
    // What was missing comes: it is tried again for it.
    let missing =
        json!({"kind": "Service", "metadata": {"name": "nowhere"}, "spec": {"ports": [{"port": 1}]}});
    world.create(missing).await.unwrap();
    world.converge().await;
    assert_eq!(world.apps().await, ["web-b", "web-c"]);
}

#[tokio::test]
async fn children_of_services_are_counted_and_steps_only_listed() {
    let mut world = World::new(&["n1"]).await;
    world
        .put_set(
            "web",
            json!({"applications": [component("a", "x"), component("b", "x"), component("c", "x")]}),
        )
        .await;
    world.settle().await;
    world.schedule().await;
    world.report("web-a", "Running", None).await;
    world.report("web-b", "Failed", None).await;
    world.settle().await;
    let status = world.status("web").await;
    assert_eq!((&status["scheduled"], &status["running"]), (&json!(3), &json!(1)));
    let phases: Vec<_> = status["children"].as_array().unwrap().iter().map(|it| &it["phase"]).collect();
    assert_eq!(phases, ["Running", "Scheduled", "Scheduled"]);

    world.put_set("jobs", json!({"applications": [step("once", "x")]})).await;
    world.converge().await;
    assert_eq!(world.summary("jobs").await, "Ready 0/0/0");
}

#[tokio::test]
async fn conditions_tell_how_far_a_set_is() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [component("a", "x")]})).await;
    world.settle().await;
    for (kind, expected) in [
        ("Rendered", "True Expanded"),
        ("Applied", "True Applied"),
        ("Converged", "True Converged"),
        ("Available", "False MinimumUnavailable"),
        ("Progressing", "True Progressing"),
    ] {
        assert_eq!(world.condition("web", kind).await, expected, "{kind}");
    }
    world.converge().await;
    assert_eq!(world.condition("web", "Available").await, "True MinimumAvailable");
    assert_eq!(world.condition("web", "Progressing").await, "True Complete");
    let generation = world.tree(&set("web")).await["metadata"]["generation"].clone();
    let conditions = world.status("web").await["conditions"].clone();
    for condition in conditions.as_array().unwrap() {
        assert_eq!(condition["observedGeneration"], generation, "{condition}");
        assert!(condition["lastTransitionTime"].is_string(), "{condition}");
    }
    // A child that goes down later is no rollout.
    world.report("web-a", "Failed", None).await;
    world.settle().await;
    assert_eq!(world.condition("web", "Progressing").await, "True Complete");
    assert_eq!(world.condition("web", "Available").await, "False MinimumUnavailable");
    assert_eq!(world.summary("web").await, "Progressing 1/1/0");
}

#[tokio::test]
async fn at_rest_nothing_is_written_by_this_leader_or_the_next() {
    let mut world = World::new(&["n1", "n2"]).await;
    let mut api = replicas("api", "x", 3);
    api["spec"]["ports"] = json!([{"name": "http", "port": 80}]);
    api["metadata"] = json!({"labels": {"tier": "front"}, "annotations": {"note": "n"}});
    let components = json!([step("init", "x"), api, component("db", "x")]);
    let common = json!({"labels": {"team": "t"}, "env": [{"name": "A", "value": "1"}]});
    world
        .put_set(
            "web",
            json!({"applications": components, "common": common, "rollout": {"maxUnavailable": 1}}),
        )
        .await;
    world
        .put_set(
            "one",
            json!({"applications": [component("a", "x"), component("b", "x")],
        "placement": {"mode": "sameNode"}}),
        )
        .await;
    world.converge().await;
    let before = world.log(0).await.len();
    for _ in 0..3 {
        assert_eq!(world.pass().await.writes, 0);
    }
    world.sets = successor(&world.service, world.service.clone()).await;
    let report = world.pass().await;
    assert_eq!((report.writes, report.refused), (0, 0));
    assert_eq!(world.log(0).await.len(), before);
    assert_eq!(world.names(Kind::ApplicationSet).await, ["one", "web"]);
}

#[tokio::test]
async fn a_set_that_cannot_be_read_holds_nobody_else_up() {
    let mut world = World::new(&["n1"]).await;
    // Of a version to come, in which replicas are a word.
    let odd = json!({"applications": [{"name": "a", "spec": {"image": "x"}, "scale": {"replicas": "many"}}]});
    plant(&world, "odd", odd).await;
    world.put_set("web", json!({"applications": [component("a", "x")]})).await;
    world.converge().await;
    assert_eq!(world.summary("web").await, "Ready 1/1/1");
    assert_eq!(world.apps().await, ["web-a"]);
}

/// Stores a set past every rule.
async fn plant(world: &World, name: &str, spec: serde_json::Value) {
    use horchestra_core::object::{self, Object};
    use horchestra_store::{Attribution, Columns, Draft, Index, Item, Op};
    use uuid::Uuid;
    let uid = Uuid::new_v4();
    let tree = json!({
        "apiVersion": "horchestra.io/v1", "kind": "ApplicationSet", "spec": spec,
        "metadata": {"name": name, "namespace": "default", "uid": uid.to_string(), "generation": 1},
    });
    let draft = Draft {
        key: set(name),
        uid,
        generation: 1,
        deleting: false,
        body: object::encode(Kind::ApplicationSet, &Object::from_value(tree).unwrap()),
        managed: None,
        index: Index::default(),
        columns: Columns::default(),
        edges: Vec::new(),
    };
    let who =
        Attribution { user: "test".into(), verb: "create".into(), audit_id: Uuid::new_v4(), trace: None };
    let item = Item { ops: vec![Op::Create(draft)], guards: Vec::new(), who };
    world.service.store().commit(item).await.unwrap();
}

#[tokio::test]
async fn people_are_told_of_what_is_news() {
    let mut world = World::new(&["n1"]).await;
    world.create(json!({"metadata": {"name": "web-a"}, "spec": {"image": "theirs"}})).await.unwrap();
    let theirs =
        json!({"kind": "Service", "metadata": {"name": "web-b"}, "spec": {"ports": [{"port": 443}]}});
    world.create(theirs).await.unwrap();
    let mut listening = component("b", "x");
    listening["spec"]["ports"] = json!([{"port": 80}]);
    world.put_set("web", json!({"applications": [component("a", "x"), listening]})).await;
    world.converge().await;
    world.delete(&app("web-a"), None).await;
    world.converge().await;
    world.converge().await;
    assert_eq!(world.summary("web").await, "Ready 2/2/2");
    let expected = ["ApplyRefused 1", "RolloutComplete 1", "RolloutStarted 1", "ServiceShared 1"];
    eventually(Duration::from_secs(20), async || {
        let told = told_of(&world, "web").await;
        if told == expected { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;
    eventually(Duration::from_secs(20), async || told_of(&world, "web-b").await == ["ChildCreated 1"]).await;
}

#[tokio::test]
async fn people_are_told_of_each_turn_of_a_rollout_once() {
    let mut world = World::new(&["n1"]).await;
    let of = |image: &str, rollout: serde_json::Value| json!({"applications": [replicas("a", image, 3)], "rollout": rollout});
    let one_by_one = || json!({"maxUnavailable": 1});
    world.put_set("web", of("x", one_by_one())).await;
    world.converge().await;
    // Two have to wait, then one, then none.
    world.put_set("web", of("y", one_by_one())).await;
    world.converge().await;
    world.put_set("web", of("z", json!({"paused": true}))).await;
    world.converge().await;
    world.put_set("web", of("z", one_by_one())).await;
    world.converge().await;
    assert_eq!(world.summary("web").await, "Ready 3/3/3");
    // Made, rolled, and rolled again after the pause, which is held by the pause and by the budget.
    let expected = ["RolloutComplete 3", "RolloutHeld 3", "RolloutStarted 3"];
    eventually(Duration::from_secs(20), async || {
        let told = counted(told_of(&world, "web").await);
        if told == expected { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await;

    world.put_set("web", of("w", json!({"maxUnavailable": 1, "progressDeadlineSeconds": 1}))).await;
    let stalled = async || {
        world.pass().await;
        told_of(&world, "web").await.contains(&"RolloutStalled 1".to_owned())
    };
    eventually(Duration::from_secs(20), stalled).await;
}

/// Events of one reason together, whatever their messages.
fn counted(told: Vec<String>) -> Vec<String> {
    let mut counts = std::collections::BTreeMap::<String, i64>::new();
    for event in told {
        let (reason, count) = event.split_once(' ').expect("a count");
        *counts.entry(reason.to_owned()).or_default() += count.parse::<i64>().unwrap();
    }
    counts.into_iter().map(|(reason, count)| format!("{reason} {count}")).collect()
}

/// Reasons and counts of the Events about an object.
async fn told_of(world: &World, name: &str) -> Vec<String> {
    let snapshot = world.service.store().fresh().await.unwrap();
    let mut told: Vec<String> = snapshot
        .list(Kind::Event, None)
        .map(|entry| serde_json::from_slice::<serde_json::Value>(&entry.encoded()).unwrap())
        .filter(|event| event["involvedObject"]["name"] == name)
        .map(|event| format!("{} {}", event["reason"].as_str().unwrap(), event["count"]))
        .collect();
    told.sort();
    told
}

#[tokio::test]
async fn what_makes_no_difference_wakes_nobody() {
    let mut world = World::new(&["n1"]).await;
    world.put_set("web", json!({"applications": [component("a", "x")]})).await;
    world.converge().await;
    world.create(json!({"metadata": {"name": "stranger"}, "spec": {"image": "x"}})).await.unwrap();
    let n1 = Key::cluster(Kind::Node, "n1");

    let (mut woken, mut reported) = (Vec::new(), 0);
    for what in ["set", "stranger", "label", "relabel", "cordon", "verdict", "child", "service", "gone"] {
        let since = world.head().await;
        match what {
            "set" => world.merge(&set("web"), json!({"spec": {"rollout": {"maxUnavailable": 3}}})).await,
            "stranger" => world.merge(&app("stranger"), json!({"spec": {"image": "y"}})).await,
            "label" => world.merge(&n1, json!({"metadata": {"labels": {"rack": "7"}}})).await,
            // By now that is known.
            "relabel" => world.merge(&n1, json!({"metadata": {"annotations": {"rack": "7"}}})).await,
            "cordon" => drop(world.service.cordon(&operator(), "n1", true).await.unwrap()),
            "verdict" => world.judge("n1", false).await,
            "child" => world.report("web-a", "Failed", None).await,
            "service" => {
                let lone =
                    json!({"kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}});
                drop(world.create(lone).await.unwrap());
            }
            _ => world.delete(&app("stranger"), None).await,
        }
        let rows = world.log(since).await;
        assert!(!rows.is_empty(), "{what} changes something");
        if rows.iter().any(|row| world.sets.wakes(&row.change)) {
            woken.push(what);
        }
        let since = world.head().await;
        world.pass().await;
        let own = world.log(since).await;
        let reports = own.iter().filter(|row| row.change.object_kind() == Kind::ApplicationSet);
        reports.for_each(|row| assert!(!world.sets.wakes(&row.change), "its own report after {what}"));
        reported += own.len();
    }
    assert!(reported > 0);
    assert_eq!(woken, ["set", "label", "verdict", "child", "service", "gone"]);
}

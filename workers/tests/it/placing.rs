//! The scheduler as a loop on a small fleet: what it writes, when, and what it leaves alone.

use std::time::Duration;

use horchestra_core::doors::Door;
use horchestra_core::kind::{Key, Kind};
use horchestra_service::{At, Order, RequestContext};
use horchestra_store::ChangeKind;
use serde_json::{Value, json};

use crate::faults::plane::{Plane, app, node, set, volume};
use crate::faults::process::Process;
use crate::sets::world::{component, replicas};

struct Fleet {
    plane: Plane,
    processes: [Process; 1],
}

impl Fleet {
    async fn of(nodes: &[&str]) -> Fleet {
        let plane = Plane::new(nodes).await;
        let mut processes = [Process::start(&plane).await];
        let mut plane = plane;
        plane.settle(&mut processes).await;
        Fleet { plane, processes }
    }

    async fn settle(&mut self) {
        self.plane.settle(&mut self.processes).await;
    }

    async fn message(&self, name: &str) -> String {
        let status = self.plane.tree(&app(name)).await["status"].clone();
        status["message"].as_str().unwrap_or_default().to_owned()
    }

    async fn placed(&self, name: &str) -> String {
        self.plane.placed_on(name).await.unwrap_or_default()
    }

    /// What the scheduler has written about an object, in order.
    async fn written(&self, key: &Key) -> Vec<String> {
        let rows = self.plane.log(0).await.into_iter();
        rows.filter(|row| row.who.user == "system:loop:scheduler" && row.change.key() == key)
            .map(|row| row.who.verb.to_string())
            .collect()
    }
}

fn mounting(name: &str, cores: &str) -> Value {
    let mounts = json!([{"mountPath": "/v", "volume": {"type": "pv"}}]);
    let resources = json!({"requests": {"cpu": cores}});
    json!({"metadata": {"name": name}, "spec": {"image": "x", "volumes": mounts, "resources": resources}})
}

#[tokio::test(start_paused = true)]
async fn what_is_placed_is_never_moved() {
    let mut fleet = Fleet::of(&["n1", "n2"]).await;
    fleet.plane.run("web", "1").await;
    fleet.settle().await;
    assert_eq!(fleet.placed("web").await, "n1");
    let plane = &mut fleet.plane;
    plane.merge(&node("n1"), json!({"spec": {"unschedulable": true}})).await.unwrap();
    plane.silent.insert("n1".to_owned());
    fleet.settle().await;
    assert_eq!(fleet.plane.verdict("n1").await, "Unknown");
    assert_eq!(fleet.placed("web").await, "n1", "cordoned, and silent");

    fleet.plane.disconnect("n1").await;
    fleet.plane.act(&node("n1"), Door::Forget, &Order::default()).await.unwrap();
    fleet.plane.run("other", "8").await;
    fleet.settle().await;
    assert_eq!(fleet.placed("web").await, "n1", "its node is gone");
    assert_eq!(fleet.placed("other").await, "n2");
    assert_eq!(fleet.written(&app("web")).await, ["bind"]);
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_told_once_and_the_message_goes_with_the_wait() {
    let mut fleet = Fleet::of(&["n1"]).await;
    fleet.plane.create(mounting("large", "100")).await.unwrap();
    for _ in 0..4 {
        fleet.plane.round(&mut fleet.processes).await;
    }
    assert_eq!(fleet.message("large").await, "0/1 nodes are available: 1 insufficient cpu");
    assert_eq!(fleet.written(&app("large")).await, ["status"]);
    assert!(fleet.plane.entry(&volume("large")).await.is_none(), "no volume is made for what has no place");

    let smaller = json!({"spec": {"resources": {"requests": {"cpu": "1"}}}});
    fleet.plane.merge(&app("large"), smaller).await.unwrap();
    fleet.plane.round(&mut fleet.processes).await;
    assert_eq!((fleet.message("large").await.as_str(), fleet.placed("large").await.as_str()), ("", "n1"));
    assert_eq!(fleet.written(&app("large")).await, ["status", "bind"], "both in one change");
    assert_eq!(fleet.plane.tree(&volume("large")).await["spec"]["node"], "n1");
    fleet.settle().await;
    fleet.plane.has_news().await;
    fleet.plane.round(&mut fleet.processes).await;
    assert!(!fleet.plane.has_news().await);
}

#[tokio::test(start_paused = true)]
async fn a_placement_that_is_refused_holds_nobody_up_and_leaves_nothing_behind() {
    let mut fleet = Fleet::of(&["n1"]).await;
    fleet.plane.create(mounting("a", "6")).await.unwrap();
    fleet.plane.run("b", "1").await;
    // It plans with eight cores, of which it does not hear that they are four by now.
    let process = &mut fleet.processes[0];
    process.service.store().fresh().await.unwrap();
    process.careful = false;
    process.backend.set_deaf(true);
    let status = json!({"status": {"ready": true, "capacity": {"cpu": "4", "memory": "8Gi"}}});
    fleet.plane.merge_status(&node("n1"), status).await;
    fleet.plane.beat().await;
    process.pass().await.unwrap();
    assert_eq!(fleet.placed("a").await, "");
    assert!(fleet.plane.entry(&volume("a")).await.is_none(), "its volume was part of the placement");
    let process = &mut fleet.processes[0];
    process.careful = true;
    process.backend.set_deaf(false);
    fleet.settle().await;
    assert_eq!((fleet.placed("a").await, fleet.placed("b").await), (String::new(), "n1".to_owned()));
    assert_eq!(fleet.message("a").await, "0/1 nodes are available: 1 insufficient cpu");
}

#[tokio::test(start_paused = true)]
async fn who_goes_still_takes_room_and_who_has_finished_takes_none() {
    let mut fleet = Fleet::of(&["n1"]).await;
    fleet.plane.run("going", "5").await;
    fleet.settle().await;
    // Its node does not let go of it yet.
    fleet.plane.silent.insert("n1".to_owned());
    fleet.plane.delete(&app("going"), None).await;
    fleet.plane.run("next", "5").await;
    fleet.plane.round(&mut fleet.processes).await;
    assert_eq!(fleet.message("next").await, "0/1 nodes are available: 1 insufficient cpu");
    fleet.plane.silent.clear();
    fleet.settle().await;
    assert!(fleet.plane.entry(&app("going")).await.is_none());
    assert_eq!(fleet.placed("next").await, "n1");
    fleet.plane.delete(&app("next"), None).await;

    let once = json!({"image": "x", "lifecycle": {"restartPolicy": "Never"},
        "resources": {"requests": {"cpu": "5"}}});
    fleet.plane.create(json!({"metadata": {"name": "job"}, "spec": once})).await.unwrap();
    fleet.settle().await;
    fleet.plane.run("after", "5").await;
    fleet.settle().await;
    assert_eq!((fleet.placed("job").await, fleet.placed("after").await), ("n1".to_owned(), "n1".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn volumes_of_what_its_author_placed_follow_it() {
    let mut fleet = Fleet::of(&["n1", "n2"]).await;
    let plain = json!({"kind": "PersistentVolume", "metadata": {"name": "data"}, "spec": {}});
    fleet.plane.create(plain).await.unwrap();
    let mounts = json!([{"mountPath": "/v", "volume": {"type": "pv", "name": "data"}}]);
    let spec = json!({"image": "x", "volumes": mounts, "placement": {"nodeName": "n2"}});
    fleet.plane.create(json!({"metadata": {"name": "web"}, "spec": spec})).await.unwrap();
    fleet.settle().await;
    assert_eq!(fleet.plane.tree(&volume("data")).await["spec"]["node"], "n2");
    assert_eq!(fleet.written(&app("web")).await, Vec::<String>::new(), "it is left as it is");
}

/// What a change of an object makes of the loops that are woken by it.
#[tokio::test(start_paused = true)]
async fn loops_are_woken_by_what_makes_a_difference_to_them() {
    let mut fleet = Fleet::of(&["n1"]).await;
    let Fleet { plane, processes } = &mut fleet;
    plane.run("web", "1").await;
    plane.put_set("s", json!({"applications": [component("a", "x")]})).await;
    plane.settle(processes).await;
    let before = plane.store().fresh().await.unwrap().revision();
    // Nothing but heartbeats.
    plane.silent.insert("n1".to_owned());
    plane.beat().await;
    plane.silent.clear();
    plane.beat().await;
    assert_eq!(plane.log(before).await.len(), 0, "a heartbeat is no change");
    // The same again, and reports of something that does not matter for a place.
    plane.report("n1", true).await;
    plane.work().await;
    assert_eq!(plane.log(before).await.len(), 0, "what was said before is no change");

    let mut watcher = processes[0].service.store().watch(Kind::Application, before).unwrap();
    plane.report_phase("web", "Failed").await;
    plane.report_phase("web", "Running").await;
    plane.merge(&app("web"), json!({"metadata": {"annotations": {"note": "a"}}})).await.unwrap();
    plane.merge(&app("web"), json!({"metadata": {"labels": {"tier": "a"}}})).await.unwrap();
    plane.run("new", "1").await;
    plane.delete(&app("new"), None).await;
    let mut seen = Vec::new();
    while seen.len() < 6 {
        for change in watcher.next().await.unwrap() {
            let wakes = ["scheduler", "applicationset"].map(|name| processes[0].wakes(name, &change));
            seen.push((change.kind, change.key().name.clone(), wakes));
        }
    }
    let expected = [
        ("a service that has failed", ChangeKind::Modified, "web", [true, false]),
        ("and runs again", ChangeKind::Modified, "web", [true, false]),
        ("an edit", ChangeKind::Modified, "web", [true, false]),
        ("labels, which others look for", ChangeKind::Modified, "web", [true, false]),
        ("something to place", ChangeKind::Added, "new", [true, false]),
        ("a name, and room, that is free again", ChangeKind::Deleted, "new", [true, true]),
    ];
    for ((what, kind, name, wakes), seen) in expected.into_iter().zip(seen) {
        assert_eq!(seen, (kind, name.to_owned(), wakes), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn children_of_a_set_that_was_forced_out_go_and_its_namesake_makes_its_own() {
    for namesake in [false, true] {
        let mut fleet = Fleet::of(&["n1"]).await;
        fleet.plane.run("bystander", "1").await;
        // A label alone makes nobody a child.
        let keeper = RequestContext::new(fleet.processes[0].term("applicationset").caller());
        let labels = json!({"horchestra.io/application-set": "web", "horchestra.io/component": "a"});
        let labelled = json!({"metadata": {"name": "labelled", "labels": labels}, "spec": {"image": "x"}});
        fleet.plane.create_as(&keeper, labelled).await.unwrap();
        let spec = json!({"applications": [replicas("a", "x", 2)]});
        fleet.plane.put_set("web", spec.clone()).await;
        fleet.settle().await;
        let before = fleet.plane.entry(&app("web-a-0")).await.unwrap().uid;
        let holds = vec!["horchestra.io/child-teardown".to_owned()];
        let order = Order { finalizers: Some(holds), ..Order::default() };
        // It is erased at once, before anybody has seen to its children.
        fleet.plane.delete(&set("web"), None).await;
        fleet.plane.act(&set("web"), Door::Finalize, &order).await.unwrap();
        assert!(fleet.plane.entry(&set("web")).await.is_none());
        if namesake {
            fleet.plane.put_set("web", spec).await;
        }
        fleet.settle().await;
        let after = fleet.plane.entry(&app("web-a-0")).await;
        assert_eq!(after.is_some(), namesake);
        if let Some(after) = after {
            assert_ne!(after.uid, before, "made anew, not taken over");
            let owner =
                fleet.plane.tree(&app("web-a-0")).await["metadata"]["ownerReferences"][0]["uid"].clone();
            let uid = fleet.plane.entry(&set("web")).await.unwrap().uid.to_string();
            assert_eq!(owner, uid);
            assert_eq!(fleet.plane.tree(&set("web")).await["status"]["phase"], "Ready");
        }
        for name in ["bystander", "labelled"] {
            fleet.plane.outside.get(&app(name), At::Fresh).await.expect("nobody's child");
        }
    }
}

/// What went on while there was no leader.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Interim {
    Nothing,
    /// A gateway heard nodes all the time, for longer than the ready timeout.
    Long,
    /// Nobody heard nodes for a while, and none has said anything since.
    GatewaysAway,
    GatewaysStillAway,
    NodeSilent,
    ClockSetBack,
    /// By so little that its last heartbeat seems to be a recent one.
    ClockSetBackUnderASilentNode,
    ClockSetForward,
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_places_at_once_on_nodes_that_gateways_have_gone_on_hearing() {
    for (interim, at_once) in [
        (Interim::Nothing, true),
        (Interim::Long, true),
        (Interim::GatewaysAway, false),
        (Interim::GatewaysStillAway, false),
        (Interim::NodeSilent, false),
        (Interim::ClockSetBack, false),
        (Interim::ClockSetBackUnderASilentNode, false),
        (Interim::ClockSetForward, false),
    ] {
        let Fleet { mut plane, processes: [leader] } = Fleet::of(&["n1"]).await;
        leader.leave(&plane).await;
        let rounds = match interim {
            Interim::Long | Interim::NodeSilent => 20,
            Interim::ClockSetBackUnderASilentNode => 8,
            // Longer than a gateway's term, shorter than the ready timeout.
            Interim::GatewaysAway | Interim::GatewaysStillAway => 4,
            _ => 0,
        };
        plane.served = !matches!(interim, Interim::GatewaysAway | Interim::GatewaysStillAway);
        if matches!(interim, Interim::NodeSilent | Interim::ClockSetBackUnderASilentNode) {
            plane.silent.insert("n1".to_owned());
        }
        for _ in 0..rounds {
            plane.round(&mut []).await;
        }
        match interim {
            Interim::GatewaysAway => plane.keep_gateway().await,
            Interim::ClockSetBack => plane.database.set_back(Duration::from_secs(3600)),
            Interim::ClockSetBackUnderASilentNode => {
                plane.database.set_back(Duration::from_secs(30));
                plane.keep_gateway().await;
            }
            // By less than what makes a session look abandoned.
            Interim::ClockSetForward => plane.database.advance(Duration::from_secs(100)),
            _ => {}
        }
        let mut next = [Process::start(&plane).await];
        plane.run("web", "1").await;
        next[0].pass().await.unwrap();
        let placed = plane.placed_on("web").await;
        assert_eq!(placed.is_some(), at_once, "{interim:?}: {placed:?}");
        plane.served = true;
        plane.silent.clear();
        plane.settle(&mut next).await;
        assert_eq!(plane.placed_on("web").await.as_deref(), Some("n1"), "{interim:?}");
    }
}

/// A failover, and whether the clock of the new server is behind that of the old one.
#[tokio::test(start_paused = true)]
async fn a_leader_that_could_not_read_for_a_while_places_on_who_was_heard_meanwhile_if_the_clock_went_on() {
    for (clock_set, at_once) in [(false, true), (true, false)] {
        let Fleet { mut plane, mut processes } = Fleet::of(&["n1"]).await;
        plane.silent.insert("n1".to_owned());
        for _ in 0..6 {
            plane.round(&mut processes).await;
        }
        processes[0].backend.set_cut_off(true);
        plane.round(&mut processes).await;
        if clock_set {
            plane.database.set_back(Duration::from_secs(20));
        }
        processes[0].backend.set_cut_off(false);
        plane.run("web", "1").await;
        processes[0].pass().await.unwrap();
        assert_eq!(plane.placed_on("web").await.is_some(), at_once, "clock set: {clock_set}");
        plane.silent.clear();
        plane.settle(&mut processes).await;
        assert_eq!(plane.placed_on("web").await.as_deref(), Some("n1"), "clock set: {clock_set}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_the_clock_was_set_back_before_says_nothing_when_the_clock_comes_to_it() {
    let Fleet { mut plane, mut processes } = Fleet::of(&["n1"]).await;
    plane.silent.insert("n1".to_owned());
    plane.database.set_back(Duration::from_secs(300));
    for _ in 0..62 {
        plane.round(&mut processes).await;
    }
    assert_eq!(plane.verdict("n1").await, "Unknown", "silent for longer than the ready timeout");
    plane.run("web", "1").await;
    plane.round(&mut processes).await;
    assert_eq!(plane.placed_on("web").await, None);
    plane.silent.clear();
    plane.settle(&mut processes).await;
    assert_eq!(plane.placed_on("web").await.as_deref(), Some("n1"));
}

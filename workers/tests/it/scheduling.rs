//! The queue, the framework and the cycle.

use std::cmp::Ordering;

use horchestra_workers::scheduler::cluster::{Amounts, Cluster, Liveness, Pending};
use horchestra_workers::scheduler::cycle::{self, Outcome};
use horchestra_workers::scheduler::framework::{
    Bind, BindDecision, Candidates, CycleState, Filter, Permit, Plugin, QueueSort, Rejection, Reserve, Score,
    ScorePlugin, Verdict,
};
use horchestra_workers::scheduler::plugins::{self, PrioritySort, Strategy};
use horchestra_workers::scheduler::profile::{Enabled, Profile, ProfileError};
use horchestra_workers::scheduler::{cluster::NodeInfo, queue};
use proptest::prelude::*;
use serde_json::json;

use crate::fleet::{GI, cores, decide, node, occupy, place, requests, waiting};

fn bind(node: &str) -> Outcome {
    Outcome::Bind(node.to_owned())
}

fn aged(name: &str, priority: i32, created: &str) -> Pending {
    let mut app = waiting(name, json!({}));
    app.priority = priority;
    app.created = created.to_owned();
    app
}

#[test]
fn queue_goes_by_priority_then_age_then_name() {
    let new = "2026-01-01T01:00:00Z";
    let old = "2026-01-01T00:00:00Z";
    let cases = [
        ("higher priority beats age", aged("a", 10, new), aged("b", 1, old), Ordering::Less),
        ("lower priority waits", aged("a", 1, old), aged("b", 10, new), Ordering::Greater),
        ("older first", aged("b", 0, old), aged("a", 0, new), Ordering::Less),
        ("name breaks the tie", aged("a", 0, old), aged("b", 0, old), Ordering::Less),
        ("and not the other way", aged("b", 0, old), aged("a", 0, old), Ordering::Greater),
    ];
    for (name, a, b, expected) in cases {
        assert_eq!(queue::by_priority_and_age(&a, &b), expected, "{name}");
    }
}

#[test]
fn without_a_queue_sort_plugin_the_order_stays() {
    let sorted = |plugins: Vec<Enabled>| {
        let profile = Profile::new(plugins).unwrap();
        let mut pending = vec![waiting("c", json!({})), waiting("a", json!({}))];
        queue::sort(&profile, &mut pending);
        pending.into_iter().map(|app| app.key.name).collect::<Vec<_>>()
    };
    assert_eq!(sorted(vec![]), ["c", "a"]);
    assert_eq!(sorted(vec![Enabled { plugin: Box::new(PrioritySort), weight: 1 }]), ["a", "c"]);
}

#[test]
fn a_profile_refuses_unknown_plugins_and_two_queue_sorts() {
    let registry = plugins::registry(Strategy::Spread);
    assert_eq!(registry.profile(&[("Nope", 1)]).err(), Some(ProfileError::Unknown("Nope".to_owned())));
    let twice = registry.profile(&[("PrioritySort", 1), ("PrioritySort", 1)]);
    assert!(matches!(twice.err(), Some(ProfileError::TwoQueueSorts { .. })));
}

/// A plugin made of closures, for the framework's own rules.
struct Probe {
    filter: Option<fn(&NodeInfo) -> bool>,
    score: Option<Score>,
    permit: Option<bool>,
    bind: Option<BindDecision>,
    counts: bool,
}

const NOTHING: Probe = Probe { filter: None, score: None, permit: None, bind: None, counts: false };

impl Plugin for Probe {
    fn name(&self) -> &'static str {
        "Probe"
    }
    fn filter(&self) -> Option<&dyn Filter> {
        self.filter.is_some().then_some(self)
    }
    fn score(&self) -> Option<&dyn ScorePlugin> {
        self.score.is_some().then_some(self)
    }
    fn reserve(&self) -> Option<&dyn Reserve> {
        self.counts.then_some(self)
    }
    fn permit(&self) -> Option<&dyn Permit> {
        self.permit.is_some().then_some(self)
    }
    fn bind(&self) -> Option<&dyn Bind> {
        self.bind.is_some().then_some(self)
    }
}

impl Filter for Probe {
    fn filter(&self, _: &CycleState, _: &Pending, cluster: &Cluster, nodes: &mut Candidates) {
        nodes.retain(|node| match self.filter {
            Some(passes) if passes(cluster.at(node)) => Ok(()),
            _ => Err(Rejection::unschedulable("probe")),
        });
    }
}

impl ScorePlugin for Probe {
    fn score(&self, _: &CycleState, _: &Pending, _: &Cluster, _: &[usize], scores: &mut [Score]) -> Verdict {
        scores.fill(self.score.unwrap_or(0));
        Ok(())
    }
}

impl Reserve for Probe {
    fn reserve(&self, _: &mut CycleState, app: &Pending, node: &str, cluster: &mut Cluster) -> Verdict {
        occupy(cluster, node, app);
        Ok(())
    }
    fn unreserve(&self, _: &mut CycleState, app: &Pending, node: &str, cluster: &mut Cluster) {
        cluster.displace(node, &app.key);
    }
}

impl Permit for Probe {
    fn permit(&self, _: &mut CycleState, _: &Pending, _: &str) -> Verdict {
        if self.permit == Some(true) { Ok(()) } else { Err(Rejection::unschedulable("not permitted")) }
    }
}

impl Bind for Probe {
    fn bind(&self, _: &CycleState, _: &Pending, _: &str) -> Result<BindDecision, Rejection> {
        Ok(self.bind.clone().unwrap_or(BindDecision::Skip))
    }
}

fn outcome(plugins: Vec<Probe>, cluster: &mut Cluster) -> Outcome {
    let plugins = plugins.into_iter().map(|plugin| Enabled { plugin: Box::new(plugin) as _, weight: 1 });
    let profile = Profile::new(plugins.collect()).unwrap();
    cycle::plan(&profile, cluster, vec![waiting("app", requests("1", "1Gi"))]).remove(0).outcome
}

#[test]
fn the_framework_asks_every_point_in_turn() {
    let skip = || Probe { bind: Some(BindDecision::Skip), ..NOTHING };
    let binds = || Probe { bind: Some(BindDecision::Bind), ..NOTHING };
    let not_n2 = || Probe { filter: Some(|node| node.name != "n2"), ..NOTHING };
    let cases = [
        ("a filter that rejects one node leaves the other", vec![not_n2(), binds()], bind("n1")),
        ("the first binder that does not skip decides", vec![skip(), binds()], bind("n1")),
        (
            "without a binder nothing is placed",
            vec![skip()],
            Outcome::Wait("not placed on n1: no plugin binds it".to_owned()),
        ),
        (
            "a permit plugin can refuse",
            vec![Probe { permit: Some(false), ..NOTHING }, binds()],
            Outcome::Wait("not placed on n1: not permitted".to_owned()),
        ),
        ("without scores the lowest name wins", vec![binds()], bind("n1")),
    ];
    for (name, plugins, expected) in cases {
        let mut cluster = Cluster::new([node("n2"), node("n1")]);
        assert_eq!(outcome(plugins, &mut cluster), expected, "{name}");
    }
}

#[test]
fn a_failure_after_reserve_takes_the_reservation_back() {
    let mut cluster = Cluster::new([node("n1")]);
    let refused = vec![Probe { counts: true, ..NOTHING }, Probe { permit: Some(false), ..NOTHING }];
    assert!(matches!(outcome(refused, &mut cluster), Outcome::Wait(_)));
    assert_eq!(cluster.node("n1").unwrap().used, Amounts::default());
    assert!(cluster.node("n1").unwrap().placed.is_empty());
}

#[test]
fn scores_count_by_their_weight() {
    struct Prefers(&'static str, Score);
    impl Plugin for Prefers {
        fn name(&self) -> &'static str {
            self.0
        }
        fn score(&self) -> Option<&dyn ScorePlugin> {
            Some(self)
        }
    }
    impl ScorePlugin for Prefers {
        fn score(
            &self,
            _: &CycleState,
            _: &Pending,
            cluster: &Cluster,
            nodes: &[usize],
            scores: &mut [Score],
        ) -> Verdict {
            for (node, score) in nodes.iter().zip(scores) {
                *score = if cluster.at(*node).name == self.0 { self.1 } else { 0 };
            }
            Ok(())
        }
    }
    for (weight, expected) in [(1, "n1"), (3, "n2")] {
        let profile = Profile::new(vec![
            Enabled { plugin: Box::new(Prefers("n1", 20)), weight: 1 },
            Enabled { plugin: Box::new(Prefers("n2", 10)), weight },
            Enabled { plugin: Box::new(Probe { bind: Some(BindDecision::Bind), ..NOTHING }), weight: 1 },
        ])
        .unwrap();
        let mut cluster = Cluster::new([node("n1"), node("n2")]);
        let decision = cycle::plan(&profile, &mut cluster, vec![waiting("app", json!({}))]).remove(0);
        assert_eq!(decision.outcome, bind(expected), "weight {weight}");
    }
}

#[test]
fn one_pending_application_goes_to_the_one_ready_node() {
    let mut cluster = Cluster::new([node("n1")]);
    assert_eq!(place(&mut cluster, waiting("app", requests("500m", "256Mi"))), Ok("n1".to_owned()));
}

#[test]
fn strategies_prefer_the_emptier_or_the_fuller_node() {
    for (strategy, expected) in [(Strategy::Spread, "n1"), (Strategy::Binpack, "n2")] {
        let mut cluster = Cluster::new([node("n1"), node("n2")]);
        occupy(&mut cluster, "n2", &waiting("half", requests("2", "4Gi")));
        let decided = decide(&mut cluster, vec![waiting("app", requests("500m", "256Mi"))], strategy);
        assert_eq!(decided[0].1, bind(expected), "{strategy:?}");
    }
}

#[test]
fn only_a_node_that_can_take_work_is_chosen() {
    let mut not_ready = node("a-not-ready");
    not_ready.liveness = Liveness::NotReady;
    let mut unheard = node("b-unheard");
    unheard.liveness = Liveness::Unheard;
    let mut unsized_node = node("c-no-capacity");
    unsized_node.capacity = Amounts::default();
    let mut cordoned = node("d-cordoned");
    cordoned.unschedulable = true;
    let mut unadmitted = node("d-unadmitted");
    unadmitted.admitted = false;
    let mut held = node("d-held");
    held.held = true;
    let bad = [not_ready, unheard, unsized_node, cordoned, unadmitted, held];
    let mut cluster = Cluster::new(bad.clone().into_iter().chain([node("e-good")]));
    assert_eq!(place(&mut cluster, waiting("app", json!({}))), Ok("e-good".to_owned()));

    let message = place(&mut Cluster::new(bad), waiting("app", json!({}))).unwrap_err();
    assert_eq!(
        message,
        "0/6 nodes are available: 1 node has not reported since the control plane is back, 1 node is \
         cordoned, 1 node is held until it is admitted, 1 node is not admitted, 1 node is not ready, 1 node reports no capacity"
    );
}

#[test]
fn room_for_one_goes_to_the_older_application() {
    let mut small = node("n1");
    small.capacity.cpu = cores("3");
    let mut newer = waiting("newer", requests("2", "1Gi"));
    newer.created = "2026-01-02T00:00:00Z".to_owned();
    let older = waiting("older", requests("2", "1Gi"));
    let mut cluster = Cluster::new([small]);
    let decided = decide(&mut cluster, vec![newer, older], Strategy::Spread);
    assert_eq!(decided[0], ("older".to_owned(), bind("n1")));
    assert_eq!(
        decided[1],
        ("newer".to_owned(), Outcome::Wait("0/1 nodes are available: 1 insufficient cpu".to_owned()))
    );
}

#[test]
fn whoever_waits_knows_who_turned_nodes_down() {
    let cordoned = NodeInfo { unschedulable: true, ..node("n2") };
    let profile = plugins::default_profile(Strategy::Spread).unwrap();
    let plan = |app| {
        let mut cluster = Cluster::new([node("n1"), cordoned.clone()]);
        cycle::plan(&profile, &mut cluster, vec![app]).remove(0).turned_down_by
    };
    assert_eq!(plan(waiting("large", requests("8", "1Gi"))), ["NodeSchedulable", "NodeResourcesFit"]);
    assert_eq!(plan(waiting("small", requests("1", "1Gi"))), [""; 0], "it does not wait");
}

#[test]
fn the_message_counts_equal_reasons() {
    let mut cluster = Cluster::new([node("n1"), node("n2")]);
    let message = place(&mut cluster, waiting("large", requests("8", "1Gi"))).unwrap_err();
    assert_eq!(message, "0/2 nodes are available: 2 insufficient cpu");
    let message = place(&mut Cluster::default(), waiting("app", json!({}))).unwrap_err();
    assert_eq!(message, "no node is registered");
}

#[test]
fn an_overcommitted_node_takes_nothing_more() {
    let mut cluster = Cluster::new([node("n1")]);
    occupy(&mut cluster, "n1", &waiting("huge", requests("5", "1Gi")));
    assert!(place(&mut cluster, waiting("tiny", json!({}))).is_err());
}

proptest! {
    /// Whatever waits and whatever runs: nobody is put where there is no room, nobody is passed over who
    /// fits, and the plan is the same every time.
    #[test]
    fn plans_respect_capacity_and_leave_nobody_out(
        nodes in prop::collection::vec((1i64..8, 1i64..8, any::<bool>()), 0..6),
        apps in prop::collection::vec((0i64..5, 0i64..5, 0i32..3), 0..12),
        binpack in any::<bool>(),
    ) {
        let strategy = if binpack { Strategy::Binpack } else { Strategy::Spread };
        let fleet = || Cluster::new(nodes.iter().enumerate().map(|(number, (cpu, memory, cordoned))| {
            let mut node = node(&format!("n{number}"));
            node.capacity = Amounts { cpu: cpu * 1_000_000_000, memory: memory * GI };
            node.unschedulable = *cordoned;
            node
        }));
        let waiting: Vec<Pending> = apps.iter().enumerate().map(|(number, (cpu, memory, priority))| {
            let mut app = waiting(&format!("a{number}"), requests(&cpu.to_string(), &format!("{memory}Gi")));
            app.priority = *priority;
            app
        }).collect();
        let mut cluster = fleet();
        let decided = decide(&mut cluster, waiting.clone(), strategy);
        let again = decide(&mut fleet(), waiting.clone(), strategy);
        prop_assert_eq!(&decided, &again);
        prop_assert_eq!(decided.len(), waiting.len());
        for node in cluster.nodes() {
            prop_assert!(node.used.cpu <= node.capacity.cpu && node.used.memory <= node.capacity.memory);
            prop_assert!(node.placed.is_empty() || !node.unschedulable);
        }
        for (name, outcome) in &decided {
            let app = waiting.iter().find(|app| &app.key.name == name).unwrap();
            if matches!(outcome, Outcome::Wait(_)) {
                let fits = cluster.nodes().any(|node| {
                    !node.unschedulable
                        && node.used.cpu + app.requests.cpu <= node.capacity.cpu
                        && node.used.memory + app.requests.memory <= node.capacity.memory
                });
                prop_assert!(!fits, "{} waits although it fits", name);
            }
        }
    }
}

#[test]
fn priority_sort_is_the_queue_sort_of_the_shipped_profile() {
    let profile = plugins::default_profile(Strategy::Spread).unwrap();
    let sorts: Vec<&dyn QueueSort> = profile.plugins().filter_map(|plugin| plugin.queue_sort()).collect();
    assert_eq!(sorts.len(), 1);
}

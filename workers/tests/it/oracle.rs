//! The scheduler beside a naive one: every rule of placement as it reads, node by node, everything looked up again
//! each time, nothing shared with the product but the types that it is fed with. On any fleet both decide the same
//! and say the same.

use std::collections::{BTreeMap, BTreeSet};

use horchestra_core::kind::{Key, Kind};
use horchestra_core::kinds::application::{
    Application, NodeSelector, NodeSelectorOperator, VolumeType, WorkloadAffinity, WorkloadAffinityTerm,
};
use horchestra_workers::scheduler::cluster::{Cluster, Liveness, NodeInfo, Pending, Placed, VolumeInfo};
use horchestra_workers::scheduler::cycle::Outcome;
use horchestra_workers::scheduler::plugins::Strategy as Fit;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::fleet::{GI, application, decide, node, pending};

type Labels = BTreeMap<String, String>;

/// A naive scheduler: the fleet by name, and how nodes are preferred.
struct Naive {
    nodes: BTreeMap<String, NodeInfo>,
    /// Volumes, by namespace and name.
    volumes: BTreeMap<(String, String), VolumeInfo>,
    fit: Fit,
}

impl Naive {
    fn plan(&mut self, mut waiting: Vec<Pending>) -> Vec<(String, Outcome)> {
        waiting.sort_by_key(|app| {
            let key = &app.key;
            (-app.priority, app.created.clone(), key.name.clone(), key.namespace.clone(), app.uid)
        });
        let mut decided = Vec::new();
        for app in waiting {
            let outcome = self.decide(&app);
            if let Outcome::Bind(node) = &outcome {
                for volume in mounted(&app) {
                    self.volumes.entry(volume).or_default().node = Some(node.clone());
                }
                let node = self.nodes.get_mut(node).unwrap();
                node.used.cpu += app.requests.cpu;
                node.used.memory += app.requests.memory;
                node.placed.push(Placed {
                    key: app.key.clone(),
                    requests: app.requests,
                    app: app.app.clone(),
                });
            }
            decided.push((app.key.name, outcome));
        }
        decided
    }

    fn decide(&self, app: &Pending) -> Outcome {
        let (mut home, mut open) = (None, false);
        for volume in mounted(app) {
            match self.volumes.get(&volume).cloned().unwrap_or_default() {
                VolumeInfo { deleting: true, .. } => {
                    let name = volume.1;
                    return Outcome::Wait(format!("not schedulable: volume {name:?} is being deleted"));
                }
                VolumeInfo { node: None, .. } => open = true,
                VolumeInfo { node, .. } if home.is_none() || home == node => home = node,
                _ => {
                    return Outcome::Wait("not schedulable: its volumes lie on different nodes".to_owned());
                }
            }
        }
        if self.nodes.is_empty() {
            return Outcome::Wait("no node is registered".to_owned());
        }
        let mut feasible: Vec<&NodeInfo> = Vec::new();
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for node in self.nodes.values() {
            let away = home.as_ref().is_some_and(|home| *home != node.name);
            let against = self.reason_against(app, node);
            let against = against.or_else(|| away.then(|| "its volumes lie on another node".to_owned()));
            let odd = open && node.name.contains("1e99");
            let against = against
                .or_else(|| odd.then(|| "no agent can read a volume on a node of this name".to_owned()));
            match against {
                None => feasible.push(node),
                Some(reason) => *reasons.entry(reason).or_default() += 1,
            }
        }
        if feasible.is_empty() {
            let mut reasons: Vec<(String, usize)> = reasons.into_iter().collect();
            // Stable, and in byte order before.
            reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let listed: Vec<String> =
                reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            let (all, listed) = (self.nodes.len(), listed.join(", "));
            return Outcome::Wait(format!("0/{all} nodes are available: {listed}"));
        }
        let labels = normalized(feasible.iter().map(|node| wished_labels(app, node)).collect());
        let peers = normalized(feasible.iter().map(|node| self.wished_peers(app, node)).collect());
        let mut best: Option<(i64, &str)> = None;
        for (at, node) in feasible.iter().enumerate() {
            let total = labels[at] + peers[at] + self.fit_score(app, node);
            if best.is_none_or(|(score, _)| total > score) {
                best = Some((total, &node.name));
            }
        }
        Outcome::Bind(best.unwrap().1.to_owned())
    }

    fn reason_against(&self, app: &Pending, node: &NodeInfo) -> Option<String> {
        let spec = &app.app.spec;
        let says = |reason: &str| Some(reason.to_owned());
        if node.unschedulable {
            return says("node is cordoned");
        }
        if !node.admitted {
            return says("node is not admitted");
        }
        if node.held {
            return says("node is held until it is admitted");
        }
        if node.liveness == Liveness::NotReady {
            return says("node is not ready");
        }
        if node.capacity.cpu == 0 || node.capacity.memory == 0 {
            return says("node reports no capacity");
        }
        if node.liveness == Liveness::Unheard {
            return says("node has not reported since the control plane is back");
        }
        let class = &spec.runtime_class_name;
        if !class.is_empty() && !node.runtimes.iter().any(|offered| offered == class) {
            return Some(format!("node does not offer runtime class {class:?}"));
        }
        if spec.host_network == Some(false) && !node.routed_network {
            return says("node has no network helper for workloads off the host network");
        }
        if let Some(placement) = &spec.placement {
            for (key, value) in &placement.node_selector {
                if node.labels.get(key) != Some(value) {
                    return says("node does not match spec.placement.nodeSelector");
                }
            }
        }
        let affinity = spec.placement.as_ref().and_then(|placement| placement.affinity.as_ref());
        let required = affinity.and_then(|it| it.node_affinity.as_ref()?.required_during_scheduling.as_ref());
        if required.is_some_and(|selector| !matches(selector, &node.labels)) {
            return says("node does not match the required node affinity");
        }
        for term in required_terms(affinity.and_then(|it| it.workload_affinity.as_ref())) {
            let own = selected(term, &app.app.metadata.labels);
            let somewhere = self.nodes.values().any(|other| has_peer(app, other, term));
            let is_first = own && !somewhere;
            if !is_first && !self.domain(node, &term.topology_key).any(|other| has_peer(app, other, term)) {
                return says("no workload that it must run beside is there");
            }
        }
        for term in required_terms(affinity.and_then(|it| it.workload_anti_affinity.as_ref())) {
            if self.domain(node, &term.topology_key).any(|other| has_peer(app, other, term)) {
                return says("a workload that it must not run beside is there");
            }
        }
        for home in self.nodes.values() {
            for placed in home.placed.iter().filter(|placed| placed.key.namespace == app.key.namespace) {
                for term in required_terms(anti_affinity(&placed.app)) {
                    let covers = self.domain(home, &term.topology_key).any(|other| other.name == node.name);
                    if covers && selected(term, &app.app.metadata.labels) {
                        return says("a workload there must not run beside it");
                    }
                }
            }
        }
        let cpu = node.used.cpu + app.requests.cpu > node.capacity.cpu;
        let memory = node.used.memory + app.requests.memory > node.capacity.memory;
        match (cpu, memory) {
            (false, false) => None,
            (true, false) => says("insufficient cpu"),
            (false, true) => says("insufficient memory"),
            (true, true) => says("insufficient cpu and memory"),
        }
    }

    fn domain<'a>(&'a self, node: &'a NodeInfo, key: &'a str) -> impl Iterator<Item = &'a NodeInfo> {
        let value = node.labels.get(key);
        self.nodes.values().filter(move |other| match value {
            None => other.name == node.name,
            Some(value) => other.labels.get(key) == Some(value),
        })
    }

    fn wished_peers(&self, app: &Pending, node: &NodeInfo) -> i64 {
        let affinity = app.app.spec.placement.as_ref().and_then(|placement| placement.affinity.as_ref());
        let Some(affinity) = affinity else { return 0 };
        let mut points = 0;
        for (sign, terms) in [(1, &affinity.workload_affinity), (-1, &affinity.workload_anti_affinity)] {
            for wish in terms.iter().flat_map(|terms| &terms.preferred_during_scheduling) {
                if self.domain(node, &wish.term.topology_key).any(|it| has_peer(app, it, &wish.term)) {
                    points += sign * i64::from(wish.weight);
                }
            }
        }
        points
    }

    fn fit_score(&self, app: &Pending, node: &NodeInfo) -> i64 {
        let milli = |nano: i64| (nano + 999_999) / 1_000_000;
        let cpu = milli(node.used.cpu + app.requests.cpu) as f64 / milli(node.capacity.cpu) as f64;
        let memory = (node.used.memory + app.requests.memory) as f64 / node.capacity.memory as f64;
        let fuller = if cpu > memory { cpu } else { memory };
        match self.fit {
            Fit::Spread => ((1.0 - fuller) * 100.0) as i64,
            Fit::Binpack => (fuller * 100.0) as i64,
        }
    }
}

fn mounted(app: &Pending) -> Vec<(String, String)> {
    let volumes = app.app.spec.volumes.iter().map(|mount| &mount.volume);
    let names = volumes.filter(|volume| volume.type_ == VolumeType::Pv).map(|volume| volume.name.clone());
    // In byte order: the first that is wrong is the one that is named.
    let names: BTreeSet<String> = names.collect();
    names.into_iter().map(|name| (app.key.namespace.clone(), name)).collect()
}

fn anti_affinity(app: &Application) -> Option<&WorkloadAffinity> {
    app.spec.placement.as_ref()?.affinity.as_ref()?.workload_anti_affinity.as_ref()
}

fn required_terms(terms: Option<&WorkloadAffinity>) -> &[WorkloadAffinityTerm] {
    terms.map_or(&[], |terms| &terms.required_during_scheduling)
}

fn selected(term: &WorkloadAffinityTerm, labels: &Labels) -> bool {
    term.label_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn has_peer(app: &Pending, node: &NodeInfo, term: &WorkloadAffinityTerm) -> bool {
    let peers = node.placed.iter().filter(|placed| placed.key.namespace == app.key.namespace);
    peers.into_iter().any(|placed| selected(term, &placed.app.metadata.labels))
}

fn matches(selector: &NodeSelector, labels: &Labels) -> bool {
    let equal = selector.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().all(|it| {
            let value = labels.get(&it.key);
            let listed = value.is_some_and(|value| it.values.contains(value));
            match it.operator {
                NodeSelectorOperator::In => listed,
                NodeSelectorOperator::NotIn => !listed,
                NodeSelectorOperator::Exists => value.is_some(),
                NodeSelectorOperator::DoesNotExist => value.is_none(),
            }
        })
}

fn wished_labels(app: &Pending, node: &NodeInfo) -> i64 {
    let affinity = app.app.spec.placement.as_ref().and_then(|placement| placement.affinity.as_ref());
    let terms = affinity.and_then(|affinity| affinity.node_affinity.as_ref());
    let wishes = terms.iter().flat_map(|terms| &terms.preferred_during_scheduling);
    wishes.filter(|wish| matches(&wish.preference, &node.labels)).map(|wish| i64::from(wish.weight)).sum()
}

fn normalized(raw: Vec<i64>) -> Vec<i64> {
    let (low, high) = (*raw.iter().min().unwrap(), *raw.iter().max().unwrap());
    raw.iter().map(|it| if high == low { 0 } else { (it - low) * 100 / (high - low) }).collect()
}

// Fleets. Values are drawn from few, so that they meet.

fn labels() -> impl Strategy<Value = Value> {
    let value = |key: &'static str, values: &'static [&'static str]| {
        prop::option::of(select(values)).prop_map(move |value| value.map(|value| (key, value)))
    };
    (value("app", &["web", "db"]), value("tier", &["gold", ""])).prop_map(|(app, tier)| {
        let pairs = [app, tier].into_iter().flatten();
        Value::Object(pairs.map(|(key, value)| (key.to_owned(), json!(value))).collect())
    })
}

fn nodes() -> impl Strategy<Value = Vec<NodeInfo>> {
    let zones: &[Option<&str>] = &[None, Some("a"), Some("a"), Some("b")];
    let one = (
        (0i64..6, 0i64..6),
        select(zones),
        prop::option::of(select(&["ssd", "hdd"][..])),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.9),
        select(
            &[Liveness::Ready, Liveness::Ready, Liveness::Ready, Liveness::NotReady, Liveness::Unheard][..],
        ),
        any::<(bool, bool)>(),
    );
    prop::collection::vec(one, 0..7).prop_map(|all| {
        let named = all.into_iter().enumerate().map(|(at, it)| {
            let ((cpu, memory), zone, disk, cordoned, admitted, liveness, (class, routed)) = it;
            // Names that do not sort as they were made.
            let mut node = node(&match (at * 3) % 7 {
                6 => "1e99".to_owned(),
                number => format!("n{number}"),
            });
            node.capacity.cpu = cpu * 1_000_000_000 + 1;
            node.capacity.memory = memory * GI;
            node.labels.extend(zone.map(|zone| ("zone".to_owned(), zone.to_owned())));
            node.labels.extend(disk.map(|disk| ("disk".to_owned(), disk.to_owned())));
            (node.unschedulable, node.admitted, node.liveness) = (cordoned, admitted, liveness);
            node.runtimes = if class { vec!["vm".to_owned()] } else { Vec::new() };
            node.routed_network = routed;
            node
        });
        named.collect()
    })
}

fn term() -> impl Strategy<Value = Value> {
    let keys = select(&["zone", "horchestra.io/hostname", "absent"][..]);
    (labels(), keys).prop_map(|(labels, key)| json!({"labelSelector": labels, "topologyKey": key}))
}

fn neighbours() -> impl Strategy<Value = Value> {
    let wish = (-5i32..10, term()).prop_map(|(weight, term)| json!({"weight": weight, "term": term}));
    let required = prop::collection::vec(term(), 0..3);
    (required, prop::collection::vec(wish, 0..3)).prop_map(|(required, preferred)| {
        json!({"requiredDuringScheduling": required, "preferredDuringScheduling": preferred})
    })
}

fn selector() -> impl Strategy<Value = Value> {
    let operators = select(&["In", "NotIn", "Exists", "DoesNotExist"][..]);
    let values = prop::collection::vec(select(&["ssd", "hdd", "a", ""][..]), 0..3);
    let keys = || select(&["disk", "zone", "absent"][..]);
    let expression = (keys(), operators, values)
        .prop_map(|(key, operator, values)| json!({"key": key, "operator": operator, "values": values}));
    let equal = prop::option::of((keys(), select(&["ssd", "a", ""][..])));
    (equal, prop::collection::vec(expression, 0..3)).prop_map(|(equal, expressions)| {
        let equal = equal.into_iter().map(|(key, value)| (key.to_owned(), json!(value)));
        json!({"matchLabels": Value::Object(equal.collect()), "matchExpressions": expressions})
    })
}

fn app() -> impl Strategy<Value = Pending> {
    let rarely = |share| prop::option::weighted(share, Just(()));
    let selectors = (
        prop::option::weighted(0.2, selector()),
        prop::collection::vec((-3i32..10, selector()), 0..3),
        prop::option::weighted(0.2, select(&["ssd", "hdd", ""][..])),
    );
    (
        (select(&["one", "two"][..]), labels(), 0i64..4, 0i64..4, 0i32..2, 0u8..3),
        selectors,
        (prop::option::weighted(0.4, neighbours()), prop::option::weighted(0.4, neighbours())),
        (rarely(0.1), rarely(0.1), prop::collection::vec(select(VOLUMES), 0..3)),
    )
        .prop_map(|(basics, (required, wishes, disk), (near, away), (class, routed, volumes))| {
            let (namespace, labels, cpu, memory, priority, age) = basics;
            let wishes: Vec<Value> = wishes
                .into_iter()
                .map(|(weight, preference)| json!({"weight": weight, "preference": preference}))
                .collect();
            let mut spec = json!({
                "resources": {"requests": {"cpu": cpu.to_string(), "memory": format!("{memory}Gi")}},
                "placement": {"priority": priority, "affinity": {
                    "nodeAffinity": {"requiredDuringScheduling": required,
                        "preferredDuringScheduling": wishes},
                    "workloadAffinity": near, "workloadAntiAffinity": away,
                }},
            });
            if let Some(disk) = disk {
                spec["placement"]["nodeSelector"] = json!({ "disk": disk });
            }
            if class.is_some() {
                spec["runtimeClassName"] = json!("vm");
            }
            if routed.is_some() {
                spec["hostNetwork"] = json!(false);
            }
            let mount = |name: &str| json!({"mountPath": "/m", "volume": {"type": "pv", "name": name}});
            spec["volumes"] = volumes.into_iter().flatten().map(mount).collect();
            let mut app = pending(application(namespace, "app", labels, spec));
            app.created = format!("2026-01-01T00:00:0{age}Z");
            app
        })
}

/// What may be mounted; mostly nothing.
const VOLUMES: &[Option<&str>] = &[None, None, None, None, Some("v1"), Some("v2"), Some("v3")];

fn volumes() -> impl Strategy<Value = Vec<(Key, VolumeInfo)>> {
    let homes = select(&[None, None, Some("n0"), Some("n3"), Some("1e99"), Some("gone")][..]);
    let one = (select(&["one", "two"][..]), select(&["v1", "v2"][..]), homes, prop::bool::weighted(0.1));
    let volume = one.prop_map(|(namespace, name, node, deleting)| {
        let node = node.map(str::to_owned);
        (Key::namespaced(Kind::PersistentVolume, namespace, name), VolumeInfo { node, deleting })
    });
    prop::collection::vec(volume, 0..4)
}

/// The same Applications under names of their own.
fn named(apps: Vec<Pending>, prefix: &str) -> Vec<Pending> {
    let rename = |(at, mut app): (usize, Pending)| {
        app.key.name = format!("{prefix}{}", (at * 5) % 13);
        app
    };
    apps.into_iter().enumerate().map(rename).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn the_scheduler_decides_as_a_naive_one_does(
        nodes in nodes(),
        placed in prop::collection::vec((app(), 0usize..8), 0..8),
        waiting in prop::collection::vec(app(), 1..10),
        volumes in volumes(),
        binpack in any::<bool>(),
    ) {
        let fit = if binpack { Fit::Binpack } else { Fit::Spread };
        let mut cluster = Cluster::new(nodes.clone());
        let nodes = nodes.into_iter().map(|it| (it.name.clone(), it)).collect();
        let mut naive = Naive { nodes, volumes: BTreeMap::new(), fit };
        for (key, volume) in volumes {
            cluster.put_volume(key.clone(), Some(volume.clone()));
            naive.volumes.insert((key.namespace, key.name), volume);
        }
        let (placed, homes): (Vec<_>, Vec<_>) = placed.into_iter().unzip();
        for (app, home) in named(placed, "p").into_iter().zip(homes) {
            let placed = Placed { key: app.key.clone(), requests: app.requests, app: app.app };
            cluster.place(&format!("n{home}"), placed.clone());
            if let Some(node) = naive.nodes.get_mut(&format!("n{home}")) {
                node.used = node.used.saturating_add(placed.requests);
                node.placed.push(placed);
            }
        }
        let waiting = named(waiting, "w");
        prop_assert_eq!(decide(&mut cluster, waiting.clone(), fit), naive.plan(waiting));
    }
}

use std::collections::BTreeMap;

use horchestra_core::kinds::application::{Affinity, Application, WorkloadAffinityTerm};

use super::normalize;
use crate::scheduler::cluster::{Cluster, NodeInfo, Pending};
use crate::scheduler::framework::{
    CycleState, Filter, Plugin, PreScore, Rejection, Score, ScorePlugin, Verdict,
};

const SCORES: &str = "WorkloadAffinity";

/// Judges nodes by the Applications of the same namespace in their topology domain. Required terms of both
/// kinds filter; a placed Application's required anti-affinity also keeps newcomers off; preferred terms
/// give and take points.
///
/// A required affinity that the Application itself satisfies, and that nothing else in the namespace does,
/// does not hold it back: otherwise the first of a group could never be placed.
pub struct WorkloadAffinity;

impl Plugin for WorkloadAffinity {
    fn name(&self) -> &'static str {
        "WorkloadAffinity"
    }

    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }

    fn pre_score(&self) -> Option<&dyn PreScore> {
        Some(self)
    }

    fn score(&self) -> Option<&dyn ScorePlugin> {
        Some(self)
    }
}

fn affinity(app: &Application) -> Option<&Affinity> {
    app.spec.placement.as_ref()?.affinity.as_ref()
}

fn required(app: &Application, anti: bool) -> &[WorkloadAffinityTerm] {
    let Some(affinity) = affinity(app) else { return &[] };
    let terms = if anti { &affinity.workload_anti_affinity } else { &affinity.workload_affinity };
    terms.as_ref().map_or(&[], |terms| &terms.required_during_scheduling)
}

/// An empty selector matches every Application.
fn selects(term: &WorkloadAffinityTerm, labels: &BTreeMap<String, String>) -> bool {
    term.label_selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn has_peer(cluster: &Cluster, node: &str, namespace: &str, term: &WorkloadAffinityTerm) -> bool {
    cluster.domain(node, &term.topology_key).iter().any(|node| {
        node.placed
            .iter()
            .any(|placed| placed.key.namespace == namespace && selects(term, &placed.app.metadata.labels))
    })
}

fn has_peer_anywhere(cluster: &Cluster, namespace: &str, term: &WorkloadAffinityTerm) -> bool {
    cluster
        .nodes()
        .flat_map(|node| &node.placed)
        .any(|placed| placed.key.namespace == namespace && selects(term, &placed.app.metadata.labels))
}

impl Filter for WorkloadAffinity {
    fn filter(&self, _: &CycleState, app: &Pending, node: &NodeInfo, cluster: &Cluster) -> Verdict {
        let namespace = &app.key.namespace;
        for term in required(&app.app, false) {
            let first_of_group =
                selects(term, &app.app.metadata.labels) && !has_peer_anywhere(cluster, namespace, term);
            if !first_of_group && !has_peer(cluster, &node.name, namespace, term) {
                return Err(Rejection::unschedulable("no workload that it must run beside is there"));
            }
        }
        if required(&app.app, true).iter().any(|term| has_peer(cluster, &node.name, namespace, term)) {
            return Err(Rejection::unschedulable("a workload that it must not run beside is there"));
        }
        if repelled(app, node, cluster) {
            return Err(Rejection::unschedulable("a workload there must not run beside it"));
        }
        Ok(())
    }
}

/// Whether a placed Application's required anti-affinity covers this node and this newcomer.
fn repelled(app: &Pending, node: &NodeInfo, cluster: &Cluster) -> bool {
    cluster.nodes().any(|home| {
        home.placed.iter().filter(|placed| placed.key.namespace == app.key.namespace).any(|placed| {
            required(&placed.app, true).iter().any(|term| {
                selects(term, &app.app.metadata.labels)
                    && cluster.domain(&home.name, &term.topology_key).iter().any(|n| n.name == node.name)
            })
        })
    })
}

impl PreScore for WorkloadAffinity {
    fn pre_score(
        &self,
        state: &mut CycleState,
        app: &Pending,
        feasible: &[&NodeInfo],
        cluster: &Cluster,
    ) -> Verdict {
        let Some(affinity) = affinity(&app.app) else { return Ok(()) };
        let weighted: Vec<(i64, &WorkloadAffinityTerm)> =
            [(1, &affinity.workload_affinity), (-1, &affinity.workload_anti_affinity)]
                .into_iter()
                .filter_map(|(sign, terms)| Some((sign, terms.as_ref()?)))
                .flat_map(|(sign, terms)| {
                    terms
                        .preferred_during_scheduling
                        .iter()
                        .map(move |term| (sign * i64::from(term.weight), &term.term))
                })
                .collect();
        if weighted.is_empty() {
            return Ok(());
        }
        let mut scores: BTreeMap<String, i64> = feasible
            .iter()
            .map(|node| {
                let points = weighted
                    .iter()
                    .filter(|(_, term)| has_peer(cluster, &node.name, &app.key.namespace, term))
                    .map(|(weight, _)| weight)
                    .sum();
                (node.name.clone(), points)
            })
            .collect();
        normalize(&mut scores);
        state.put(SCORES, scores);
        Ok(())
    }
}

impl ScorePlugin for WorkloadAffinity {
    fn score(&self, state: &CycleState, _: &Pending, node: &NodeInfo) -> Result<Score, Rejection> {
        let scores = state.get::<BTreeMap<String, i64>>(SCORES);
        Ok(scores.and_then(|scores| scores.get(&node.name)).copied().unwrap_or(0))
    }
}

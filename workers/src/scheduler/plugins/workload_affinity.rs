use horchestra_core::kinds::application::{Application, WorkloadAffinityTerm};

use super::normalize;
use crate::scheduler::cluster::{Cluster, Pending};
use crate::scheduler::framework::{
    Candidates, CycleState, Filter, Plugin, PreFilter, PreScore, Rejection, Score, ScorePlugin, Verdict,
};
use crate::scheduler::neighbours::{Peers, TermId, required, selects};

const TERMS: &str = "WorkloadAffinity.terms";
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

    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
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

/// The terms of one Application.
struct Terms {
    near: Vec<TermId>,
    away: Vec<TermId>,
    /// With what it is worth to have such a neighbour.
    wishes: Vec<(Score, TermId)>,
}

impl PreFilter for WorkloadAffinity {
    fn pre_filter(&self, state: &mut CycleState, app: &Pending, cluster: &mut Cluster) -> Verdict {
        let namespace = &app.key.namespace;
        let mut watch = |term: &WorkloadAffinityTerm| cluster.watch(namespace, term);
        let near = required(&app.app, false).iter();
        // The first of a group has nobody to be near.
        let near = near.map(|term| (selects(&term.label_selector, &app.app.metadata.labels), watch(term)));
        let near: Vec<(bool, TermId)> = near.collect();
        let away = required(&app.app, true).iter().map(&mut watch).collect();
        let wishes = wishes(&app.app).map(|(worth, term)| (worth, watch(term))).collect();
        let waits = |(own, term): &(bool, TermId)| !own || cluster.peers(*term).anywhere();
        let near = near.into_iter().filter(waits).map(|(_, term)| term).collect();
        state.put(TERMS, Terms { near, away, wishes });
        Ok(())
    }
}

/// What it wishes to be near, and what away from.
fn wishes(app: &Application) -> impl Iterator<Item = (Score, &WorkloadAffinityTerm)> {
    let affinity = app.spec.placement.as_ref().and_then(|placement| placement.affinity.as_ref());
    let both = affinity.into_iter().flat_map(|affinity| {
        [(1, affinity.workload_affinity.as_ref()), (-1, affinity.workload_anti_affinity.as_ref())]
    });
    both.flat_map(|(sign, terms)| {
        let wishes = terms.map_or(&[][..], |terms| &terms.preferred_during_scheduling);
        wishes.iter().map(move |wish| (sign * Score::from(wish.weight), &wish.term))
    })
}

impl Filter for WorkloadAffinity {
    fn filter(&self, state: &CycleState, app: &Pending, cluster: &Cluster, nodes: &mut Candidates) {
        let none = Terms { near: Vec::new(), away: Vec::new(), wishes: Vec::new() };
        let terms = state.get::<Terms>(TERMS).unwrap_or(&none);
        let peers = |terms: &[TermId]| -> Vec<&Peers> { terms.iter().map(|it| cluster.peers(*it)).collect() };
        let (near, away) = (peers(&terms.near), peers(&terms.away));
        let repelling: Vec<&Peers> =
            cluster.repelling(&app.key.namespace, &app.app.metadata.labels).collect();
        if near.is_empty() && away.is_empty() && repelling.is_empty() {
            return;
        }
        nodes.retain(|node| {
            let there = |peers: &&Peers| peers.near(node);
            if !near.iter().all(there) {
                Err(Rejection::unschedulable("no workload that it must run beside is there"))
            } else if away.iter().any(there) {
                Err(Rejection::unschedulable("a workload that it must not run beside is there"))
            } else if repelling.iter().any(there) {
                Err(Rejection::unschedulable("a workload there must not run beside it"))
            } else {
                Ok(())
            }
        });
    }
}

impl PreScore for WorkloadAffinity {
    fn pre_score(&self, state: &mut CycleState, _: &Pending, cluster: &Cluster, nodes: &[usize]) -> Verdict {
        let Some(terms) = state.get::<Terms>(TERMS).filter(|terms| !terms.wishes.is_empty()) else {
            return Ok(());
        };
        let wishes: Vec<(Score, &Peers)> =
            terms.wishes.iter().map(|(worth, term)| (*worth, cluster.peers(*term))).collect();
        let points = |node: &usize| {
            wishes.iter().filter(|(_, peers)| peers.near(*node)).map(|(worth, _)| worth).sum::<Score>()
        };
        let mut scores: Vec<Score> = nodes.iter().map(points).collect();
        normalize(&mut scores);
        state.put(SCORES, scores);
        Ok(())
    }
}

impl ScorePlugin for WorkloadAffinity {
    fn score(
        &self,
        state: &CycleState,
        _: &Pending,
        _: &Cluster,
        _: &[usize],
        scores: &mut [Score],
    ) -> Verdict {
        if let Some(found) = state.get::<Vec<Score>>(SCORES) {
            scores.copy_from_slice(found);
        }
        Ok(())
    }
}

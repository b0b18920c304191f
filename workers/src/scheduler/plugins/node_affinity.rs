use horchestra_core::kinds::application::NodeAffinity as Terms;

use super::normalize;
use crate::scheduler::cluster::{Cluster, Pending};
use crate::scheduler::framework::{
    Candidates, CycleState, Filter, Plugin, PreScore, Rejection, Score, ScorePlugin, Verdict,
};

const SCORES: &str = "NodeAffinity";

/// Judges nodes by their labels: `nodeSelector` and the required node affinity must match, the preferred
/// terms give points by their weight.
pub struct NodeAffinity;

impl Plugin for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
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

fn terms(app: &Pending) -> Option<&Terms> {
    app.app.spec.placement.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()
}

impl Filter for NodeAffinity {
    fn filter(&self, _: &CycleState, app: &Pending, cluster: &Cluster, nodes: &mut Candidates) {
        let placement = app.app.spec.placement.as_ref();
        if let Some(selector) =
            placement.map(|placement| &placement.node_selector).filter(|selector| !selector.is_empty())
        {
            nodes.retain(|node| {
                let labels = &cluster.at(node).labels;
                match selector.iter().all(|(key, value)| labels.get(key) == Some(value)) {
                    true => Ok(()),
                    false => Err(Rejection::unschedulable("node does not match spec.placement.nodeSelector")),
                }
            });
        }
        if let Some(selector) = terms(app).and_then(|terms| terms.required_during_scheduling.as_ref()) {
            nodes.retain(|node| match selector.matches(&cluster.at(node).labels) {
                true => Ok(()),
                false => Err(Rejection::unschedulable("node does not match the required node affinity")),
            });
        }
    }
}

impl PreScore for NodeAffinity {
    fn pre_score(
        &self,
        state: &mut CycleState,
        app: &Pending,
        cluster: &Cluster,
        nodes: &[usize],
    ) -> Verdict {
        let Some(terms) = terms(app).filter(|terms| !terms.preferred_during_scheduling.is_empty()) else {
            return Ok(());
        };
        let points = |node: &usize| {
            let labels = &cluster.at(*node).labels;
            let wishes = terms.preferred_during_scheduling.iter();
            wishes.filter(|wish| wish.preference.matches(labels)).map(|wish| Score::from(wish.weight)).sum()
        };
        let mut scores: Vec<Score> = nodes.iter().map(points).collect();
        normalize(&mut scores);
        state.put(SCORES, scores);
        Ok(())
    }
}

impl ScorePlugin for NodeAffinity {
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

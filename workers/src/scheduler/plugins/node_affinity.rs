use std::collections::BTreeMap;

use horchestra_core::kinds::application::NodeAffinity as Terms;

use super::normalize;
use crate::scheduler::cluster::{Cluster, NodeInfo, Pending};
use crate::scheduler::framework::{
    CycleState, Filter, Plugin, PreScore, Rejection, Score, ScorePlugin, Verdict,
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
    fn filter(&self, _: &CycleState, app: &Pending, node: &NodeInfo, _: &Cluster) -> Verdict {
        if let Some(placement) = &app.app.spec.placement
            && !placement.node_selector.iter().all(|(key, value)| node.labels.get(key) == Some(value))
        {
            return Err(Rejection::unschedulable("node does not match spec.placement.nodeSelector"));
        }
        match terms(app).and_then(|terms| terms.required_during_scheduling.as_ref()) {
            Some(selector) if !selector.matches(&node.labels) => {
                Err(Rejection::unschedulable("node does not match the required node affinity"))
            }
            _ => Ok(()),
        }
    }
}

impl PreScore for NodeAffinity {
    fn pre_score(
        &self,
        state: &mut CycleState,
        app: &Pending,
        feasible: &[&NodeInfo],
        _: &Cluster,
    ) -> Verdict {
        let Some(terms) = terms(app).filter(|terms| !terms.preferred_during_scheduling.is_empty()) else {
            return Ok(());
        };
        let mut scores: BTreeMap<String, i64> = feasible
            .iter()
            .map(|node| {
                let matching = terms
                    .preferred_during_scheduling
                    .iter()
                    .filter(|term| term.preference.matches(&node.labels));
                (node.name.clone(), matching.map(|term| i64::from(term.weight)).sum())
            })
            .collect();
        normalize(&mut scores);
        state.put(SCORES, scores);
        Ok(())
    }
}

impl ScorePlugin for NodeAffinity {
    fn score(&self, state: &CycleState, _: &Pending, node: &NodeInfo) -> Result<Score, Rejection> {
        let scores = state.get::<BTreeMap<String, i64>>(SCORES);
        Ok(scores.and_then(|scores| scores.get(&node.name)).copied().unwrap_or(0))
    }
}

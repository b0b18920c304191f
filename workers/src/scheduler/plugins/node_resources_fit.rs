use clap::ValueEnum;

use crate::scheduler::cluster::{Amounts, Cluster, Pending, Placed};
use crate::scheduler::framework::{
    Candidates, CycleState, Filter, MAX_SCORE, Plugin, Rejection, Reserve, Score, ScorePlugin, Verdict,
};

/// Which node is better among those that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// The one that stays emptiest.
    Spread,
    /// The one that becomes fullest.
    Binpack,
}

/// Lets an Application on a node only if CPU and memory requests of everything placed there, its own
/// included, fit the node's capacity; prefers by [`Strategy`]; counts what was decided earlier in the pass.
pub struct NodeResourcesFit {
    strategy: Strategy,
}

impl NodeResourcesFit {
    pub fn new(strategy: Strategy) -> NodeResourcesFit {
        NodeResourcesFit { strategy }
    }
}

impl Plugin for NodeResourcesFit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }

    fn score(&self) -> Option<&dyn ScorePlugin> {
        Some(self)
    }

    fn reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }
}

impl Filter for NodeResourcesFit {
    fn filter(&self, _: &CycleState, app: &Pending, cluster: &Cluster, nodes: &mut Candidates) {
        nodes.retain(|node| {
            let node = cluster.at(node);
            let used = node.used.saturating_add(app.requests);
            let short = match (over(used.cpu, node.capacity.cpu), over(used.memory, node.capacity.memory)) {
                (false, false) => return Ok(()),
                (true, false) => "insufficient cpu",
                (false, true) => "insufficient memory",
                (true, true) => "insufficient cpu and memory",
            };
            Err(Rejection::unschedulable(short))
        });
    }
}

/// A node without capacity takes nothing: to the scheduler, unknown is not unlimited.
fn over(used: i64, capacity: i64) -> bool {
    if capacity == 0 { used != 0 } else { used > capacity }
}

impl ScorePlugin for NodeResourcesFit {
    fn score(
        &self,
        _: &CycleState,
        app: &Pending,
        cluster: &Cluster,
        nodes: &[usize],
        scores: &mut [Score],
    ) -> Verdict {
        for (node, score) in nodes.iter().zip(scores) {
            let node = cluster.at(*node);
            let utilization = utilization(node.used.saturating_add(app.requests), node.capacity);
            *score = points(self.strategy, utilization);
        }
        Ok(())
    }
}

/// Whole points, cut off as binary fractions have it: 0.9 in use is 9 points of emptiness, not 10.
fn points(strategy: Strategy, utilization: f64) -> Score {
    let share = match strategy {
        Strategy::Spread => (1.0 - utilization) * MAX_SCORE as f64,
        Strategy::Binpack => utilization * MAX_SCORE as f64,
    };
    (share as Score).clamp(0, MAX_SCORE)
}

/// The fuller of CPU (in whole milli-cores, rounded up) and memory, as a share of capacity.
fn utilization(used: Amounts, capacity: Amounts) -> f64 {
    let milli = |nano: i64| nano.div_euclid(1_000_000) + i64::from(nano.rem_euclid(1_000_000) != 0);
    let share = |used: i64, capacity: i64| if capacity == 0 { 0.0 } else { used as f64 / capacity as f64 };
    share(milli(used.cpu), milli(capacity.cpu)).max(share(used.memory, capacity.memory))
}

impl Reserve for NodeResourcesFit {
    fn reserve(&self, _: &mut CycleState, app: &Pending, node: &str, cluster: &mut Cluster) -> Verdict {
        cluster.place(node, Placed { key: app.key.clone(), requests: app.requests, app: app.app.clone() });
        Ok(())
    }

    fn unreserve(&self, _: &mut CycleState, app: &Pending, node: &str, cluster: &mut Cluster) {
        cluster.displace(node, &app.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_cut_off_and_the_fuller_resource_counts() {
        let capacity = Amounts { cpu: 4_000_000_000, memory: 1000 };
        for (cpu, memory, spread, binpack) in [
            (0, 0, 100, 0),
            (0, 900, 9, 90),
            (0, 290, 71, 28),
            (2_000_000_000, 250, 50, 50),
            // A part of a milli-core counts as one.
            (1, 0, 99, 0),
            (8_000_000_000, 0, 0, 100),
        ] {
            let utilization = utilization(Amounts { cpu, memory }, capacity);
            let found = (points(Strategy::Spread, utilization), points(Strategy::Binpack, utilization));
            assert_eq!(found, (spread, binpack), "{cpu} and {memory} in use");
        }
    }
}

use crate::scheduler::cluster::{Cluster, Liveness, NodeInfo, Pending};
use crate::scheduler::framework::{Candidates, CycleState, Filter, Plugin, Rejection};

/// Keeps work off nodes that are cordoned, not admitted, held, not ready, of unknown size, or not heard of since the control
/// plane was last away. The first reason that applies is the one reported.
pub struct NodeSchedulable;

impl Plugin for NodeSchedulable {
    fn name(&self) -> &'static str {
        "NodeSchedulable"
    }

    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

impl Filter for NodeSchedulable {
    fn filter(&self, _: &CycleState, _: &Pending, cluster: &Cluster, nodes: &mut Candidates) {
        nodes.retain(|node| match obstacle(cluster.at(node)) {
            None => Ok(()),
            Some(obstacle) => Err(Rejection::unschedulable(obstacle)),
        });
    }
}

fn obstacle(node: &NodeInfo) -> Option<&'static str> {
    if node.unschedulable {
        Some("node is cordoned")
    } else if !node.admitted {
        Some("node is not admitted")
    } else if node.held {
        Some("node is held until it is admitted")
    } else if node.liveness == Liveness::NotReady {
        Some("node is not ready")
    } else if node.capacity.cpu == 0 || node.capacity.memory == 0 {
        Some("node reports no capacity")
    } else if node.liveness == Liveness::Unheard {
        Some("node has not reported since the control plane is back")
    } else {
        None
    }
}

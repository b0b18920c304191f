use crate::scheduler::cluster::{Cluster, Liveness, NodeInfo, Pending};
use crate::scheduler::framework::{CycleState, Filter, Plugin, Rejection, Verdict};

/// Keeps work off nodes that are cordoned, not admitted, not ready, of unknown size, or not heard of since the control
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
    fn filter(&self, _: &CycleState, _: &Pending, node: &NodeInfo, _: &Cluster) -> Verdict {
        if node.unschedulable {
            return Err(Rejection::unschedulable("node is cordoned"));
        }
        if !node.admitted {
            return Err(Rejection::unschedulable("node is not admitted"));
        }
        if node.liveness == Liveness::NotReady {
            return Err(Rejection::unschedulable("node is not ready"));
        }
        if node.capacity.cpu == 0 || node.capacity.memory == 0 {
            return Err(Rejection::unschedulable("node reports no capacity"));
        }
        if node.liveness == Liveness::Unheard {
            return Err(Rejection::unschedulable("node has not reported since the control plane is back"));
        }
        Ok(())
    }
}

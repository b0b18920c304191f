use crate::scheduler::cluster::{Cluster, NodeInfo, Pending};
use crate::scheduler::framework::{CycleState, Filter, Plugin, Rejection, Verdict};

/// Lets an Application with a network of its own only on nodes that can wire one.
pub struct RoutedNetwork;

impl Plugin for RoutedNetwork {
    fn name(&self) -> &'static str {
        "RoutedNetwork"
    }

    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

impl Filter for RoutedNetwork {
    fn filter(&self, _: &CycleState, app: &Pending, node: &NodeInfo, _: &Cluster) -> Verdict {
        if app.app.spec.host_network != Some(false) || node.routed_network {
            Ok(())
        } else {
            Err(Rejection::unschedulable("node has no network helper for workloads off the host network"))
        }
    }
}

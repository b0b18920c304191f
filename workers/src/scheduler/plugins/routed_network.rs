use crate::scheduler::cluster::{Cluster, Pending};
use crate::scheduler::framework::{Candidates, CycleState, Filter, Plugin, Rejection};

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
    fn filter(&self, _: &CycleState, app: &Pending, cluster: &Cluster, nodes: &mut Candidates) {
        if app.app.spec.host_network != Some(false) {
            return;
        }
        nodes.retain(|node| match cluster.at(node).routed_network {
            true => Ok(()),
            false => {
                Err(Rejection::unschedulable("node has no network helper for workloads off the host network"))
            }
        });
    }
}

use crate::scheduler::cluster::{Cluster, Pending};
use crate::scheduler::framework::{Candidates, CycleState, Filter, Plugin, Rejection};

/// Lets an Application that names a runtime class only on nodes that offer it.
pub struct RuntimeClass;

impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }
}

impl Filter for RuntimeClass {
    fn filter(&self, _: &CycleState, app: &Pending, cluster: &Cluster, nodes: &mut Candidates) {
        let class = &app.app.spec.runtime_class_name;
        if class.is_empty() {
            return;
        }
        nodes.retain(|node| match cluster.at(node).runtimes.contains(class) {
            true => Ok(()),
            false => Err(Rejection::unschedulable(format!("node does not offer runtime class {class:?}"))),
        });
    }
}

use crate::scheduler::cluster::{Cluster, NodeInfo, Pending};
use crate::scheduler::framework::{CycleState, Filter, Plugin, Rejection, Verdict};

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
    fn filter(&self, _: &CycleState, app: &Pending, node: &NodeInfo, _: &Cluster) -> Verdict {
        let class = &app.app.spec.runtime_class_name;
        if class.is_empty() || node.runtimes.contains(class) {
            Ok(())
        } else {
            Err(Rejection::unschedulable(format!("node does not offer runtime class {class:?}")))
        }
    }
}

use crate::scheduler::cluster::Pending;
use crate::scheduler::framework::{Bind, BindDecision, CycleState, Plugin, Rejection};

/// Binds every Application: the loop writes the node's name into it as one guarded item.
pub struct DefaultBinder;

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        "DefaultBinder"
    }

    fn bind(&self) -> Option<&dyn Bind> {
        Some(self)
    }
}

impl Bind for DefaultBinder {
    fn bind(&self, _: &CycleState, _: &Pending, _: &str) -> Result<BindDecision, Rejection> {
        Ok(BindDecision::Bind)
    }
}

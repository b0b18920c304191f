use horchestra_core::kinds::application::VolumeType;

use crate::scheduler::cluster::{Cluster, Pending};
use crate::scheduler::framework::{CycleState, Plugin, PreFilter, Rejection, Verdict};

/// Holds back Applications that mount persistent volumes: where such a volume lies decides where its
/// Application can run, and volumes are not served yet. A wrong place is for good, a wait is not.
pub struct Unserved;

impl Plugin for Unserved {
    fn name(&self) -> &'static str {
        "Unserved"
    }

    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }
}

impl PreFilter for Unserved {
    fn pre_filter(&self, _: &mut CycleState, app: &Pending, _: &mut Cluster) -> Verdict {
        if app.app.spec.volumes.iter().any(|mount| mount.volume.type_ == VolumeType::Pv) {
            return Err(Rejection::unschedulable("this control plane does not serve persistent volumes yet"));
        }
        Ok(())
    }
}

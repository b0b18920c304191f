use horchestra_core::kind::{Key, Kind};
use horchestra_core::quantity::literal_out_of_range;

use crate::scheduler::cluster::{Cluster, Pending, VolumeInfo};
use crate::scheduler::framework::{
    Candidates, CycleState, Filter, Plugin, PreFilter, Rejection, Reserve, Verdict,
};

const VOLUMES: &str = "VolumeBinding";

/// Brings Applications to their volumes, and volumes to the Application that is placed first: one that mounts a
/// volume which lies on a node runs there and nowhere else; volumes that are missing, or lie nowhere yet, come to the
/// node that is chosen, together with the binding.
///
/// A node whose name agents take for a number too large to be read gets no volumes: they could not read a volume
/// that lies there.
pub struct VolumeBinding;

impl Plugin for VolumeBinding {
    fn name(&self) -> &'static str {
        "VolumeBinding"
    }

    fn pre_filter(&self) -> Option<&dyn PreFilter> {
        Some(self)
    }

    fn filter(&self) -> Option<&dyn Filter> {
        Some(self)
    }

    fn reserve(&self) -> Option<&dyn Reserve> {
        Some(self)
    }
}

/// The volumes of one Application.
#[derive(Default)]
struct Volumes {
    /// The node that those that lie somewhere lie on.
    home: Option<String>,
    /// Those that lie nowhere yet, with what is known of them.
    open: Vec<(Key, Option<VolumeInfo>)>,
}

impl PreFilter for VolumeBinding {
    fn pre_filter(&self, state: &mut CycleState, app: &Pending, cluster: &mut Cluster) -> Verdict {
        let mut volumes = Volumes::default();
        for name in app.app.volume_names() {
            let key = Key::namespaced(Kind::PersistentVolume, app.key.namespace.clone(), name);
            let known = cluster.volume(&key).cloned();
            match known {
                Some(VolumeInfo { deleting: true, .. }) => {
                    return Err(Rejection::unschedulable(format!("volume {name:?} is being deleted")));
                }
                Some(VolumeInfo { node: Some(node), .. }) => match &volumes.home {
                    Some(home) if *home != node => {
                        return Err(Rejection::unschedulable("its volumes lie on different nodes"));
                    }
                    _ => volumes.home = Some(node),
                },
                open => volumes.open.push((key, open)),
            }
        }
        state.put(VOLUMES, volumes);
        Ok(())
    }
}

impl Filter for VolumeBinding {
    fn filter(&self, state: &CycleState, _: &Pending, cluster: &Cluster, nodes: &mut Candidates) {
        let Some(volumes) = state.get::<Volumes>(VOLUMES) else { return };
        if let Some(home) = &volumes.home {
            nodes.retain(|node| match cluster.at(node).name == *home {
                true => Ok(()),
                false => Err(Rejection::unschedulable("its volumes lie on another node")),
            });
        }
        if !volumes.open.is_empty() {
            nodes.retain(|node| match literal_out_of_range(&cluster.at(node).name) {
                false => Ok(()),
                true => Err(Rejection::unschedulable("no agent can read a volume on a node of this name")),
            });
        }
    }
}

impl Reserve for VolumeBinding {
    fn reserve(&self, state: &mut CycleState, _: &Pending, node: &str, cluster: &mut Cluster) -> Verdict {
        for (key, _) in state.get::<Volumes>(VOLUMES).into_iter().flat_map(|volumes| &volumes.open) {
            let here = VolumeInfo { node: Some(node.to_owned()), deleting: false };
            cluster.put_volume(key.clone(), Some(here));
        }
        Ok(())
    }

    fn unreserve(&self, state: &mut CycleState, _: &Pending, _: &str, cluster: &mut Cluster) {
        for (key, before) in state.get::<Volumes>(VOLUMES).into_iter().flat_map(|volumes| &volumes.open) {
            cluster.put_volume(key.clone(), before.clone());
        }
    }
}

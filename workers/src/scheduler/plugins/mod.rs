//! The plugins that ship, one module each, and the profile that enables them.

mod default_binder;
mod node_affinity;
mod node_resources_fit;
mod node_schedulable;
mod priority_sort;
mod routed_network;
mod runtime_class;
mod volume_binding;
mod workload_affinity;

pub use default_binder::DefaultBinder;
pub use node_affinity::NodeAffinity;
pub use node_resources_fit::{NodeResourcesFit, Strategy};
pub use node_schedulable::NodeSchedulable;
pub use priority_sort::PrioritySort;
pub use routed_network::RoutedNetwork;
pub use runtime_class::RuntimeClass;
pub use volume_binding::VolumeBinding;
pub use workload_affinity::WorkloadAffinity;

use super::framework::{MAX_SCORE, Score};
use super::profile::{Profile, ProfileError, Registry};

/// Every plugin that ships, under its own name.
pub fn registry(strategy: Strategy) -> Registry {
    let mut registry = Registry::default();
    registry
        .register("PrioritySort", || Box::new(PrioritySort))
        .register("NodeSchedulable", || Box::new(NodeSchedulable))
        .register("RuntimeClass", || Box::new(RuntimeClass))
        .register("RoutedNetwork", || Box::new(RoutedNetwork))
        .register("NodeAffinity", || Box::new(NodeAffinity))
        .register("WorkloadAffinity", || Box::new(WorkloadAffinity))
        .register("NodeResourcesFit", move || Box::new(NodeResourcesFit::new(strategy)))
        .register("VolumeBinding", || Box::new(VolumeBinding))
        .register("DefaultBinder", || Box::new(DefaultBinder));
    registry
}

/// Spreads raw scores over 0 to the maximum; all equal gives 0 for all.
fn normalize(raw: &mut [Score]) {
    let low = raw.iter().copied().min().unwrap_or(0);
    let high = raw.iter().copied().max().unwrap_or(0);
    let range = i128::from(high) - i128::from(low);
    for value in raw {
        let scaled = (i128::from(*value) - i128::from(low)) * i128::from(MAX_SCORE);
        *value = if range == 0 { 0 } else { Score::try_from(scaled / range).unwrap_or(MAX_SCORE) };
    }
}

/// The profile that the workers run.
pub fn default_profile(strategy: Strategy) -> Result<Profile, ProfileError> {
    registry(strategy).profile(&[
        ("PrioritySort", 1),
        ("NodeSchedulable", 1),
        ("RuntimeClass", 1),
        ("RoutedNetwork", 1),
        ("NodeAffinity", 1),
        ("WorkloadAffinity", 1),
        ("NodeResourcesFit", 1),
        ("VolumeBinding", 1),
        ("DefaultBinder", 1),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_spread_over_the_whole_scale() {
        for (raw, expected) in [
            (&[1, 2, 4][..], &[0, 33, 100][..]),
            (&[-5, 0, 5], &[0, 50, 100]),
            (&[-3, -1], &[0, 100]),
            (&[7, 7, 7], &[0, 0, 0]),
            (&[], &[]),
        ] {
            let mut scores = raw.to_vec();
            normalize(&mut scores);
            assert_eq!(scores, expected, "{raw:?}");
        }
    }
}

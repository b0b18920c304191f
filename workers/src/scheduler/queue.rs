//! The order in which waiting Applications are tried.

use std::cmp::Ordering;

use super::cluster::Pending;
use super::profile::Profile;

/// Sorts by the profile's queue-sort plugin; without one the order stays.
pub fn sort(profile: &Profile, pending: &mut [Pending]) {
    if let Some(plugin) = profile.plugins().find_map(|plugin| plugin.queue_sort()) {
        pending.sort_by(|a, b| plugin.compare(a, b));
    }
}

/// Priority (higher first), then age (older first), then name, namespace and uid, so that no two
/// Applications tie and every replica tries them in the same order.
pub fn by_priority_and_age(a: &Pending, b: &Pending) -> Ordering {
    b.priority
        .cmp(&a.priority)
        .then_with(|| a.created.cmp(&b.created))
        .then_with(|| a.key.name.cmp(&b.key.name))
        .then_with(|| a.key.namespace.cmp(&b.key.namespace))
        .then_with(|| a.uid.cmp(&b.uid))
}

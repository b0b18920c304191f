use std::cmp::Ordering;

use crate::scheduler::cluster::Pending;
use crate::scheduler::framework::{Plugin, QueueSort};
use crate::scheduler::queue;

/// Sorts the queue by priority, then age, then name.
pub struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }

    fn queue_sort(&self) -> Option<&dyn QueueSort> {
        Some(self)
    }
}

impl QueueSort for PrioritySort {
    fn compare(&self, a: &Pending, b: &Pending) -> Ordering {
        queue::by_priority_and_age(a, b)
    }
}

//! Cutting a batch into runs of items that do not meet.
//!
//! [`crate::batch`] has already seen to it that items of a batch do not look at what others write, except
//! through claims and capacity. Those two are dealt with here, and the rest is checked all the same: this
//! backend is exact for any batch. Within a run the database judges every item against the state before the
//! run, so two items must be parted when the first might write what the second reads or writes. What only
//! the database knows (the node an application leaves, the uid that a deletion releases) counts as
//! anything at all.

use std::collections::HashSet;

use uuid::Uuid;

use crate::batch::Batch;
use crate::types::{Guard, Item, Op};

#[derive(Default)]
struct Run<'a> {
    batch: Batch<'a>,
    items: usize,
    values: HashSet<(&'a str, &'a str)>,
    claimants: HashSet<(&'a str, Uuid)>,
    releases: bool,
    claims: bool,
    deletions: bool,
}

/// The index after the last item of each run.
pub fn segments(items: &[Item]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut run = Run::default();
    for (at, item) in items.iter().enumerate() {
        if run.items > 0 && (alone(item) || run.meets(item) || !run.batch.admit(item)) {
            ends.push(at);
            run = Run::default();
        }
        if run.items == 0 {
            run.batch.admit(item);
        }
        run.add(item);
        if alone(item) {
            ends.push(at + 1);
            run = Run::default();
        }
    }
    if run.items > 0 {
        ends.push(items.len());
    }
    ends
}

/// Items whose own operations may meet (a value given back and taken, or taken twice), or that carry a guard
/// on their effect.
fn alone(item: &Item) -> bool {
    let mut values = HashSet::new();
    let (mut claims, mut gives_back) = (false, false);
    for op in &item.ops {
        match op {
            Op::Claim { space, value, .. } => {
                if !values.insert((space, value)) {
                    return true;
                }
                claims = true;
            }
            Op::Release { .. } | Op::Delete { .. } => gives_back = true,
            Op::Create(_) | Op::Update { .. } => {}
        }
    }
    (claims && gives_back) || item.guards.iter().any(|guard| matches!(guard, Guard::Capacity { .. }))
}

impl<'a> Run<'a> {
    fn meets(&self, item: &'a Item) -> bool {
        item.ops.iter().any(|op| match op {
            Op::Claim { space, value, owner, .. } => {
                self.releases
                    || self.deletions
                    || self.values.contains(&(space.as_str(), value.as_str()))
                    || self.claimants.contains(&(space.as_str(), *owner))
            }
            Op::Release { .. } | Op::Delete { .. } => self.claims,
            _ => false,
        })
    }

    fn add(&mut self, item: &'a Item) {
        self.items += 1;
        for op in &item.ops {
            match op {
                Op::Claim { space, value, owner, .. } => {
                    self.claims = true;
                    self.values.insert((space, value));
                    self.claimants.insert((space, *owner));
                }
                Op::Release { .. } => self.releases = true,
                Op::Delete { .. } => self.deletions = true,
                Op::Create(_) | Op::Update { .. } => {}
            }
        }
    }
}

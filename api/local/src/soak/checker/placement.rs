//! Placement: once, for good, where there is room.

use horchestra_core::kinds::application::{Amounts, Application, over};
use horchestra_core::kinds::meta::ConditionStatus;
use horchestra_store::ChangeKind;
use horchestra_store::backend::LogRow;

use super::past::{Place, place};
use super::{Checker, Rule, SCHEDULER};

impl Checker {
    pub(super) fn check_placement(&mut self, row: &LogRow) {
        if row.change.kind == ChangeKind::Deleted {
            return;
        }
        let (revision, key) = (row.change.revision, row.change.key());
        let after = match row.change.entry.typed::<Application>() {
            Ok(app) => Place::of(&app),
            Err(error) => return self.broken(revision, Rule::Unreadable, format!("{key}: {error}")),
        };
        let before = self.past.get(key).filter(|entry| entry.uid == row.change.entry.uid);
        let before = before.and_then(|entry| place(entry)).unwrap_or_default();
        let scheduled = row.who.user == SCHEDULER && row.who.verb == "bind";
        if scheduled {
            self.check_bind(row, &before, &after);
        }
        match (&before.node, &after.node) {
            (Some(old), new) if Some(old) != new.as_ref() => {
                let new = new.as_deref().unwrap_or("none");
                let by = &row.who.user;
                self.broken(revision, Rule::Moved, format!("{key} from node {old} to {new} by {by}"));
            }
            _ => {}
        }
        if let Some(node) = &after.node
            && (before.node.as_ref() != Some(node) || takes_more(&before.takes, &after.takes))
        {
            self.check_room(row, node, &after.takes, scheduled);
        }
    }

    fn check_bind(&mut self, row: &LogRow, before: &Place, after: &Place) {
        let (revision, key) = (row.change.revision, row.change.key());
        self.counts.binds += 1;
        let times = self.binds.entry(row.change.entry.uid).or_default();
        *times += 1;
        if *times > 1 || before.node.is_some() {
            let times = *times;
            self.broken(revision, Rule::BoundTwice, format!("{key}, {times} times"));
        }
        let Some(name) = &after.node else {
            return self.broken(revision, Rule::Moved, format!("{key} was bound to nothing"));
        };
        let closed = match self.past.node(name) {
            None => Some("is not there"),
            Some(node) if node.spec.unschedulable => Some("is cordoned"),
            Some(node) if node.metadata.deletion_timestamp.is_some() => Some("is being deleted"),
            Some(node) if !node.admitted() => Some("is not admitted"),
            Some(node) if node.ready() != Some(ConditionStatus::True) => Some("is not ready"),
            Some(_) => None,
        };
        if let Some(why) = closed {
            self.broken(revision, Rule::ClosedNode, format!("{key} was bound to {name}, which {why}"));
        }
    }

    fn check_room(&mut self, row: &LogRow, name: &str, takes: &Amounts, scheduled: bool) {
        self.counts.fits += 1;
        let Some(node) = self.past.node(name) else { return };
        let used = self.past.used(name, row.change.key()).plus(takes);
        let capacity = Amounts::of(&node.status.capacity);
        // A node that has reported nothing takes what authors put there, and nothing from the scheduler.
        let unbounded = !scheduled;
        let full = |used: &Amounts| {
            over(&used.cpu, &capacity.cpu, unbounded) || over(&used.memory, &capacity.memory, unbounded)
        };
        if full(&used) {
            let (key, revision) = (row.change.key(), row.change.revision);
            let what = format!("{key} on {name}: {used:?} of {capacity:?}, by {}", row.who.user);
            self.broken(revision, Rule::Overcommitted, what);
        } else if scheduled && full(&used.plus(takes)) {
            self.counts.filled += 1;
        }
    }
}

fn takes_more(before: &Amounts, after: &Amounts) -> bool {
    after.cpu > before.cpu || after.memory > before.memory
}

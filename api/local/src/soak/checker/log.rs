//! The log itself: whole, and one version made of the one before.

use horchestra_store::ChangeKind;
use horchestra_store::backend::LogRow;

use super::{Checker, Rule};

impl Checker {
    pub(super) fn check_log(&mut self, row: &LogRow) {
        let (revision, key) = (row.change.revision, row.change.key());
        if revision != self.last + 1 {
            self.broken(revision, Rule::Hole, format!("follows {}", self.last));
        }
        let stood = self.past.get(key).map_or(0, |entry| entry.revision);
        let added = row.change.kind == ChangeKind::Added;
        if row.previous_revision != stood || added != (stood == 0) {
            let made_of = row.previous_revision;
            self.broken(
                revision,
                Rule::Stale,
                format!("{key} was made of revision {made_of}, and {stood} stood"),
            );
        }
    }
}

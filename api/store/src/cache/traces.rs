//! In which trace recent changes were made, for those who act because of them.
//!
//! Of changes that were made in a trace, the last ones are known, own commits and what the tail read alike. After a
//! load the rows of the log that fill the rings fill this too. Where nobody sends traces it is empty and costs nothing.

use std::collections::VecDeque;

use horchestra_trace::Trace;
use parking_lot::RwLock;

use crate::types::Revision;

/// How many changes are known.
const KNOWN: usize = 16_384;

/// By revision, ascending.
#[derive(Default)]
pub(super) struct Traces(RwLock<VecDeque<(Revision, Trace)>>);

impl Traces {
    /// Notes changes that follow all that are known.
    pub fn note(&self, changes: impl Iterator<Item = (Revision, Option<Trace>)>) {
        let mut traced = changes.filter_map(|(revision, trace)| Some((revision, trace?))).peekable();
        if traced.peek().is_none() {
            return;
        }
        let mut known = self.0.write();
        for change in traced {
            if known.len() == KNOWN {
                known.pop_front();
            }
            known.push_back(change);
        }
    }

    pub fn of(&self, revision: Revision) -> Option<Trace> {
        let known = self.0.read();
        let at = known.binary_search_by_key(&revision, |(revision, _)| *revision).ok()?;
        known.get(at).map(|(_, trace)| *trace)
    }

    pub fn forget(&self) {
        self.0.write().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_traced_changes_are_known() {
        let traces = Traces::default();
        let trace = |revision: Revision| Trace::unrecorded([revision.to_be_bytes()[7]; 16]);
        traces.note((1..=4).map(|revision| (revision, (revision % 2 == 0).then(|| trace(revision)))));
        assert_eq!(
            [1, 2, 3, 4, 5].map(|revision| traces.of(revision)),
            [None, Some(trace(2)), None, Some(trace(4)), None]
        );
        let more = 5..=KNOWN as Revision + 4;
        traces.note(more.clone().map(|revision| (revision, Some(trace(revision)))));
        assert_eq!((traces.of(2), traces.of(4)), (None, None));
        assert_eq!((traces.of(5), traces.of(*more.end())), (Some(trace(5)), Some(trace(*more.end()))));
        traces.forget();
        assert_eq!(traces.of(*more.end()), None);
    }
}

//! How many Events one subject may have.
//!
//! Two measures, both per subject and component. A budget of observations: a burst of [`BURST`], refilled by
//! one in [`REFILL`]. And a limit on different messages for one reason: from the [`SIMILAR`]th within
//! [`WINDOW`] on they are counted together in one Event that shows the last of them. Without the first a
//! component that fails in a loop would write for ever; without the second it would do so as soon as its message
//! has a number in it.
//!
//! What is remembered is bounded: beyond [`SUBJECTS`] the one that was quiet for longest is forgotten, and gets
//! a fresh budget.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use tokio::time::Instant;

use super::{EventRecord, Observation};

/// Observations of one subject that may come at once.
pub(super) const BURST: f64 = 25.0;
/// How long it takes until there may be one more.
pub(super) const REFILL: Duration = Duration::from_secs(300);
/// Different messages for one reason that get Events of their own.
pub(super) const SIMILAR: usize = 10;
/// How long messages count as different ones of the same sort.
pub(super) const WINDOW: Duration = Duration::from_secs(600);
/// Subjects that are remembered.
const SUBJECTS: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Source {
    /// Uid, or address where there is none.
    subject: String,
    component: &'static str,
}

struct Memory {
    tokens: f64,
    seen: Instant,
    /// By reason: digests of the messages, and when the last of them came.
    messages: HashMap<&'static str, (HashSet<u64>, Instant)>,
}

/// What is remembered of lately observed subjects.
#[derive(Default)]
pub(super) struct Correlator {
    subjects: HashMap<Source, Memory>,
}

impl Correlator {
    /// The record of an observation that came at `now`; `None` when its subject's budget is used up.
    pub(super) fn take(
        &mut self,
        observation: Observation,
        instance: &std::sync::Arc<str>,
        now: Instant,
    ) -> Option<EventRecord> {
        let Observation { subject, reason, message, at } = observation;
        let reference = &subject.0;
        let id = if reference.uid.is_empty() {
            format!("{}/{}/{}", reference.kind, reference.namespace, reference.name)
        } else {
            reference.uid.clone()
        };
        let source = Source { subject: id, component: reason.by };
        self.make_room(&source);
        let memory = self.subjects.entry(source).or_insert_with(|| Memory {
            tokens: BURST,
            seen: now,
            messages: HashMap::new(),
        });
        let refilled = (now - memory.seen).as_secs_f64() / REFILL.as_secs_f64();
        memory.tokens = (memory.tokens + refilled).min(BURST);
        memory.seen = now;
        if memory.tokens < 1.0 {
            return None;
        }
        memory.tokens -= 1.0;

        let (messages, last) = memory.messages.entry(reason.word).or_insert_with(|| (HashSet::new(), now));
        if now - *last > WINDOW {
            messages.clear();
        }
        *last = now;
        let mut digest = DefaultHasher::new();
        message.hash(&mut digest);
        let known = messages.contains(&digest.finish());
        let combined = !known && messages.len() >= SIMILAR;
        if !known && !combined {
            messages.insert(digest.finish());
        }
        Some(EventRecord {
            subject,
            reason,
            message,
            instance: instance.clone(),
            first: at,
            last: at,
            count: 1,
            combined,
        })
    }

    fn make_room(&mut self, newcomer: &Source) {
        if self.subjects.len() < SUBJECTS || self.subjects.contains_key(newcomer) {
            return;
        }
        let quietest = self.subjects.iter().min_by_key(|(_, memory)| memory.seen);
        if let Some(quietest) = quietest.map(|(source, _)| source.clone()) {
            self.subjects.remove(&quietest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Subject;
    use horchestra_core::kind::{Key, Kind};
    use horchestra_core::reasons;
    use jiff::Timestamp;
    use std::sync::Arc;

    fn observed(name: &str, message: &str) -> Observation {
        Observation {
            subject: Subject::named(&Key::namespaced(Kind::Application, "default", name)),
            reason: &reasons::FAILED,
            message: message.to_owned(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn take(correlator: &mut Correlator, name: &str, message: &str, now: Instant) -> Option<EventRecord> {
        correlator.take(observed(name, message), &Arc::from("test"), now)
    }

    #[test]
    fn a_subject_has_a_budget_that_refills_and_others_have_their_own() {
        let mut correlator = Correlator::default();
        let start = Instant::now();
        let taken = (0..100).filter(|_| take(&mut correlator, "web", "m", start).is_some()).count();
        assert_eq!(taken, 25);
        assert!(take(&mut correlator, "db", "m", start).is_some());
        assert!(take(&mut correlator, "web", "m", start + REFILL / 2).is_none());
        assert!(take(&mut correlator, "web", "m", start + REFILL).is_some());
        assert!(take(&mut correlator, "web", "m", start + REFILL).is_none());
        let later = start + REFILL * 1000;
        let taken = (0..100).filter(|_| take(&mut correlator, "web", "m", later).is_some()).count();
        assert_eq!(taken, 25, "no more than the burst is saved up");
    }

    #[test]
    fn many_different_messages_are_one_event_from_some_point_on() {
        let mut correlator = Correlator::default();
        let start = Instant::now();
        let mut records: Vec<EventRecord> = (0..20)
            .filter_map(|n| take(&mut correlator, "web", &format!("failed after {n} ms"), start))
            .collect();
        assert_eq!(records.iter().filter(|record| !record.combined).count(), SIMILAR);
        let mut keys: Vec<Key> = records.iter().map(EventRecord::key).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), SIMILAR + 1);
        let known = take(&mut correlator, "web", "failed after 3 ms", start).unwrap();
        assert_eq!(known.key(), records.remove(3).key(), "a message that was seen goes on being counted");
        let later = start + WINDOW * 2;
        assert!(!take(&mut correlator, "web", "failed after 99 ms", later).unwrap().combined);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut correlator = Correlator::default();
        let start = Instant::now();
        for n in 0..SUBJECTS + 100 {
            let at = start + Duration::from_millis(n as u64);
            assert!(take(&mut correlator, &format!("app{n}"), "m", at).is_some());
        }
        assert_eq!(correlator.subjects.len(), SUBJECTS);
    }
}

//! The history, and whether what was told fits into it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use serde_json::Value;

use super::record::{Claim, Condition, Record};
use super::watcher::{Begin, Event, Step, Watched};
use super::{key, revision};

/// The state of one object from a revision on.
#[derive(Clone, Debug)]
struct State {
    from: i64,
    /// `None`: there is no object of the name.
    object: Option<Value>,
    /// Revision of the last change to anything but status.
    core: i64,
}

/// All changes, in order.
pub struct History {
    from: i64,
    events: Vec<Event>,
    /// By `namespace/name`, oldest first.
    states: BTreeMap<String, Vec<State>>,
}

fn without_status(object: &Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().remove("status");
    for member in ["resourceVersion", "managedFields"] {
        object["metadata"].as_object_mut().unwrap().remove(member);
    }
    object
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or("")
}

fn is_deleting(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

impl History {
    /// From the events after revision `from`, when there was no object.
    pub fn new(from: i64, events: Vec<Event>) -> History {
        let mut states: BTreeMap<String, Vec<State>> = BTreeMap::new();
        let mut last = from;
        for event in &events {
            assert!(event.revision > last, "{} after {last}: {}", event.revision, event.object);
            last = event.revision;
            let known = states.entry(event.key.clone()).or_default();
            let before = known.last().and_then(|state| state.object.as_ref());
            let fits = match event.kind.as_str() {
                "ADDED" => before.is_none(),
                "MODIFIED" | "DELETED" => before.is_some_and(|before| uid(before) == uid(&event.object)),
                _ => false,
            };
            assert!(fits, "{} {} at {} after {before:?}", event.kind, event.key, event.revision);
            let only_status =
                before.is_some_and(|before| without_status(before) == without_status(&event.object));
            let core = match known.last() {
                Some(state) if only_status => state.core,
                _ => event.revision,
            };
            let object = (event.kind != "DELETED").then(|| event.object.clone());
            known.push(State { from: event.revision, object, core });
        }
        History { from, events, states }
    }

    pub fn last(&self) -> i64 {
        self.events.last().map_or(self.from, |event| event.revision)
    }

    fn at(&self, revision: i64) -> Option<&Event> {
        let found = self.events.binary_search_by_key(&revision, |event| event.revision);
        found.ok().map(|index| &self.events[index])
    }

    /// The states of an object at the revisions of a range.
    fn during(&self, key: &str, range: &RangeInclusive<i64>) -> Vec<State> {
        let none = State { from: self.from, object: None, core: self.from };
        let all: Vec<&State> =
            std::iter::once(&none).chain(self.states.get(key).into_iter().flatten()).collect();
        let mut found = Vec::new();
        for (index, state) in all.iter().enumerate() {
            let until = all.get(index + 1).map_or(i64::MAX, |next| next.from - 1);
            if state.from <= *range.end() && until >= *range.start() {
                found.push((*state).clone());
            }
        }
        found
    }

    /// The state of an object just before a revision.
    fn before(&self, key: &str, revision: i64) -> State {
        self.during(key, &(revision - 1..=revision - 1)).remove(0)
    }

    /// All objects at a revision.
    fn all_at(&self, revision: i64) -> BTreeMap<&str, &Value> {
        let mut objects = BTreeMap::new();
        for (key, states) in &self.states {
            let state = states.iter().rev().find(|state| state.from <= revision);
            if let Some(object) = state.and_then(|state| state.object.as_ref()) {
                objects.insert(key.as_str(), object);
            }
        }
        objects
    }

    /// What every request was told, against the history and against what others were told before.
    pub fn judge(&self, records: &[Record]) {
        let shown: Vec<Option<i64>> = records.iter().map(|record| self.proof(record)).collect();
        let mut accounted = BTreeSet::new();
        for record in records {
            // Known to be in the history when this began.
            let low = records
                .iter()
                .zip(&shown)
                .filter(|(other, _)| other.ended < record.began)
                .filter_map(|(_, shown)| *shown)
                .max()
                .unwrap_or(self.from);
            // Not begun when this had ended.
            let high = records
                .iter()
                .filter(|other| other.began > record.ended)
                .filter_map(|other| match &other.claim {
                    Claim::Wrote { object, .. } => Some(revision(object) - 1),
                    _ => None,
                })
                .min()
                .unwrap_or_else(|| self.last());
            assert!(low <= high, "{}: {low}..={high}", record.what);
            self.fits(record, low, high, &mut accounted);
        }
        let unsure: BTreeSet<&str> = records
            .iter()
            .filter_map(|record| match &record.claim {
                Claim::Unsure { key } => Some(key.as_str()),
                _ => None,
            })
            .collect();
        for event in &self.events {
            assert!(
                accounted.contains(&event.revision) || unsure.contains(event.key.as_str()),
                "nobody was told of {} {} at {}",
                event.kind,
                event.key,
                event.revision
            );
        }
    }

    /// A revision that the answer proves to have been reached.
    fn proof(&self, record: &Record) -> Option<i64> {
        match &record.claim {
            Claim::Wrote { object, .. } => Some(revision(object)),
            Claim::Saw { object, .. } => object.as_ref().map(revision),
            Claim::Listed { revision, .. } => Some(*revision),
            Claim::Deleted { key, uid, .. } => self.end_of(key, uid).map(|event| event.revision),
            Claim::Existed { .. } | Claim::Refused { .. } | Claim::Unsure { .. } => None,
        }
    }

    /// When the object with this uid began to go.
    fn end_of(&self, key: &str, of: &str) -> Option<&Event> {
        self.events.iter().find(|event| {
            event.key == key
                && uid(&event.object) == of
                && (event.kind == "DELETED" || is_deleting(&event.object))
        })
    }

    fn fits(&self, record: &Record, low: i64, high: i64, accounted: &mut BTreeSet<i64>) {
        let what = &record.what;
        let range = low..=high;
        match &record.claim {
            Claim::Wrote { object, condition } => {
                let at = revision(object);
                assert!(at > low && at <= high, "{what}: {at} is not within {low}+1..={high}");
                let event = self.at(at).unwrap_or_else(|| panic!("{what}: no change has revision {at}"));
                assert_eq!(&event.object, object, "{what}: the answer and the change differ");
                assert!(accounted.insert(at), "{what}: {at} was given to two writes");
                let before = self.before(&event.key, at);
                let held = *condition == Condition::None || holds(condition, &before);
                assert!(held, "{what}: {condition:?} did not hold: {before:?}");
            }
            Claim::Saw { key, object, not_before } => {
                // A read that names a revision may be older than what others know.
                let range = if *not_before > 0 { *not_before..=high } else { range };
                let fits = self.during(key, &range).iter().any(|state| state.object == *object);
                assert!(fits, "{what}: not so at {range:?}: {object:?}");
            }
            Claim::Listed { namespace, revision, objects, not_before } => {
                let low = if *not_before > 0 { *not_before } else { low };
                assert!((low..=high).contains(revision), "{what}: {revision} is not within {low}..={high}");
                let mut expected = self.all_at(*revision);
                expected.retain(|key, _| {
                    namespace.as_ref().is_none_or(|namespace| key.starts_with(&format!("{namespace}/")))
                });
                let listed: BTreeMap<&str, &Value> =
                    objects.iter().map(|(key, object)| (key.as_str(), object)).collect();
                assert_eq!(listed, expected, "{what}");
            }
            Claim::Existed { key } => {
                let states = self.during(key, &range);
                assert!(states.iter().any(|state| state.object.is_some()), "{what}: not at {range:?}");
            }
            Claim::Deleted { key, uid: of, condition } => {
                let event = self.end_of(key, of).unwrap_or_else(|| panic!("{what}: {of} is still there"));
                assert!(event.revision <= high, "{what}: it went at {}, after {high}", event.revision);
                if event.revision > low {
                    accounted.insert(event.revision);
                }
                // Erasing at once is one change; where something holds the object, its last holder erases it.
                let states = self.during(key, &range);
                let gone = states.iter().any(|state| {
                    state.object.as_ref().is_none_or(|object| uid(object) != of || is_deleting(object))
                });
                assert!(gone, "{what}: it was there all the time ({range:?})");
                // Either this request marked it, or it found it marked.
                let marked = |state: &State| state.object.as_ref().is_some_and(is_deleting);
                let held = (event.revision > low && holds(condition, &self.before(key, event.revision)))
                    || states.iter().any(|state| marked(state) && holds(condition, state));
                assert!(held, "{what}: {condition:?} did not hold");
            }
            // It may have been made, also after the answer.
            Claim::Unsure { .. } => {}
            Claim::Refused { key, condition } => {
                let broken = self.during(key, &range).iter().any(|state| !holds(condition, state));
                assert!(broken, "{what}: {condition:?} held all the time ({range:?})");
            }
        }
    }

    /// What a watcher was sent, and what it put together from that.
    pub fn judge_watch(&self, seen: &Watched) {
        let mut steps = seen.steps.iter().peekable();
        let mut position = match &seen.begin {
            Begin::After(revision) => *revision,
            Begin::Unmarked { low, high } => {
                let mut first = Vec::new();
                while let Some(Step::Event(event)) = steps.peek() {
                    first.push(event);
                    steps.next();
                }
                let (at, used) = self.unmarked(seen, &first, *low, *high);
                // The rest of the first connection is changes after that.
                let mut position = at;
                for event in &first[used..] {
                    position = self.next_is(seen, position, event);
                }
                position
            }
        };
        for step in steps {
            match step {
                Step::Event(event) => position = self.next_is(seen, position, event),
                Step::Bookmark(revision) => {
                    assert!(*revision >= position, "{seen}: a bookmark at {revision} after {position}");
                    let missed = self.next(seen, position).filter(|event| event.revision <= *revision);
                    assert!(missed.is_none(), "{seen}: a bookmark at {revision} before {missed:?}");
                    position = *revision;
                }
                Step::Reconnect(from) => {
                    assert!(*from <= position, "{seen}: went on at {from}, was at {position}");
                }
                Step::State { revision, objects } => {
                    let expected: BTreeMap<String, i64> = self.selected_at(seen, *revision);
                    assert_eq!(*objects, expected, "{seen}: the state at {revision}");
                }
            }
        }
        let rest = self.next(seen, position).filter(|event| event.revision <= seen.end);
        assert!(rest.is_none(), "{seen}: ended at {position} without {rest:?}");
    }

    fn selected_at(&self, seen: &Watched, revision: i64) -> BTreeMap<String, i64> {
        self.all_at(revision)
            .into_iter()
            .filter(|(key, object)| seen.plan.selects(key, object))
            .map(|(key, object)| (key.to_owned(), super::revision(object)))
            .collect()
    }

    /// Which moment an unmarked state is of: the number of events that belong to it.
    fn unmarked(&self, seen: &Watched, first: &[&Event], low: i64, high: i64) -> (i64, usize) {
        for at in low..=high {
            let state = self.selected_at(seen, at);
            let sent = first.iter().take(state.len());
            let fits = first.len() >= state.len()
                && sent.clone().all(|event| event.kind == "ADDED")
                && sent.map(|event| (&event.key, &event.revision)).eq(state.iter());
            let mut position = at;
            let rest_fits = fits
                && first[state.len()..].iter().all(|event| {
                    let next = self.next(seen, position);
                    position = event.revision;
                    next.is_some_and(|next| next.kind == event.kind && next.revision == event.revision)
                });
            if rest_fits {
                return (at, state.len());
            }
        }
        panic!("{seen}: what came first is the state of no moment in {low}..={high}: {first:#?}");
    }

    fn next_is(&self, seen: &Watched, position: i64, event: &Event) -> i64 {
        let next = self.next(seen, position);
        let Some(expected) = next else {
            panic!("{seen}: nothing is to come after {position}, but {event:?} came");
        };
        let short = |event: &Event| (event.kind.clone(), event.key.clone(), event.revision);
        assert_eq!(short(event), short(&expected), "{seen}: after {position}");
        if seen.plan.metadata_only {
            assert_eq!(
                event.object["metadata"], expected.object["metadata"],
                "{seen}: at {}",
                event.revision
            );
            assert_eq!(event.object["kind"], "PartialObjectMetadata");
        } else {
            assert_eq!(event.object, expected.object, "{seen}: at {}", event.revision);
        }
        event.revision
    }

    /// The first change after a revision that concerns a watch, as it shows there.
    fn next(&self, seen: &Watched, position: i64) -> Option<Event> {
        let start = self.events.partition_point(|event| event.revision <= position);
        self.events[start..].iter().find_map(|event| {
            let before = self.before(&event.key, event.revision);
            let was = before.object.as_ref().is_some_and(|object| seen.plan.selects(&event.key, object));
            let is = event.kind != "DELETED" && seen.plan.selects(&event.key, &event.object);
            let kind = match (was, is) {
                (false, false) => return None,
                (false, true) => "ADDED",
                (true, true) => "MODIFIED",
                (true, false) => "DELETED",
            };
            let mut shown = Event { kind: kind.to_owned(), ..event.clone() };
            if kind != event.kind && kind == "DELETED" {
                // It is still there, only not for this watch: which is shown what it last saw.
                shown.object = before.object?;
                shown.object["metadata"]["resourceVersion"] = event.revision.to_string().into();
            }
            Some(shown)
        })
    }
}

fn holds(condition: &Condition, state: &State) -> bool {
    let Some(object) = &state.object else { return false };
    match condition {
        Condition::None => true,
        Condition::Exactly(wanted) => revision(object) == *wanted,
        Condition::Uid(wanted) => uid(object) == wanted,
        Condition::Unchanged { uid: wanted, revision: named } => {
            uid(object) == wanted && (state.core..=revision(object)).contains(named)
        }
    }
}

/// Where and what an object is in a frame.
pub fn event_of(frame: &Value) -> Event {
    Event {
        kind: frame["type"].as_str().unwrap_or("?").to_owned(),
        key: key(&frame["object"]),
        revision: revision(&frame["object"]),
        object: frame["object"].clone(),
    }
}

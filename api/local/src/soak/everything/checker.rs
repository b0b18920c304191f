//! Judges what clients were told by the log, beside the checkers that judge the log itself.
//!
//! * An informer's list is what the log says was stored at that revision, and its events are the rows of the log after
//!   it: none is missing, none comes twice, none comes before another one.
//! * A strict writer's attempt is in the log once if it was acknowledged, never if it was refused, and once or never if
//!   the answer was lost.
//!
//! Pure, as the others: it is given everything, and its tests break every rule.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use horchestra_core::kind::{Key, Kind};
use horchestra_store::backend::LogRow;
use horchestra_store::{ChangeKind, Revision};
use uuid::Uuid;

use super::super::checker::TURN;
use super::super::gateways::checker::Judge;
use super::super::recorder::Watcher;
use super::informers::{Informed, Stretch, Told};

/// How much of what is wrong with one informer is told.
const SHOWN: usize = 3;

/// A row of the log in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub revision: Revision,
    pub what: ChangeKind,
    pub key: Key,
    pub uid: Uuid,
    /// What an author had counted up to, in rows that people wrote.
    pub turn: Option<u64>,
}

/// Keeps the whole log in short, and shows it to the judge of nodes as well.
#[derive(Default)]
pub struct Kept {
    pub judge: Judge,
    pub lines: Vec<Line>,
}

impl Watcher for Kept {
    fn observe(&mut self, row: &LogRow) {
        self.judge.observe(row);
        let (key, entry) = (row.change.key().clone(), &row.change.entry);
        let by_people = key.kind == Kind::Service && !row.who.user.starts_with("system:") && !entry.deleting;
        let turn = || entry.object().ok()?.str_at(&["metadata", "annotations", TURN]).parse().ok();
        let turn = if by_people { turn() } else { None };
        self.lines.push(Line {
            revision: row.change.revision,
            what: row.change.kind,
            key,
            uid: entry.uid,
            turn,
        });
    }

    fn violations(&self) -> usize {
        self.judge.violations()
    }
}

/// The last revision of each kind.
pub fn last_of_kinds(lines: &[Line]) -> BTreeMap<Kind, Revision> {
    lines.iter().map(|line| (line.key.kind, line.revision)).collect()
}

/// What became of an attempt, as far as the writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stored(Revision),
    Refused(u16),
    Unknown,
}

/// A write that was tried once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub key: Key,
    /// No two attempts on one object have the same.
    pub turn: u64,
    pub creates: bool,
    pub outcome: Outcome,
}

/// What strict writers came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    pub stored: usize,
    pub refused: usize,
    /// Of unknown outcome, and found in the log.
    pub unknown_stored: usize,
    /// Of unknown outcome, and not found.
    pub unknown_lost: usize,
    pub violations: Vec<String>,
}

/// Holds attempts against the log.
pub fn tried(lines: &[Line], attempts: &[Attempt]) -> Tried {
    let mut rows: HashMap<(&Key, u64), Vec<&Line>> = HashMap::new();
    for line in lines.iter().filter(|line| line.what != ChangeKind::Deleted) {
        if let Some(turn) = line.turn {
            rows.entry((&line.key, turn)).or_default().push(line);
        }
    }
    let mut tried = Tried::default();
    for attempt in attempts {
        let Attempt { key, turn, creates, outcome } = attempt;
        let found = rows.get(&(key, *turn)).map_or(&[][..], Vec::as_slice);
        let revisions: Vec<Revision> = found.iter().map(|line| line.revision).collect();
        let what = format!("turn {turn} of {key} is in the log at {revisions:?}");
        match (outcome, revisions.as_slice()) {
            (Outcome::Stored(revision), [at]) if at == revision => tried.stored += 1,
            (Outcome::Refused(_), []) => tried.refused += 1,
            (Outcome::Unknown, [_]) => tried.unknown_stored += 1,
            (Outcome::Unknown, []) => tried.unknown_lost += 1,
            (Outcome::Stored(revision), _) => {
                tried.violations.push(format!("{what}, and was acknowledged at {revision}"));
            }
            (Outcome::Refused(status), _) => {
                tried.violations.push(format!("{what}, and was refused with {status}"));
            }
            (Outcome::Unknown, _) => tried.violations.push(format!("{what}, and was tried once")),
        }
        if let [line] = found
            && (line.what == ChangeKind::Added) != *creates
        {
            tried.violations.push(format!("{what} as {:?}", line.what));
        }
    }
    tried
}

/// Holds all that an informer was told against the log.
pub fn informed(lines: &[Line], informed: &Informed) -> Vec<String> {
    let of_kind: Vec<&Line> = lines.iter().filter(|line| line.key.kind == informed.kind).collect();
    let who = format!("the informer of {} by {}", informed.kind, informed.way);
    let mut violations = Vec::new();
    if informed.stretches.is_empty() {
        violations.push(format!("{who} has never listed anything"));
    }
    for (at, stretch) in informed.stretches.iter().enumerate() {
        let last = at + 1 == informed.stretches.len();
        let mut found = list(&of_kind, stretch);
        found.extend(events(&of_kind, stretch, last));
        let more = found.len().saturating_sub(SHOWN);
        violations.extend(found.into_iter().take(SHOWN).map(|what| format!("{who}: {what}")));
        if more > 0 {
            violations.push(format!("{who}: and {more} more"));
        }
    }
    violations
}

/// What is wrong with a list.
fn list(lines: &[&Line], stretch: &Stretch) -> Vec<String> {
    let mut stood: BTreeMap<Uuid, &Line> = BTreeMap::new();
    for line in lines.iter().take_while(|line| line.revision <= stretch.listed_at) {
        match line.what {
            ChangeKind::Deleted => stood.remove(&line.uid),
            _ => stood.insert(line.uid, line),
        };
    }
    let at = stretch.listed_at;
    let mut found = Vec::new();
    for (uid, line) in &stood {
        let listed = stretch.listed.get(uid);
        if listed != Some(&line.revision) {
            let (key, revision) = (&line.key, line.revision);
            found.push(format!("listed at {at}: {key} at {listed:?}, at {revision} in the log"));
        }
    }
    for (uid, revision) in stretch.listed.iter().filter(|(uid, _)| !stood.contains_key(uid)) {
        found.push(format!("listed at {at}: {uid} at {revision}, which was not there"));
    }
    found
}

/// What is wrong with what came after it. The last stretch goes to the end of the log.
fn events(lines: &[&Line], stretch: &Stretch, last: bool) -> Vec<String> {
    let until = if last { Revision::MAX } else { stretch.through };
    let expected: Vec<&&Line> =
        lines.iter().filter(|line| line.revision > stretch.listed_at && line.revision <= until).collect();
    let mut expected = expected.into_iter().peekable();
    let mut before = stretch.listed_at;
    let mut found = Vec::new();
    for told in &stretch.events {
        let Told { revision, what, uid } = told;
        if *revision <= before {
            found.push(format!("{what:?} of {uid} at {revision} came after {before}"));
            continue;
        }
        before = *revision;
        while let Some(missed) = expected.next_if(|line| line.revision < *revision) {
            found.push(missing(missed));
        }
        let same = |line: &&&Line| line.revision == *revision && line.what == *what && line.uid == *uid;
        if expected.next_if(same).is_none() {
            expected.next_if(|line| line.revision == *revision);
            found.push(format!("{what:?} of {uid} at {revision} is not what the log says"));
        }
    }
    found.extend(expected.map(|line| missing(line)));
    found
}

fn missing(line: &Line) -> String {
    format!("{:?} of {} at {} never came", line.what, line.key, line.revision)
}

use std::collections::{BTreeMap, BTreeSet};

use horchestra_core::kind::{Key, Kind};
use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn held(number: u128) -> Holding {
    let key = Key::namespaced(Kind::Application, "team", format!("app-{number}"));
    Holding { key, uid: Uuid::from_u128(number) }
}

fn hold() -> Hold {
    Hold { id: Uuid::nil(), since: 0, reason: "HistoryLost".to_owned(), message: "lost".to_owned() }
}

#[test]
fn what_may_be_sent() {
    let held_by_hold = || Decision::Nothing(Why::Held(hold()));
    let ahead = Decision::Nothing(Why::RecordAhead(7));
    let unexplained =
        |numbers: &[u128]| Decision::Nothing(Why::Unexplained(numbers.iter().copied().map(held).collect()));
    let blocked = Decision::Nothing(Why::Unsendable(held(1)));
    let reasons = [Fate::Deleted, Fate::Finished, Fate::Moved, Fate::Unplaced];
    let every_reason: Vec<(u128, Fate)> = (1..).zip(reasons).collect();
    // What it is, is a hold in force, was this session sent something, revision of the record, of the database,
    // what is missing, what may be done.
    type Case<'a> = (&'a str, bool, bool, Option<Revision>, Revision, Vec<(u128, Fate)>, Decision);
    let cases: Vec<Case<'_>> = vec![
        ("a node that was never sent anything", false, false, None, 5, vec![], Decision::Push),
        ("nothing goes", false, true, Some(5), 5, vec![], Decision::Push),
        ("all that goes has a reason", false, true, Some(5), 5, every_reason.clone(), Decision::Push),
        (
            "one of two has none",
            false,
            true,
            Some(5),
            5,
            vec![(1, Fate::Deleted), (2, Fate::Unknown)],
            unexplained(&[2]),
        ),
        (
            "neither has",
            false,
            false,
            Some(5),
            5,
            vec![(1, Fate::Unknown), (2, Fate::Unknown)],
            unexplained(&[1, 2]),
        ),
        ("it is there and cannot be sent", false, true, Some(5), 5, vec![(1, Fate::Unsendable)], blocked),
        (
            "what nobody knows of counts first",
            false,
            true,
            Some(5),
            5,
            vec![(1, Fate::Unsendable), (2, Fate::Unknown)],
            unexplained(&[2]),
        ),
        ("the node was sent a later state", false, false, Some(7), 5, vec![], ahead.clone()),
        ("the same, though all has a reason", false, true, Some(7), 5, every_reason.clone(), ahead),
        ("held, and a new session", true, false, Some(5), 5, vec![], held_by_hold()),
        ("held, and never sent anything", true, false, None, 5, vec![], held_by_hold()),
        ("held, and a session that goes on", true, true, Some(5), 5, vec![], Decision::Superset),
        ("held: reasons count for nothing", true, true, Some(5), 5, every_reason.clone(), Decision::Superset),
        ("held: nor do findings", true, true, Some(7), 5, vec![(1, Fate::Unknown)], Decision::Superset),
    ];
    for (what, is_held, sent_before, revision, head, missing, expected) in cases {
        let record = PushRecord { revision, holdings: Vec::new() };
        let missing: Vec<(Holding, Fate)> =
            missing.into_iter().map(|(number, fate)| (held(number), fate)).collect();
        let hold = is_held.then(hold);
        let situation = Situation {
            hold: hold.as_ref(),
            sent_before,
            record: &record,
            older: false,
            head,
            missing: &missing,
        };
        assert_eq!(decide(&situation), expected, "{what}");
        // That a node is older matters where nothing was ever sent to it from here.
        let expected = match (is_held, revision) {
            (false, None) => Decision::Nothing(Why::Older),
            _ => expected,
        };
        assert_eq!(decide(&Situation { older: true, ..situation }), expected, "{what}, and it is older");
    }
    for fate in reasons {
        assert!(fate.is_reason());
    }
}

// ---- random histories: a small world around the decision ------------------------------------------------

/// What the database knows of an application of the one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Placed,
    Elsewhere,
    Finished,
    Tombstone,
}

#[derive(Clone, Debug, Default)]
struct Database {
    head: Revision,
    applications: BTreeMap<u128, Known>,
    record: PushRecord,
    holding: bool,
    epoch: u64,
}

/// A gateway with a session of the node.
#[derive(Clone, Debug)]
struct Session {
    epoch: u64,
    /// Named by the last push of this session.
    sent: Option<BTreeSet<u128>>,
}

#[derive(Clone, Debug)]
enum Step {
    Create,
    /// An application, picked from those there are.
    Change(prop::sample::Index, Known),
    /// Somebody looks whether the node needs a push.
    Look,
    Reconnect,
    Backup,
    /// The backup comes back; whether anybody alive has seen more is for the world to say.
    Restore,
    /// Rows vanish without a trace.
    Vanish(prop::sample::Index),
    Release,
    Compact,
}

fn step() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    let known =
        prop::sample::select(vec![Known::Elsewhere, Known::Finished, Known::Tombstone, Known::Placed]);
    prop_oneof![
        6 => Just(Step::Create),
        6 => (index(), known).prop_map(|(which, known)| Step::Change(which, known)),
        10 => Just(Step::Look),
        3 => Just(Step::Reconnect),
        2 => Just(Step::Backup),
        2 => Just(Step::Restore),
        1 => index().prop_map(Step::Vanish),
        1 => Just(Step::Release),
        2 => Just(Step::Compact),
    ]
}

struct World {
    database: Database,
    backup: Database,
    session: Session,
    /// What runs on the node, whatever anybody knows of it.
    runs: BTreeSet<u128>,
    /// May go, since that is recorded or an operator has said so.
    excused: BTreeSet<u128>,
    last: u128,
    epochs: u64,
}

impl World {
    fn new() -> World {
        let database = Database::default();
        let session = Session { epoch: 0, sent: None };
        World {
            backup: database.clone(),
            database,
            session,
            runs: BTreeSet::new(),
            excused: BTreeSet::new(),
            last: 0,
            epochs: 0,
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Create => {
                self.last += 1;
                self.database.head += 1;
                self.database.applications.insert(self.last, Known::Placed);
            }
            Step::Change(which, known) => {
                let all: Vec<u128> = self.database.applications.keys().copied().collect();
                if all.is_empty() || self.database.applications[which.get(&all)] == Known::Tombstone {
                    return;
                }
                self.database.head += 1;
                self.database.applications.insert(*which.get(&all), known);
            }
            Step::Look => self.look(),
            Step::Reconnect => {
                self.session = Session { epoch: self.database.epoch, sent: None };
            }
            Step::Backup => self.backup = self.database.clone(),
            Step::Restore => {
                let known = self.database.head;
                self.database = self.backup.clone();
                // Whoever is alive has known more: the hold, and an epoch of its own above all revisions.
                self.epochs += 1;
                self.database.epoch = self.epochs;
                self.database.head = self.database.head.max(known) + 1000;
                self.database.holding = true;
                self.excused.clear();
            }
            Step::Vanish(which) => {
                let all: Vec<u128> = self.database.applications.keys().copied().collect();
                if !all.is_empty() {
                    self.database.applications.remove(which.get(&all));
                }
            }
            Step::Release => {
                // The operator accepts that what is not on record, or not known, goes.
                let known: BTreeSet<u128> = self.database.applications.keys().copied().collect();
                let record = &mut self.database.record;
                record.holdings.retain(|held| known.contains(&held.uid.as_u128()));
                self.database.holding = false;
                let recorded: BTreeSet<u128> =
                    record.holdings.iter().map(|held| held.uid.as_u128()).collect();
                self.excused = self.runs.difference(&recorded).copied().collect();
            }
            Step::Compact => {
                let record = &self.database.record;
                self.database.applications.retain(|uid, known| {
                    *known != Known::Tombstone
                        || record.holdings.iter().any(|held| held.uid.as_u128() == *uid)
                });
            }
        }
    }

    fn look(&mut self) {
        if self.session.epoch != self.database.epoch {
            // The session goes on where its row is in the restored database; here it always is.
            self.session.epoch = self.database.epoch;
        }
        let wanted: BTreeSet<u128> = self.wanted();
        let missing: Vec<(Holding, Fate)> = self
            .database
            .record
            .holdings
            .iter()
            .filter(|held| !wanted.contains(&held.uid.as_u128()))
            .map(|held| {
                let fate = match self.database.applications.get(&held.uid.as_u128()) {
                    Some(Known::Elsewhere) => Fate::Moved,
                    Some(Known::Finished) => Fate::Finished,
                    Some(Known::Tombstone) => Fate::Deleted,
                    Some(Known::Placed) | None => Fate::Unknown,
                };
                (held.clone(), fate)
            })
            .collect();
        let hold = self.database.holding.then(hold);
        let situation = Situation {
            hold: hold.as_ref(),
            sent_before: self.session.sent.is_some(),
            record: &self.database.record,
            older: false,
            head: self.database.head,
            missing: &missing,
        };
        let named = match decide(&situation) {
            Decision::Nothing(Why::Held(_)) => return,
            Decision::Nothing(_) => {
                self.database.holding = true;
                return;
            }
            Decision::Superset => {
                let sent = self.session.sent.clone().unwrap_or_default();
                sent.union(&wanted).copied().collect()
            }
            Decision::Push => wanted,
        };
        // Added before it is sent, taken off after it was taken.
        for number in &named {
            if !self.database.record.holdings.iter().any(|held| held.uid.as_u128() == *number) {
                self.database.record.holdings.push(held(*number));
            }
        }
        self.database.record.revision = Some(self.database.head);
        if !self.database.holding {
            self.database.record.holdings.retain(|held| named.contains(&held.uid.as_u128()));
        }
        self.session.sent = Some(named.clone());
        self.runs = named;
    }

    fn wanted(&self) -> BTreeSet<u128> {
        let placed = |(_, known): &(&u128, &Known)| **known == Known::Placed;
        self.database.applications.iter().filter(placed).map(|(uid, _)| *uid).collect()
    }

    /// Whether the database itself says why this may go, as it is now.
    fn has_reason(&self, number: u128) -> bool {
        let known = self.database.applications.get(&number);
        matches!(known, Some(Known::Elsewhere | Known::Finished | Known::Tombstone))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Over any history of the database, restores and vanished rows included, nothing stops without a recorded
    /// reason, and nothing at all stops under a hold.
    #[test]
    fn nothing_stops_without_a_recorded_reason(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = World::new();
        for step in steps {
            let before = world.runs.clone();
            let was_held = world.database.holding;
            world.take(step.clone());
            for stopped in before.difference(&world.runs) {
                prop_assert!(!was_held, "{stopped} stopped under a hold, by {step:?}");
                prop_assert!(
                    world.has_reason(*stopped) || world.excused.contains(stopped),
                    "{stopped} stopped, by {step:?}"
                );
            }
            if !world.database.holding && matches!(step, Step::Look) {
                // Without a hold the node is sent exactly what the database says.
                prop_assert_eq!(&world.runs, &world.wanted());
            }
        }
    }
}

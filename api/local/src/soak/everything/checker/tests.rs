//! Every rule is broken once, and what is right passes.

use super::*;

fn key(name: &str) -> Key {
    Key::namespaced(Kind::Service, "default", name)
}

fn uid(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn line(revision: Revision, what: ChangeKind, name: &str, number: u128, turn: u64) -> Line {
    let turn = (turn > 0).then_some(turn);
    Line { revision, what, key: key(name), uid: uid(number), turn }
}

fn told(revision: Revision, what: ChangeKind, number: u128) -> Told {
    Told { revision, what, uid: uid(number) }
}

/// Two objects; one goes, another one of its name comes.
fn log() -> Vec<Line> {
    use ChangeKind::{Added, Deleted, Modified};
    vec![
        line(1, Added, "a", 1, 1),
        line(2, Added, "b", 2, 1),
        line(3, Modified, "a", 1, 2),
        line(4, Deleted, "b", 2, 0),
        line(5, Added, "b", 3, 1),
        line(6, Modified, "b", 3, 2),
    ]
}

/// What an informer is told of it that lists at 2.
fn informer() -> Informed {
    use ChangeKind::{Added, Deleted, Modified};
    let stretch = Stretch {
        listed_at: 2,
        listed: BTreeMap::from([(uid(1), 1), (uid(2), 2)]),
        events: vec![told(3, Modified, 1), told(4, Deleted, 2), told(5, Added, 3), told(6, Modified, 3)],
        through: 6,
    };
    Informed { way: "api-0".to_owned(), kind: Kind::Service, stretches: vec![stretch], reconnects: 0 }
}

#[test]
fn informers_are_told_what_the_log_says() {
    type Tale = fn(&mut Informed);
    let tales: &[(&str, Tale, &[&str])] = &[
        ("all of it", |_| {}, &[]),
        (
            "one is missing in the middle",
            |informed| {
                informed.stretches[0].events.remove(1);
            },
            &["Deleted of Service default/b at 4 never came"],
        ),
        (
            "the last one is missing",
            |informed| {
                informed.stretches[0].events.pop();
            },
            &["Modified of Service default/b at 6 never came"],
        ),
        (
            "one comes twice",
            |informed| {
                let again = informed.stretches[0].events[1];
                informed.stretches[0].events.insert(2, again);
            },
            &["at 4 came after 4"],
        ),
        (
            "two come the wrong way round",
            |informed| informed.stretches[0].events.swap(1, 2),
            &["Deleted of Service default/b at 4 never came", "at 4 came after 5"],
        ),
        (
            "another one than was written",
            |informed| informed.stretches[0].events[1].what = ChangeKind::Modified,
            &["at 4 is not what the log says"],
        ),
        (
            "one that nobody wrote",
            |informed| informed.stretches[0].events.push(told(9, ChangeKind::Added, 9)),
            &["at 9 is not what the log says"],
        ),
        (
            "a list that lacks one",
            |informed| {
                informed.stretches[0].listed.remove(&uid(1));
            },
            &["listed at 2: Service default/a at None, at 1 in the log"],
        ),
        (
            "a list with an old version",
            |informed| informed.stretches[0].listed_at = 3,
            &["listed at 3: Service default/a at Some(1), at 3 in the log", "at 3 came after 3"],
        ),
        (
            "a list with one that was not there",
            |informed| {
                informed.stretches[0].listed.insert(uid(9), 2);
            },
            &["which was not there"],
        ),
        (
            "a list anew, with nothing missed before it",
            |informed| {
                let mut next = informed.stretches[0].clone();
                informed.stretches[0].events.truncate(1);
                informed.stretches[0].through = 3;
                next.listed_at = 5;
                next.listed = BTreeMap::from([(uid(1), 3), (uid(3), 5)]);
                next.events = vec![told(6, ChangeKind::Modified, 3)];
                informed.stretches.push(next);
            },
            &[],
        ),
        (
            "a list anew, after a bookmark that promised more than had come",
            |informed| {
                let mut next = informed.stretches[0].clone();
                informed.stretches[0].events.truncate(1);
                informed.stretches[0].through = 4;
                next.listed_at = 6;
                next.listed = BTreeMap::from([(uid(1), 3), (uid(3), 6)]);
                next.events.clear();
                informed.stretches.push(next);
            },
            &["Deleted of Service default/b at 4 never came"],
        ),
        ("nothing at all", |informed| informed.stretches.clear(), &["has never listed anything"]),
    ];
    for (what, tell, expected) in tales {
        let mut told = informer();
        tell(&mut told);
        let found = informed(&log(), &told);
        assert_eq!(found.len(), expected.len(), "{what}: {found:?}");
        for (found, expected) in found.iter().zip(*expected) {
            assert!(found.contains(expected), "{what}: {found:?}");
        }
    }
}

#[test]
fn other_kinds_are_none_of_an_informers_business() {
    let mut lines = log();
    let node = Key::cluster(Kind::Node, "n1");
    lines.push(Line { revision: 7, what: ChangeKind::Added, key: node, uid: uid(7), turn: None });
    assert_eq!(informed(&lines, &informer()), Vec::<String>::new());
    assert_eq!(last_of_kinds(&lines), BTreeMap::from([(Kind::Service, 6), (Kind::Node, 7)]));
}

#[test]
fn what_was_tried_once_is_stored_once_or_never() {
    let attempt = |turn: u64, outcome: Outcome| Attempt { key: key("a"), turn, creates: turn == 1, outcome };
    let stored = |turn: u64, revision: Revision| attempt(turn, Outcome::Stored(revision));
    let refused = |turn: u64| attempt(turn, Outcome::Refused(409));
    let unknown = |turn: u64| attempt(turn, Outcome::Unknown);
    let all = tried(&log(), &[stored(1, 1), unknown(2), unknown(3), refused(4)]);
    let expected =
        Tried { stored: 1, refused: 1, unknown_stored: 1, unknown_lost: 1, violations: Vec::new() };
    assert_eq!(all, expected);

    let twice = || {
        let mut lines = log();
        lines.push(line(7, ChangeKind::Modified, "a", 1, 2));
        lines
    };
    let tales: [(&str, Vec<Line>, Attempt, &str); 7] = [
        ("acknowledged, and not there", log(), stored(5, 9), "at [], and was acknowledged at 9"),
        ("acknowledged, and elsewhere", log(), stored(2, 4), "at [3], and was acknowledged at 4"),
        ("acknowledged, and stored twice", twice(), stored(2, 3), "at [3, 7], and was acknowledged at 3"),
        ("refused, and there", log(), refused(2), "at [3], and was refused with 409"),
        ("unknown, and stored twice", twice(), unknown(2), "at [3, 7], and was tried once"),
        (
            "a change that made something",
            log(),
            Attempt { creates: false, ..stored(1, 1) },
            "at [1] as Added",
        ),
        (
            "a creation that changed something",
            log(),
            Attempt { creates: true, ..stored(2, 3) },
            "at [3] as Modified",
        ),
    ];
    for (what, lines, attempt, expected) in tales {
        let found = tried(&lines, &[attempt]).violations;
        assert!(found.len() == 1 && found[0].contains(expected), "{what}: {found:?}");
    }
}

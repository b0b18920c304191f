//! The judge of readiness.

mod walk;

use std::time::Duration;

use horchestra_core::kinds::meta::ConditionStatus::{self, False, True, Unknown};
use horchestra_core::kinds::node::REASON_LOST;
use horchestra_service::Ready;
use horchestra_workers::heartbeats::Heard;
use horchestra_workers::lifecycle::{Freeze, Judge, Observed};

const SECOND: i64 = 1_000_000;
const TIMEOUT: i64 = 45 * SECOND;
const LOST_AFTER: Duration = Duration::from_secs(300);

/// `beats`: node and seconds since its last heartbeat.
fn heard(now: i64, back: i64, beats: &[(&str, i64)]) -> Heard {
    Heard {
        now: now * SECOND,
        back: back * SECOND,
        since: back * SECOND,
        listening: back * SECOND,
        last: beats.iter().map(|(node, age)| ((*node).to_owned(), (now - age) * SECOND)).collect(),
        timeout: TIMEOUT,
    }
}

fn node(name: &str, verdict: Option<ConditionStatus>) -> Observed {
    Observed { name: name.to_owned(), verdict, lost: false, reports_ready: true }
}

fn verdicts(judge: &mut Judge, heard: &Heard, nodes: &[Observed]) -> Vec<(String, Ready)> {
    judge.judge(heard, nodes).verdicts.into_iter().map(|(name, verdict)| (name, verdict.ready)).collect()
}

#[test]
fn one_node_is_judged_by_its_heartbeats() {
    let says_no = Observed { reports_ready: false, ..node("n", Some(True)) };
    let cases = [
        ("first report", heard(1000, 0, &[("n", 1)]), node("n", None), Some(Ready::True)),
        ("still reporting", heard(1000, 0, &[("n", 44)]), node("n", Some(True)), None),
        ("silent too long", heard(1000, 0, &[("n", 46)]), node("n", Some(True)), Some(Ready::Unknown)),
        ("stays silent", heard(1000, 0, &[("n", 460)]), node("n", Some(Unknown)), None),
        ("reports again", heard(1000, 0, &[("n", 1)]), node("n", Some(Unknown)), Some(Ready::True)),
        ("says that it is not ready", heard(1000, 0, &[("n", 1)]), says_no, Some(Ready::False)),
        ("no longer says so", heard(1000, 0, &[("n", 1)]), node("n", Some(False)), Some(Ready::True)),
        ("never heard of", heard(1000, 0, &[]), node("n", None), None),
        ("old news, but we were away", heard(1000, 990, &[("n", 400)]), node("n", Some(True)), None),
        (
            "silent for the timeout since we are back",
            heard(1000, 950, &[("n", 400)]),
            node("n", Some(True)),
            Some(Ready::Unknown),
        ),
    ];
    for (name, heard, node, expected) in cases {
        let judged = verdicts(&mut Judge::new(LOST_AFTER), &heard, &[node]);
        assert_eq!(judged.first().map(|(_, ready)| *ready), expected, "{name}");
    }
}

fn fleet(verdict: ConditionStatus) -> Vec<Observed> {
    ["a", "b", "c", "d"].map(|name| node(name, Some(verdict))).into()
}

#[test]
fn one_silent_node_of_many_is_judged_at_once() {
    let mut judge = Judge::new(LOST_AFTER);
    let heard = heard(1000, 0, &[("a", 46), ("b", 3), ("c", 4), ("d", 2)]);
    assert_eq!(verdicts(&mut judge, &heard, &fleet(True)), [("a".to_owned(), Ready::Unknown)]);
    assert!(!judge.is_frozen());
}

#[test]
fn when_most_fall_silent_together_verdicts_stay_until_they_are_back() {
    let mut judge = Judge::new(LOST_AFTER);
    let silent =
        |age: i64| heard(1000 + age, 0, &[("a", age), ("b", age - 3), ("c", age - 4), ("d", age - 5)]);
    assert!(verdicts(&mut judge, &silent(46), &fleet(True)).is_empty());
    assert!(judge.is_frozen());
    assert!(verdicts(&mut judge, &silent(200), &fleet(True)).is_empty());

    // Back, except for one, which gets a full timeout from now.
    let back = |now: i64| heard(now, 0, &[("a", now - 1000), ("b", 1), ("c", 1), ("d", 1)]);
    assert!(verdicts(&mut judge, &back(1210), &fleet(True)).is_empty());
    assert!(verdicts(&mut judge, &back(1254), &fleet(True)).is_empty());
    assert_eq!(verdicts(&mut judge, &back(1256), &fleet(True)), [("a".to_owned(), Ready::Unknown)]);
}

#[test]
fn a_freeze_ends_after_five_minutes_and_does_not_begin_again() {
    let mut judge = Judge::new(LOST_AFTER);
    let silent = |now: i64| {
        heard(now, 0, &[("a", now - 1000), ("b", now - 1000), ("c", now - 1000), ("d", now - 1000)])
    };
    assert!(verdicts(&mut judge, &silent(1050), &fleet(True)).is_empty());
    assert!(verdicts(&mut judge, &silent(1349), &fleet(True)).is_empty());
    assert_eq!(verdicts(&mut judge, &silent(1351), &fleet(True)).len(), 4);
    assert_eq!(verdicts(&mut judge, &silent(1352), &fleet(True)).len(), 4, "still so while not yet stored");
    assert!(verdicts(&mut judge, &silent(1360), &fleet(Unknown)).is_empty());
}

#[test]
fn an_outage_while_they_come_back_is_another_outage() {
    let mut judge = Judge::new(LOST_AFTER);
    // Last heard of at 1000, then once at 1100, then not again.
    let all = |now: i64, last: i64| {
        heard(now, 0, &[("a", now - last), ("b", now - last), ("c", now - last), ("d", now - last)])
    };
    assert!(verdicts(&mut judge, &all(1046, 1000), &fleet(True)).is_empty());
    assert!(verdicts(&mut judge, &all(1101, 1100), &fleet(True)).is_empty());
    for now in 1102..1423 {
        assert!(verdicts(&mut judge, &all(now, 1100), &fleet(True)).is_empty(), "at {now}");
    }
}

#[test]
fn a_freeze_is_told_of_when_it_begins_and_not_again_while_it_goes_on() {
    let mut judge = Judge::new(LOST_AFTER);
    let mut freezes = Vec::new();
    // Heard of at 1000; all but "b" are heard of once at 1100, while verdicts are frozen, and from 1500 on.
    for now in 1001..1700 {
        let last = |node| match now {
            1500.. => now,
            1100.. if node != "b" => 1100,
            _ => 1000,
        };
        let beats = ["a", "b", "c", "d"].map(|node| (node, now - last(node)));
        freezes.extend(judge.judge(&heard(now, 0, &beats), &fleet(True)).freeze.map(|freeze| (now, freeze)));
    }
    let begun = Freeze { node: "a".to_owned(), quiet: 4, ready: 4 };
    assert_eq!(freezes, [(1046, begun)], "about the first of those that are silent for longest");
}

#[test]
fn a_node_is_lost_when_it_has_been_seen_silent_for_long_and_no_sooner() {
    let silent = |now: i64, back: i64| heard(now, back, &[("n", now)]);
    let reason = |judge: &mut Judge, heard: &Heard, node: &Observed| {
        judge
            .judge(heard, std::slice::from_ref(node))
            .verdicts
            .pop()
            .map(|(_, verdict)| (verdict.ready, verdict.reason))
    };
    let lost = || Some((Ready::Unknown, REASON_LOST.to_owned()));
    let unknown = node("n", Some(Unknown));
    let mut judge = Judge::new(LOST_AFTER);
    // However long it has been silent: first that, and then the other.
    let first = reason(&mut judge, &silent(10_000, 0), &node("n", Some(True))).unwrap();
    assert_eq!((first.0, first.1.as_str()), (Ready::Unknown, "NodeSilent"));
    for now in [10_001, 10_150, 10_301] {
        assert_eq!(reason(&mut judge, &silent(now, 0), &unknown), None, "{now}");
    }
    assert_eq!(reason(&mut judge, &silent(10_302, 0), &unknown), lost());
    let stands = Observed { lost: true, ..unknown.clone() };
    assert_eq!(reason(&mut judge, &silent(10_303, 0), &stands), None, "it stands");
    // We were away, and it stays what it is until the node is heard of.
    assert_eq!(reason(&mut judge, &silent(20_000, 19_990), &stands), None);
    assert_eq!(reason(&mut judge, &silent(20_100, 19_990), &stands), None);
    let back = reason(&mut judge, &heard(20_101, 19_990, &[("n", 1)]), &stands).unwrap();
    assert_eq!(back.0, Ready::True);

    // An absence of ours in between, and a new leader, begin to count anew.
    let mut judge = Judge::new(LOST_AFTER);
    for (now, back) in
        [(10_000, 0), (10_290, 0), (10_295, 10_294), (10_330, 10_294), (10_345, 10_294), (10_640, 10_294)]
    {
        assert_eq!(reason(&mut judge, &silent(now, back), &unknown), None, "{now}");
    }
    assert_eq!(reason(&mut Judge::new(LOST_AFTER), &silent(10_646, 10_294), &unknown), None);
    assert_eq!(reason(&mut judge, &silent(10_646, 10_294), &unknown), lost());
}

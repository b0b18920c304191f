//! Processes that are killed between any two writes, and answers that are lost.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use horchestra_store::memory::CommitFault;

use super::plane::{Moment, Plane};
use super::process::{LOOPS, Process};
use super::story::{CHAPTERS, NODES, state, tell};

/// The story without any fault.
#[derive(Default)]
struct Undisturbed {
    /// What there was when each chapter began, and at its end.
    began: Vec<Moment>,
    states: Vec<Vec<String>>,
    /// Loops that have written.
    writers: BTreeSet<String>,
}

async fn tell_all() -> Undisturbed {
    let mut plane = Plane::new(&NODES).await;
    let mut told = Undisturbed::default();
    for chapter in 0..CHAPTERS {
        told.began.push(plane.moment());
        let mut processes = [Process::start(&plane).await];
        tell(&mut plane, chapter).await;
        assert_eq!(plane.settle(&mut processes).await, 0);
        told.states.push(state(&plane).await);
        rests(&mut plane, &processes[0]).await;
        processes[0].leave(&plane).await;
    }
    for row in plane.log(0).await {
        told.writers.extend(row.who.user.strip_prefix("system:loop:").map(str::to_owned));
    }
    told
}

/// A leader that knows nothing finds nothing to do.
async fn rests(plane: &mut Plane, leader: &Process) {
    let mut another = [leader.double(plane).await];
    plane.has_news().await;
    for _ in 0..2 {
        plane.round(&mut another).await;
        assert!(!plane.has_news().await, "something is written although there is nothing to do");
    }
}

/// One chapter, with a process that is killed after so many writes. Answers what there is in the end, and whether
/// there were as many.
async fn killed_after(writes: usize, chapter: usize, moment: Moment) -> (Vec<String>, bool) {
    let mut plane = Plane::at(moment).await;
    let mut processes = [Process::start(&plane).await];
    processes[0].backend.die_after(writes);
    tell(&mut plane, chapter).await;
    let deaths = plane.settle(&mut processes).await;
    let state = state(&plane).await;
    rests(&mut plane, &processes[0]).await;
    (state, deaths > 0)
}

/// What there is at the end of each chapter when nothing goes wrong.
pub fn undisturbed() -> Vec<Vec<String>> {
    std::thread::spawn(|| telling(tell_all()).states).join().unwrap()
}

fn telling<T>(story: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(story)
}

/// What is different, since all of it is too much to read.
pub fn assert_same(state: &[String], expected: &[String], what: &str) {
    let only = |some: &[String], others: &[String]| -> Vec<String> {
        some.iter().filter(|object| !others.contains(object)).cloned().collect()
    };
    let (more, less) = (only(state, expected), only(expected, state));
    assert!(more.is_empty() && less.is_empty(), "{what}: there is\n{more:#?}\ninstead of\n{less:#?}");
}

#[test]
fn a_crash_between_any_two_writes_of_any_loop_changes_nothing_of_the_outcome() {
    let undisturbed = telling(tell_all());
    for name in LOOPS.iter().filter(|name| !["compaction", "push-holds"].contains(name)) {
        assert!(undisturbed.writers.contains(*name), "{name} had nothing to do: {:?}", undisturbed.writers);
    }
    // Two chapters at a time: a chapter is told again and again until nobody is killed any more.
    let (next, crashes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let tell_some = || {
        loop {
            let chapter = next.fetch_add(1, Ordering::Relaxed);
            let Some(moment) = undisturbed.began.get(chapter) else { return };
            for writes in 0.. {
                let (state, killed) = telling(killed_after(writes, chapter, moment.clone()));
                let what = format!("chapter {chapter}, killed after {writes} writes");
                assert_same(&state, &undisturbed.states[chapter], &what);
                if !killed {
                    break;
                }
                crashes.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(tell_some);
        tell_some();
    });
    assert!(crashes.into_inner() > 60, "there is something to crash at");
}

#[test]
fn lost_answers_and_lost_requests_change_nothing_of_the_outcome() {
    let undisturbed = undisturbed();
    for fault in [CommitFault::LoseAnswer, CommitFault::LoseRequest, CommitFault::Late] {
        let states = telling(async {
            let mut plane = Plane::new(&NODES).await;
            let mut processes = [Process::start(&plane).await];
            let backend = Arc::clone(&processes[0].backend);
            let mut states = Vec::new();
            for chapter in 0..CHAPTERS {
                tell(&mut plane, chapter).await;
                // The first writes of every chapter, and some later ones.
                backend.break_commits([fault; 5]);
                assert_eq!(plane.settle(&mut processes).await, 0);
                backend.deliver_late();
                assert_eq!(plane.settle(&mut processes).await, 0);
                states.push(state(&plane).await);
            }
            states
        });
        for (chapter, (state, expected)) in states.iter().zip(&undisturbed).enumerate() {
            assert_same(state, expected, &format!("{fault:?}, chapter {chapter}"));
        }
    }
}

//! What can go wrong around the loops, what has to hold all the same, and the tests that show it.
//!
//! [`the_list_is_complete`] keeps the list honest: every fault is there, every test that is named runs, none is named
//! twice, and none of these files has one that is not named. Where a test lies elsewhere, with other tests of the
//! same thing, the list says where.
//!
//! 1. A process is killed between any two writes of any loop. Its successor comes to the same end, and then finds
//!    nothing to do.
//!    `crash::a_crash_between_any_two_writes_of_any_loop_changes_nothing_of_the_outcome`,
//!    `workers/tests/it/sets/crash.rs: wherever_a_leader_stops_the_next_one_goes_on`,
//!    `workers/tests/it/garbage/faults.rs: a_crash_after_any_write_and_any_lost_answer_change_nothing_of_the_outcome`
//! 2. A leader stands still for longer than its term. It writes nothing when it goes on, is told so, and no
//!    longer shows what it saw.
//!    `handover::gauges_of_a_leader_go_with_its_term`,
//!    `api/local/tests/it/leadership.rs: a_leader_that_slept_past_its_lease_writes_nothing`,
//!    `api/store/tests/it/faults/loss.rs: a_leader_that_stood_still_past_its_term_writes_nothing`,
//!    `workers/tests/it/substrate.rs: a_deposed_leader_writes_nothing`,
//!    `api/tests/it/contests/loops.rs: who_no_longer_leads_writes_nothing`
//! 3. Two lead at once, and no fence keeps one of them out. At every revision nothing is given more than there is,
//!    each Application is bound once, no child is made twice, no certificate is exchanged, nothing is collected
//!    that has an owner, no more is taken down than may be, and each verdict is told of once. (That Applications which
//!    repel each other stay apart is left to the one leader.)
//!    `leaders::two_that_lead_at_once_keep_every_rule`,
//!    `workers/tests/it/sets/model.rs: the_checker_has_something_to_judge`,
//!    `api/store/tests/it/postgres/races.rs: two_processes_do_not_overfill_a_node`,
//!    `api/tests/it/contests/loops.rs: a_node_takes_no_more_placements_than_fit`,
//!    `api/tests/it/contests/placements.rs: what_is_decided_twice_is_placed_once`
//! 4. A connection is cut while a transaction ends, before or after it does. What was done is not done again, and
//!    what was not is.
//!    `crash::lost_answers_and_lost_requests_change_nothing_of_the_outcome`,
//!    `api/store/tests/it/faults/commits.rs: lost_answers_are_looked_up_and_lost_requests_sent_again`,
//!    `api/store/tests/it/recovery.rs: cut_connections_are_made_anew`
//! 5. The connection that listens is cut, or nobody is told of anything. Looking now and then is enough.
//!    `hearing::without_a_single_notification_everything_comes_about`,
//!    `workers/tests/it/garbage/faults.rs: a_cascade_goes_through_without_waiting_for_a_resync`,
//!    `api/store/tests/it/faults/loss.rs: without_notifications_the_log_is_looked_at_now_and_then`
//! 6. The database is killed, or a standby takes over that had not got everything. Loops go on from what there is.
//!    `loss::loops_go_on_from_what_is_left_when_acknowledged_writes_are_lost`,
//!    `api/local/tests/it/faults.rs: a_watch_loses_nothing_whoever_is_killed`,
//!    `api/store/tests/it/recovery.rs: a_killed_database_loses_nothing_that_was_acknowledged`,
//!    `api/store/tests/it/recovery.rs: a_rolled_back_volume_is_noticed`,
//!    `api/store/tests/it/faults/loss.rs: a_restored_backup_is_noticed_and_everything_starts_anew`
//! 7. People and the scheduler at the same moment: the last room of a node, an edit, a deletion, a volume, the edit of a
//!    set. One of them wins as a whole, and what was placed keeps its node.
//!    `api/tests/it/contests/placements.rs: the_last_room_of_a_node_goes_to_a_pin_or_to_a_placement`,
//!    `api/tests/it/contests/placements.rs: who_edits_what_is_being_placed_takes_it_nowhere`,
//!    `api/tests/it/contests/placements.rs: what_is_placed_lies_with_its_volumes`,
//!    `api/tests/it/contests/loops.rs: what_is_placed_is_not_erased_under_its_node`,
//!    `api/tests/it/contests/owners.rs: no_child_is_made_for_a_set_that_is_another_one_by_then`
//! 8. Anything, in any order. What is available stays so as far as the budget says, steps come first, nothing is made
//!    for a set that is being deleted.
//!    `workers/tests/it/sets/model.rs: every_write_is_right_when_it_is_made`
//! 9. A clock is wrong: the database's is set, a heartbeat lies in the future, a worker's own is ahead or behind.
//!    Nobody is declared dead for it, and nobody dead is hidden.
//!    `clocks::a_database_clock_that_is_set_declares_nobody_dead_and_hides_nobody`,
//!    `clocks::a_heartbeat_that_lies_in_the_future_draws_no_work`,
//!    `clocks::a_worker_whose_clock_is_wrong_signs_and_deletes_nothing_too_soon`,
//!    `clocks::a_clock_that_jumps_past_a_term_hands_over_once`
//! 10. A set is replaced by another one of its name between the look and the write. Nothing that was meant for the one
//!     befalls the other.
//!     `workers/tests/it/sets/races.rs: nothing_is_made_for_a_set_that_has_a_successor_of_its_name`,
//!     `workers/tests/it/placing.rs: children_of_a_set_that_was_forced_out_go_and_its_namesake_makes_its_own`,
//!     `workers/tests/it/garbage/faults.rs: decisions_about_what_has_changed_since_are_dropped`
//! 11. An object that always fails, or makes a loop panic. All others are seen to as if it were not there.
//!     `workers/tests/it/sets/status.rs: a_set_that_cannot_be_read_holds_nobody_else_up`,
//!     `workers/tests/it/garbage/faults.rs: what_cannot_be_deleted_keeps_nothing_else_waiting`,
//!     `workers/tests/it/certificates/issuing.rs: a_request_that_fails_is_left_alone_for_a_while_unless_somebody_changes_it`,
//!     `workers/tests/it/substrate.rs: who_panics_again_and_again_leaves_the_lease_to_others`,
//!     `api/store/tests/it/faults/commits.rs: what_the_database_cannot_digest_spoils_nobody_elses_write`

mod clocks;
mod crash;
mod handover;
mod hearing;
mod judge;
mod leaders;
mod loss;
pub mod plane;
pub mod process;
mod story;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use horchestra_testkit::tests_of;

const FAULTS: usize = 11;

/// For each fault the file and the name of every test.
fn listed(here: &Path) -> Vec<Vec<(PathBuf, String)>> {
    let root = here.ancestors().nth(4).expect("the repository");
    let mut listed: Vec<Vec<(PathBuf, String)>> = Vec::new();
    for line in include_str!("mod.rs").lines().filter_map(|line| line.strip_prefix("//! ")) {
        if line.starts_with(&format!("{}. ", listed.len() + 1)) {
            listed.push(Vec::new());
        }
        let Some(fault) = listed.last_mut() else { continue };
        for word in line.split('`').skip(1).step_by(2) {
            if let Some((module, test)) = word.split_once("::") {
                fault.push((here.join(format!("{module}.rs")), test.to_owned()));
            } else if let Some((file, test)) = word.split_once(".rs: ") {
                fault.push((root.join(format!("{file}.rs")), test.to_owned()));
            }
        }
    }
    listed
}

#[test]
fn the_list_is_complete() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/faults");
    let listed = listed(&here);
    assert_eq!(listed.len(), FAULTS, "each fault begins a line with its number");
    let mut seen = BTreeSet::new();
    for (number, fault) in listed.iter().enumerate() {
        assert!(!fault.is_empty(), "nothing shows fault {}", number + 1);
        for (file, test) in fault {
            assert!(tests_of(file).contains(test), "{test} does not run in {}", file.display());
            assert!(seen.insert(test), "{test} stands for two");
        }
    }
    let own = std::fs::read_dir(&here).unwrap().map(|entry| entry.unwrap().path());
    for file in own.filter(|file| !file.ends_with("mod.rs")) {
        for test in tests_of(&file) {
            assert!(seen.contains(&test), "{test} of {} is not in the list", file.display());
        }
    }
}

//! What every backend does: functions over a [`World`](crate::fixture::World), and the macro that makes
//! tests of them.

pub mod addresses;
pub mod claims;
pub mod commits;
pub mod guards;
pub mod log;
pub mod presence;
pub mod pushes;
pub mod reads;
pub mod sealing;
pub mod watches;

/// Makes a test of every function of the suite; `$world` is an async function that makes a `World`.
macro_rules! suite {
    ($world:path) => {
        $crate::behaviour::suite!(@ $world, commits:
            a_create_is_seen_by_its_maker_and_by_others,
            of_twenty_creators_of_one_name_one_succeeds,
            of_twenty_updates_of_one_revision_one_succeeds,
            an_update_or_deletion_names_the_head_or_is_refused,
            a_status_update_moves_the_revision_but_not_the_core_revision,
            a_deletion_takes_a_revision_and_frees_the_name,
            an_item_is_all_or_nothing,
            the_first_refusal_in_a_fixed_order_is_reported,
            a_refused_item_leaves_its_batch_alone,
            malformed_items_are_rejected_unseen,
            what_was_stored_comes_back_byte_for_byte,
            commits_answer_the_row_before_them,
            a_lost_answer_can_be_settled,
        );
        $crate::behaviour::suite!(@ $world, guards:
            exists_and_unchanged_look_at_the_head,
            a_namespace_is_empty_but_for_events,
            events_of_a_namespace_are_counted,
            references_are_counted,
            two_binds_that_do_not_fit_together_are_not_both_stored,
            capacity_counts_what_the_item_itself_changes,
            a_node_without_capacity_takes_all_or_nothing,
            a_guard_on_a_lease_fences,
            a_guard_on_a_session_fences,
        );
        $crate::behaviour::suite!(@ $world, claims:
            a_value_has_one_owner,
            shared_claims_go_together,
            deletion_and_release_give_back,
            claims_of_one_batch_see_each_other,
            an_object_comes_with_its_claims_or_not_at_all,
            numbers_are_unclaimed_by_others,
            all_claims_are_read_in_stretches_with_the_fate_of_their_owners,
        );
        $crate::behaviour::suite!(@ $world, addresses:
            an_address_is_had_until_the_end,
            only_what_exists_gets_an_address,
            what_is_taken_otherwise_is_skipped,
            a_range_can_be_used_up,
            an_address_that_was_given_back_is_held_back,
            askers_at_the_same_time_never_share_an_address,
            known_addresses_are_taken_over,
            freed_addresses_of_services_are_remembered,
        );
        $crate::behaviour::suite!(@ $world, log:
            the_log_is_read_in_stretches_with_anchors,
            a_load_is_of_one_moment,
            undo_rebuilds_every_state,
            history_keeps_core_revisions_and_tombstones,
            settings_are_written_by_whoever_saw_the_last_version,
            a_new_epoch_moves_revisions_on,
        );
        $crate::behaviour::suite!(@ $world, presence:
            a_lease_has_one_holder_and_its_epoch_counts_holders,
            one_of_two_processes_gets_the_lease,
            a_node_has_one_live_session,
            how_a_node_is_sent_tokens_is_chosen_once,
            a_retired_gateway_gives_its_sessions_free,
            a_name_is_borne_by_one_gateway_at_a_time,
            certificates_are_denied_until_they_are_allowed_again,
            heartbeats_are_kept_with_their_age,
            heartbeats_come_with_the_time_since_which_gateways_could_hear_them,
            heartbeats_of_a_session_that_was_lost_are_not_kept,
            samples_are_kept_for_the_session_that_brought_them,
            presence_that_stands_for_nothing_is_pruned,
            a_released_lease_is_told_of,
        );
        $crate::behaviour::suite!(@ $world, pushes:
            a_record_names_what_was_added_and_not_taken_off,
            a_session_that_was_lost_writes_no_record,
            a_hold_is_of_all_nodes_or_of_one_until_it_is_released,
            a_release_takes_what_nobody_can_explain_off_the_record,
            each_history_that_was_known_further_engages_the_hold_once,
            tombstones_of_what_is_on_record_are_kept,
        );
        $crate::behaviour::suite!(@ $world, reads:
            lists_are_ordered_and_start_where_asked,
            a_fresh_read_sees_what_any_process_was_told,
            not_older_waits_and_gives_up_on_the_future,
            exactly_at_is_the_state_of_that_revision,
            pages_are_of_one_revision_on_any_process,
            kinds_outside_the_cache_are_written_but_not_read,
            concurrent_batches_from_several_processes_leave_no_hole,
        );
        $crate::behaviour::suite!(@ $world, sealing:
            what_is_not_sealed_is_not_stored,
            the_past_of_sealed_objects_has_no_bodies,
            bodies_are_sealed_anew_without_a_revision,
            a_body_that_changed_meanwhile_is_left_alone,
            nothing_but_the_seal_can_be_replaced,
            sealed_bodies_are_listed_in_stretches,
            writers_lose_nothing_while_bodies_are_sealed_anew,
        );
        $crate::behaviour::suite!(@ $world, watches:
            a_list_and_the_changes_after_it_make_the_state,
            watches_opened_anywhere_see_the_same_order,
            a_watch_that_started_before_the_ring_reads_the_log,
            a_watch_from_the_future_ends,
            progress_moves_on_with_other_kinds,
            a_restarted_process_serves_watches_from_before,
        );
    };
    (@ $world:path, $module:ident: $($name:ident,)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let world = $world().await;
                    $crate::behaviour::$module::$name(&world).await;
                }
            )*
        }
    };
}
pub(crate) use suite;

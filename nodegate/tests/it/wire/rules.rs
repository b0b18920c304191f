//! The rules of the wire, and the tests that show them.
//!
//! A test is named by its module here, or by its file where it lies elsewhere. [`the_list_is_complete`] keeps the
//! list honest: every test that is named runs, and every test of these files is named.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use horchestra_testkit::tests_of;

/// A rule, and where it is shown.
type Rule = (&'static str, &'static [&'static str]);

const IDENTITY: &[Rule] = &[
    (
        "a node is who the verified certificate names, if it is in the group of nodes; names are those of hosts",
        &["identity::a_node_is_who_its_certificate_names_in_the_group_of_nodes"],
    ),
    (
        "without a certificate TLS goes through and the call is refused",
        &["identity::without_a_certificate_there_is_a_connection_and_no_stream"],
    ),
    (
        "a certificate of a foreign authority ends the handshake",
        &["identity::a_certificate_of_a_foreign_authority_reaches_no_call"],
    ),
    ("who offers HTTP/2 alone gets it", &["identity::the_server_speaks_http2_to_who_offers_nothing_else"]),
    (
        "the first message to a node is what it is to run, and nothing of others",
        &["identity::the_first_thing_a_node_hears_is_what_it_is_to_run"],
    ),
    (
        "messages of four mebibytes are taken, and a larger one ends its own stream",
        &["identity::messages_are_taken_up_to_four_mebibytes_and_a_larger_one_ends_its_own_stream"],
    ),
    (
        "a state that agents could not receive is held back, told of, and sent when it fits",
        &["identity::what_agents_could_not_receive_is_not_sent_until_it_fits"],
    ),
    (
        "a peer that stops answering is given up within forty seconds",
        &["identity::a_peer_that_no_longer_answers_is_given_up"],
    ),
    (
        "a mistake of ours ends the stream that it hits and no other",
        &["identity::a_mistake_of_ours_costs_the_stream_that_it_hits"],
    ),
    ("unknown messages and members are passed over", &["identity::a_stream_needs_nothing_but_messages"]),
    (
        "requests for certificates are answered by the API at the address of the stream: in one go, polled, slowly, \
         compressed, on one connection",
        &[
            "front::a_node_asks_for_its_certificate_at_the_same_address_as_itself",
            "nodegate/tests/it/address.rs: who_is_no_node_reaches_the_api_as_himself_and_from_where_he_is",
            "api/local/tests/it/address.rs: agents_renew_and_watches_go_on_through_the_nodes_port_whatever_dies",
        ],
    ),
    (
        "an approval and its certificate are one write, which any replica shows at once; requests do not pile up",
        &[
            "api/service/tests/it/certificates.rs: an_approval_comes_back_with_the_certificate",
            "api/service/tests/it/certificates.rs: an_agent_leaves_one_request_open_however_many_it_makes",
            "api/local/tests/it/freshness.rs: the_other_replica_knows_what_was_just_acknowledged",
        ],
    ),
];

const SESSIONS: &[Rule] = &[
    (
        "a second stream of a node is refused while the first one talks",
        &["sessions::a_second_stream_is_refused_and_the_first_goes_on"],
    ),
    (
        "any message is a sign of life, and so is the opening",
        &["sessions::whatever_a_node_says_is_a_sign_of_life_and_so_is_that_it_came"],
    ),
    (
        "a silent session is taken over: the old stream is aborted, writes nothing, and gives nothing up",
        &["sessions::who_is_silent_for_too_long_is_taken_over_and_can_say_no_more"],
    ),
    (
        "nobody is taken over within a minute, or within the ready timeout if that is longer",
        &["nodegate/src/args.rs: sessions_are_never_taken_over_within_a_minute"],
    ),
    (
        "a closed stream frees its place at once",
        &["sessions::the_place_is_free_as_soon_as_the_stream_is_over"],
    ),
    (
        "of simultaneous claims one wins",
        &["sessions::of_twenty_that_come_at_once_to_two_gateways_one_is_let_in"],
    ),
    (
        "nodes of a gateway that died are let in elsewhere once its term is over",
        &["sessions::a_gateway_that_dies_costs_its_nodes_the_rest_of_its_term"],
    ),
    (
        "a gateway that alone lost the database stops pushing, sends its nodes away and writes nothing for them later",
        &[
            "sessions::a_gateway_that_alone_has_lost_the_database_stops_pushing_and_then_sends_its_nodes_away",
            "sessions::a_gateway_that_stood_still_says_nothing_more_for_a_node_of_another",
        ],
    ),
];

const REGISTRATION: &[Rule] = &[
    (
        "an unknown node gets a Node of its name and its status, cordoned, with no metadata of its own",
        &["registration::a_stranger_gets_a_node_of_its_own_name_that_takes_no_part"],
    ),
    (
        "of a report is stored what a machine knows of itself: labels are derived, amounts capped, the unknown left out",
        &["registration::of_a_report_is_stored_what_a_machine_knows_of_itself"],
    ),
    ("the time of a heartbeat is the server's", &["registration::a_heartbeat_is_the_time_at_which_it_came"]),
    (
        "a report under another name, in a namespace, or that does not decode is dropped, and the stream goes on",
        &[
            "registration::a_report_that_cannot_be_is_dropped_and_the_next_one_counts",
            "nodegate/tests/it/threats.rs: a_report_about_another_node_is_dropped_however_it_is_spelled",
            "nodegate/tests/it/threats.rs: a_namespace_on_a_node_makes_no_hidden_twin",
        ],
    ),
    (
        "what is reported is seen soon, and a cordon outlives it",
        &["registration::what_a_node_says_is_seen_within_three_seconds_and_leaves_a_cordon_alone"],
    ),
    (
        "a node that is registered twice at once is one object",
        &[
            "registration::two_gateways_that_register_a_node_at_once_make_one_of_it",
            "registration::a_node_that_is_made_while_it_registers_is_one_node",
        ],
    ),
    (
        "placement sees derived labels over those of operators, and operators write none of the system's",
        &[
            "api/core/tests/it/kinds.rs: labels_of_nodes_for_placement",
            "api/service/tests/it/nodes.rs: labels_of_the_system_are_refused_to_everybody",
            "api/service/tests/it/nodes.rs: a_reserved_label_that_is_there_is_in_nobodys_way",
        ],
    ),
    (
        "under strict registration a new node's address bears its name; a slow or empty answer is a refusal for now",
        &[
            "registration::under_strict_registration_the_address_bears_the_name",
            "registration::a_node_that_exists_is_never_looked_up",
            "nodegate/src/strict.rs: leading_labels_are_covered_and_nothing_else_is",
        ],
    ),
    (
        "with its certificate a node writes its own Node's status and asks for certificates, and that is all",
        &[
            "api/service/tests/it/nodes.rs: a_nodes_certificate_writes_little",
            "api/service/tests/it/nodes.rs: a_node_that_makes_its_own_node_over_http_is_cordoned_and_not_admitted",
            "api/service/tests/it/nodes.rs: a_nodes_certificate_deletes_no_other_node",
            "api/service/tests/it/nodes.rs: a_node_writes_its_own_status_and_nobody_elses",
        ],
    ),
];

const MEMBERSHIP: &[Rule] = &[
    (
        "without a Node nothing is sent; once there is one, everything is, once",
        &["membership::without_a_node_nothing_is_sent_and_once_there_is_one_everything_is_once"],
    ),
    (
        "who registered itself is sent nothing until it is uncordoned or admitted",
        &["membership::who_registered_itself_is_sent_nothing_until_an_operator_says_so"],
    ),
    (
        "a deleted node is sent nothing, comes back cordoned, and is sent its state once it is let in again",
        &[
            "membership::a_node_that_is_deleted_hears_nothing_and_comes_back_as_a_stranger",
            "membership::a_node_that_comes_back_is_sent_its_state_although_nothing_has_changed",
        ],
    ),
    (
        "other nodes' heartbeats push nothing",
        &["membership::what_others_say_of_themselves_is_no_reason_to_push"],
    ),
    (
        "the end of a stream writes nothing; readiness has one judge",
        &[
            "membership::the_end_of_a_stream_writes_nothing",
            "workers/tests/it/lifecycle.rs: one_node_is_judged_by_its_heartbeats",
            "api/core/tests/it/tables.rs: readiness_is_the_verdict_and_only_without_one_the_report",
            "workers/tests/it/scheduling.rs: only_a_node_that_can_take_work_is_chosen",
        ],
    ),
];

const HOLDS: &[Rule] = &[
    (
        "when loss is shown, a session that goes on is sent supersets of what it has, and no volumes, until it is released",
        &["holds::a_session_that_goes_on_hears_what_comes_beside_what_it_has_and_of_no_volume"],
    ),
    (
        "and a new one is sent nothing, whatever comes",
        &[
            "holds::a_new_session_hears_nothing_until_an_operator_has_looked",
            "nodegate/tests/it/hold.rs: an_empty_database_behind_a_fleet_is_no_reason_to_stop_anything",
            "nodegate/tests/it/hold.rs: a_failover_without_loss_needs_no_hold_and_one_with_a_lost_tail_does",
        ],
    ),
    (
        "a node that another control plane may have served is sent nothing at first",
        &["holds::a_node_that_is_much_older_than_the_database_hears_nothing_at_first"],
    ),
    (
        "nothing is left out of a push without a reason on record",
        &["nodegate/tests/it/hold.rs: what_vanished_without_a_trace_holds_its_node_alone"],
    ),
];

const CONTENT: &[Rule] = &[
    (
        "an Application is sent whole, without bookkeeping, and to its node alone",
        &["content::an_application_is_sent_whole_and_only_to_its_node"],
    ),
    (
        "every volume is named, and a node's own are whole",
        &["content::every_volume_of_the_fleet_is_named_and_a_nodes_own_are_whole"],
    ),
    (
        "of Secrets those are sent, whole, that Applications of the node name in their own namespace",
        &["content::of_secrets_those_are_sent_that_applications_here_name"],
    ),
    (
        "of stores those that such Secrets are in",
        &["content::of_stores_those_are_sent_that_such_secrets_are_in"],
    ),
    (
        "an Application comes with its volumes, Secrets, stores, tokens and address in one message",
        &["content::what_an_application_needs_comes_in_the_same_push"],
    ),
    (
        "nothing is sent from a view that is incomplete",
        &["content::without_the_database_nothing_is_sent_and_with_it_all_of_it"],
    ),
    (
        "a job that ran to its end is withheld until it is edited or deleted; nothing else is withheld",
        &["content::a_job_that_has_run_to_its_end_is_withheld_and_nothing_else_is"],
    ),
    (
        "each Application has a token for each audience that it needs, for its own uid, and no other",
        &["tokens::each_application_has_a_token_for_each_audience_that_it_needs"],
    ),
    (
        "tokens are renewed together before the last minutes",
        &["tokens::tokens_are_renewed_together_long_before_they_end"],
    ),
    (
        "agents that cannot mount tokens are sent the same files as a Secret",
        &[
            "tokens::agents_that_cannot_mount_tokens_are_sent_the_files",
            "nodegate/tests/it/tokens.rs: how_a_node_is_sent_tokens_is_decided_once_and_changed_by_an_operator_alone",
        ],
    ),
    ("a new bearer of a name has its own token", &["tokens::a_new_bearer_of_a_name_has_a_token_of_its_own"]),
    (
        "without a key there are no tokens and everything else",
        &["tokens::without_a_key_there_are_no_tokens_and_everything_else"],
    ),
    (
        "tokens are what they say, to us and to others, and keys survive restarts",
        &[
            "api/auth/tests/it/tokens.rs: a_token_says_who_for_whom_and_how_long",
            "api/auth/tests/it/tokens.rs: a_key_is_made_once_and_only_for_its_owner",
            "api/tests/it/tokens.rs: a_token_is_a_workload_wherever_it_stands",
            "api/tests/it/tokens.rs: reviews_are_for_those_who_show_a_token",
        ],
    ),
];

const TRIGGERS: &[Rule] = &[
    (
        "what a node could tell is pushed at once, and nothing else is",
        &["triggers::what_a_node_could_tell_is_pushed_and_nothing_else"],
    ),
    ("a new bearer of a name is pushed", &["triggers::a_new_bearer_of_a_name_is_pushed"]),
    (
        "without a change the state is sent again now and then",
        &["triggers::the_state_is_sent_again_after_a_time_without_change"],
    ),
    (
        "a lost notification or connection loses no change",
        &[
            "triggers::a_change_is_delivered_although_nobody_was_told_of_it",
            "api/store/tests/it/faults/loss.rs: without_notifications_the_log_is_looked_at_now_and_then",
            "api/store/tests/it/recovery.rs: cut_connections_are_made_anew",
        ],
    ),
    (
        "a burst is a few pushes, and the last one is the truth",
        &["triggers::a_burst_is_a_few_pushes_and_the_last_one_is_the_truth"],
    ),
    (
        "a node that does not read is sent the newest state when it does",
        &["triggers::a_node_that_does_not_read_is_sent_the_newest_state_when_it_does"],
    ),
];

const NETWORKS: &[Rule] = &[
    (
        "an isolated workload has the lowest free address from its first push; nobody else has one",
        &["networks::an_isolated_workload_has_an_address_from_its_first_push_on_and_no_other_has_one"],
    ),
    (
        "an address stays through failures, gateways and imports",
        &[
            "networks::an_address_stays_whatever_becomes_of_the_workload_and_its_gateway",
            "nodegate/tests/it/networks.rs: an_imported_workload_keeps_the_address_that_it_has",
        ],
    ),
    ("only the given address is believed", &["networks::only_the_address_that_was_given_is_believed"]),
    (
        "no address is given twice, and a freed one is held back",
        &[
            "networks::an_address_is_given_to_nobody_else_while_it_may_be_in_use",
            "nodegate/tests/it/networks.rs: two_gateways_that_ask_at_once_never_give_an_address_twice",
        ],
    ),
    (
        "who gets no address is sent without one",
        &["networks::who_gets_no_address_is_sent_without_and_others_go_on"],
    ),
    (
        "a reported address is a route on every node, over its node's address, at once",
        &["networks::a_reported_address_is_a_route_on_every_node"],
    ),
    (
        "a table holds nothing that a helper would refuse",
        &[
            "networks::what_an_import_brought_of_addresses_spoils_no_table",
            "networks::a_rule_that_no_helper_would_take_is_left_out_alone",
            "nodegate/agent/src/datapath.rs: one_bad_entry_spoils_its_table_and_the_last_good_one_stays",
        ],
    ),
    (
        "a Service leads to the placed members of its namespace by their ports, and changes within a moment",
        &["networks::a_service_leads_to_the_members_of_its_namespace_by_their_ports"],
    ),
];

const STATUS: &[Rule] = &[
    (
        "of a report is stored what means something in its phase, held to what can be; spec and generation stay",
        &["status::of_a_report_is_stored_what_means_something"],
    ),
    (
        "a report is about what is pinned to the reporter, exists, and was asked for",
        &["status::what_is_not_for_this_node_to_say_is_dropped"],
    ),
    ("a job that left no trace has not failed", &["status::a_job_that_left_no_trace_has_not_failed"]),
    (
        "a report is about the bearer of a name that this session was sent",
        &[
            "status::a_report_about_an_earlier_bearer_of_a_name_is_dropped",
            "status::a_new_session_says_nothing_of_what_it_was_not_sent",
        ],
    ),
    ("an identical report writes nothing", &["status::what_is_stored_already_is_not_written_again"]),
    (
        "reports and edits do not meet, and reports leave the history alone",
        &["status::reports_and_edits_do_not_meet"],
    ),
    (
        "the observed generation does not go back within a session",
        &["status::what_a_workload_was_last_started_as_does_not_go_back_within_a_session"],
    ),
    (
        "what is finished, updating or available follows from phase and observed generation",
        &[
            "api/core/tests/it/kinds.rs: an_edit_makes_a_finished_job_run_again",
            "api/core/tests/it/tables.rs: an_application_is_updating_while_its_node_runs_an_older_generation",
        ],
    ),
];

const DELETION: &[Rule] = &[
    (
        "what nothing holds is erased, what something holds is marked once",
        &[
            "api/service/tests/it/delete.rs: what_nothing_holds_is_erased",
            "api/service/tests/it/delete.rs: what_something_holds_is_marked_once_and_erased_with_the_last_finalizer",
        ],
    ),
    (
        "a node's hold comes with placement and goes without",
        &["deletion::the_hold_comes_with_a_node_and_goes_without_one"],
    ),
    (
        "the node's word erases the object in one step",
        &["deletion::an_object_is_erased_when_its_node_says_that_nothing_is_left"],
    ),
    ("the time to end in is that of the deletion", &["deletion::the_time_to_end_in_is_that_of_the_deletion"]),
    ("what others hold stays", &["deletion::what_others_hold_stays_until_they_let_go"]),
    (
        "a node that sees nothing at all is asked twice",
        &["deletion::a_node_that_sees_nothing_at_all_has_to_say_so_twice"],
    ),
    (
        "a release that was lost is made again",
        &["deletion::a_release_that_is_lost_on_its_way_is_made_by_the_next_report"],
    ),
];

const LOGS: &[Rule] = &[
    (
        "a log is asked for by uid under an id of its own, comes in order, and ends once",
        &["logs::a_log_is_asked_for_by_uid_and_comes_in_order_to_its_end"],
    ),
    ("an error ends a log and is passed on", &["logs::why_a_log_cannot_be_opened_is_its_end"]),
    (
        "a reader that leaves cancels the log and frees its place once; there are so many places",
        &["logs::a_reader_that_leaves_cancels_its_log_and_frees_its_place_once"],
    ),
    ("the end of a stream ends its logs", &["logs::the_end_of_the_stream_ends_its_logs"]),
    (
        "a reader that stands still loses its own lines",
        &["logs::a_reader_that_stands_still_loses_its_own_lines"],
    ),
    (
        "every reader and the database may stand still, and nodes are read all the same",
        &["logs::a_node_is_read_with_every_reader_and_the_database_standing_still"],
    ),
    (
        "a gateway answers the control plane, for its own sessions, about uids",
        &[
            "nodegate/tests/it/logs.rs: a_gateway_answers_for_the_sessions_it_holds",
            "nodegate/tests/it/logs.rs: only_the_control_plane_may_ask",
            "api/tests/it/logs.rs: a_session_that_moved_is_looked_up_once_more",
            "api/tests/it/logs.rs: the_ninth_stream_of_a_caller_is_refused",
            "api/tests/it/logs.rs: what_cannot_be_read_has_a_clear_answer",
            "api/tests/it/node_logs.rs: without_the_gate_there_is_nothing_whoever_asks",
            "api/tests/it/node_logs.rs: with_the_gate_the_agents_own_log_is_read",
        ],
    ),
];

const METRICS: &[Rule] = &[
    (
        "what is measured is kept as it was said, for two minutes, whatever becomes of the gateway",
        &[
            "metrics::what_is_measured_is_kept_as_it_was_said",
            "api/tests/it/usage.rs: what_was_measured_of_an_application_is_shown_for_two_minutes",
            "api/tests/it/usage.rs: usage_is_listed_in_order_and_selected",
        ],
    ),
    (
        "a rate is made of two samples of one run, and of sane times",
        &["metrics::a_rate_is_made_of_two_samples_of_one_run"],
    ),
    (
        "samples of others' workloads, without a name, or that cannot be do not count",
        &["metrics::samples_that_say_nothing_or_cannot_be_do_not_count"],
    ),
];

const RESTARTS: &[Rule] = &[
    (
        "after all gateways restarted every node is back",
        &["restarts::when_all_gateways_restart_every_node_is_back_and_heard_of"],
    ),
    (
        "a gateway that leaves sends its nodes away over a window in random order, and each is let in elsewhere at once",
        &["restarts::a_gateway_that_leaves_sends_its_nodes_away_one_by_one_in_no_order"],
    ),
    (
        "an outage of the database of twenty seconds costs no stream and nothing that was said",
        &[
            "restarts::an_outage_of_the_database_costs_no_stream_and_nothing_that_was_said",
            "nodegate/src/settings.rs: a_failover_of_the_database_within_twenty_seconds_costs_no_stream_and_no_gateway_acts_past_its_term",
        ],
    ),
];

const AGENTS: &[Rule] = &[
    (
        "a node may say nothing of its workloads for as long as it likes",
        &["contract::a_node_that_says_nothing_of_its_workloads_for_long_has_not_failed"],
    ),
    (
        "a finished job is withheld from an agent without memory, and its next generation has a budget of its own",
        &["contract::a_finished_job_is_withheld_and_begins_anew_with_its_next_generation"],
    ),
    ("with each heartbeat comes a burst", &["contract::a_burst_with_every_heartbeat_is_taken_in_at_once"]),
    (
        "an agent that starts anew has applied nothing yet",
        &["contract::an_agent_that_starts_anew_says_generation_zero_and_loses_nothing"],
    ),
    (
        "what agents would not decode is not sent: the last good form, or the name alone",
        &[
            "content::what_agents_would_not_decode_is_not_sent",
            "contract::what_agents_cannot_read_never_reaches_them",
        ],
    ),
];

const ALL: &[&[Rule]] = &[
    IDENTITY,
    SESSIONS,
    REGISTRATION,
    MEMBERSHIP,
    HOLDS,
    CONTENT,
    TRIGGERS,
    NETWORKS,
    STATUS,
    DELETION,
    LOGS,
    METRICS,
    RESTARTS,
    AGENTS,
];

#[test]
fn the_list_is_complete() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = package.join("tests/it/wire");
    let mut named: BTreeSet<(PathBuf, &str)> = BTreeSet::new();
    let mut rules = BTreeSet::new();
    for (rule, shown) in ALL.iter().copied().flatten() {
        assert!(rules.insert(rule), "twice: {rule}");
        assert!(!shown.is_empty(), "nothing shows that {rule}");
        for test in *shown {
            let (file, test) = match test.split_once("::") {
                Some((module, test)) => (here.join(format!("{module}.rs")), test),
                None => {
                    let (file, test) = test.split_once(".rs: ").expect("a file and a test");
                    (package.parent().unwrap().join(format!("{file}.rs")), test)
                }
            };
            assert!(tests_of(&file).contains(test), "{test} does not run in {}", file.display());
            named.insert((file, test));
        }
    }
    for file in std::fs::read_dir(&here).unwrap().map(|entry| entry.unwrap().path()) {
        for test in tests_of(&file).iter().filter(|test| *test != "the_list_is_complete") {
            assert!(named.contains(&(file.clone(), test)), "{test} of {} shows no rule", file.display());
        }
    }
}

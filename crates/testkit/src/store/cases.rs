//! The list of cases, in one place, and the macro that makes a test of each.

/// Makes a test of every case of the store suite.
///
/// The argument is an async function (or closure) without arguments that returns `Arc<dyn Fixture>`. The calling crate
/// needs `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! store_conformance {
    ($factory:expr) => {
        $crate::conformance_tests! { store, $factory;
            log {
                a_rolled_back_transaction_is_never_read
                a_savepoint_takes_back_only_what_follows_it
                a_late_commit_is_not_skipped
                what_was_committed_before_an_enqueue_comes_first
                one_transaction_keeps_its_order
                nothing_enqueued_is_nothing_read
                every_field_survives
                instants_arrive_as_spans
                the_time_of_enqueueing_is_by_the_clock_of_the_store
                a_page_holds_no_more_records_than_asked_for
                a_page_holds_no_more_bytes_than_asked_for
                a_mark_resumes_exactly_behind_its_record
                without_anything_new_the_cursor_stays
                a_filtered_page_moves_the_cursor
                topic_filters_choose_what_they_say
                a_new_route_begins_where_it_says
                routes_have_cursors_of_their_own
            }
            lease {
                a_lane_has_one_owner
                a_node_may_take_its_own_lane_again
                a_stale_owner_learns_nothing
                a_lease_says_how_to_read
                an_unknown_lane_cannot_be_acquired
                the_epoch_rises_with_every_owner
                an_expired_lease_can_be_taken
                an_expired_lease_that_nobody_took_still_settles
                a_heartbeat_extends_all_leases_of_its_node
                a_heartbeat_extends_nobody_elses_lease
                a_heartbeat_takes_nothing_back
                a_released_lane_is_free
                a_retired_node_leaves_its_lanes
                a_silent_node_is_not_live
                the_roster_lists_every_lane
                a_node_is_asked_to_leave
                a_lease_tells_how_long_it_lives
                racing_nodes_have_one_winner
                registering_again_changes_nothing
                a_route_that_cannot_be_is_refused
                a_route_takes_new_topics
                a_changed_reader_fences_every_owner
                a_route_reads_what_any_live_node_asks_for
                a_route_lets_go_of_what_nobody_asks_for
                nodes_that_start_at_once_know_of_each_other
                a_forgotten_route_stays_closed_to_its_former_owner
            }
            lanes {
                every_record_is_in_exactly_one_lane
                keyless_records_are_spread
                total_order_is_one_key
                a_new_number_of_lanes_begins_at_the_least_cursor
                owners_from_before_a_change_stay_fenced
                parked_rows_follow_their_keys
            }
            settle {
                the_cursor_is_kept
                without_an_advance_the_cursor_stays
                a_fenced_settlement_writes_nothing
                a_repeated_settlement_is_recognised_by_its_number
                a_settlement_that_arrives_late_changes_nothing
                numbers_count_within_an_epoch
                parking_gives_ascending_ordinals
                a_parked_row_is_a_copy
                every_state_keeps_its_details
                an_existing_row_is_kept
                two_messages_of_one_id_have_two_rows
                routes_park_for_themselves
                rows_that_are_gone_are_skipped
                removing_comes_before_parking
                parking_comes_before_changing
                only_held_moves_a_row_to_the_tail
                a_removed_row_can_come_back
            }
            due {
                without_rows_nothing_is_due
                a_retry_is_never_early
                a_scheduled_row_is_never_early
                deliver_at_decides_when_a_scheduled_row_is_due
                a_keyless_retry_is_timed
                followers_come_behind_their_head
                a_waiting_head_keeps_its_line_waiting
                a_held_head_is_due_at_once
                a_blocking_dead_head_stops_its_line
                a_releasing_dead_is_not_in_line
                lines_are_independent
                the_longest_due_comes_first
                a_due_read_is_limited
                a_due_read_is_limited_in_bytes
                a_due_row_carries_its_record
                resume_lists_every_blocked_key
            }
            admin {
                pending_is_read_from_the_log
                what_waits_is_looked_for_only_so_far
                waiting_rows_have_a_pending_age
                scheduled_records_have_no_pending_age
                pending_counts_every_lane
                the_overview_shows_what_there_is
                a_node_says_why_its_lanes_stand_still
                the_log_tells_its_topics_a_stretch_at_a_time
                parked_rows_are_filtered
                parked_rows_are_paged
                a_listed_row_says_how_it_stands
                a_dead_row_is_as_old_as_its_death
                dead_rows_are_grouped_by_cause
                a_message_can_be_traced
                a_blocking_dead_is_redriven_as_the_head
                a_released_dead_is_redriven_behind_its_key
                the_age_of_the_oldest_record_is_told
                a_redrive_leaves_others_alone
                a_discard_frees_the_line
                work_can_be_cut_into_slices
                a_pause_tells_who_and_why
                unknown_names_are_refused
                every_change_is_audited
                each_of_many_changed_rows_is_named_in_the_audit_record
                an_audit_entry_names_the_route_of_its_rows
                the_store_enqueues_by_itself
                a_forgotten_route_is_gone
                a_route_that_is_needed_is_not_forgotten
                a_healthy_store_has_no_error
            }
            browse {
                a_record_is_shown_as_it_is
                records_are_paged_in_both_directions
                records_are_filtered
                records_tell_how_far_their_readers_are
                what_was_delivered_stays_delivered_when_its_topic_is_let_go
                a_parked_record_counts_as_passed
            }
            replay {
                a_replay_reads_what_the_log_had
                a_replay_of_nothing_ends
                a_replay_leaves_the_live_cursor_alone
                a_replay_chooses
                a_replay_is_shown
                a_paused_route_pauses_its_replays
                a_replay_cannot_be_replayed
                a_replay_can_go_to_another_route
                a_replay_parks_for_itself
                a_replay_finishes_when_nothing_waits
                a_redriven_row_revives_its_replay
                what_a_replay_has_given_up_keeps_its_route
                a_stale_owner_cannot_finish
                a_route_is_never_finished
                a_cancelled_replay_is_gone
            }
            purge {
                what_all_have_passed_is_removed
                nothing_is_removed_that_one_route_has_not_passed
                the_slowest_lane_counts
                paused_and_unowned_routes_count
                nothing_young_is_removed
                no_more_is_kept_than_was_asked_for
                without_a_route_nothing_is_removed
                parked_copies_survive
                an_unfinished_replay_counts
                a_new_route_begins_with_the_oldest_kept
                a_forgotten_route_holds_nothing_up
            }
            hint {
                a_commit_wakes_a_waiter
                a_commit_wakes_every_waiter
                a_dropped_hint_does_no_harm
            }
            durability {
                committed_records_survive
                cursor_and_epoch_survive
                parked_rows_survive
                what_operators_did_survives
            }
        }
    };
}

/// The part that the conformance macros share: one module a subject, one test a case.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    ($suite:ident, $factory:expr; $($subject:ident { $($case:ident)* })*) => {
        $(
            mod $subject {
                #[allow(unused_imports, reason = "the factory may be named by its path or come from the parent")]
                use super::*;
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $case() {
                        let case = async { $crate::$suite::$subject::$case(($factory)().await).await };
                        $crate::patience::in_time(case).await;
                    }
                )*
            }
        )*
    };
}

#[cfg(test)]
mod tests {
    /// A case that is written but not listed would never run anywhere.
    #[test]
    fn every_case_is_listed() {
        let sources = [
            include_str!("log.rs"),
            include_str!("lease.rs"),
            include_str!("lanes.rs"),
            include_str!("settle.rs"),
            include_str!("due.rs"),
            include_str!("admin.rs"),
            include_str!("browse.rs"),
            include_str!("replay.rs"),
            include_str!("purge.rs"),
            include_str!("hint.rs"),
            include_str!("durability.rs"),
        ];
        let listed = include_str!("cases.rs");
        for case in sources.iter().flat_map(|source| source.split("\npub async fn ").skip(1)) {
            let name = case.split('(').next().unwrap();
            assert!(listed.lines().any(|line| line.trim() == name), "{name} is not in the list of cases");
        }
    }
}

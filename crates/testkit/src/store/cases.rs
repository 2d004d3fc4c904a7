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
                        let fixture = ($factory)().await;
                        $crate::$suite::$subject::$case(fixture).await;
                    }
                )*
            }
        )*
    };
}

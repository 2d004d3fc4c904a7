//! The lists of cases, in one place, and the macros that make a test of each.

/// Makes a test of every case of the publisher suite.
///
/// The argument is an async function without arguments that returns `Arc<dyn PublisherFixture>`. The calling crate needs
/// `tokio` with `macros` and `rt-multi-thread`.
#[macro_export]
macro_rules! publisher_conformance {
    ($factory:expr) => {
        $crate::conformance_tests! { transport, $factory;
            publisher {
                a_batch_has_one_outcome_per_message
                every_envelope_survives
                a_replay_is_marked
                a_key_stays_in_order_over_many_batches
                a_run_stays_in_order
                batches_may_overlap
                a_message_that_is_too_large_is_rejected
                a_dropped_publish_does_no_harm
                closing_loses_nothing
            }
        }
    };
}

/// Makes a test of every case of the subscriber suite.
///
/// The argument is an async function without arguments that returns `Arc<dyn SubscriberFixture>`.
#[macro_export]
macro_rules! subscriber_conformance {
    ($factory:expr) => {
        $crate::conformance_tests! { transport, $factory;
            subscriber {
                a_receive_is_bounded
                a_receive_waits
                every_envelope_survives
                a_key_is_received_in_order
                a_dropped_receive_loses_nothing
                an_acknowledged_delivery_is_done
                an_unacknowledged_delivery_comes_again
                a_delivery_rejected_for_good_is_done
                a_delivery_rejected_for_later_comes_later
                a_stray_acknowledgement_does_no_harm
            }
        }
    };
}

#[cfg(test)]
mod tests {
    /// A case that is written but not listed would never run anywhere.
    #[test]
    fn every_case_is_listed() {
        let sources = [include_str!("publisher.rs"), include_str!("subscriber.rs")];
        let listed = include_str!("cases.rs");
        for case in sources.iter().flat_map(|source| source.split("\npub async fn ").skip(1)) {
            let name = case.split('(').next().unwrap();
            assert!(listed.lines().any(|line| line.trim() == name), "{name} is not in the list of cases");
        }
    }
}

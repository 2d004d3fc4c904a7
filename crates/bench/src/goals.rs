//! What is aimed at, and whether it was reached.

use serde_json::Value;

/// One figure with its goal.
struct Goal {
    key: &'static str,
    what: &'static str,
    wanted: Wanted,
}

enum Wanted {
    AtLeast(f64),
    AtMost(f64),
}

use Wanted::{AtLeast, AtMost};

const fn goal(key: &'static str, what: &'static str, wanted: Wanted) -> Goal {
    Goal { key, what, wanted }
}

const GOALS: &[Goal] = &[
    goal("drain_vs_batch_claim", "drain, times the batch claim", AtLeast(10.0)),
    goal("drain_vs_skip_locked_delete", "drain, times SKIP LOCKED + DELETE", AtLeast(2.5)),
    goal("drain_vs_copy", "drain, share of a bare COPY", AtLeast(0.4)),
    goal("relay_wal_bytes_per_message", "WAL that relaying writes, bytes per message", AtMost(2.0)),
    goal("drain_5m_vs_100k", "drain of a large backlog against a small one", AtLeast(0.85)),
    goal("drain_held_snapshot_vs_free", "drain with a snapshot held against without", AtLeast(0.85)),
    goal("held_write_transaction_delay_ms", "longest delay by a held write transaction, ms", AtMost(500.0)),
    goal("producer_16", "producers, 16 connections, statement by statement", AtLeast(0.72)),
    goal("producer_16_pipelined", "producers, 16 connections, pipelined", AtLeast(0.78)),
    goal("producer_1_pipelined", "producer, 1 connection, pipelined", AtLeast(0.85)),
    goal("stored_overhead_bytes", "stored bytes per message beyond the payload", AtMost(200.0)),
    goal("latency_500_p50_ms", "commit to publish at 500/s, p50, ms", AtMost(3.0)),
    goal("latency_500_p99_ms", "commit to publish at 500/s, p99, ms", AtMost(25.0)),
    goal("latency_2000_p50_ms", "commit to publish at 2000/s, p50, ms", AtMost(3.0)),
    goal("latency_2000_p99_ms", "commit to publish at 2000/s, p99, ms", AtMost(25.0)),
    goal("producer_with_hints_vs_without", "producers with hints against without", AtLeast(0.95)),
    goal("idle_statements_per_second", "statements per second of an idle node", AtMost(1.0)),
    goal("relay_rss_mb", "peak resident memory of a relay, MB", AtMost(100.0)),
    goal("mysql_drain_vs_batch_claim", "MariaDB: drain, times claim and mark", AtLeast(2.0)),
    goal("mongodb_drain_vs_two_step_claim", "MongoDB: drain, times the two-step claim", AtLeast(3.0)),
    goal("mongodb_producer_ratio", "MongoDB: producers, 4 sessions", AtLeast(0.75)),
    goal("mongodb_latency_500_p50_ms", "MongoDB: commit to publish at 500/s, p50, ms", AtMost(10.0)),
    goal("kafka_relay_vs_bare", "relay to Kafka, share of a bare producer", AtLeast(0.6)),
    goal("nats_relay_vs_bare", "relay to NATS, share of a bare producer", AtLeast(0.6)),
    goal("rabbitmq_relay_vs_bare", "relay to RabbitMQ, share of a bare producer", AtLeast(0.6)),
    goal("redis_relay_vs_bare", "relay to Redis, share of a bare producer", AtLeast(0.6)),
    goal("mysql_producer_ratio", "MariaDB: producers, 16 connections", AtLeast(0.5)),
];

/// Every figure with its goal and a verdict, then everything else that was found out.
pub(crate) fn table(results: &Value) -> String {
    let mut out = format!("{:<52} {:>12} {:>12}  \n", "", "measured", "goal");
    for goal in GOALS {
        let Some(measured) = results[goal.key].as_f64() else { continue };
        let (sign, limit, met) = match goal.wanted {
            AtLeast(limit) => ("≥", limit, measured >= limit),
            AtMost(limit) => ("≤", limit, measured <= limit),
        };
        let verdict = if met { "met" } else { "MISSED" };
        out += &format!("{:<52} {measured:>12.3} {:>12}  {verdict}\n", goal.what, format!("{sign} {limit}"));
    }
    let others = results.as_object().into_iter().flatten();
    for (key, value) in others.filter(|(key, _)| !GOALS.iter().any(|goal| goal.key == key.as_str())) {
        out += &format!("{key:<52} {:>12}\n", value.as_f64().map_or(value.to_string(), |value| format!("{value:.3}")));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_goal_that_is_missed_is_called_missed() {
        let table = table(&json!({ "drain_vs_copy": 0.39, "relay_rss_mb": 99.9, "foreign_load_cores": 1.5 }));
        let verdict = |what: &str| table.lines().find(|line| line.contains(what)).map(str::to_owned).unwrap();
        assert!(verdict("bare COPY").ends_with("MISSED"), "{table}");
        assert!(verdict("resident memory").ends_with("met"), "{table}");
        assert!(verdict("foreign_load_cores").ends_with("1.500"), "{table}");
    }
}

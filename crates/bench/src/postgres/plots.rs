//! The pictures of a run, for people who would rather look than read.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{held::Curve, latency::percentile};
use crate::plot::{Series, bars, lines};

/// What a run leaves beside its figures.
#[derive(Default)]
pub(crate) struct Traces {
    pub(crate) held: Vec<Curve>,
    /// Rate, and every latency in milliseconds, ascending.
    pub(crate) latencies: Vec<(u32, Vec<f64>)>,
}

/// Writes the pictures of everything that was measured.
pub(crate) fn write(directory: &Path, results: &Value, traces: &Traces) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let save = |name: &str, svg: String| {
        let path = directory.join(name);
        fs::write(&path, svg).with_context(|| format!("write {}", path.display()))
    };
    let figure = |key: &str| results[key].as_f64();
    let rows = |pairs: &[(&str, &str)]| -> Option<Vec<(String, f64)>> {
        pairs.iter().map(|(label, key)| Some(((*label).to_owned(), figure(key)?))).collect()
    };
    if let Some(rows) = rows(&[
        ("Postrider, whole engine", "drain_messages_per_second"),
        ("COPY TO STDOUT (limit)", "copy_messages_per_second"),
        ("SKIP LOCKED + DELETE", "skip_locked_delete_messages_per_second"),
        ("batch claim", "batch_claim_messages_per_second"),
    ]) {
        save(
            "drain.svg",
            bars("Draining a backlog", "messages per second, batches of 1000, payloads of 256 bytes", &rows, None),
        )?;
    }
    if let Some(rows) = rows(&[
        ("Postrider", "relay_wal_bytes_per_message"),
        ("SKIP LOCKED + DELETE", "delete_wal_bytes_per_message"),
        ("batch claim", "claim_wal_bytes_per_message"),
    ]) {
        save(
            "wal.svg",
            bars("Write-ahead log that relaying writes", "bytes per message, after the insert", &rows, None),
        )?;
    }
    if let Some(rows) = rows(&[
        ("16, statements", "producer_16"),
        ("16, a plain row", "producer_16_plain_row"),
        ("16, joined", "producer_16_joined"),
        ("16, pipelined", "producer_16_pipelined"),
        ("1, statements", "producer_1"),
        ("1, a plain row", "producer_1_plain_row"),
        ("1, joined", "producer_1_joined"),
        ("1, pipelined", "producer_1_pipelined"),
    ]) {
        let subtitle = "transactions per second with an enqueue, as a share of those without; by connections";
        save("producer.svg", bars("What an enqueue costs a producer", subtitle, &rows, None))?;
    }
    if !traces.held.is_empty() {
        let subtitle = "messages published since the start, while somebody holds a snapshot open";
        let axes = ("seconds", "messages");
        save(
            "held-snapshot.svg",
            lines("Draining under a held snapshot", subtitle, axes, &curves(&traces.held), false),
        )?;
    }
    if !traces.latencies.is_empty() {
        let axes = ("milliseconds (powers of ten)", "share, %");
        let subtitle = "share of messages published within so many milliseconds of the commit";
        save("latency.svg", lines("From commit to publish", subtitle, axes, &shares(&traces.latencies), true))?;
    }
    Ok(())
}

/// A hundred points of each.
fn curves(curves: &[Curve]) -> Vec<Series> {
    let thin = |points: &[(Duration, u64)]| {
        let step = (points.len() / 100).max(1);
        let last = points.last().into_iter();
        points.iter().step_by(step).chain(last).map(|(at, count)| (at.as_secs_f64(), *count as f64)).collect()
    };
    curves.iter().map(|(name, points)| ((*name).to_owned(), thin(points))).collect()
}

fn shares(latencies: &[(u32, Vec<f64>)]) -> Vec<Series> {
    let shares = || (0..=200).map(|step| f64::from(step) / 200.0);
    let curve = |values: &[f64]| shares().map(|share| (percentile(values, share), share * 100.0)).collect();
    latencies.iter().map(|(rate, values)| (format!("{rate} messages/s"), curve(values))).collect()
}

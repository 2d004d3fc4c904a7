//! `[relay]`: leases, drains and retention of this node.

use std::time::Duration;

use postrider::relay::options::Options;
use toml::de::DeValue;

use super::{reader::Section, shapes::written};
use crate::values;

/// How long dead messages wait where they do not wait for ever and nobody says how long.
const KEEP_DEAD: Duration = Duration::from_hours(10 * 24);

/// What holds for the relays of all stores.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RelayConfig {
    /// How people recognise this node.
    pub(crate) name: Option<String>,
    pub(crate) options: Options,
    /// How long dead messages wait for an operator before they are discarded. `None`: for ever.
    pub(crate) keep_dead: Option<Duration>,
    /// Whether to start although the log has topics that no route reads.
    pub(crate) allow_unrouted: bool,
}

pub(super) fn read(top: &mut Section<'_, '_>) -> RelayConfig {
    let mut section = top.section_or_empty("relay");
    let name = section.text("name");
    let lease_life = section.duration_or_default("lease_life");
    if lease_life < Duration::from_millis(100) {
        section.object("lease_life", "must be at least \"100ms\"");
    }
    let heartbeat_every = section
        .duration("heartbeat_every")
        // Left out, it follows a lease that is shorter than usual.
        .unwrap_or_else(|| Options::default().heartbeat_every.min(lease_life / 4));
    if heartbeat_every.is_zero() || heartbeat_every * 3 > lease_life {
        section.object("heartbeat_every", "must be more than nothing and at most a third of `lease_life`");
    }
    let options = Options {
        lease_life,
        heartbeat_every,
        drain_deadline: section.duration_or_default("drain_deadline"),
        keep_delivered: section.value("keep_delivered", written(keep)),
        keep_delivered_max: section.number("keep_delivered_max").map(u64::from),
        purge_every: section.duration_or_default("purge_every"),
    };
    let allow_unrouted = section.word_or_default("unrouted", &[("refuse", false), ("allow", true)]);
    let keep_dead = section.value("keep_dead", switch_or(KEEP_DEAD, written(keep_dead)));
    section.close();
    RelayConfig { name, options, keep_dead, allow_unrouted }
}

/// `true` is the usual time, `false` is none.
fn switch_or(
    usual: Duration,
    read: impl Fn(&DeValue<'_>) -> Result<Option<Duration>, String>,
) -> impl Fn(&DeValue<'_>) -> Result<Option<Duration>, String> {
    move |value| match value {
        DeValue::Boolean(on) => Ok(on.then_some(usual)),
        other => read(other),
    }
}

/// Nobody could ever look at a message that is given up the moment it is dead.
fn keep_dead(text: &str) -> Result<Option<Duration>, String> {
    let kept = keep(text)?;
    if kept.is_some_and(|kept| kept.is_zero()) {
        return Err("must be more than nothing, or every message would be discarded as soon as it is dead; write \
                    `keep_dead = false` to keep them until an operator decides, or how long, such as \"30d\""
            .to_owned());
    }
    Ok(kept)
}

fn keep(text: &str) -> Result<Option<Duration>, String> {
    if text == "forever" {
        Ok(None)
    } else {
        values::duration(text).map(Some).map_err(|e| format!("{e}, or \"forever\""))
    }
}

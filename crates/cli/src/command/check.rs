//! `postrider check`: one line and a code, for Nagios and its relatives, cron and probes; or metrics for a text file.
//!
//! The codes are those of monitoring plugins, which everything that runs such a check understands: 0 well, 1 warning, 2
//! critical, 3 unknown. They are not the codes of the other commands.

use std::time::Duration;

use clap::Args;
use postrider::{
    Error,
    core::admin::{CauseGroup, Overview, StoreAdmin, Vitals},
    diagnosis::{self, Finding},
    metrics::Metrics,
};
use serde_json::{Value, json};

use super::store::StoreArguments;
use crate::{
    exit::{Code, Failure, Outcome},
    output::{OutputArguments, plural, print},
    table::printable,
    topics, values,
};

#[derive(Args)]
#[command(
    after_help = "Exit codes, as monitoring plugins have them:\n  0  well\n  1  warning: also if no route reads a topic\n  2  critical: also if no relay \
                        is alive, or the store cannot be reached\n  3  unknown: it cannot be said which store is meant, or an argument is wrong"
)]
pub(crate) struct Arguments {
    /// A warning from this age of the oldest undelivered message on. Replays do not count: what they deliver is old.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = values::duration)]
    age_warn: Duration,
    /// Critical from this age on.
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = values::duration)]
    age_crit: Duration,
    /// A warning from so many dead messages on.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    dead_warn: u64,
    /// Critical from so many on. Default: never.
    #[arg(long, value_name = "NUMBER")]
    dead_crit: Option<u64>,
    /// Prints metrics for the text file collector of Prometheus instead, under the names that a relay has for them.
    #[arg(long, conflicts_with_all = ["output", "json"])]
    prometheus: bool,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// That nothing is known, as a code of monitoring plugins.
pub(crate) const UNKNOWN: Code = Level::Unknown.code();

/// How bad it is, worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Well,
    Warning,
    Critical,
    Unknown,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Well => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }

    /// The number is what counts here, not what the other commands mean by it.
    const fn code(self) -> Code {
        match self {
            Self::Well => Code::Done,
            Self::Warning => Code::Problem,
            Self::Critical => Code::Usage,
            Self::Unknown => Code::Unreachable,
        }
    }
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let mut seen = match look(arguments).await {
        Ok(seen) => seen,
        Err((failure, lock)) => return Ok(blind(arguments, &failure, lock)),
    };
    let judged = Judged::new(arguments, &seen);
    if arguments.prometheus {
        print(metrics(arguments, &seen));
    } else {
        seen.findings.extend(seen.in_part.take());
        arguments.output.object(|| judged.as_json(&seen.findings), || judged.as_text(arguments, &seen.findings));
    }
    Ok(judged.level.code())
}

/// What was seen in one look.
struct Seen {
    overview: Overview,
    dead: Vec<CauseGroup>,
    vitals: Vitals,
    findings: Vec<Finding>,
    unread: Vec<(String, u64)>,
    /// That more could be unread, since only a part of the log was looked at. No metric: it keeps no route from moving.
    in_part: Option<Finding>,
}

/// Also the lock that nobody can look behind, if that is why nothing was seen.
async fn look(arguments: &Arguments) -> Result<Seen, (Failure, Option<Finding>)> {
    let admin = arguments.store.open().await.map_err(|failure| (failure, None))?.admin;
    match ask(&*admin).await {
        Ok(seen) => Ok(seen),
        Err(error) => Err((error.into(), diagnosis::locked(&*admin).await)),
    }
}

async fn ask(admin: &dyn StoreAdmin) -> Result<Seen, Error> {
    let (dead, vitals) = (admin.dead_groups().await?, admin.vitals().await?);
    let mut topics = topics::unknown(Vec::new());
    let overview = topics::look_for(topics::PATIENCE, admin, &mut topics).await?;
    let findings = diagnosis::survey(admin, &overview, &topics).await?;
    let (unread, in_part) = (topics.unread(&overview), topics.in_part());
    Ok(Seen { overview, dead, vitals, findings, unread, in_part })
}

/// A store that cannot be reached is the worst that can be; a question that cannot be understood is not about it. What goes
/// into a text file for Prometheus is metrics or nothing: one line that is none spoils the whole file.
fn blind(arguments: &Arguments, failure: &Failure, lock: Option<Finding>) -> Code {
    let level = if failure.code() == Code::Usage { Level::Unknown } else { Level::Critical };
    if arguments.prometheus {
        eprintln!("{failure}");
        if level == Level::Critical {
            let metrics = Metrics::new();
            let of_store = metrics.of_store(&arguments.store.name());
            match lock {
                Some(lock) => of_store.show_locked(lock),
                None => of_store.show_unreachable(),
            }
            print(metrics.render_plain());
        }
    } else {
        let told = failure.to_string().replace("\n  because: ", "; because: ");
        let told = told.strip_prefix("error: ").unwrap_or(&told);
        arguments.output.object(
            || json!({ "level": level.name(), "error": told }),
            || format!("POSTRIDER {} - {}\n", level.name(), one_line(told)),
        );
    }
    level.code()
}

/// A bar would begin the performance data.
fn one_line(text: &str) -> String {
    printable(text).replace('|', "/")
}

/// What counts for the level.
struct Judged {
    level: Level,
    oldest: Duration,
    pending: u64,
    /// Whether there may be more.
    pending_more: bool,
    dead: u64,
    keys: u64,
    relays: u64,
}

impl Judged {
    fn new(arguments: &Arguments, seen: &Seen) -> Self {
        let Seen { overview, dead, unread, .. } = seen;
        // What a replay delivers again is old by nature, and nobody waits for it. What it has given up waits for an operator.
        let live = || overview.routes.iter().filter(|route| route.replay_of.is_none());
        let mut judged = Self {
            level: Level::Well,
            oldest: live().filter_map(|route| route.oldest_pending_age).max().unwrap_or_default(),
            pending: live().map(|route| route.pending).sum(),
            pending_more: live().any(|route| route.pending_more),
            // An overview knows no replay that has ended; what it has given up waits all the same.
            dead: dead.iter().map(|group| group.rows).sum(),
            keys: overview.routes.iter().map(|route| route.parked.blocking).sum(),
            relays: overview.nodes.iter().filter(|node| !node.is_silent()).count() as u64,
        };
        let by_age = match judged.oldest {
            age if age >= arguments.age_crit => Level::Critical,
            age if age >= arguments.age_warn => Level::Warning,
            _ => Level::Well,
        };
        let by_dead = match judged.dead {
            dead if arguments.dead_crit.is_some_and(|crit| dead >= crit) => Level::Critical,
            dead if dead >= arguments.dead_warn => Level::Warning,
            _ => Level::Well,
        };
        let by_relays = if judged.relays == 0 { Level::Critical } else { Level::Well };
        // Retention removes what no route reads, once it is old enough.
        let by_routes = if unread.is_empty() { Level::Well } else { Level::Warning };
        // What waits behind a log that cannot be read is not seen.
        let is_failing = seen.findings.iter().any(|finding| finding.code == diagnosis::STORE_FAILS);
        let by_store = if is_failing { Level::Critical } else { Level::Well };
        judged.level = by_age.max(by_dead).max(by_relays).max(by_routes).max(by_store);
        judged
    }

    fn as_json(&self, findings: &[Finding]) -> Value {
        json!({
            "level": self.level.name(), "oldest_pending_age_seconds": self.oldest.as_secs_f64(),
            "pending": self.pending, "pending_more": self.pending_more, "dead": self.dead, "parked_keys": self.keys, "relays": self.relays,
            "findings": findings,
        })
    }

    /// One line with performance data, then one for each finding.
    fn as_text(&self, arguments: &Arguments, findings: &[Finding]) -> String {
        let Self { level, oldest, pending, dead, keys, relays, .. } = self;
        let more = if self.pending_more { "+" } else { "" };
        let alive = match relays {
            0 => "no relay is alive".to_owned(),
            relays => format!("{} alive", plural(*relays, "relay")),
        };
        let age = oldest.as_secs_f64();
        let mut text = format!(
            "POSTRIDER {} - {alive}, {pending}{more} pending, oldest {age:.1}s, {dead} dead | \
             oldest_age={age:.3}s;{};{};0 pending={pending};;;0 dead={dead};{};{};0 parked_keys={keys};;;0 \
             relays={relays};;;0\n",
            level.name(),
            arguments.age_warn.as_secs_f64(),
            arguments.age_crit.as_secs_f64(),
            arguments.dead_warn,
            arguments.dead_crit.map_or_else(String::new, |crit| crit.to_string()),
        );
        for finding in findings {
            text.push_str(&format!("{} [{}]\n", one_line(&finding.to_string()), finding.code));
        }
        text
    }
}

/// Under the name that the store has in the metrics of its relays.
fn metrics(arguments: &Arguments, seen: &Seen) -> String {
    let Seen { overview, dead, vitals, findings, unread, .. } = seen;
    let metrics = Metrics::new();
    let of_store = metrics.of_store(&arguments.store.name());
    of_store.show_unrouted(unread);
    of_store.show(overview, dead);
    of_store.show_vitals(vitals);
    of_store.show_findings(findings);
    metrics.render_plain()
}

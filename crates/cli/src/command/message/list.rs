//! `postrider message list`: the log, page by page. The log has no index but its order: a narrow filter passes over all of
//! it.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use postrider::core::{
    admin::{ParkedFilter, ParkedRow, StoreAdmin},
    browse::{LogRecord, RecordFilter, Standing},
    lease::ReplayFilter,
    parked::{Ordinal, ParkedState},
    time::Timestamp,
    topic::TopicFilter,
};
use serde_json::{Value, json};

use super::StoreArguments;
use crate::{
    command::names::known_route,
    exit::{Code, Failure, Outcome},
    output::{Format, OutputArguments, or_dash, plural, print},
    table::Table,
    values,
};

/// Records of one look at the store.
const LOOK: u32 = 1_000;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// Only what this route reads.
    #[arg(long)]
    route: Option<String>,
    /// Only what stands like this, on the route or on any.
    #[arg(long, value_enum)]
    state: Option<State>,
    /// The oldest first.
    #[arg(long)]
    oldest_first: bool,
    /// Goes on behind the last line of an earlier list: its number, or for parked messages its place `route/ordinal`.
    #[arg(long, value_name = "PLACE")]
    after: Option<String>,
    /// At most this many.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// Which records, by what they are.
#[derive(Args, Clone, Debug)]
pub(crate) struct Chosen {
    /// On these topics, as a route would say it; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    topic: Vec<String>,
    /// With this ordering key.
    #[arg(long)]
    key: Option<String>,
    /// With this message name.
    #[arg(long)]
    name: Option<String>,
    /// Enqueued at or after this instant: `2026-11-15T20:24:41Z`, or how long ago: `2h`.
    #[arg(long, value_name = "INSTANT", value_parser = values::instant)]
    since: Option<Timestamp>,
    /// Enqueued before this instant.
    #[arg(long, value_name = "INSTANT", value_parser = values::instant)]
    until: Option<Timestamp>,
}

impl Chosen {
    pub(crate) fn filter(&self) -> Outcome<ReplayFilter> {
        let topics = if self.topic.is_empty() { None } else { Some(TopicFilter::new(&self.topic)?) };
        let Self { key, name, since, until, .. } = self.clone();
        if let (Some(since), Some(until)) = (since, until)
            && since > until
        {
            let what = format!("--since {since} is later than --until {until}, so nothing lies between them");
            return Err(Failure::usage(what));
        }
        Ok(ReplayFilter { since, until, key, name, topics })
    }
}

/// How a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    /// Every route that reads it has passed it.
    Passed,
    /// A route has not passed it.
    Waiting,
    /// No route reads it.
    Unrouted,
    /// Parked until its time.
    Scheduled,
    /// Parked until its next attempt.
    Retrying,
    /// Parked behind another of its key.
    Held,
    /// Given up.
    Dead,
}

impl State {
    fn parked(self) -> Option<ParkedState> {
        match self {
            Self::Scheduled => Some(ParkedState::Scheduled),
            Self::Retrying => Some(ParkedState::Retrying),
            Self::Held => Some(ParkedState::Held),
            Self::Dead => Some(ParkedState::Dead),
            Self::Passed | Self::Waiting | Self::Unrouted => None,
        }
    }

    fn standing(self) -> Option<Standing> {
        match self {
            Self::Passed => Some(Standing::Passed),
            Self::Waiting => Some(Standing::Waiting),
            Self::Unrouted => Some(Standing::Unrouted),
            _ => None,
        }
    }
}

pub(super) async fn run(arguments: &Arguments) -> Outcome {
    let chosen = arguments.chosen.filter()?;
    let after = arguments.after.as_deref();
    let listed = match arguments.state.and_then(State::parked) {
        Some(state) => {
            let after = after.map(place).transpose()?;
            parked(&*arguments.store.open().await?.admin, arguments, &chosen, state, after).await?
        }
        None => {
            let after = after.map(number).transpose()?;
            records(&*arguments.store.open().await?.admin, arguments, chosen, after).await?
        }
    };
    match arguments.output.several() {
        Format::Table => {
            let mut table = Table::new(&["PLACE", "MESSAGE", "TOPIC", "NAME", "KEY", "ENQUEUED", "STATE"]);
            listed.lines.into_iter().for_each(|line| table.row(line.cells));
            let count = plural(table.len() as u64, "message");
            let more = listed.next.map_or_else(String::new, |next| format!("; more with --after {next}"));
            print(format_args!("{table}{count}{more}\n"));
        }
        Format::Json => {
            let messages: Vec<Value> = listed.lines.into_iter().map(|line| line.json).collect();
            print(format_args!("{}\n", json!({ "messages": messages, "next": listed.next })));
        }
        Format::Ndjson => listed.lines.iter().for_each(|line| print(format_args!("{}\n", line.json))),
    }
    Ok(Code::Done)
}

struct Listed {
    lines: Vec<Line>,
    next: Option<String>,
}

struct Line {
    cells: [String; 7],
    json: Value,
}

async fn records(
    admin: &dyn StoreAdmin,
    arguments: &Arguments,
    chosen: ReplayFilter,
    mut after: Option<u64>,
) -> Outcome<Listed> {
    let filter = RecordFilter {
        chosen,
        route: arguments.route.clone(),
        standing: arguments.state.and_then(State::standing),
        newest_first: !arguments.oldest_first,
    };
    if let Some(route) = &arguments.route {
        known_route(&admin.overview().await?, route)?;
    }
    let mut lines = Vec::new();
    // Ends with the log or with a full list: every look moves on.
    loop {
        let left = arguments.limit - u32::try_from(lines.len()).unwrap_or(u32::MAX);
        let page = admin.records(&filter, after, left.min(LOOK)).await?;
        lines.extend(page.records.iter().map(of_record));
        after = page.next;
        if after.is_none() || lines.len() >= arguments.limit as usize {
            return Ok(Listed { lines, next: after.map(|number| number.to_string()) });
        }
    }
}

fn of_record(record: &LogRecord) -> Line {
    let standing = match record.standing() {
        Standing::Passed => "passed",
        Standing::Waiting => "waiting",
        Standing::Unrouted => "unrouted",
    };
    let LogRecord { number, id, topic, name, key, enqueued_at, deliver_at, expires_at, passed } = record;
    let routes: Vec<Value> =
        passed.iter().map(|(lane, passed)| json!({ "route": lane.route, "passed": passed })).collect();
    Line {
        cells: [
            number.to_string(),
            id.to_string(),
            topic.clone(),
            name.clone(),
            or_dash(key.as_ref()),
            enqueued_at.to_string(),
            standing.to_owned(),
        ],
        json: json!({
            "number": number, "id": id, "topic": topic, "name": name, "key": key,
            "enqueued_at": enqueued_at.to_string(),
            "deliver_at": deliver_at.map(|at| at.to_string()),
            "expires_at": expires_at.map(|at| at.to_string()),
            "state": standing, "routes": routes,
        }),
    }
}

async fn parked(
    admin: &dyn StoreAdmin,
    arguments: &Arguments,
    chosen: &ReplayFilter,
    state: ParkedState,
    mut after: Option<(Arc<str>, Ordinal)>,
) -> Outcome<Listed> {
    if arguments.oldest_first || chosen.since.is_some() || chosen.until.is_some() {
        return Err(Failure::usage(
            "parked messages are listed by route and place; --since, --until and --oldest-first are for the log",
        ));
    }
    let filter = ParkedFilter {
        route: arguments.route.clone(),
        state: Some(state),
        key: chosen.key.clone(),
        ..ParkedFilter::default()
    };
    let mut lines = Vec::new();
    // Ends with the rows or with a full list.
    loop {
        let rows = admin.parked(&filter, after.clone(), LOOK).await?;
        for row in &rows {
            if lines.len() >= arguments.limit as usize {
                let next = after.map(|(route, ordinal)| format!("{route}/{}", ordinal.0));
                return Ok(Listed { lines, next });
            }
            after = Some((Arc::clone(&row.route), row.ordinal));
            let envelope = &row.envelope;
            if chosen.takes(&envelope.topic, &envelope.name, chosen.key.as_deref(), Timestamp::from_micros(0)) {
                lines.push(of_row(row));
            }
        }
        if rows.len() < LOOK as usize {
            return Ok(Listed { lines, next: None });
        }
    }
}

fn of_row(row: &ParkedRow) -> Line {
    let envelope = &row.envelope;
    let place = format!("{}/{}", row.route, row.ordinal.0);
    let key = envelope.key.as_ref().map(ToString::to_string);
    let parked_for = postrider::diagnosis::in_words(row.age);
    Line {
        cells: [
            place.clone(),
            envelope.id.to_string(),
            envelope.topic.to_string(),
            envelope.name.to_string(),
            or_dash(key.as_ref()),
            format!("parked {parked_for} ago"),
            row.state.to_string(),
        ],
        json: json!({
            "place": place, "id": envelope.id, "topic": envelope.topic, "name": envelope.name, "key": key,
            "state": row.state.name(), "route": row.route, "attempts": row.attempts,
            "cause": row.cause.as_ref().map(|(code, _)| code), "parked_for_seconds": row.age.as_secs_f64(),
        }),
    }
}

fn number(text: &str) -> Outcome<u64> {
    text.parse().map_err(|_| Failure::usage(format!("--after: `{text}` is not the number of a record")))
}

fn place(text: &str) -> Outcome<(Arc<str>, Ordinal)> {
    let parsed =
        text.rsplit_once('/').and_then(|(route, ordinal)| Some((route.into(), Ordinal(ordinal.parse().ok()?))));
    parsed.ok_or_else(|| Failure::usage(format!("--after: `{text}` is not a place such as `billing/17`")))
}

//! `postrider tail`: what the log gets, what is refused and what dies, as it happens.
//!
//! The store is asked every now and then; nothing is subscribed to, and a relay need not run. Delivery leaves no row, so
//! what simply goes on is not seen here. A record that is committed long after it was enqueued is not seen either: every
//! look goes back a minute, or 20 000 records, and no further.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use postrider::core::{
    admin::{ParkedFilter, ParkedRow, StoreAdmin},
    browse::{LogRecord, RecordFilter},
    lease::ReplayFilter,
    parked::{Ordinal, ParkedState},
    time::Timestamp,
    topic::TopicFilter,
};
use serde_json::{Value, json};

use super::{names::known_route, store::StoreArguments};
use crate::{
    exit::{Code, Outcome},
    output::{Format, OutputArguments, or_dash, print},
    signals::Stop,
    table::printable,
    values,
};

/// How far back every look goes, for transactions that commit late.
const BACK: Duration = Duration::from_secs(60);

/// How many records every look goes back at most.
const BACK_MAX: usize = 20_000;

/// Records of one look at the store.
const LOOK: u32 = 1_000;

/// Parked rows that are watched of each state; each comes with its payload.
const PARKED_MAX: usize = 5_000;

/// What is watched, the news that matter most first. Each by itself, so that any number of scheduled rows hides none of the others.
const WATCHED: [ParkedState; 4] = [ParkedState::Dead, ParkedState::Retrying, ParkedState::Held, ParkedState::Scheduled];

#[derive(Args)]
pub(crate) struct Arguments {
    /// Of this route, or for it.
    #[arg(long)]
    route: Option<String>,
    /// With this ordering key.
    #[arg(long)]
    key: Option<String>,
    /// On these topics; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    topic: Vec<String>,
    /// How often to look.
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = values::duration)]
    every: Duration,
    /// Ends after this much time. Default: never.
    #[arg(long = "for", value_name = "DURATION", value_parser = values::duration)]
    period: Option<Duration>,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let topics = if arguments.topic.is_empty() { None } else { Some(TopicFilter::new(&arguments.topic)?) };
    let admin = arguments.store.open().await?.admin;
    let mut stop = Stop::install()?;
    // Also in the middle of a look: a store that does not answer is when people lose their patience.
    tokio::select! {
        () = stop.next() => Ok(Code::Done),
        told = tell(arguments, &*admin, topics) => told,
    }
}

/// Looks again and again, until the time is over.
async fn tell(arguments: &Arguments, admin: &dyn StoreAdmin, topics: Option<TopicFilter>) -> Outcome {
    let mut tail = Tail::begin(arguments, admin, topics).await?;
    let end = async {
        match arguments.period {
            Some(period) => tokio::time::sleep(period).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => return tail.look(admin).await.map(|()| Code::Done),
            () = tokio::time::sleep(arguments.every.max(Duration::from_millis(20))) => tail.look(admin).await?,
        }
    }
}

struct Tail<'a> {
    arguments: &'a Arguments,
    records: RecordFilter,
    parked: ParkedFilter,
    /// Behind this record every look begins.
    after: Option<u64>,
    /// Records behind it that were shown.
    shown: BTreeSet<u64>,
    /// Parked rows as they were last seen.
    rows: BTreeMap<(Arc<str>, Ordinal), (ParkedState, u32)>,
    /// States of which more rows are parked than are watched.
    too_many: BTreeSet<&'static str>,
}

impl<'a> Tail<'a> {
    /// What is there already is not news.
    async fn begin(arguments: &'a Arguments, admin: &dyn StoreAdmin, topics: Option<TopicFilter>) -> Outcome<Self> {
        let chosen = ReplayFilter { key: arguments.key.clone(), topics, ..ReplayFilter::default() };
        let route = arguments.route.clone();
        let parked = ParkedFilter { route: route.clone(), key: arguments.key.clone(), ..ParkedFilter::default() };
        let records = RecordFilter { chosen, route, ..RecordFilter::default() };
        let overview = admin.overview().await?;
        if let Some(route) = &arguments.route {
            known_route(&overview, route)?;
        }
        let since = overview.at.saturating_sub(BACK);
        let mut tail = Self {
            arguments,
            records,
            parked,
            after: None,
            shown: BTreeSet::new(),
            rows: BTreeMap::new(),
            too_many: BTreeSet::new(),
        };
        tail.go_to_the_end(admin, since).await?;
        tail.watch(admin, false).await?;
        Ok(tail)
    }

    /// From the newest record back to what is old enough.
    async fn go_to_the_end(&mut self, admin: &dyn StoreAdmin, since: Timestamp) -> Outcome<()> {
        let newest = RecordFilter { newest_first: true, ..RecordFilter::default() };
        let mut before = None;
        loop {
            let page = admin.records(&newest, before, LOOK).await?;
            for record in page.records {
                if record.enqueued_at < since {
                    self.after = Some(record.number);
                    return Ok(());
                }
                self.shown.insert(record.number);
            }
            before = page.next;
            if before.is_none() {
                return Ok(());
            }
            if self.shown.len() >= BACK_MAX {
                self.after = before;
                return Ok(());
            }
        }
    }

    async fn look(&mut self, admin: &dyn StoreAdmin) -> Outcome<()> {
        let old = admin.overview().await?.at.saturating_sub(BACK);
        let (mut after, mut passed) = (self.after, None);
        // Everything is looked at, whatever is chosen: so the next look begins where this one need not have been. Ends with
        // the log.
        loop {
            let page = admin.records(&RecordFilter::default(), after, LOOK).await?;
            for mut record in page.records {
                if record.enqueued_at < old {
                    passed = Some(record.number);
                }
                if self.shown.insert(record.number) && self.records.takes(&mut record) {
                    self.tell_of_record(&record);
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let surplus = self.shown.len().saturating_sub(BACK_MAX);
        let crowded_out = surplus.checked_sub(1).and_then(|last| self.shown.iter().nth(last).copied());
        if let Some(passed) = passed.max(crowded_out) {
            self.after = Some(passed);
            self.shown = self.shown.split_off(&passed);
        }
        self.watch(admin, true).await
    }

    /// Looks at the parked rows, and tells of what has changed.
    async fn watch(&mut self, admin: &dyn StoreAdmin, tell: bool) -> Outcome<()> {
        let mut seen = BTreeMap::new();
        for state in WATCHED {
            let filter = ParkedFilter { state: Some(state), ..self.parked.clone() };
            let (mut after, mut count) = (None, 0);
            // Ends with the last row, or with as many as are watched.
            loop {
                let rows = admin.parked(&filter, after, LOOK).await?;
                after = rows.last().map(|last| (Arc::clone(&last.route), last.ordinal));
                let full = rows.len() == LOOK as usize;
                count += rows.len();
                for row in rows {
                    let (place, standing) = ((Arc::clone(&row.route), row.ordinal), (row.state, row.attempts));
                    if tell && self.rows.get(&place) != Some(&standing) && self.is_chosen(&row) {
                        self.tell_of_row(&row);
                    }
                    seen.insert(place, standing);
                }
                if !full {
                    break;
                }
                if count >= PARKED_MAX {
                    self.tell_of_too_many(state);
                    break;
                }
            }
        }
        self.rows = seen;
        Ok(())
    }

    /// Once, that not all of them are watched.
    fn tell_of_too_many(&mut self, state: ParkedState) {
        if self.too_many.insert(state.name()) {
            eprintln!(
                "more than {PARKED_MAX} messages are {state}: of later ones nothing is told; narrow it with --route or --key"
            );
        }
    }

    fn is_chosen(&self, row: &ParkedRow) -> bool {
        let topics = self.records.chosen.topics.as_ref();
        topics.is_none_or(|topics| topics.matches(&row.envelope.topic))
    }

    fn tell_of_record(&self, record: &LogRecord) {
        let LogRecord { id, topic, name, key, enqueued_at, .. } = record;
        self.tell(
            || {
                let at = enqueued_at.to_string();
                json!({ "event": "enqueued", "at": at, "id": id, "topic": topic, "name": name, "key": key })
            },
            || format!("{enqueued_at}  enqueued   {id}  {topic}  {name}  {}", or_dash(key.as_ref())),
        );
    }

    fn tell_of_row(&self, row: &ParkedRow) {
        let envelope = &row.envelope;
        let (code, detail) = row.cause.clone().unzip();
        self.tell(
            || {
                json!({
                    "event": row.state.name(), "id": envelope.id, "route": row.route, "topic": envelope.topic,
                    "name": envelope.name, "key": envelope.key.as_ref().map(ToString::to_string),
                    "attempts": row.attempts, "cause": code, "detail": detail,
                })
            },
            || {
                let cause = row.cause.as_ref().map_or_else(String::new, |(code, detail)| format!("  {code}: {detail}"));
                let (state, id, route, tries) = (row.state, envelope.id, &row.route, row.attempts);
                format!("{:27}  {state:9}  {id}  {route}  attempts {tries}{cause}", "")
            },
        );
    }

    fn tell(&self, value: impl FnOnce() -> Value, text: impl FnOnce() -> String) {
        match self.arguments.output.several() {
            Format::Table => print(format_args!("{}\n", printable(&text()))),
            Format::Json | Format::Ndjson => print(format_args!("{}\n", value())),
        }
    }
}

//! `postrider route test`: one marked message through the whole way, and how long it took.
//!
//! It is a real message: it is committed to the log, read, published to the destination and settled like any other. It has
//! the header `postrider-probe` with the route's name, the message name `postrider.probe` and no key, so that it waits
//! behind nobody. Whoever receives it can tell it by the header; every other route that reads its topic delivers it too.

use std::time::{Duration, Instant};

use clap::Args;
use postrider::{
    Envelope, MessageId,
    core::{
        admin::{ParkedFilter, RouteStatus, StoreAdmin},
        browse::RecordFilter,
        headers::{Headers, PROBE},
        lease::ReplayFilter,
        limits::Limits,
        topic::TopicPattern,
    },
    diagnosis::{self, obstacles},
};
use serde_json::json;

use crate::{
    command::{
        names::known_route,
        store::{ActorArguments, StoreArguments},
        why::in_lines,
    },
    exit::{Code, Failure, Outcome},
    output::OutputArguments,
    values,
};

/// How often the store is asked.
const EVERY: Duration = Duration::from_millis(20);

/// The name of the message.
const NAME: &str = "postrider.probe";

#[derive(Args)]
pub(crate) struct Arguments {
    /// The route.
    route: String,
    /// On this topic. Default: the first that the route reads, with `probe` for each wildcard.
    #[arg(long)]
    topic: Option<String>,
    /// What the message carries.
    #[arg(long, default_value = "{}")]
    payload: String,
    /// How long to wait for the delivery.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = values::duration)]
    timeout: Duration,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    actor: ActorArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(super) async fn run(arguments: &Arguments) -> Outcome {
    let admin = arguments.store.open().await?.admin;
    let overview = admin.overview().await?;
    known_route(&overview, &arguments.route)?;
    let route = overview.routes.iter().find(|route| *route.route == *arguments.route).expect("it is known");
    // A message that nobody would deliver now is not put into anybody's log.
    if let Some(obstacle) = obstacles(&overview, route, None).first() {
        let finding = obstacle.finding(&route.route);
        let advice = finding.fix.map_or_else(String::new, |fix| format!("; {fix}"));
        let message = format!("nothing was enqueued, since {}: {}{advice}", route.route, finding.what);
        return Err(Failure::new(Code::Problem, message));
    }
    let topic = topic(arguments, route)?;
    let envelope = probe(&topic, arguments);
    let id = envelope.id;
    let batch = Limits::default().check(vec![envelope])?;
    let began = Instant::now();
    admin.enqueue(batch, Some(&arguments.actor.actor())).await?;
    let committed = began.elapsed();
    let delivered = tokio::time::timeout(arguments.timeout, delivered(&*admin, &arguments.route, id)).await;
    let Ok(delivered) = delivered else { return too_late(&*admin, arguments, id).await };
    if !delivered? {
        return too_late(&*admin, arguments, id).await;
    }
    let took = began.elapsed();
    arguments.output.object(
        || {
            json!({
                "route": arguments.route, "id": id, "topic": topic, "delivered": true,
                "commit_seconds": committed.as_secs_f64(), "delivery_seconds": took.as_secs_f64(),
            })
        },
        || {
            let millis = |span: Duration| format!("{:.0} ms", span.as_secs_f64() * 1_000.0);
            format!(
                "{id} on {topic} was committed after {} and delivered and settled by {} after {}\n",
                millis(committed),
                arguments.route,
                millis(took)
            )
        },
    );
    Ok(Code::Done)
}

fn topic(arguments: &Arguments, route: &RouteStatus) -> Outcome<String> {
    let patterns: Vec<&str> = route.topics.split(", ").collect();
    let reads = |topic: &str| patterns.iter().any(|pattern| TopicPattern::new(pattern).is_ok_and(|p| p.matches(topic)));
    let Some(topic) = &arguments.topic else {
        return Ok(patterns[0].replace("**", "probe").replace('*', "probe"));
    };
    if !reads(topic) {
        let message = format!("{} does not read the topic `{topic}`; it reads {}", route.route, route.topics);
        return Err(Failure::usage(message));
    }
    Ok(topic.clone())
}

fn probe(topic: &str, arguments: &Arguments) -> Envelope {
    let headers = json!({ PROBE: arguments.route }).to_string();
    // The name of the header is ours, so it is not for applications to encode.
    let headers = Headers::from_encoded(headers.into_bytes().into());
    Envelope { headers, ..Envelope::new(topic, NAME, arguments.payload.clone()) }
}

/// Ends when the cursor has passed it (`true`), or when it is parked (`false`).
async fn delivered(admin: &dyn StoreAdmin, route: &str, id: MessageId) -> Outcome<bool> {
    let chosen = ReplayFilter { name: Some(NAME.to_owned()), ..ReplayFilter::default() };
    let filter = RecordFilter { chosen, route: Some(route.to_owned()), newest_first: true, ..RecordFilter::default() };
    let of_message = ParkedFilter { route: Some(route.to_owned()), id: Some(id), ..ParkedFilter::default() };
    loop {
        let newest = admin.records(&filter, None, 100).await?.records;
        let passed = newest
            .iter()
            .find(|record| record.id == id)
            .is_some_and(|record| record.passed.iter().all(|(_, passed)| *passed));
        if passed {
            return Ok(admin.parked_count(&of_message).await? == 0);
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn too_late(admin: &dyn StoreAdmin, arguments: &Arguments, id: MessageId) -> Outcome {
    let findings = diagnosis::why(admin, id).await?;
    let of_route = findings.into_iter().filter(|finding| finding.route.as_deref() == Some(&*arguments.route));
    let findings: Vec<_> = of_route.collect();
    arguments.output.object(
        || json!({ "route": arguments.route, "id": id, "delivered": false, "findings": findings }),
        || {
            let why: String = findings.iter().map(in_lines).collect();
            format!("{id} was not delivered in {}\n{why}", diagnosis::in_words(arguments.timeout))
        },
    );
    Ok(Code::Problem)
}

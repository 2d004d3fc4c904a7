//! `postrider replay`: delivers again what was delivered, beside the live route and marked as a replay.

use clap::Args;
use postrider::core::{admin::ReplaySpec, lease::ReplayFilter, time::Timestamp, topic::TopicFilter};

use super::store::{ActorArguments, StoreArguments};
use crate::{
    exit::{Code, Failure, Outcome},
    values,
};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Through which route.
    #[arg(long, required_unless_present = "cancel")]
    route: Option<String>,
    /// Enqueued at or after this instant: `2026-11-15T20:24:41Z`, or how long ago: `2h`.
    #[arg(long, value_parser = values::instant)]
    since: Option<Timestamp>,
    /// Enqueued before this instant.
    #[arg(long, value_parser = values::instant)]
    until: Option<Timestamp>,
    /// With this ordering key.
    #[arg(long)]
    key: Option<String>,
    /// With this message name.
    #[arg(long)]
    name: Option<String>,
    /// On these topics; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    topic: Vec<String>,
    /// Messages per second at most.
    #[arg(long)]
    rate: Option<u32>,
    /// Ends this replay instead of starting one.
    #[arg(long, value_name = "REPLAY", conflicts_with_all = ["route", "since", "until", "key", "name", "topic", "rate"])]
    cancel: Option<String>,
    #[command(flatten)]
    actor: ActorArguments,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let actor = arguments.actor.actor();
    if let Some(name) = &arguments.cancel {
        arguments.store.open().await?.admin.cancel_replay(name, &actor).await?;
        println!("{name} is cancelled");
        return Ok(Code::Done);
    }
    let spec = arguments.spec()?;
    let name = arguments.store.open().await?.admin.replay(&spec, &actor).await?;
    println!("{name} has started; `postrider status` shows how far it is");
    Ok(Code::Done)
}

impl Arguments {
    fn spec(&self) -> Outcome<ReplaySpec> {
        let topics = if self.topic.is_empty() { None } else { Some(TopicFilter::new(&self.topic)?) };
        let route = self.route.clone().ok_or_else(|| Failure::usage("say which route: --route"))?;
        let Self { since, until, key, name, .. } = self;
        let filter = ReplayFilter { since: *since, until: *until, key: key.clone(), name: name.clone(), topics };
        Ok(ReplaySpec { route, filter, rate: self.rate })
    }
}

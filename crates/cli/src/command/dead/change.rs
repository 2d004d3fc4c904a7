//! Redriving and discarding. One message at once; several only after a look at how many there are, slice by slice, each
//! slice one transaction with its audit record.

use std::{sync::Arc, time::Duration};

use clap::Args;
use postrider::core::admin::{Actor, ParkedFilter, StoreAdmin};
use serde_json::json;

use super::Filter;
use crate::{
    command::{
        names::known_if_empty,
        store::{ActorArguments, StoreArguments},
    },
    exit::{Code, Failure, Outcome},
    output::{OutputArguments, plural},
    progress::Progress,
};

/// Rows of one transaction where no rate is asked for.
const SLICE: u32 = 500;

#[derive(Args)]
pub(crate) struct Change {
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    filter: Filter,
    /// Every dead message of the store.
    #[arg(long)]
    all: bool,
    /// Really does it. Without, several messages are only counted.
    #[arg(long)]
    yes: bool,
    /// Messages per second at most.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    #[command(flatten)]
    actor: ActorArguments,
    #[command(flatten)]
    output: OutputArguments,
}

/// What to do with them.
#[derive(Clone, Copy)]
pub(super) enum Act {
    Redrive,
    Discard,
}

impl Act {
    fn verb(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Redrive => "redriven",
            Self::Discard => "discarded",
        }
    }

    async fn apply(self, admin: &dyn StoreAdmin, filter: &ParkedFilter, actor: &Actor) -> Outcome<u64> {
        Ok(match self {
            Self::Redrive => admin.redrive(filter, actor).await?,
            Self::Discard => admin.discard(filter, actor).await?,
        })
    }
}

impl Change {
    pub(super) async fn run(&self, act: Act) -> Outcome {
        if self.filter.chooses_everything() != self.all {
            return Err(Failure::usage(
                "say which messages (--route, --cause, --key, --id or --older-than), or --all of them",
            ));
        }
        let actor = self.actor.actor();
        let admin = self.store.open().await?.admin;
        let filter = self.filter.parked(&*admin).await?;
        if self.filter.id.is_some() {
            return Ok(self.tell(act, act.apply(&*admin, &filter, &actor).await?));
        }
        let count = admin.parked_count(&filter).await?;
        if count == 0 {
            known_if_empty(&*admin, true, self.filter.route.as_ref()).await?;
            return Ok(self.tell(act, 0));
        }
        if !self.yes {
            let (verb, messages) = (act.verb(), plural(count, "message"));
            self.output.object(
                || json!({ "dry_run": true, "would_change": count }),
                || format!("would {verb} {messages}: {filter}\nnothing was changed; do it with --yes\n"),
            );
            return Ok(Code::Done);
        }
        Ok(self.tell(act, self.in_slices(act, &*admin, &filter, &actor, count).await?))
    }

    /// By ascending place, so that one which dies again meanwhile is not met twice. Ends with the rows.
    async fn in_slices(
        &self,
        act: Act,
        admin: &dyn StoreAdmin,
        filter: &ParkedFilter,
        actor: &Actor,
        count: u64,
    ) -> Outcome<u64> {
        let limit = self.rate.unwrap_or(SLICE);
        let (mut after, mut changed) = (None, 0);
        let mut progress = Progress::new(act.done(), count);
        loop {
            let rows = admin.parked(filter, after.clone(), limit.min(SLICE)).await?;
            let Some(last) = rows.last() else { return Ok(changed) };
            after = Some((Arc::clone(&last.route), last.ordinal));
            for slice in rows.chunk_by(|one, other| one.route == other.route) {
                changed += act.apply(admin, &filter.only(slice), actor).await?;
                progress.at(changed);
            }
            if self.rate.is_some() {
                // A slice may be smaller than a second's worth.
                let share = rows.len() as f64 / f64::from(limit);
                tokio::time::sleep(Duration::from_secs_f64(share)).await;
            }
        }
    }

    /// That nothing matched is a finding: whoever asked expected something.
    fn tell(&self, act: Act, rows: u64) -> Code {
        self.output.object(|| json!({ act.done(): rows }), || format!("{rows} {}\n", act.done()));
        if rows == 0 { Code::Problem } else { Code::Done }
    }
}

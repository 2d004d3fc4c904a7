//! `postrider enqueue`: one message by hand, in a transaction of its own. For trying things out, and for scripts.
//! It is an act of an operator, with an entry in the audit record in the same transaction; a service enqueues in a transaction
//! of its own, without one.

use std::{fs, time::Duration};

use clap::Args;
use postrider::{
    Envelope,
    core::{headers::Headers, limits::Limits, time::Timestamp},
};
use serde_json::json;

use super::store::{ActorArguments, StoreArguments};
use crate::{
    bounded,
    exit::{Code, Failure, Outcome},
    output::OutputArguments,
    values,
};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Where it goes; routes choose by it.
    #[arg(long)]
    topic: String,
    /// The logical type name, such as `order.placed`.
    #[arg(long)]
    name: String,
    /// What it is kept in order by.
    #[arg(long)]
    key: Option<String>,
    /// The payload; `@path` reads a file, `-` standard input.
    #[arg(long)]
    payload: String,
    /// A header as `name=value`; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Not before this much time has passed.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    deliver_in: Option<Duration>,
    /// Given up if it is not delivered after this much time.
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    expires_in: Option<Duration>,
    /// Given up after so many attempts, whatever its route says.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    attempts_max: Option<u32>,
    #[command(flatten)]
    actor: ActorArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let envelope = arguments.envelope()?;
    let id = envelope.id;
    let batch = Limits::default().check(vec![envelope])?;
    arguments.store.open().await?.admin.enqueue(batch, Some(&arguments.actor.actor())).await?;
    arguments.output.object(|| json!({ "id": id, "topic": arguments.topic }), || format!("{id}\n"));
    Ok(Code::Done)
}

impl Arguments {
    fn envelope(&self) -> Outcome<Envelope> {
        let mut envelope = Envelope::new(&self.topic, &self.name, payload(&self.payload)?);
        envelope.key = self.key.clone().map(Into::into);
        envelope.headers = Headers::new(self.header.iter().map(|(name, value)| (name, value)))?;
        let from_now = |wait: Duration| Timestamp::now().saturating_add(wait);
        envelope.deliver_at = self.deliver_in.map(from_now);
        envelope.expires_at = self.expires_in.map(from_now);
        envelope.attempts_max = self.attempts_max;
        Ok(envelope)
    }
}

/// Read at most, before anybody asks whether a message may be so large.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

fn payload(argument: &str) -> Outcome<Vec<u8>> {
    let read = if argument == "-" {
        bounded::all(std::io::stdin(), PAYLOAD_BYTES_MAX)
    } else if let Some(path) = argument.strip_prefix('@') {
        fs::File::open(path).and_then(|file| bounded::all(file, PAYLOAD_BYTES_MAX))
    } else {
        Ok(argument.as_bytes().to_vec())
    };
    read.map_err(|error| Failure::because(Code::Usage, format!("the payload {argument} cannot be read"), &error))
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not `name=value`"))?;
    Ok((name.to_owned(), value.to_owned()))
}

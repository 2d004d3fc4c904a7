//! `postrider top`: the status, again and again, until `q`. Without a terminal it prints once, unless one object a look is
//! asked for.

use std::{
    io::{IsTerminal, Read},
    time::Duration,
};

use clap::Args;
use postrider::{core::admin::StoreAdmin, diagnosis::Topics};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{status, store::StoreArguments};
use crate::{
    exit::{Code, Outcome},
    output::{Format, OutputArguments, print},
    signals::Stop,
    topics, values,
};

/// To the upper left corner, and what was there is wiped.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// How long one look of several walks the log; the next goes on there.
const WALK: Duration = Duration::from_millis(250);

#[derive(Args)]
pub(crate) struct Arguments {
    /// How often to look.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = values::duration)]
    every: Duration,
    #[command(flatten)]
    store: StoreArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let admin = arguments.store.open().await?.admin;
    match arguments.output.several() {
        Format::Table if std::io::stdout().is_terminal() => on_screen(arguments, &*admin).await,
        Format::Table => {
            print(screen(&*admin, &mut topics::unknown(Vec::new()), topics::PATIENCE).await?);
            Ok(Code::Done)
        }
        Format::Json => {
            print(format_args!("{}\n", look(&*admin, &mut topics::unknown(Vec::new()), topics::PATIENCE).await?));
            Ok(Code::Done)
        }
        Format::Ndjson => as_lines(arguments, &*admin).await,
    }
}

/// What `status` says, one object a look, until the process is told to end.
async fn as_lines(arguments: &Arguments, admin: &dyn StoreAdmin) -> Outcome {
    let mut stop = Stop::install()?;
    // Also in the middle of a look: people lose their patience when a store does not answer.
    tokio::select! {
        () = stop.next() => Ok(Code::Done),
        failed = print_lines(arguments, admin) => failed,
    }
}

/// Ends with the first look that fails.
async fn print_lines(arguments: &Arguments, admin: &dyn StoreAdmin) -> Outcome {
    let mut topics = topics::unknown(Vec::new());
    loop {
        print(format_args!("{}\n", look(admin, &mut topics, WALK).await?));
        tokio::time::sleep(arguments.pause()).await;
    }
}

/// Until `q`, or until the process is told to end, also in the middle of a look. The terminal is given back either way.
async fn on_screen(arguments: &Arguments, admin: &dyn StoreAdmin) -> Outcome {
    let _quiet = terminal::Quiet::begin();
    let (mut keys, mut stop) = (keys(), Stop::install()?);
    let quits = async { while !matches!(keys.recv().await, Some(b'q' | b'Q')) {} };
    tokio::select! {
        () = stop.next() => Ok(Code::Done),
        () = quits => Ok(Code::Done),
        failed = draw(arguments, admin) => failed,
    }
}

/// Ends with the first look that fails.
async fn draw(arguments: &Arguments, admin: &dyn StoreAdmin) -> Outcome {
    let mut topics = topics::unknown(Vec::new());
    loop {
        let text = screen(admin, &mut topics, WALK).await?;
        print(format_args!("{CLEAR}{text}\nq ends\n"));
        tokio::time::sleep(arguments.pause()).await;
    }
}

impl Arguments {
    fn pause(&self) -> Duration {
        self.every.max(Duration::from_millis(100))
    }
}

async fn look(admin: &dyn StoreAdmin, topics: &mut Topics, patience: Duration) -> Outcome<Value> {
    let (overview, findings) = status::look(admin, topics, patience).await?;
    Ok(status::as_json(&overview, &findings))
}

async fn screen(admin: &dyn StoreAdmin, topics: &mut Topics, patience: Duration) -> Outcome<String> {
    let (overview, findings) = status::look(admin, topics, patience).await?;
    Ok(format!("{}\n{}", overview.at, status::as_text(&overview, &findings)))
}

/// What is typed, from a thread that ends with the process. Nothing comes any more when standard input ends.
fn keys() -> mpsc::UnboundedReceiver<u8> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let mut key = [0];
        while std::io::stdin().read_exact(&mut key).is_ok() && sender.send(key[0]).is_ok() {}
        // A closed channel would be heard at once, again and again.
        std::mem::forget(sender);
    });
    receiver
}

/// A terminal that hands over every key at once and does not repeat it; as it was before when this ends.
#[cfg(unix)]
mod terminal {
    use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

    pub(super) struct Quiet(Option<Termios>);

    impl Quiet {
        pub(super) fn begin() -> Self {
            let Ok(before) = tcgetattr(std::io::stdin()) else { return Self(None) };
            let mut quiet = before.clone();
            quiet.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &quiet); // then it takes `q` and the return key
            Self(Some(before))
        }
    }

    impl Drop for Quiet {
        fn drop(&mut self) {
            if let Some(before) = &self.0 {
                let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
            }
        }
    }
}

#[cfg(not(unix))]
mod terminal {
    pub(super) struct Quiet;

    impl Quiet {
        pub(super) fn begin() -> Self {
            Self
        }
    }
}

//! `postrider init`: a configuration to begin with, commented, for a chosen store and transport.
//!
//! It is right as it is written: `config check` passes. Nothing is overwritten.

use std::{
    fs::OpenOptions,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::{
    config,
    exit::{Code, Failure, Outcome},
    output::OutputArguments,
};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Where the messages are.
    #[arg(long, value_enum)]
    store: Store,
    /// Where they go.
    #[arg(long, value_enum)]
    transport: Transport,
    /// The file to write.
    #[arg(long, value_name = "FILE", default_value = "postrider.toml")]
    config: PathBuf,
    #[command(flatten)]
    output: OutputArguments,
}

#[derive(Clone, Copy, ValueEnum)]
enum Store {
    Sqlite,
    Postgres,
    /// MariaDB or MySQL.
    Mysql,
    /// A replica set.
    Mongodb,
}

#[derive(Clone, Copy, ValueEnum)]
enum Transport {
    /// One JSON object per line, on standard output.
    Stdout,
    /// The same, appended to a file.
    File,
    /// Signed webhooks; a secret is made too.
    Https,
    /// NATS JetStream.
    Nats,
    /// RabbitMQ.
    Rabbitmq,
    /// Redis Streams.
    Redis,
    /// Apache Kafka, with a binary that was built for it.
    Kafka,
    /// Nowhere, on purpose.
    Discard,
}

/// The file of the secret that webhooks are signed with, beside the configuration.
const SECRET_FILE: &str = "webhook-secret";

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let store = match arguments.store {
        Store::Sqlite => "\"sqlite:app.db\"",
        Store::Postgres => "\"postgres://postrider@localhost/app\"",
        Store::Mysql => "\"mysql://postrider@localhost/app\"",
        Store::Mongodb => "\"mongodb://localhost/app\"",
    };
    let transport = match arguments.transport {
        Transport::Stdout => "\"stdout\"",
        Transport::File => "\"file:messages.ndjson\"",
        Transport::Https => "\"https://hooks.example.com/messages\"",
        Transport::Nats => "\"nats://localhost:4222\"",
        Transport::Rabbitmq => "\"amqp://localhost:5672\"",
        Transport::Redis => "\"redis://localhost:6379/0\"",
        Transport::Kafka => "\"kafka://localhost:9092\"",
        Transport::Discard => "\"discard\"",
    };
    let mut chosen = vec![("store.url", store), ("route.name", "\"everything\""), ("route.transport", transport)];
    let secret_path = arguments.config.with_file_name(SECRET_FILE);
    let secret = format!("{{ file = {:?} }}", secret_path.display().to_string());
    if let Transport::Https = arguments.transport {
        chosen.push(("route.http.secret", &secret));
    }
    write_new(&arguments.config, &config::template(&chosen), 0o644)?;
    let mut text = format!("{} is written\n", arguments.config.display());
    let mut secret_is_new = None;
    if let Transport::Https = arguments.transport {
        // A secret that is there already may be in use.
        let new = !secret_path.exists();
        if new {
            write_new(&secret_path, &new_secret()?, 0o600)?;
        }
        let state = if new { "is written" } else { "is there already and stays" };
        text.push_str(&format!("{} {state}: the receiver needs the same secret\n", secret_path.display()));
        secret_is_new = Some(new);
    }
    let secret = secret_is_new.map(|new| json!({ "file": secret_path, "new": new }));
    arguments.output.object(|| json!({ "config": arguments.config, "secret": secret }), || text);
    Ok(Code::Done)
}

fn write_new(path: &Path, text: &str, mode: u32) -> Outcome<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::usage(format!(
            "{} is there already and stays as it is; name another with --config",
            path.display()
        )),
        _ => Failure::because(Code::Usage, format!("{} cannot be written", path.display()), &error),
    })
}

/// 32 bytes of chance, as Standard Webhooks writes them.
fn new_secret() -> Outcome<String> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::because(Code::Problem, "the system has no random numbers", &error))?;
    Ok(format!("whsec_{}\n", base64(&bytes)))
}

/// Standard alphabet, padded.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = ALPHABET[(group >> (18 - 6 * place)) as usize & 63];
            text.push(if place > chunk.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn a_new_secret_is_one() {
        let (one, other) = (new_secret().unwrap(), new_secret().unwrap());
        assert!(postrider::http::Secret::parse(one.trim()).is_ok());
        assert_ne!(one, other);
    }
}

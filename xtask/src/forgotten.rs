//! What the compiler says to somebody who has forgotten a feature of the library: it must name the feature.
//!
//! It does so by itself for an item that is [configured out](https://doc.rust-lang.org/reference/conditional-compilation.html),
//! as long as the item stands in the path that people write; a list of names that is passed on whole (`pub use other::*`) hides
//! that, and a trait that is not implemented says nothing of features unless it is told to. So people's lines are compiled
//! here, against the library as `check` has just compiled it, which takes a moment.

use std::{
    collections::BTreeSet,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    features,
    step::{cargo, root},
};

/// Features that are for tests of the engine, and not for people.
const OWN: &[&str] = &["planted"];

/// Lines of somebody who has forgotten features.
struct Forgotten {
    /// The feature that they have; none if it is empty.
    with: &'static str,
    lines: &'static str,
    /// Those that must be named.
    named: &'static [&'static str],
}

const FORGOTTEN: &[Forgotten] = &[
    Forgotten {
        with: "",
        lines: "
use postrider::http::{HttpPublisher, VerifyKey};
use postrider::kafka::KafkaPublisher;
use postrider::memory::MemoryStore;
use postrider::metrics::Metrics;
use postrider::mongodb::Mongo;
use postrider::mysql::Mysql;
use postrider::nats::NatsPublisher;
use postrider::ndjson::NdjsonPublisher;
use postrider::postgres::Postgres;
use postrider::rabbitmq::RabbitmqPublisher;
use postrider::redis::RedisPublisher;
use postrider::sqlite::SqliteStore;
use postrider::traces::process;
",
        named: &[
            "http",
            "http-verify",
            "kafka",
            "memory",
            "metrics",
            "mongodb",
            "mysql",
            "nats",
            "ndjson",
            "opentelemetry",
            "postgres",
            "rabbitmq",
            "redis",
            "sqlite",
        ],
    },
    Forgotten { with: "http-verify", lines: "use postrider::http::HttpPublisher;", named: &["http"] },
    Forgotten {
        with: "postgres",
        lines: "use postrider::postgres::enlist::{DieselAsyncTransaction, DieselTransaction};",
        named: &["diesel", "diesel-async"],
    },
    // What such a feature brings has no name: a transaction of another client can be used.
    Forgotten {
        with: "memory",
        lines: "
struct OtherTransaction;
pub fn enqueue(transaction: &mut OtherTransaction) {
    postrider::Outbox::new(postrider::memory::Memory).enqueue_raw(transaction, Vec::new());
}
",
        named: &["diesel", "diesel-async", "sea-orm", "sqlx-mysql", "sqlx-postgres", "sqlx-sqlite"],
    },
];

/// Compiles everybody's lines, and looks for the features in what the compiler says.
pub(crate) fn run(package: &str) -> Result<()> {
    for forgotten in FORGOTTEN {
        let told = compile(package, &library(package, forgotten.with)?, forgotten.lines)?;
        for feature in forgotten.named {
            if !is_named(&told, feature) {
                bail!("the compiler does not name the feature `{feature}` to somebody who has forgotten it:\n{told}");
            }
        }
    }
    let named: BTreeSet<&str> = FORGOTTEN.iter().flat_map(|forgotten| forgotten.named).copied().collect();
    let is_forgotten = |feature: &String| !named.contains(feature.as_str()) && !OWN.contains(&feature.as_str());
    match features::of(package)?.into_iter().find(is_forgotten) {
        Some(feature) => {
            bail!("xtask/src/forgotten.rs has no line of somebody who has forgotten the feature `{feature}`")
        }
        None => Ok(()),
    }
}

/// As the compiler does, or as it stands in the line that it shows, or as a note does.
fn is_named(told: &str, feature: &str) -> bool {
    told.contains(&format!("feature = \"{feature}\"")) || told.contains(&format!("`{feature}`"))
}

/// The library with one feature, or none; compiled, if that has not been done.
fn library(package: &str, feature: &str) -> Result<PathBuf> {
    let name = format!("without features but `{feature}`");
    let arguments = ["check", "-p", package, "--no-default-features", "--features", feature];
    let told = cargo(&name, &[&arguments[..], &["--message-format", "json"]].concat()).output()?;
    told.lines().find_map(|line| artifact(line, package)).context("cargo does not say where the library is")
}

/// Where the library is, if a line of cargo says so.
fn artifact(line: &str, package: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_ours = message["reason"] == "compiler-artifact" && message["target"]["name"] == package;
    let files = message["filenames"].as_array().filter(|_| is_ours)?;
    files.iter().filter_map(Value::as_str).map(PathBuf::from).find(|file| file.extension() == Some("rmeta".as_ref()))
}

/// Compiles lines that must not compile. What the compiler says.
fn compile(package: &str, library: &Path, lines: &str) -> Result<String> {
    let dependencies = library.parent().context("a library is in a directory")?;
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command
        .args(["--edition", "2024", "--crate-name", "forgotten", "--crate-type", "lib", "--emit", "metadata"])
        .arg("--out-dir")
        .arg(std::env::temp_dir())
        .arg("--extern")
        .arg(format!("{package}={}", library.display()))
        .arg("-L")
        .arg(format!("dependency={}", dependencies.display()))
        .arg("-")
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut compiler = command.spawn().context("the compiler cannot be started")?;
    // Dropped at once, which is the end of the lines.
    compiler.stdin.take().context("the compiler reads")?.write_all(lines.as_bytes())?;
    let ended = compiler.wait_with_output()?;
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    if ended.status.success() {
        bail!("this compiles, although a feature is missing:\n{lines}");
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_named_by_its_whole_name() {
        let told = "#[cfg(any(feature = \"http-verify\", feature = \"x\"))]\nthe item is gated behind the `sqlx-mysql` feature";
        assert!(is_named(told, "http-verify") && is_named(told, "sqlx-mysql"));
        assert!(!is_named(told, "http") && !is_named(told, "mysql"));
    }

    #[test]
    fn the_library_is_found_among_the_messages() {
        let line =
            r#"{"reason":"compiler-artifact","target":{"name":"postrider"},"filenames":["/t/libpostrider-1.rmeta"]}"#;
        assert_eq!(artifact(line, "postrider"), Some("/t/libpostrider-1.rmeta".into()));
        assert_eq!(artifact(line, "postrider-core"), None);
        assert_eq!(artifact("no message", "postrider"), None);
    }
}

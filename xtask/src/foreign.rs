//! Which packages are not Rust alone: what `check` finds behind each feature of the library, and behind the binary, against
//! what is written down here.
//!
//! A package that brings a library of another language says so in its manifest (`links`), and is called `…-sys` by custom.
//! Cargo tells which ones are compiled for a feature. So one that comes in behind a dependency's dependency is noticed here,
//! and not by somebody who has no compiler for it, or gets two of the same library into one program.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{features, step::cargo};

/// Cryptography for TLS, in C and assembler; it is compiled along and needs nothing of the system but a C compiler.
const TLS: &str = "aws-lc-sys";

/// The same for SQLite.
const SQLITE: &str = "libsqlite3-sys";

/// What each feature brings. One that is not named here brings nothing, and no feature of a broker but `kafka` may bring more
/// than TLS.
const BROUGHT: &[(&str, &[&str])] = &[
    ("diesel", &[TLS]),
    ("diesel-async", &[TLS]),
    ("http", &[TLS]),
    ("kafka", &["libz-sys", "openssl-sys", "rdkafka-sys", "zstd-sys"]),
    ("mongodb", &[TLS]),
    ("mysql", &[TLS]),
    ("nats", &[TLS]),
    ("postgres", &[TLS]),
    ("rabbitmq", &[TLS]),
    ("redis", &[TLS]),
    ("sea-orm", &[TLS]),
    ("sqlite", &[SQLITE]),
    ("sqlx-mysql", &[TLS]),
    ("sqlx-postgres", &[TLS]),
    ("sqlx-sqlite", &[SQLITE]),
];

/// What the binary brings as people install it: all of that but Kafka, and an allocator.
const INSTALLED: &[&str] = &[TLS, "libmimalloc-sys", SQLITE];

/// Rust alone, although they look otherwise: one says that it links so that it is there once, the other has declarations of the
/// kernel's interface.
const RUST_ALONE: [&str; 2] = ["aws-lc-rs", "linux-raw-sys"];

/// The platform that is judged, so that the list is the same for everybody.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

pub(crate) fn run(library: &str, binary: &str) -> Result<()> {
    let everything = ["metadata", "--format-version", "1", "--all-features", "--filter-platform", PLATFORM];
    let metadata = cargo("metadata", &everything).output()?;
    let linking = linking(&metadata)?;
    for feature in features::of(library)?.into_iter().chain(["default".to_owned()]) {
        let arguments = ["-p", library, "--no-default-features", "--features", &feature];
        let found = found(&format!("libraries behind {feature}"), &arguments, &linking)?;
        let said = BROUGHT.iter().find(|(named, _)| *named == feature).map_or(&[][..], |(_, brought)| brought);
        compare(&format!("the feature `{feature}`"), &found, said)?;
    }
    compare("the binary", &found("libraries of the binary", &["-p", binary], &linking)?, INSTALLED)
}

/// What brings a library of another language among what is compiled.
fn found(name: &str, arguments: &[&str], linking: &BTreeSet<(String, String)>) -> Result<BTreeSet<String>> {
    let tree = ["tree", "--edges", "normal,build", "--prefix", "none", "--target", PLATFORM, "--format", "{p}"];
    Ok(foreign(&cargo(name, &[&tree[..], arguments].concat()).output()?, linking))
}

fn foreign(tree: &str, linking: &BTreeSet<(String, String)>) -> BTreeSet<String> {
    let package = |line: &str| {
        let (name, version) = line.split_once(" v")?;
        let version = version.split_whitespace().next()?;
        let links = linking.contains(&(name.to_owned(), version.to_owned()));
        ((links || name.ends_with("-sys")) && !RUST_ALONE.contains(&name)).then(|| name.to_owned())
    };
    tree.lines().filter_map(package).collect()
}

/// Name and version of every package that links to something.
fn linking(metadata: &str) -> Result<BTreeSet<(String, String)>> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata is not JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let linking = packages.iter().filter(|package| package["links"].is_string());
    Ok(linking.map(|package| (text(&package["name"]), text(&package["version"]))).collect())
}

fn compare(what: &str, found: &BTreeSet<String>, said: &[&str]) -> Result<()> {
    let said: BTreeSet<String> = said.iter().map(ToString::to_string).collect();
    if *found != said {
        bail!(
            "{what} brings {found:?} along, and xtask/src/foreign.rs says {said:?}; a library that is not Rust needs a \
             reason, and a line in the table of features in crates/postrider/src/lib.rs"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_foreign_by_what_it_links_to_or_by_its_name() {
        let metadata = r#"{"packages": [
            { "name": "a", "version": "1.0.0", "links": "c_library" }, { "name": "b", "version": "2.0.0", "links": null },
            { "name": "c", "version": "1.0.0", "links": "c_library_too" }
        ]}"#;
        let linking = linking(metadata).unwrap();
        let tree =
            "postrider v0.1.0 (/somewhere)\na v1.0.0\nb v2.0.0\nc v3.0.0\nd-sys v1.0.0+4.5 (*)\nlinux-raw-sys v0.1.0\n";
        assert_eq!(foreign(tree, &linking), ["a".to_owned(), "d-sys".to_owned()].into());
    }

    #[test]
    fn what_is_more_or_less_than_was_said_is_told() {
        let found = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        assert!(compare("it", &found(&["a"]), &["a"]).is_ok());
        for (found, said) in [(found(&["a", "b"]), &["a"][..]), (found(&[]), &["a"])] {
            let told = compare("the feature `x`", &found, said).unwrap_err().to_string();
            assert!(told.starts_with("the feature `x` brings"), "{told}");
        }
    }
}

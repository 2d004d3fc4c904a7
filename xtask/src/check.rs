//! `cargo xtask check`: what can be known without running the code.

use anyhow::Result;

use crate::{
    features, foreign, forgotten, services,
    step::{cargo, root},
    tidy,
};

/// The crate whose features users choose.
const FACADE: &str = "postrider";

/// The crate that people install.
const BINARY: &str = "postrider-cli";

pub(crate) fn run() -> Result<()> {
    tidy::run(&root())?;
    foreign::run(FACADE, BINARY)?;
    services::build_tools()?;
    cargo("fmt", &["fmt", "--all", "--check"]).run()?;
    cargo("clippy", &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]).run()?;
    cargo("doc", &["doc", "--workspace", "--no-deps", "--all-features"]).env("RUSTDOCFLAGS", "-D warnings").run()?;
    as_it_is_installed()?;
    each_feature_alone()?;
    forgotten::run(FACADE)
}

/// What people get who ask for nothing in particular; everything above has every feature. Its tests too, which
/// whoever writes the reference anew runs this way.
fn as_it_is_installed() -> Result<()> {
    cargo("binary", &["check", "-p", BINARY, "--all-targets"]).run()
}

/// A feature that compiles only beside another one is a trap for whoever chooses it alone.
fn each_feature_alone() -> Result<()> {
    cargo("no feature", &["check", "-p", FACADE, "--no-default-features"]).run()?;
    for feature in features::of(FACADE)? {
        let name = format!("feature {feature}");
        cargo(&name, &["check", "-p", FACADE, "--no-default-features", "--features", &feature]).run()?;
    }
    Ok(())
}

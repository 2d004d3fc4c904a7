//! `promtool`, which checks the alert rules: a program and no server.
//!
//! It is part of the package `prometheus`, whose installation would start a server on this machine. So the package is
//! unpacked beside what is built, and nothing is installed.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use super::{answers, privileged, target};
use crate::step::Step;

/// Where it is put.
fn place() -> PathBuf {
    target().join("tools/promtool")
}

/// Sees to it that there is one.
pub(super) fn prepare() -> Result<()> {
    if answers("promtool") || place().exists() {
        return Ok(());
    }
    if !answers("apt-get") || !answers("dpkg-deb") {
        bail!("there is no `promtool`, which checks the alert rules; it is part of Prometheus");
    }
    let folder = target().join("tools");
    let unpacked = folder.join("prometheus");
    fs::create_dir_all(&unpacked).with_context(|| format!("make {}", unpacked.display()))?;
    if download(&folder).is_err() {
        // The lists of packages may be missing or old.
        privileged("fetch promtool", &["update"])?;
        download(&folder)?;
    }
    let package = fs::read_dir(&folder)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("the package `prometheus` was fetched and is not there")?;
    let paths = [package.display().to_string(), unpacked.display().to_string()];
    Step::new("unpack promtool", "dpkg-deb").args(["-x".to_owned()]).args(paths).run_aside()?;
    fs::rename(unpacked.join("usr/bin/promtool"), place()).context("the package `prometheus` holds no promtool")?;
    fs::remove_dir_all(&unpacked)?;
    fs::remove_file(&package)?;
    Ok(())
}

/// Into the folder in which it runs.
fn download(folder: &std::path::Path) -> Result<()> {
    let command = format!("cd '{}' && apt-get download prometheus", folder.display());
    Step::new("fetch promtool", "sh").args(["-c".to_owned(), command]).run_aside()
}

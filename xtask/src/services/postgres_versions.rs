//! PostgreSQL of other versions than the system's, from Maven Central: server and `initdb` alone, for tests.
//!
//! Debian has one version. The store says from which one on it works; that one and the newest are tried.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use super::{answers, install, target};
use crate::step::Step;

/// The oldest that the store works with, and the newest there is.
pub(super) const VERSIONS: [&str; 2] = ["13.22.0", "18.1.0"];

/// Maven makes notes beside a project of what it has unpacked, and without one in the working directory.
const POM: &str = "<project><modelVersion>4.0.0</modelVersion><groupId>postrider</groupId>\
                   <artifactId>postgres-for-tests</artifactId><version>1</version><packaging>pom</packaging></project>\n";

/// Unpacks a version there, and returns where its programs are. The server's user must be able to reach the place.
pub(super) fn unpack(version: &str, place: &Path) -> Result<PathBuf> {
    if !answers("xz") {
        install("xz", "xz-utils")?;
    }
    let archive = archive(version)?;
    fs::create_dir(place).with_context(|| format!("make {}", place.display()))?;
    let arguments = ["-xJf", &archive.display().to_string(), "-C", &place.display().to_string()].map(str::to_owned);
    Step::new("unpack PostgreSQL", "tar").args(arguments).run_aside()?;
    Ok(place.join("bin"))
}

/// Fetched once, beside what is built.
fn archive(version: &str) -> Result<PathBuf> {
    let place = target().join(format!("tools/postgres-{version}"));
    if !place.exists() {
        fetch(version, &place)?;
    }
    let mut files = fs::read_dir(&place)?.flatten().map(|entry| entry.path());
    let archive = files.find(|path| path.extension().is_some_and(|extension| extension == "txz"));
    archive.with_context(|| format!("there is no archive in {}; remove it", place.display()))
}

/// Has Maven fetch the archive, which is packed into another one.
fn fetch(version: &str, place: &Path) -> Result<()> {
    if !answers("java") {
        install("a Java runtime", "openjdk-17-jre-headless")?;
    }
    if !answers("mvn") {
        install("Maven", "maven")?;
    }
    let machine = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64v8",
        other => bail!("there is no PostgreSQL {version} on Maven Central for {other}"),
    };
    let fetched = target().join(format!("tools/postgres-{version}-fetched"));
    fs::create_dir_all(&fetched).with_context(|| format!("make {}", fetched.display()))?;
    let project = fetched.join("pom.xml");
    fs::write(&project, POM)?;
    let arguments = [
        "--batch-mode".to_owned(),
        "--quiet".to_owned(),
        format!("--file={}", project.display()),
        "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:unpack".to_owned(),
        format!("-Dartifact=io.zonky.test.postgres:embedded-postgres-binaries-linux-{machine}:{version}:jar"),
        format!("-DoutputDirectory={}", fetched.display()),
    ];
    Step::new("fetch PostgreSQL", "mvn").args(arguments).run_aside()?;
    // Under its name only when it is whole.
    fs::rename(&fetched, place).context("Maven has fetched nothing")
}

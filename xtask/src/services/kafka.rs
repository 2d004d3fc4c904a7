//! Apache Kafka from Maven Central, as one node that is broker and controller, on a directory of its own.
//!
//! Debian has no package of it. Maven resolves what the server needs, wherever this machine's settings of Maven get it from,
//! and the Java runtime is Debian's. A broker tells its clients where to connect to, so a proxy in between must be known to
//! it: there is a second listener that is announced at another port, where a test may put its proxy. `DIRECTORY/proxied`
//! says where both are.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{Service, Started, answers, install, machine, process, target};
use crate::step::Step;

pub(super) const SERVICE: Service =
    Service { name: "kafka", variable: "POSTRIDER_TEST_KAFKA", up, down: process::stop, is_up: process::is_up };

/// The version of the server.
const VERSION: &str = "4.1.2";

/// What writes the server's log.
const LOGGER: &str = "1.7.36";

/// What starts it.
const LAUNCHER: &str = include_str!("kafka-server.sh");

/// What the server says when it serves. It listens before that.
const READY: &str = "Kafka Server started";

/// How long it may take until it does.
const PATIENCE: Duration = Duration::from_secs(120);

fn up() -> Result<Started> {
    let program = program()?;
    let dir = process::directory("kafka")?;
    let ports = machine::free_ports(4)?;
    let (port, controller, behind, announced) = (ports[0], ports[1], ports[2], ports[3]);
    let listeners = format!(
        "listeners=PLAIN://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},PROXIED://127.0.0.1:{behind}\n\
         advertised.listeners=PLAIN://127.0.0.1:{port},PROXIED://127.0.0.1:{announced}\n\
         listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT\n"
    );
    fs::write(dir.join("extra.properties"), listeners)?;
    fs::write(dir.join("proxied"), format!("127.0.0.1:{behind} 127.0.0.1:{announced}\n"))?;
    let arguments = [dir.display().to_string(), port.to_string(), controller.to_string()];
    let started = process::start(&program, &arguments, dir, port, "kafka")?;
    wait_until_ready(&started)?;
    Ok(started)
}

/// Until it serves, and not only listens.
fn wait_until_ready(started: &Started) -> Result<()> {
    let log = started.dir.join("log");
    let begun = Instant::now();
    while !fs::read_to_string(&log).unwrap_or_default().contains(READY) {
        if !process::is_up(started) || begun.elapsed() > PATIENCE {
            bail!("Kafka does not begin to serve; its log is {}", log.display());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Fetched once, beside what is built.
fn program() -> Result<PathBuf> {
    if !answers("java") {
        install("a Java runtime", "openjdk-17-jre-headless")?;
    }
    let place = target().join(format!("tools/kafka-{VERSION}"));
    let program = place.join("kafka-server");
    if !place.join("libs").exists() {
        fetch(&place)?;
    }
    // Written each time: it is part of this program.
    fs::write(&program, LAUNCHER)?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    Ok(program)
}

/// Has Maven resolve the server and all that it needs at run time.
fn fetch(place: &Path) -> Result<()> {
    if !answers("mvn") {
        install("Maven", "maven")?;
    }
    fs::create_dir_all(place).with_context(|| format!("make {}", place.display()))?;
    let project = place.join("pom.xml");
    fs::write(&project, pom())?;
    let fetched = place.join("fetched");
    let goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";
    let arguments = [
        "--batch-mode".to_owned(),
        "--quiet".to_owned(),
        format!("--file={}", project.display()),
        goal.to_owned(),
        "-DincludeScope=runtime".to_owned(),
        format!("-DoutputDirectory={}", fetched.display()),
    ];
    Step::new("fetch Kafka", "mvn").args(arguments).run_aside()?;
    // Under its name only when it is whole.
    fs::rename(&fetched, place.join("libs")).context("Maven has fetched nothing")
}

fn pom() -> String {
    let dependency = |group: &str, artifact: &str, version: &str| {
        format!(
            "<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>\
             </dependency>"
        )
    };
    let server = dependency("org.apache.kafka", "kafka_2.13", VERSION);
    let logger = dependency("org.slf4j", "slf4j-simple", LOGGER);
    format!(
        "<project><modelVersion>4.0.0</modelVersion><groupId>postrider</groupId><artifactId>kafka-for-tests</artifactId>\
         <version>1</version><dependencies>{server}{logger}</dependencies></project>\n"
    )
}

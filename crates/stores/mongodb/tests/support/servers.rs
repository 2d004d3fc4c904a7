//! Servers of a test's own: to refuse, to forget, to step down and to kill.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use mongodb::{
    Client,
    bson::{Document, doc},
};

use super::program;

/// Longer than anything takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A server that ends with the test.
pub(crate) struct Server {
    child: Child,
    dir: PathBuf,
    pub(crate) port: u16,
    options: Vec<String>,
}

impl Server {
    pub(crate) async fn start(options: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("postrider-mongod-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(dir.join("data")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        let server = Self { child: spawn(&dir, port, &options), dir, port, options };
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

    /// Without a word, as when the power goes; and up again.
    async fn crash(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        self.child.wait().unwrap();
        self.child = spawn(&self.dir, self.port, &self.options);
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

fn spawn(dir: &PathBuf, port: u16, options: &[String]) -> Child {
    Command::new(program())
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
        let mut servers = Vec::new();
        for _ in 0..3 {
            let failing = ["--setParameter", "enableTestCommands=1"];
            servers.push(Server::start(&[&["--replSet", "rs0", "--oplogSize", "200"], &failing[..]].concat()).await);
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

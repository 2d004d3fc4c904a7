//! What the daemon says of itself over HTTP, and to whom.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use postrider_testkit::fault;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Workplace, wait_until};

/// A port that is free now. Somebody else may take it before the daemon does; then the test fails loudly, not silently.
pub(crate) fn free_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, fault::free_port()).into()
}

/// What a test waits for is to be over soon; what none waits for must not happen, however busy the machine is.
fn with_short_leases(config: &str) -> String {
    config.replace("\"60s\"", "\"2s\"")
}

fn config(listen: SocketAddr, transport: &str, more: &str) -> String {
    format!(
        "[store]\nurl = \"sqlite:app.db\"\n[relay]\nlease_life = \"60s\"\n[admin]\nlisten = \"{listen}\"\n{more}\n\
         [[route]]\nname = \"billing\"\ntransport = \"{transport}\"\n"
    )
}

/// Status and body; `None` while nobody listens.
pub(crate) fn get(listen: SocketAddr, path: &str, token: Option<&str>) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(listen).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let authorization = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}Connection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let body = answer.split_once("\r\n\r\n")?.1.to_owned();
    Some((status, body))
}

fn status(listen: SocketAddr, path: &str) -> u16 {
    get(listen, path, None).map_or(0, |(status, _)| status)
}

#[test]
fn a_daemon_says_that_it_is_alive_and_ready_and_what_it_counts() {
    let (place, listen) = (Workplace::new(), free_port());
    let mut producer = place.migrated();
    let mut daemon = place.daemon("relay", &config(listen, "file:out.ndjson", ""));
    wait_until("the daemon is ready", || status(listen, "/readyz") == 200);
    assert_eq!((status(listen, "/livez"), status(listen, "/startupz"), status(listen, "/nowhere")), (200, 200, 404));
    producer.enqueue(3, 1);
    wait_until("three are counted", || {
        let (_, text) = get(listen, "/metrics", None).unwrap();
        text.contains("postrider_delivered_total{store=\"default\",route=\"billing\"} 3\n")
    });
    wait_until("and nothing is pending", || {
        let (_, text) = get(listen, "/metrics", None).unwrap();
        text.contains("postrider_outbox_pending{store=\"default\",route=\"billing\"} 0\n")
            && text.contains("postrider_store_up{store=\"default\"} 1\n")
    });
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
}

#[test]
fn a_destination_that_is_down_makes_a_daemon_degraded_and_not_dead() {
    let (place, listen) = (Workplace::new(), free_port());
    let mut producer = place.migrated();
    producer.enqueue(1, 1);
    let refusing = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let http = format!("allow_http = true\nallow = [\"127.0.0.1/32\"]\nports = [{}]\nunsigned = true", refusing.port());
    let config = format!("{}[route.http]\n{http}\n", config(listen, &format!("http://{refusing}/"), ""));
    let _daemon = place.daemon("relay", &config);
    wait_until("it is degraded", || get(listen, "/readyz", None).is_some_and(|(_, body)| body == "degraded\n"));
    assert_eq!(status(listen, "/readyz"), 200, "restarting it would not help");
    let (code, body) = get(listen, "/healthz", None).unwrap();
    let health: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, health["status"].as_str()), (200, Some("degraded")));
    wait_until("the finding is in the store", || {
        let health: Value = serde_json::from_str(&get(listen, "/healthz", None).unwrap().1).unwrap();
        health["stores"][0]["findings"][0]["code"] == "unavailable"
    });
    let (_, text) = get(listen, "/metrics", None).unwrap();
    assert!(text.contains("postrider_circuit_open{store=\"default\",route=\"billing\"} 1\n"), "{text}");
}

#[test]
fn a_token_guards_what_tells_more_than_a_word() {
    let (place, listen) = (Workplace::new(), free_port());
    let _producer = place.migrated();
    let _daemon = place.daemon("relay", &config(listen, "discard:", "token = \"0123456789abcdef\""));
    wait_until("the daemon is ready", || status(listen, "/readyz") == 200);
    for path in ["/metrics", "/healthz"] {
        assert_eq!(status(listen, path), 401, "{path}");
        assert_eq!(get(listen, path, Some("0123456789abcdeX")).unwrap().0, 401, "{path}");
        assert_eq!(get(listen, path, Some("0123456789abcdef")).unwrap().0, 200, "{path}");
    }
    assert_eq!((status(listen, "/livez"), status(listen, "/readyz")), (200, 200));
}

#[test]
fn beyond_loopback_nothing_starts_without_a_token() {
    let place = Workplace::new();
    let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    for (more, word) in [
        ("", "relay.toml:6: `admin.listen` is not a loopback address"),
        ("token = \"short\"", "relay.toml:7: `admin.token` is too short"),
        ("token = \"0123456789 abcdef \"", "relay.toml:7: `admin.token` has what a header cannot carry"),
        ("token = \"0123456789äabcdef\"", "relay.toml:7: `admin.token` has what a header cannot carry"),
        ("token = { env = \"NO_SUCH_TOKEN\" }", "relay.toml:7: `admin.token` the variable of the environment"),
        ("token = { file = \"no-such-file\" }", "relay.toml:7: `admin.token` the file that holds a secret"),
    ] {
        place.write("relay.toml", config(everywhere, "discard:", more));
        for command in [&["run"][..], &["config", "check"]] {
            let finished = place.run(&[command, &["--config", "relay.toml"]].concat());
            assert_eq!(finished.code, 2, "{more}: {finished:?}");
            assert!(finished.stderr.contains(word), "{more}: {finished:?}");
        }
        assert!(!place.path("app.db").exists(), "nothing was made");
    }
}

/// Who may listen where: bind by token.
#[test]
fn the_start_matrix_of_bind_and_token() {
    let good = "token = \"0123456789abcdef\"";
    let from_env = "token = { env = \"ADMIN_TOKEN\" }";
    let port = free_port().port();
    for address in ["127.0.0.1", "127.0.0.9", "0.0.0.0", "[::]", "[::ffff:127.0.0.1]", "192.0.2.1"] {
        for (token, fits) in [("", false), (good, true), (from_env, true), ("token = \"short\"", false)] {
            let place = Workplace::new();
            let text = config("127.0.0.1:0".parse().unwrap(), "discard:", token);
            place.write("relay.toml", text.replace("127.0.0.1:0", &format!("{address}:{port}")));
            let loopback = address.starts_with("127.");
            let checked = place
                .command(&["config", "check", "--config", "relay.toml"])
                .env("ADMIN_TOKEN", "0123456789abcdef")
                .output()
                .unwrap();
            let expected = if fits || loopback && token.is_empty() { Some(0) } else { Some(2) };
            assert_eq!(checked.status.code(), expected, "{address} {token}: {checked:?}");
        }
    }
    // Those that are allowed do listen.
    for (address, token) in [("127.0.0.1", ""), ("127.0.0.1", good), ("0.0.0.0", good)] {
        let (place, listen) = (Workplace::new(), free_port());
        let text = config(listen, "discard:", token).replace("listen = \"127.0.0.1", &format!("listen = \"{address}"));
        let _daemon = place.daemon("relay", &text);
        wait_until("the daemon is ready", || status(listen, "/readyz") == 200);
        assert_eq!(status(listen, "/metrics"), if token.is_empty() { 200 } else { 401 });
    }
}

#[test]
fn a_store_that_cannot_be_written_makes_a_daemon_unavailable_until_it_can() {
    let (place, listen) = (Workplace::new(), free_port());
    drop(place.migrated());
    let _daemon = place.daemon("relay", &with_short_leases(&config(listen, "discard:", "")));
    wait_until("the daemon is ready", || status(listen, "/readyz") == 200);
    let lock = rusqlite::Connection::open(place.path("app.db")).unwrap();
    lock.busy_timeout(Duration::from_secs(60)).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    wait_until("it is unavailable", || status(listen, "/readyz") == 503);
    assert_eq!(get(listen, "/readyz", None).unwrap().1, "unavailable\n");
    assert_eq!((status(listen, "/healthz"), status(listen, "/livez"), status(listen, "/metrics")), (503, 200, 200));
    lock.execute_batch("ROLLBACK").unwrap();
    wait_until("it is ready again", || status(listen, "/readyz") == 200);
}

#[test]
fn a_server_that_lets_nobody_in_makes_a_daemon_unavailable_until_it_does() {
    let database = crate::postgres::Database::migrated();
    let listen = free_port();
    let text = with_short_leases(&config(listen, "discard:", "")).replace("sqlite:app.db", &database.url());
    let mut daemon = database.workplace.daemon("relay", &text);
    wait_until("the daemon is ready", || status(listen, "/readyz") == 200);
    database.let_in(false);
    wait_until("it is unavailable", || status(listen, "/readyz") == 503);
    let (code, body) = get(listen, "/healthz", None).unwrap();
    let health: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, health["stores"][0]["findings"][0]["code"].as_str()), (503, Some("store-unreachable")));
    wait_until("the metrics say so", || {
        get(listen, "/metrics", None)
            .is_some_and(|(code, text)| code == 200 && text.contains("postrider_store_up{store=\"default\"} 0\n"))
    });
    assert_eq!(status(listen, "/livez"), 200, "restarting it would not help");
    database.let_in(true);
    wait_until("it is ready again", || status(listen, "/readyz") == 200);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
}

#[test]
fn a_store_that_was_changed_behind_the_daemon_is_not_told_for_one_that_is_gone() {
    let database = crate::postgres::Database::migrated();
    let listen = free_port();
    let text = with_short_leases(&config(listen, "discard:", "")).replace("sqlite:app.db", &database.url());
    let _daemon = database.workplace.daemon("relay", &text);
    wait_until("the daemon is ready", || status(listen, "/readyz") == 200);
    database.admin("ALTER TABLE postrider.parked RENAME TO parked_of_old").done();
    let health: Value = serde_json::from_str(&get(listen, "/healthz", None).unwrap().1).unwrap();
    let finding = &health["stores"][0]["findings"][0];
    assert_eq!(finding["code"].as_str(), Some("store-refused"), "{health}");
    assert!(finding["what"].as_str().unwrap().contains("parked\" does not exist"), "{finding}");
}

/// Clients that say nothing, too much, or something else altogether.
#[test]
fn a_hostile_client_harms_nobody() {
    let (place, listen) = (Workplace::new(), free_port());
    let mut producer = place.migrated();
    let _daemon = place.daemon("relay", &config(listen, "file:out.ndjson", ""));
    wait_until("the daemon is ready", || status(listen, "/readyz") == 200);
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(listen).unwrap()).collect();
    let hostile: [Vec<u8>; 5] = [
        format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(1 << 20)).into_bytes(),
        format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X-Y: z\r\n".repeat(5_000)).into_bytes(),
        [b"GET /livez HTTP/1.1\r\nHost: x\r\nX: ".to_vec(), vec![0xff; 4096], b"\x00\r\n\r\n".to_vec()].concat(),
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\nabc".to_vec(),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
    ];
    for request in hostile {
        let mut stream = TcpStream::connect(listen).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // It may hang up before it has heard everything.
        let _ = stream.write_all(&request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer);
        assert!(
            ended.is_ok() || ended.is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock),
            "it is hung up on"
        );
    }
    producer.enqueue(3, 1);
    wait_until("all have arrived", || producer.all_arrived(&place.arrivals("out.ndjson")));
    assert_eq!((status(listen, "/livez"), status(listen, "/readyz")), (200, 200));
}

#[test]
fn a_port_that_is_taken_is_said_before_anything_is_made() {
    let place = Workplace::new();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let listen = taken.local_addr().unwrap();
    place.write("relay.toml", config(listen, "discard:", ""));
    let finished = place.run(&["run", "--config", "relay.toml"]);
    assert_eq!(finished.code, 2, "{finished:?}");
    assert!(finished.stderr.contains(&listen.to_string()) && finished.stderr.contains("in use"), "{finished:?}");
    assert!(!place.path("app.db").exists(), "nothing was made");
}

/// A server that takes connections and says nothing, as one behind a broken network does. Nobody is let go.
fn silent_server() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    address
}

#[test]
fn a_start_that_hangs_answers_probes_and_ends_when_it_is_told() {
    let (place, listen) = (Workplace::new(), free_port());
    let server = silent_server();
    let url = format!("postgres://relay@{server}/shop?sslmode=disable");
    let text = config(listen, "discard:", "").replace("sqlite:app.db", &url);
    let mut daemon = place.daemon("relay", &text);
    wait_until("it answers", || status(listen, "/livez") == 200);
    for path in ["/startupz", "/readyz"] {
        assert_eq!(get(listen, path, None), Some((503, "starting\n".to_owned())), "{path}");
    }
    let (code, body) = get(listen, "/healthz", None).unwrap();
    let health: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, health["status"].as_str()), (503, Some("starting")));
    assert_eq!(status(listen, "/metrics"), 200);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    let told = std::fs::read_to_string(place.path("relay.log")).unwrap();
    assert!(told.contains("stopped before anything was started"), "{told}");
}

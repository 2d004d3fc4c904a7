//! Webhooks from the binary: what `[route.http]` says is what a receiver gets, and no secret is ever printed.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::SystemTime,
};

use postrider::http::{VerifyKey, read, webhook};

use crate::support::{Workplace, wait_until};

const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

/// A receiver that takes one request per connection and keeps the payloads whose signature is good.
fn receiver() -> (u16, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let arrived = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&arrived);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let payload = take(stream);
            kept.lock().unwrap().extend(payload);
        }
    });
    (port, arrived)
}

fn take(stream: TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        if line.trim().is_empty() {
            break;
        }
        headers.extend(line.trim().split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    let header = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
    let mut body = vec![0; header("content-length")?.parse().unwrap()];
    reader.read_exact(&mut body).ok()?;
    assert_eq!(header("authorization"), Some("Bearer canary-header"));
    webhook::verify(&[VerifyKey::parse(SECRET).unwrap()], header, &body, SystemTime::now()).expect("a good signature");
    let event = read(headers.iter().map(|(n, v)| (n.as_str(), v.as_str())), body.into()).unwrap();
    assert_eq!(event.source, "shop");
    reader.get_mut().write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").ok()?;
    Some(String::from_utf8(event.envelope.payload.to_vec()).unwrap())
}

fn config(port: u16) -> String {
    format!(
        "[store]\nurl = \"sqlite:app.db\"\n[[route]]\nname = \"partner\"\ntransport = \"http://127.0.0.1:{port}/canary-path\"\n\
         [route.http]\nsecret = {{ file = \"secret\" }}\nsource = \"shop\"\nmode = \"structured\"\nallow_http = true\n\
         allow = [\"127.0.0.1\"]\nports = [{port}]\nheaders = {{ authorization = \"Bearer canary-header\" }}\n"
    )
}

fn keep_secret(workplace: &Workplace, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    workplace.write("secret", format!("{SECRET}\n"));
    std::fs::set_permissions(workplace.path("secret"), std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_daemon_posts_what_was_committed() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    producer.enqueue(20, 5);
    keep_secret(&workplace, 0o600);
    let (port, arrived) = receiver();
    let _daemon = workplace.daemon("hooks", &config(port));
    wait_until("all have arrived", || arrived.lock().unwrap().len() >= 20);
    let log = std::fs::read_to_string(workplace.path("hooks.log")).unwrap();
    assert!(!log.contains("canary") && !log.contains(&SECRET[6..]), "{log}");
}

#[test]
fn a_secret_that_cannot_be_used_stops_the_start_and_is_not_repeated() {
    let workplace = Workplace::new();
    drop(workplace.migrated());
    workplace.write("hooks.toml", config(9));
    let start = || workplace.run(&["run", "--config", "hooks.toml"]);
    let missing = start();
    assert!(missing.stderr.contains("hooks.toml:7: `route.http.secret` the file"), "{}", missing.stderr);
    keep_secret(&workplace, 0o644);
    let open = start();
    assert!(open.stderr.contains("chmod o-r secret"), "{}", open.stderr);
    keep_secret(&workplace, 0o600);
    workplace.write("secret", "whsec_canary");
    let wrong = start();
    assert!(wrong.stderr.contains("Base64"), "{}", wrong.stderr);
    for finished in [missing, open, wrong] {
        assert_eq!(finished.code, 2, "{}", finished.stderr);
        assert!(!finished.stderr.contains("canary"), "{}", finished.stderr);
    }
}

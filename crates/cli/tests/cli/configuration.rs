//! The configuration as the binary sees it: what is said where, what holds in the end, and a file to begin with.

use serde_json::Value;

use crate::support::{Finished, Workplace};

const FILE: &str = "[store]\nurl = \"postgres://me:canary-password@localhost/app\"\n[admin]\ntoken = \"canary-token-0123456789\"\n\
                    [[route]]\nname = \"billing\"\ntransport = \"https://hooks.example.com/canary-path\"\n[route.http]\n\
                    secret = { env = \"HOOK_SECRET\" }\nheaders = { authorization = \"Bearer canary-header\" }\n";
const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn with(workplace: &Workplace, arguments: &[&str], environment: &[(&str, &str)]) -> Finished {
    Finished::of(&workplace.command(arguments).envs(environment.iter().copied()).output().unwrap())
}

#[test]
fn show_tells_the_origin_of_every_value_and_no_secret() {
    let workplace = Workplace::new();
    workplace.write("postrider.toml", FILE);
    let environment = [("HOOK_SECRET", SECRET), ("POSTRIDER__ROUTE__BILLING__RATE", "10")];
    let text = with(&workplace, &["config", "show", "--set", "relay.lease_life=4s"], &environment);
    assert_eq!(text.code, 0, "{text:?}");
    let lines: Vec<Vec<&str>> = text.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    for line in [
        "url = \"postgres://me:(hidden)@localhost/app\" # postrider.toml:2",
        "lease_life = \"4s\" # --set relay.lease_life",
        "heartbeat_every = \"1s\" # default",
        "transport = \"https://hooks.example.com/(hidden)\" # postrider.toml:7",
        "rate = 10 # env POSTRIDER__ROUTE__BILLING__RATE",
        "secret = { env = \"HOOK_SECRET\" } # postrider.toml:9",
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert!(lines.contains(&words), "{line}\n--- in ---\n{}", text.stdout);
    }
    let json = with(&workplace, &["config", "show", "--output", "json"], &environment);
    let object: Value = serde_json::from_str(&json.stdout).unwrap();
    let values = object["values"].as_array().unwrap();
    let rate = values.iter().find(|value| value["key"] == "route.rate").unwrap();
    assert_eq!(rate["origin"]["name"], "POSTRIDER__ROUTE__BILLING__RATE");
    let check = with(&workplace, &["config", "check"], &environment);
    assert_eq!(check.code, 0, "{check:?}");
    for finished in [text, json, check] {
        let told = format!("{}{}", finished.stdout, finished.stderr);
        assert!(!told.contains("canary") && !told.contains(SECRET), "{told}");
    }
}

#[test]
fn what_is_only_named_must_be_there() {
    let workplace = Workplace::new();
    workplace.write("postrider.toml", FILE);
    let missing = with(&workplace, &["config", "check"], &[]);
    assert_eq!(missing.code, 2, "{missing:?}");
    let line = "postrider.toml:9: `route.http.secret` the variable of the environment that holds a secret is not set \
                (variable: HOOK_SECRET)";
    assert!(missing.stderr.contains(line), "{missing:?}");
    let wrong = with(&workplace, &["config", "check"], &[("HOOK_SECRET", "whsec_canary")]);
    assert!(wrong.stderr.contains("postrider.toml:9: `route.http.secret`"), "{wrong:?}");
    assert!(!wrong.stderr.contains("canary") && wrong.code == 2, "{wrong:?}");
}

#[test]
fn init_writes_a_file_that_is_right_and_overwrites_nothing() {
    for store in ["sqlite", "postgres", "mysql", "mongodb"] {
        for transport in ["stdout", "file", "https", "nats", "rabbitmq", "redis", "kafka", "discard"] {
            let workplace = Workplace::new();
            let init = ["init", "--store", store, "--transport", transport];
            let written = workplace.run(&init);
            assert_eq!(written.code, 0, "{written:?}");
            let check = workplace.run(&["config", "check"]);
            // A binary that was built without Kafka says so.
            let known = transport != "kafka" || cfg!(feature = "kafka");
            assert_eq!(check.code, if known { 0 } else { 2 }, "{store} {transport}: {check:?}");
            let text = std::fs::read_to_string(workplace.path("postrider.toml")).unwrap();
            assert!(text.starts_with("#:schema ./postrider.schema.json\n"), "{text}");
            let again = workplace.run(&init);
            assert_eq!(again.code, 2, "{again:?}");
            assert!(again.stderr.contains("postrider.toml is there already"), "{again:?}");
            assert_eq!(std::fs::read_to_string(workplace.path("postrider.toml")).unwrap(), text);
        }
    }
}

#[test]
fn init_says_what_it_has_written_as_json_too() {
    let workplace = Workplace::new();
    let written = workplace.json(&["init", "--store", "sqlite", "--transport", "https"]);
    let secret = serde_json::json!({ "file": "webhook-secret", "new": true });
    assert_eq!(written, serde_json::json!({ "config": "postrider.toml", "secret": secret }));
    let other = workplace.json(&["init", "--store", "sqlite", "--transport", "https", "--config", "other.toml"]);
    assert_eq!((&other["config"], &other["secret"]["new"]), (&"other.toml".into(), &false.into()), "{other}");
    let plain = workplace.json(&["init", "--store", "sqlite", "--transport", "stdout", "--config", "plain.toml"]);
    assert!(plain["secret"].is_null(), "{plain}");
}

#[test]
fn the_schema_is_json_and_knows_the_file() {
    let finished = Workplace::new().run(&["config", "schema"]);
    let schema: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(schema["properties"]["route"]["items"]["properties"]["lanes"]["maximum"], 256);
    assert_eq!(schema["additionalProperties"], false);
}

//! The table of keys and the code that reads them say the same, and what is made from the table is right.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::config::keys::{Fallback, Key, Kind};

/// A program that cannot speak to Kafka takes no route to it.
const KAFKA: &str =
    if cfg!(feature = "kafka") { "[[route]]\nname = \"kafka\"\ntransport = \"kafka://broker\"\n" } else { "" };

/// Files that together use every section and every shape of a retry policy.
fn files() -> Vec<String> {
    let shapes = ["fixed", "linear", "exponential"];
    let with_everything = |shape: &&str| {
        format!(
            "{SMALLEST}[admin]\n[[route]]\nname = \"hook\"\ntransport = \"https://hooks.example.com/\"\n\
             retry = {{ backoff = \"{shape}\" }}\nhttp = {{ unsigned = true }}\n\
             [[route]]\nname = \"nats\"\ntransport = \"nats://broker\"\n\
             [[route]]\nname = \"redis\"\ntransport = \"redis://broker\"\n\
             [[route]]\nname = \"rabbitmq\"\ntransport = \"amqp://broker\"\n{KAFKA}\
             [store.collect]\nurl = \"mongodb://broker/shop\"\ncollections = [\"orders\"]\n"
        )
    };
    shapes.iter().map(with_everything).collect()
}

fn shown(text: &str) -> Vec<Shown> {
    parse(text, &Overrides::default(), false).map(|loaded| loaded.shown).unwrap()
}

/// The other direction needs no test of its own: a key that is not in the table cannot be asked for.
#[test]
fn every_key_of_the_table_is_read() {
    let read: BTreeSet<&str> = files().iter().flat_map(|text| shown(text)).map(|value| value.key.path).collect();
    let table: BTreeSet<&str> = KEYS.iter().map(|key| key.path).collect();
    assert_eq!(table.len(), KEYS.len(), "no key stands in the table twice");
    let taken = |path: &&&str| cfg!(feature = "kafka") || !path.starts_with("route.kafka.");
    assert_eq!(read, table.iter().filter(taken).copied().collect());
}

/// Both are drawn from the table, so this is about what the schema leaves out.
#[test]
fn the_schema_has_every_key_and_no_other() {
    fn collect(section: &Value, path: &str, found: &mut BTreeSet<String>) {
        for (name, property) in section["properties"].as_object().unwrap() {
            let full = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let inner = [&property["items"], &property["anyOf"][0], property];
            match inner.into_iter().find(|shape| shape["properties"].is_object()) {
                Some(table) => collect(table, &full, found),
                None => {
                    assert!(property["description"].as_str().is_some_and(|text| text.len() > 10), "{full}");
                    found.insert(full);
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    collect(&schema::schema(), "", &mut found);
    // Secrets are written in three ways, each a table with one key.
    let inside = ["secret.", "token.", "password.", "credentials."];
    found.retain(|path| keys::find(path).is_some() || !inside.iter().any(|secret| path.contains(secret)));
    let table: BTreeSet<String> = KEYS.iter().map(|key| key.path.to_owned()).collect();
    assert_eq!(found, table);
}

#[test]
fn the_defaults_of_the_table_are_those_of_the_engine() {
    let config = parsed(SMALLEST).unwrap();
    assert_eq!(config.relay.options, Options::default());
    assert_eq!(config.routes[0].retry, RetryPolicy::default());
}

/// A file that says every default in so many words is the same configuration.
#[test]
fn a_default_that_is_written_out_changes_nothing() {
    let default = |key: &&Key| matches!(key.fallback, Fallback::Value(_)) && !["wait", "step"].contains(&key.name());
    let of = |section: &str| -> String {
        let keys = KEYS.iter().filter(|key| key.section() == section).filter(default);
        keys.map(|key| format!("{} = {}\n", key.name(), key.value().unwrap())).collect()
    };
    let text = format!(
        "[store]\nurl = \"sqlite:app.db\"\n{}[relay]\n{}[log]\n{}[[route]]\nname = \"all\"\ntransport = \"stdout\"\n{}\
         [route.retry]\n{}",
        of("store"),
        of("relay"),
        of("log"),
        of("route"),
        of("route.retry")
    );
    assert_eq!(parsed(&text).unwrap(), parsed(SMALLEST).unwrap());
}

/// Where nothing is a sensible answer, the table says so: a pause, a patience or an interval of nothing is a loop without a
/// rest, or gives up before it has begun.
#[test]
fn a_duration_of_nothing_is_refused_where_it_makes_no_sense() {
    // Delivered records that nobody keeps; a cursor that is moved, and a batch that is sent, at once.
    let sensible = ["relay.keep_delivered", "route.settle_after", "route.kafka.linger"];
    let transports = [
        ("route.http", "https://hooks.example.com/"),
        ("route.nats", "nats://broker"),
        ("route.rabbitmq", "amqp://broker"),
        ("route.redis", "redis://broker"),
        ("route.kafka", "kafka://broker"),
    ];
    let mut refused = 0;
    for key in KEYS {
        let timed =
            matches!(key.kind, Kind::Duration | Kind::SomeTime | Kind::DurationOr(_) | Kind::DurationOrSwitch(_));
        let built = cfg!(feature = "kafka") || key.section() != "route.kafka";
        if !timed || !built {
            continue;
        }
        let transport =
            transports.iter().find(|(section, _)| *section == key.section()).map_or("stdout", |(_, url)| url);
        let shape = match key.name() {
            "wait" => "backoff = \"fixed\"\n",
            "step" => "backoff = \"linear\"\n",
            _ => "",
        };
        let more = if key.section() == "route.http" { "unsigned = true\n" } else { shape };
        let (name, section) = (key.name(), key.section());
        let route = format!("[[route]]\nname = \"zero\"\ntransport = \"{transport}\"\n");
        let text = match section {
            "route" => format!("[store]\nurl = \"sqlite:app.db\"\n{route}{name} = \"0s\"\n"),
            _ => format!("[store]\nurl = \"sqlite:app.db\"\n{route}[{section}]\n{more}{name} = \"0s\"\n"),
        };
        if sensible.contains(&key.path) {
            assert!(parsed(&text).is_ok(), "{}: {}", key.path, problems(&text));
            continue;
        }
        let line = text.lines().count();
        let told = problems(&text);
        assert!(told.contains(&format!("p.toml:{line}: `{}` must be", key.path)), "{}: {told}", key.path);
        refused += 1;
    }
    assert!(refused > 12, "{refused}");
    let told = problems(&format!("{SMALLEST}[relay]\nkeep_dead = \"0s\"\n"));
    assert!(told.contains("p.toml:7: `relay.keep_dead`") && told.contains("`keep_dead = false`"), "{told}");
}

#[test]
fn what_init_writes_is_right_also_with_its_defaults_taken_up() {
    let chosen =
        [("store.url", "\"sqlite:app.db\""), ("route.name", "\"everything\""), ("route.transport", "\"stdout\"")];
    let written = template(&chosen);
    assert_eq!(parsed(&written).unwrap().routes[0].name, "everything");
    // What has to be said of a collector cannot be left at its default, so its section stays commented out.
    let blocks: Vec<&str> = written.split("\n\n").filter(|block| !block.starts_with("# [store.collect]")).collect();
    let without_collector = blocks.join("\n\n");
    let taken_up: Vec<&str> = without_collector
        .lines()
        .filter(|line| !line.contains('…') && !line.starts_with("# wait") && !line.starts_with("# step"))
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.split_once(" = ").is_some_and(|(name, _)| KEYS.iter().any(|key| key.name() == name)) => {
                rest
            }
            _ => line,
        })
        .take_while(|line| !line.contains("[route.http]"))
        .collect();
    let text = taken_up.join("\n").replace("# [admin]", "[admin]");
    assert!(text.contains("\nlanes = 1\n") && text.contains("\nlisten = "), "{text}");
    let mut expected = parsed(&written).unwrap();
    let whole = parsed(&text).unwrap();
    expected.admin = whole.admin.clone();
    assert_eq!(whole, expected);
    for key in KEYS {
        assert!(written.contains(&format!("\n# {}\n", key.doc)), "{} is explained", key.path);
    }
}

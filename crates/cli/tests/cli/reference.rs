//! Reference pages are written by the code that they describe. A page that differs fails its test; with
//! `POSTRIDER_WRITE_DOCS=1` the test writes it instead.

use std::{collections::BTreeSet, fs};

use postrider::{ErrorKind, core::doctor, diagnosis, metrics::Metrics};
use serde_json::Value;

use crate::{alerts::docs, support::Workplace};

/// Compares a page of `docs/reference` with what the code says, or writes it.
#[track_caller]
pub(crate) fn assert_page(name: &str, expected: &str) {
    let path = docs().join("reference").join(name);
    if std::env::var_os("POSTRIDER_WRITE_DOCS").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, expected).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == expected,
        "docs/reference/{name} is not what the code says; write it with\n\
         POSTRIDER_WRITE_DOCS=1 cargo test -p postrider-cli --test cli reference\nand look at the difference"
    );
}

#[test]
fn commands() {
    let printed = crate::support::Workplace::new().run(&["reference"]);
    assert_eq!(printed.code, 0, "{printed:?}");
    assert_page("commands.md", &printed.stdout);
}

#[test]
fn metrics() {
    let mut page = String::from(
        "# Metrics\n\nWritten by the code; see [watching a relay](../operate/watching.md) for how to read them and \
         [the alerts](../operate/alerts/postrider.rules.yml)\nfor what to do about them. `postrider run` serves them at \
         `/metrics`. A metric that nothing was counted for yet is not shown.\n\n\
         | Metric | Kind | Labels | Meaning |\n|---|---|---|---|\n",
    );
    for described in Metrics::new().describe() {
        let labels: Vec<String> = described.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind, help) = (&described.name, described.kind, &described.help);
        page.push_str(&format!("| `{name}` | {kind} | {} | {help} |\n", labels.join(", ")));
    }
    assert_page("metrics.md", &page);
}

#[test]
fn configuration() {
    let schema: Value = serde_json::from_str(&Workplace::new().run(&["config", "schema"]).stdout).unwrap();
    let mut page = String::from(
        "# Configuration, key by key\n\nWritten by the code, from the table that the daemon reads by; \
         [configuration](../operate/configuration.md) tells how to use it.\n`postrider config schema` prints the same for \
         editors. What is live is taken at SIGHUP; the rest needs a restart.\n",
    );
    let top = &schema["properties"];
    let (route, one_store) = (&top["route"]["items"], &top["store"]["anyOf"][0]);
    let sections = [
        ("[store]", one_store),
        ("[store.collect]", &one_store["properties"]["collect"]),
        ("[relay]", &top["relay"]),
        ("[log]", &top["log"]),
        ("[admin]", &top["admin"]),
        ("[telemetry]", &top["telemetry"]),
        ("[[route]]", route),
        ("[route.retry]", &route["properties"]["retry"]),
        ("[route.destination]", &route["properties"]["destination"]),
        ("[route.http]", &route["properties"]["http"]),
        ("[route.nats]", &route["properties"]["nats"]),
        ("[route.rabbitmq]", &route["properties"]["rabbitmq"]),
        ("[route.redis]", &route["properties"]["redis"]),
        ("[route.kafka]", &route["properties"]["kafka"]),
    ];
    let tables = route["properties"].as_object().unwrap().values().filter(|key| !key["properties"].is_null());
    let shown = sections.iter().filter(|(header, _)| header.starts_with("[route.")).count();
    assert_eq!(shown, tables.count(), "every table of a route is shown");
    assert_eq!(top.as_object().unwrap().len(), 6, "every section has its table");
    for (header, section) in sections {
        page.push_str(&format!(
            "\n## `{header}`\n\n| Key | Takes | Default | Live | Meaning |\n|---|---|---|---|---|\n"
        ));
        let keys = section["properties"].as_object().unwrap().iter();
        for (key, property) in keys.filter(|(_, property)| property["properties"].is_null()) {
            let default = property.get("default").map_or_else(String::new, |value| format!("`{value}`"));
            let live = if property["x-restart-needed"] == false { "yes" } else { "" };
            let meaning = property["description"].as_str().unwrap();
            page.push_str(&format!("| `{key}` | {} | {default} | {live} | {meaning} |\n", takes(property)));
        }
    }
    assert_page("configuration.md", &page);
}

/// What a key takes, in words.
fn takes(shape: &Value) -> String {
    if let Some(words) = shape["enum"].as_array() {
        return words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    }
    if let Some(word) = shape.get("const") {
        return format!("`{word}`");
    }
    if let Some(ways) = shape["anyOf"].as_array() {
        let is_secret = |way: &Value| way["properties"]["env"].is_object();
        if ways.iter().any(is_secret) {
            return "a secret".to_owned();
        }
        return ways.iter().map(takes).collect::<Vec<_>>().join(", or ");
    }
    match (shape["type"].as_str().unwrap_or_default(), shape["pattern"].as_str()) {
        ("string", Some(pattern)) => if pattern.contains("ms") { "a duration" } else { "a size" }.to_owned(),
        ("string", None) => "a text".to_owned(),
        ("integer", _) => format!("{} to {}", shape["minimum"], shape["maximum"]),
        ("array", _) => "a list of such".to_owned(),
        ("boolean", _) => "true or false".to_owned(),
        ("number", _) => "a number".to_owned(),
        ("object", _) if shape["additionalProperties"]["type"] == "string" => "names, and a text for each".to_owned(),
        ("object", _) => "names, and a secret for each".to_owned(),
        (other, _) => other.to_owned(),
    }
}

#[test]
fn errors() {
    let mut page = String::from(
        "# Errors, findings and codes\n\nWritten by the code. Codes and exit codes are stable: scripts and alerts may rely on \
         them; sentences are for people.\n\n## Exit codes\n\nMore in [exit codes](../operate/exit-codes.md).\n\n\
         | Code | Means |\n|---|---|\n",
    );
    let help = Workplace::new().run(&["--help"]).stdout;
    let codes = help.split_once("Exit codes:\n").expect("the help tells them").1;
    // A long line is broken for the terminal.
    let mut rows: Vec<String> = Vec::new();
    for line in codes.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match (line.split_once("  ").filter(|(code, _)| code.parse::<u8>().is_ok()), rows.last_mut()) {
            (Some((code, meaning)), _) => rows.push(format!("| {code} | {meaning}")),
            (None, Some(row)) => row.push_str(&format!(" {line}")),
            (None, None) => panic!("not a code: {line}"),
        }
    }
    for row in rows {
        page.push_str(&format!("{row} |\n"));
    }
    page.push_str(
        "\n## Kinds of errors\n\nWhat `Error::kind()` answers in the library.\n\n| Kind | Means |\n|---|---|\n",
    );
    for kind in ErrorKind::ALL {
        page.push_str(&format!("| `{}` | {} |\n", kind.name(), kind.meaning()));
    }
    page.push_str(
        "\n## Why something waits\n\nThe codes of `postrider why`, `postrider status`, `/healthz` and the label `cause` of the \
         metric `postrider_standstill`.\n\n| Code | Means |\n|---|---|\n",
    );
    let rows = |codes: &[(&str, &str)]| -> String {
        codes.iter().map(|(code, meaning)| format!("| `{code}` | {meaning} |\n")).collect()
    };
    page.push_str(&rows(&diagnosis::CODES));
    page.push_str(
        "\n## What a doctor finds\n\nThe codes of `postrider doctor`; `/healthz` has those of a store that cannot be \
         read, too.\n\n| Code | Means |\n|---|---|\n",
    );
    page.push_str(&rows(&doctor::CODES));
    assert_page("errors.md", &page);
}

/// The stores' own code is the other half of the table.
#[test]
fn the_table_of_a_doctors_codes_is_complete() {
    let (mut found, mut left) = (BTreeSet::new(), vec![docs().join("../crates")]);
    while let Some(folder) = left.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !["tests", "target"].contains(&name.as_str()) {
                left.push(path);
            } else if name.ends_with(".rs") {
                let text = fs::read_to_string(&path).unwrap();
                // Behind the module of unit tests codes are made up.
                let text = text.split("mod tests {").next().unwrap_or_default();
                for (at, call) in text.match_indices("Finding::new(") {
                    let code = text[at + call.len()..].trim_start().strip_prefix('"');
                    found.extend(code.and_then(|rest| rest.split('"').next()).map(str::to_owned));
                }
            }
        }
    }
    let table: BTreeSet<String> = doctor::CODES.iter().map(|(code, _)| (*code).to_owned()).collect();
    let missing: Vec<&String> = found.difference(&table).collect();
    assert!(found.len() > 15 && missing.is_empty(), "not in the table: {missing:?}");
}

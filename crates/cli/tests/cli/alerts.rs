//! Alerts and dashboard ask for metrics that exist, every alert has a page that says what to do, and every alert fires on
//! what it is meant for: `promtool` runs the rules. That the commands of the pages exist is checked beside the commands.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use postrider::{diagnosis, metrics::Metrics};
use serde_json::Value;

use crate::{
    support::Workplace,
    transcripts::{blocks, pages},
};

/// The documentation of this tree.
pub(crate) fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn rules() -> String {
    fs::read_to_string(docs().join("operate/alerts/postrider.rules.yml")).unwrap()
}

/// Every name by which something of ours can be asked for.
fn names() -> BTreeSet<String> {
    let metrics = Metrics::new();
    let mut names = BTreeSet::new();
    for described in metrics.describe() {
        match described.kind {
            "histogram" => names.extend(["_bucket", "_sum", "_count"].map(|s| format!("{}{s}", described.name))),
            _ => drop(names.insert(described.name.clone())),
        }
    }
    names
}

/// Everything in a text that looks like one of our metrics.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("postrider_")).map(str::to_owned).collect()
}

#[track_caller]
fn assert_known(used: &BTreeSet<String>) {
    let names = names();
    let unknown: Vec<&String> = used.difference(&names).collect();
    assert!(unknown.is_empty(), "nobody counts {unknown:?}; there are {names:?}");
}

fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines()
        .filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix(key))
        .map(str::trim)
        .collect()
}

#[test]
fn alerts_ask_for_metrics_that_exist() {
    let used = metrics_in(&rules());
    assert!(used.len() >= 10, "{used:?}");
    assert_known(&used);
}

/// What stands between `before` and `after`, wherever that is in a text.
fn between<'a>(text: &'a str, before: &str, after: char) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split(after).next()).collect()
}

/// A label that no metric has makes an alert that never fires, and names nobody if it does.
#[test]
fn alerts_ask_for_labels_and_causes_that_exist() {
    let (text, metrics) = (rules(), Metrics::new());
    let mut asked = 0;
    for line in text.lines().filter(|line| line.contains("by (")) {
        let used = metrics_in(line);
        let described = metrics.describe().iter().filter(|it| used.iter().any(|name| name.starts_with(&it.name)));
        let known: BTreeSet<&str> = described.flat_map(|it| it.labels.iter().copied()).chain(["le"]).collect();
        for label in between(line, "by (", ')').into_iter().flat_map(|labels| labels.split(", ")) {
            assert!(known.contains(label), "`{label}` in {line}; there are {known:?}");
            asked += 1;
        }
    }
    assert!(asked >= 20, "{asked}");
    let causes = between(&text, "postrider_standstill{cause=\"", '"');
    assert!(causes.len() >= 3, "{causes:?}");
    for cause in causes {
        assert!(diagnosis::CODES.iter().any(|(known, _)| *known == cause), "`{cause}`");
    }
}

#[test]
fn every_alert_has_a_page_that_says_what_to_do() {
    let text = rules();
    let (alerts, pages) = (values(&text, "alert:"), values(&text, "runbook:"));
    assert_eq!(alerts.len(), pages.len(), "every alert names its page");
    let mut named = BTreeSet::new();
    for (alert, page) in alerts.iter().zip(pages) {
        let path = docs().parent().unwrap().join(page);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{alert}: {page}: {error}"));
        assert!(text.starts_with(&format!("# {alert}\n")), "{page} is not about {alert}");
        for part in ["## What it means", "## Check", "## Fix"] {
            assert!(text.contains(part), "{page} lacks `{part}`");
        }
        assert_known(&metrics_in(&text.replace("_seconds`", "_seconds_sum`")));
        named.insert(path.file_name().unwrap().to_owned());
    }
    let folder = fs::read_dir(docs().join("operate/runbooks")).unwrap();
    let there: BTreeSet<_> = folder.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(there, named, "no page without its alert");
}

#[test]
fn the_dashboard_asks_for_metrics_that_exist() {
    let text = fs::read_to_string(docs().join("operate/grafana/postrider.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "ids are unique");
    let mut used = BTreeSet::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{} shows nothing", panel["title"]);
        for target in targets {
            let asked = metrics_in(target["expr"].as_str().unwrap());
            assert!(!asked.is_empty(), "{} asks for nothing of ours", panel["title"]);
            used.extend(asked);
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        used.extend(metrics_in(variable["query"]["query"].as_str().unwrap_or_default()));
    }
    assert_known(&used);
    let shown = |name: &String| used.contains(name) || name.ends_with("_sum") || name.ends_with("_count");
    let forgotten: Vec<String> = names().into_iter().filter(|name| !shown(name)).collect();
    assert!(forgotten.is_empty(), "the dashboard does not show {forgotten:?}");
}

#[test]
fn every_alert_fires_on_what_it_is_meant_for() {
    let folder = docs().join("operate/alerts");
    for (task, file) in [("check", "postrider.rules.yml"), ("test", "postrider.test.yml")] {
        let output = Command::new(promtool()).args([task, "rules", file]).current_dir(&folder).output().unwrap();
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{told}");
    }
    let tested = fs::read_to_string(folder.join("postrider.test.yml")).unwrap();
    for alert in values(&rules(), "alert:") {
        assert!(tested.contains(&format!("alertname=\"{alert}\"")), "no test makes {alert} fire");
    }
}

#[test]
fn settings_of_prometheus_that_pages_show_pass_its_check() {
    let mut checked = 0;
    for page in pages() {
        for (_, lines) in blocks(&page).into_iter().filter(|(language, _)| language == "yaml") {
            checked += 1;
            let place = Workplace::new();
            place.write("prometheus.yml", lines.join("\n") + "\n");
            place.write("postrider.rules.yml", rules());
            let mut check = Command::new(promtool());
            let output =
                check.args(["check", "config", "prometheus.yml"]).current_dir(place.path("")).output().unwrap();
            assert!(output.status.success(), "{}: {}", page.display(), String::from_utf8_lossy(&output.stderr));
        }
    }
    assert!(checked >= 1, "no block was found");
}

/// The one on the path, or the one that `cargo xtask services up` puts beside what is built.
fn promtool() -> PathBuf {
    let on_path = Command::new("promtool").arg("--version").output().is_ok_and(|output| output.status.success());
    if on_path {
        return "promtool".into();
    }
    let built = Path::new(env!("CARGO_BIN_EXE_postrider"));
    let found = built.ancestors().map(|folder| folder.join("tools/promtool")).find(|path| path.exists());
    found.expect("there is no promtool: `cargo xtask services up` fetches it")
}

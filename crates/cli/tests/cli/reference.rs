//! Reference pages are written by the code that they describe. A page that differs fails its test; with
//! `POSTRIDER_WRITE_DOCS=1` the test writes it instead.

use std::fs;

use postrider::metrics::Metrics;

use crate::alerts::docs;

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

//! The demonstration keeps its promises, counts honestly, and spoils nobody's directory.

use serde_json::Value;

use crate::support::Workplace;

fn demo(workplace: &Workplace, arguments: &[&str]) -> Value {
    let finished = workplace.run(&[&["demo", "--output", "json", "--dir", "files"], arguments].concat());
    assert_eq!(finished.code, 0, "{finished:?}");
    assert_eq!(finished.stdout.lines().count(), 1, "one object and nothing else: {}", finished.stdout);
    serde_json::from_str(&finished.stdout).unwrap()
}

fn count(verdict: &Value, name: &str) -> u64 {
    verdict[name].as_u64().unwrap_or_else(|| panic!("{name} is a number in {verdict}"))
}

#[test]
fn nothing_is_lost_made_up_or_turned_around_when_processes_are_killed() {
    let workplace = Workplace::new();
    let verdict = demo(&workplace, &["--orders", "200", "--kills", "4", "--keys", "10"]);
    assert_eq!(count(&verdict, "committed"), 200);
    assert_eq!(count(&verdict, "delivered") + count(&verdict, "lost"), 200);
    for broken in ["lost", "ghosts", "out_of_order"] {
        assert_eq!(count(&verdict, broken), 0, "{broken}");
    }
    assert!((1..=4).contains(&count(&verdict, "kills")), "{verdict}");
    assert!(count(&verdict, "rolled_back") > 0, "of more than 200 transactions some were rolled back: {verdict}");
    let arrivals = workplace.arrivals("files/arrivals.ndjson").len() as u64;
    assert_eq!(arrivals, count(&verdict, "delivered") + count(&verdict, "duplicates"));
    assert!(verdict["elapsed_ms"].is_u64() && verdict["dir"].is_string());
}

#[test]
fn the_smallest_demonstration_works() {
    let verdict = demo(&Workplace::new(), &["--orders", "1", "--kills", "0", "--keys", "1"]);
    assert_eq!((count(&verdict, "committed"), count(&verdict, "delivered"), count(&verdict, "kills")), (1, 1, 0));
}

/// As it was written before there was `--output`.
#[test]
fn a_demonstration_knows_the_old_word_for_json() {
    let finished = Workplace::new().run(&["demo", "--json", "--orders", "1", "--kills", "0", "--keys", "1"]);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(serde_json::from_str::<Value>(&finished.stdout).is_ok(), "{finished:?}");
}

#[test]
fn nobody_is_killed_when_the_work_is_done() {
    // The one order is committed before anything could be seen to move, and delivered when it is.
    let verdict = demo(&Workplace::new(), &["--orders", "1", "--kills", "12", "--keys", "1"]);
    assert_eq!((count(&verdict, "committed"), count(&verdict, "kills")), (1, 0));
}

#[test]
fn more_kills_than_work_are_not_made_up() {
    let verdict = demo(&Workplace::new(), &["--orders", "3", "--kills", "50", "--keys", "2"]);
    assert_eq!(count(&verdict, "committed"), 3);
    assert!(count(&verdict, "kills") < 50, "{verdict}");
}

#[test]
fn people_get_one_screen_with_a_verdict() {
    let workplace = Workplace::new();
    let finished = workplace.run(&["demo", "--orders", "20", "--kills", "0", "--keys", "3", "--dir", "files"]);
    assert_eq!(finished.code, 0, "{finished:?}");
    assert!(finished.stdout.lines().count() <= 24, "one screen: {}", finished.stdout);
    let told = ["committed", "rolled back", "delivered", "duplicates", "lost", "ghosts", "out of order", "kills"];
    for name in told {
        assert!(finished.stdout.contains(&format!("\n  {name}")), "{name} is in {}", finished.stdout);
    }
    assert!(finished.stdout.contains("Kept: all 20 committed orders arrived"), "{}", finished.stdout);
    assert!(finished.stderr.contains("committed 20/20"), "progress is on standard error: {}", finished.stderr);
}

#[test]
fn a_directory_with_something_in_it_is_left_alone() {
    let workplace = Workplace::new();
    workplace.write("precious.txt", "mine");
    let finished = workplace.run(&["demo", "--dir", "."]);
    assert_eq!(finished.code, 2);
    assert_eq!(
        finished.stderr,
        "error: the directory . is not empty; the demonstration wants a new one, to spoil nothing\n"
    );
    assert_eq!(std::fs::read_dir(workplace.path("")).unwrap().count(), 1);
}

#[test]
fn nonsense_is_refused() {
    let workplace = Workplace::new();
    let nonsense = [["--orders", "0"], ["--keys", "0"], ["--kills", "-1"], ["--orders", "many"], ["--kills", "1001"]];
    for arguments in nonsense {
        let finished = workplace.run(&[&["demo"], &arguments[..]].concat());
        assert_eq!(finished.code, 2, "{arguments:?}: {finished:?}");
        assert!(finished.stderr.starts_with("error: "), "{arguments:?}: {finished:?}");
    }
}

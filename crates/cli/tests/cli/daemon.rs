//! The daemon, under the signals that a machine has in store for it.

use std::process::Stdio;

use rustix::process::Signal;

use crate::support::{Daemon, Workplace, wait_until};

/// Leases are short, so that a take-over does not keep the test waiting; the rate makes sure that a kill comes in the middle.
fn config(lanes: u32, rate: Option<u32>) -> String {
    let rate = rate.map_or_else(String::new, |rate| format!("rate = {rate}\n"));
    format!(
        "[store]\nurl = \"sqlite:app.db\"\n[relay]\nlease_life = \"1s\"\nheartbeat_every = \"200ms\"\n\
         [[route]]\nname = \"orders\"\ntopics = [\"orders.*\"]\ntransport = \"file:arrivals.ndjson\"\nlanes = {lanes}\n{rate}"
    )
}

#[test]
fn a_drain_publishes_nothing_twice() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    producer.enqueue(3_000, 20);
    let mut slow = workplace.daemon("slow", &config(1, Some(100)));
    wait_until("some have arrived", || workplace.arrivals("arrivals.ndjson").len() >= 40);
    slow.signal(Signal::TERM);
    assert_eq!(slow.wait().code(), Some(0));
    assert!(!producer.all_arrived(&workplace.arrivals("arrivals.ndjson")), "the signal came in the middle");

    let mut next = workplace.daemon("next", &config(1, None));
    wait_until("all have arrived", || producer.all_arrived(&workplace.arrivals("arrivals.ndjson")));
    next.signal(Signal::INT);
    assert_eq!(next.wait().code(), Some(0));
    let verdict = producer.verdict(&workplace.arrivals("arrivals.ndjson"));
    assert!(verdict.is_good(), "{verdict:?}");
    assert_eq!(verdict.duplicates, 0);
}

#[test]
fn a_second_signal_ends_a_drain_that_hangs() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    producer.enqueue(5_000, 1);
    let text = config(1, None).replace("file:arrivals.ndjson", "stdout");
    workplace.write("hang.toml", text);
    // Nobody reads this pipe: once it is full, the destination stands still, and so does the drain.
    let mut command = workplace.command(&["run", "--config", "hang.toml"]);
    let log = std::fs::File::create(workplace.path("hang.log")).unwrap();
    let mut daemon = Daemon::around(command.stdout(Stdio::piped()).stderr(log).spawn().unwrap());
    let told = |what: &str| std::fs::read_to_string(workplace.path("hang.log")).unwrap().contains(what);
    wait_until("the pipe is full", || daemon.output_waiting() > 60_000);
    daemon.signal(Signal::TERM);
    wait_until("it drains", || told("draining"));
    // Until one comes late enough to be a second wish.
    wait_until("it ends", || {
        daemon.signal(Signal::TERM);
        told("ended without draining")
    });
    assert_eq!(daemon.wait().code(), Some(1));
}

/// As `timeout` and supervisors do it, that signal a process and then its group.
#[test]
fn two_signals_at_once_are_one_wish() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    producer.enqueue(5, 1);
    workplace.write("twice.toml", config(1, None));
    let log = std::fs::File::create(workplace.path("twice.log")).unwrap();
    let mut command = workplace.command(&["run", "--config", "twice.toml"]);
    let mut daemon = Daemon::around(command.stderr(log).spawn().unwrap());
    let arrivals = || std::fs::read_to_string(workplace.path("arrivals.ndjson")).unwrap_or_default();
    wait_until("messages arrive", || arrivals().lines().count() == 5);
    // Stopped, it finds both when it goes on.
    for signal in [Signal::STOP, Signal::TERM, Signal::INT, Signal::CONT] {
        daemon.signal(signal);
    }
    assert_eq!(daemon.wait().code(), Some(0));
    let told = std::fs::read_to_string(workplace.path("twice.log")).unwrap();
    assert!(told.contains("draining") && !told.contains("without draining"), "{told}");
}

#[test]
fn a_drain_that_misses_its_deadline_is_a_problem() {
    let workplace = Workplace::new();
    let mut producer = workplace.migrated();
    producer.enqueue(5_000, 1);
    let text = config(1, None).replace("file:arrivals.ndjson", "stdout");
    workplace.write("late.toml", text.replace("[relay]", "[relay]\ndrain_deadline = \"200ms\""));
    // Nobody reads this pipe: once it is full, the destination stands still.
    let mut command = workplace.command(&["run", "--config", "late.toml"]);
    let log = std::fs::File::create(workplace.path("late.log")).unwrap();
    let mut daemon = Daemon::around(command.stdout(Stdio::piped()).stderr(log).spawn().unwrap());
    wait_until("the pipe is full", || daemon.output_waiting() > 60_000);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(1));
    let told = std::fs::read_to_string(workplace.path("late.log")).unwrap();
    assert!(told.contains("error: the drain deadline has passed"), "{told}");
}

//! The last screen: what happened, the numbers, a verdict in one sentence, and where to look. Or all of it as one object.

use std::fmt;

use postrider_testkit::checker::Verdict;
use serde_json::{Value, json};

use super::{Arguments, director::Run, files::Files};

pub(super) struct Report<'a> {
    pub(super) arguments: &'a Arguments,
    pub(super) files: &'a Files,
    pub(super) run: &'a Run,
    pub(super) verdict: &'a Verdict,
}

impl Report<'_> {
    pub(super) fn json(&self) -> Value {
        let Self { files, run, verdict, .. } = self;
        json!({
            "committed": verdict.committed,
            "rolled_back": verdict.rolled_back,
            "delivered": verdict.delivered,
            "duplicates": verdict.duplicates,
            "lost": verdict.lost,
            "ghosts": verdict.ghosts,
            "out_of_order": verdict.out_of_order,
            "kills": run.kills(),
            "elapsed_ms": u64::try_from(run.elapsed.as_millis()).unwrap_or(u64::MAX),
            "dir": files.dir(),
        })
    }

    fn sentence(&self) -> String {
        let Verdict { committed, delivered, lost, ghosts, out_of_order, .. } = self.verdict;
        if self.verdict.is_good() {
            return format!(
                "Kept: all {delivered} committed orders arrived, none that was rolled back did, and each customer's in order."
            );
        }
        format!(
            "BROKEN: of {committed} committed orders {lost} never arrived; {ghosts} arrived that were not committed; \
             {out_of_order} came out of order."
        )
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arguments, files, run, verdict } = self;
        let Run { service_kills, relay_kills, .. } = run;
        let planned = match arguments.kills - run.kills() {
            0 => String::new(),
            left => format!("{left} planned kills found nobody at work"),
        };
        writeln!(f, "Two order services wrote to one SQLite file, each order and its message in one transaction.")?;
        writeln!(
            f,
            "Two relays carried the messages to a file. Meanwhile services were killed {service_kills} times with SIGKILL"
        )?;
        writeln!(f, "and relays {relay_kills} times, in the middle of their work, and started again.\n")?;
        let rows = [
            ("committed", verdict.committed, "orders whose transaction committed"),
            ("rolled back", verdict.rolled_back, "after their message was enqueued"),
            ("delivered", verdict.delivered, "different messages that arrived"),
            ("duplicates", verdict.duplicates, "arrived again after a kill: at least once means this"),
            ("lost", verdict.lost, "committed, never arrived"),
            ("ghosts", verdict.ghosts, "arrived, never committed"),
            ("out of order", verdict.out_of_order, "overtaken by a later order of the same customer"),
            ("kills", u64::from(run.kills()), &planned),
        ];
        for (name, count, meaning) in rows {
            writeln!(f, "{}", format!("  {name:<13}{count:>8}   {meaning}").trim_end())?;
        }
        writeln!(f, "\n{} ({:.1} s)\n", self.sentence(), run.elapsed.as_secs_f64())?;
        writeln!(f, "Everything is left in {}. Have a look:", files.dir().display())?;
        let program = std::env::args().next().unwrap_or_else(|| "postrider".to_owned());
        writeln!(f, "  {program} status --store sqlite:{}", files.database().display())?;
        write!(f, "  head -n 3 {}", files.arrivals().display())
    }
}

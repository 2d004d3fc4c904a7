//! `postrider doctor`: what an operator should know of the store and of what is below it, each with a fix.
//!
//! A store that cannot be opened is a finding too: that is when people ask a doctor.

use std::time::Duration;

use clap::Args;
use postrider::{
    core::{
        admin::StoreAdmin,
        doctor::{Finding, Severity, Thresholds},
    },
    diagnosis,
};
use serde_json::json;

use super::store::StoreArguments;
use crate::{
    exit::{Code, Failure, Outcome},
    output::OutputArguments,
    registry::Place,
    topics,
    unread::Unread,
    values,
};

/// The code of a lock that others wait for.
const LOCKED: &str = "store-locked";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    store: StoreArguments,
    /// Transactions that have been open for longer are told of.
    #[arg(long, value_name = "DURATION", value_parser = values::duration, default_value = "1m")]
    transaction_age: Duration,
    /// Less free disk space than this is told of, where the store can see its disk.
    #[arg(long, value_name = "SIZE", value_parser = values::size, default_value = "256MiB")]
    disk_free: usize,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) async fn run(arguments: &Arguments) -> Outcome {
    let (findings, code) = match examine(arguments).await {
        Ok(findings) => {
            let code = match findings.iter().find(|finding| finding.severity == Severity::Error) {
                Some(finding) if finding.code == "store-missing" => Code::Unreachable,
                Some(_) => Code::Problem,
                None => Code::Done,
            };
            (findings, code)
        }
        // What was asked wrongly is not the store's ill health.
        Err(failure) if failure.code() == Code::Usage => return Err(failure),
        Err(failure) => {
            let is_server = arguments.store.find().is_ok_and(|(_, place)| place.path.starts_with("//"));
            (vec![closed(&failure, is_server)], failure.code())
        }
    };
    arguments.output.object(|| json!({ "healthy": code == Code::Done, "findings": findings }), || as_text(&findings));
    Ok(code)
}

async fn examine(arguments: &Arguments) -> Outcome<Vec<Finding>> {
    let thresholds =
        Thresholds { transaction_age: arguments.transaction_age, disk_free_bytes: arguments.disk_free as u64 };
    let (adapter, place) = arguments.store.find()?;
    if adapter.is_missing(&place) {
        return Ok(vec![missing(&place)]);
    }
    let admin = adapter.open(&place, false).await?.admin;
    let mut findings = admin.doctor(thresholds).await?;
    let is_locked = |findings: &[Finding]| findings.iter().any(|finding| finding.code == LOCKED);
    if !is_locked(&findings) {
        // Where that cannot be asked, as of a file that nobody may write to, it is no question.
        findings.extend(admin.blockage().await.unwrap_or_default());
    }
    match unrouted(&*admin).await {
        // Nobody can look behind some locks, and whoever has it is what matters.
        Err(_) if is_locked(&findings) => {}
        unrouted => findings.extend(unrouted?),
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    Ok(findings)
}

/// A log in which nobody reads some messages is not in good health, whatever the server below it says.
async fn unrouted(admin: &dyn StoreAdmin) -> Outcome<Vec<Finding>> {
    let mut topics = topics::unknown(Vec::new());
    let overview = topics::look_for(topics::PATIENCE, admin, &mut topics).await?;
    let unread = topics.unread(&overview);
    let found = diagnosis::unrouted(&unread).map(|found| (Severity::Warning, plural(unread.len(), "topic"), found));
    let in_part = topics.in_part().map(|found| (Severity::Note, "topics".to_owned(), found));
    let told = |(severity, subject, found): (Severity, String, diagnosis::Finding)| {
        Finding::new(found.code, severity, subject).detail(found.what).fix(found.fix.unwrap_or_default())
    };
    Ok(found.into_iter().chain(in_part).map(told).collect())
}

fn missing(place: &Place) -> Finding {
    Finding::new("store-missing", Severity::Error, "store")
        .detail(format!("there is no such database: {}", place.path))
        .fix("correct the path, or make a new one with `postrider migrate up`")
}

fn closed(failure: &Failure, is_server: bool) -> Finding {
    let unread = Unread::of(failure.code(), failure.is_corrupt());
    let fix = match unread {
        Unread::Corrupt => {
            "correct the path if another file was meant; otherwise bring it back from a backup: it cannot be repaired here"
        }
        Unread::Unreachable if is_server => {
            "what the cause asks for; otherwise start it, or correct the address of `--store`"
        }
        // Nobody can start a file.
        Unread::Unreachable => {
            "correct the path, see that it is a file that this user may open, and that nobody else keeps it locked"
        }
        Unread::Refused => "the cause says who refuses; `postrider migrate status` tells of the schema",
        Unread::Failed => "the cause says what has failed",
    };
    let detail = failure.to_string();
    let detail = detail.strip_prefix("error: ").unwrap_or(&detail).replace("\n  because: ", "; because: ");
    Finding::new(unread.code(), Severity::Error, "store").detail(detail).fix(fix)
}

fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { code, severity, subject, detail, fix } in findings {
        text.push_str(&format!("{severity:8} {code}: {subject}\n         {detail}\n         fix: {fix}\n"));
    }
    let count = |severity: Severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let [errors, warnings, notes] = [Severity::Error, Severity::Warning, Severity::Note].map(count);
    text.push_str(&match findings {
        [] => "nothing to complain about\n".to_owned(),
        _ => format!("{}, {}, {}\n", plural(errors, "error"), plural(warnings, "warning"), plural(notes, "note")),
    });
    text
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_told_with_their_fix() {
        assert_eq!(as_text(&[]), "nothing to complain about\n");
        let found = Finding::new("fsync-off", Severity::Warning, "fsync").detail("A crash loses.").fix("Switch it on.");
        let expected = "warning  fsync-off: fsync\n         A crash loses.\n         fix: Switch it on.\n\
                        0 errors, 1 warning, 0 notes\n";
        assert_eq!(as_text(&[found]), expected);
    }
}

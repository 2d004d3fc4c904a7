//! `postrider message trace`: what has happened to one message, in order of time, and what it waits for now.
//!
//! The store keeps no row per delivery: that a cursor has passed a message is known, and when is not. What failed, what an
//! operator did, and what is parked has its time.

use postrider::{
    core::{
        admin::{AuditEntry, MessageTrace, ParkedRow},
        time::Timestamp,
    },
    diagnosis,
};
use serde_json::{Value, json};

use super::{One, unknown};
use crate::{
    command::{
        envelope::{self, Contents},
        why::in_lines,
    },
    exit::{Code, Outcome},
    table::{Table, printable},
};

/// Entries of the audit record that are looked through.
const AUDIT_MAX: u32 = 1_000;

/// One thing that happened.
struct Step {
    at: Option<Timestamp>,
    route: Option<String>,
    what: &'static str,
    detail: String,
}

pub(super) async fn run(one: &One) -> Outcome {
    let admin = one.store.open().await?.admin;
    let contents = Contents::of(&*admin, one.payload).await?;
    let (trace, overview) = (admin.message(one.id).await?, admin.overview().await?);
    let Some(envelope) =
        trace.record.as_ref().map(|(envelope, _)| envelope).or(trace.parked.first().map(|row| &row.envelope))
    else {
        return Err(unknown(one.id));
    };
    let mut steps = steps(&trace, overview.at);
    // What was done to the message itself is told, however long ago that was.
    let mut audit = admin.audit_of(one.id, AUDIT_MAX).await?;
    audit.extend(admin.audit(AUDIT_MAX).await?.into_iter().filter(|entry| !entry.names(one.id)));
    steps.extend(audit.into_iter().filter_map(|entry| Some((is_about(&entry, &trace)?, entry))).map(acted));
    // What has no time stands behind what has.
    steps.sort_by_key(|step| (step.at.is_none(), step.at));
    let findings = diagnosis::why(&*admin, one.id).await?;
    one.output.object(
        || {
            let steps: Vec<Value> = steps.iter().map(Step::json).collect();
            let mut fields = envelope::as_json(envelope, contents);
            fields.insert("steps".into(), steps.into());
            fields.insert("findings".into(), json!(findings));
            Value::Object(fields)
        },
        || {
            let mut table = Table::new(&["AT", "ROUTE", "WHAT", "DETAIL"]);
            for step in &steps {
                let at = step.at.map_or_else(|| "-".to_owned(), |at| at.to_string());
                let route = step.route.clone().unwrap_or_else(|| "-".to_owned());
                table.row([at, route, step.what.to_owned(), step.detail.clone()]);
            }
            let mut text = format!("message {} ({})\n{table}", one.id, printable(&envelope.name));
            if one.payload {
                let lines = envelope::contents_as_lines(envelope, contents);
                text.extend(lines.iter().map(|(name, value)| format!("{}: {}\n", printable(name), printable(value))));
            }
            findings.iter().for_each(|finding| text.push_str(&in_lines(finding)));
            text
        },
    );
    Ok(Code::Done)
}

impl Step {
    fn json(&self) -> Value {
        json!({
            "at": self.at.map(|at| at.to_string()), "route": self.route, "what": self.what, "detail": self.detail,
        })
    }
}

fn steps(trace: &MessageTrace, now: Timestamp) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some((envelope, at)) = &trace.record {
        let key = envelope.key.as_ref().map_or_else(String::new, |key| format!(", key {key}"));
        let detail = format!("topic {}{key}", envelope.topic);
        steps.push(Step { at: Some(*at), route: None, what: "enqueued", detail });
    }
    steps.extend(trace.parked.iter().map(|row| parked(row, now)));
    for (lane, passed) in &trace.passed {
        if trace.parked.iter().any(|row| row.route == lane.route) {
            continue;
        }
        let (what, detail) = match passed {
            true => ("passed", "delivered, unless it was discarded or not read then; when is not kept"),
            false => ("waiting", "the cursor has not passed it"),
        };
        steps.push(Step { at: None, route: Some(lane.route.to_string()), what, detail: detail.to_owned() });
    }
    steps
}

/// What a redriven row was given up for is still known; when, is when it was parked.
fn parked(row: &ParkedRow, now: Timestamp) -> Step {
    let tries = match row.attempts {
        0 => String::new(),
        1 => "after 1 attempt".to_owned(),
        attempts => format!("after {attempts} attempts"),
    };
    let cause = row.cause.as_ref().map(|(code, detail)| format!("{code}: {detail}"));
    let back = row.is_redriven().then(|| "it was put back since, and waits for its turn".to_owned());
    let detail: Vec<String> =
        [Some(tries).filter(|text| !text.is_empty()), cause, back].into_iter().flatten().collect();
    Step {
        at: Some(now.saturating_sub(row.age)),
        route: Some(row.route.to_string()),
        what: if row.is_redriven() { "dead" } else { row.state.name() },
        detail: detail.join("; "),
    }
}

/// How sure it is that an act was about the message.
enum About {
    /// It names the message, its key, or the whole route.
    This,
    /// It was done to several messages of the route by an older program, which did not note which.
    Perhaps,
}

/// Whether an operator's act names the message, or everything of its key or route.
fn is_about(entry: &AuditEntry, trace: &MessageTrace) -> Option<About> {
    let since = trace.record.as_ref().map(|(_, at)| *at);
    if since.is_some_and(|since| entry.at < since) {
        return None;
    }
    let envelope =
        trace.record.as_ref().map(|(envelope, _)| envelope).or(trace.parked.first().map(|row| &row.envelope))?;
    if entry.names_messages() {
        return entry.names(envelope.id).then_some(About::This);
    }
    let of_route = |name: &str| entry.subject == name || entry.route().is_none_or(|route| route == name);
    let mut routes =
        trace.passed.iter().map(|(lane, _)| &*lane.route).chain(trace.parked.iter().map(|row| &*row.route));
    let of_key = entry.said_of("key").map(|key| envelope.key.as_ref().is_some_and(|own| own.as_str() == key));
    match entry.action.as_str() {
        // Rows were chosen by what they were then: their state, their cause. Whether this was one of them is known while it
        // still waits.
        "redrive" | "discard" => {
            let chosen = routes.any(of_route) && of_key != Some(false);
            let certain = of_key == Some(true)
                || entry.action == "redrive"
                    && trace.parked.iter().any(|row| row.is_redriven() && of_route(&row.route));
            chosen.then_some(if certain { About::This } else { About::Perhaps })
        }
        _ => {
            let named = |name: &str| entry.subject == name || entry.route() == Some(name);
            (of_key == Some(true) || routes.any(named)).then_some(About::This)
        }
    }
}

fn acted((about, entry): (About, AuditEntry)) -> Step {
    let what = match (entry.action.as_str(), &about) {
        ("redrive", About::This) => "redriven",
        ("discard", About::This) => "discarded",
        ("pause", _) => "paused",
        ("resume", _) => "resumed",
        ("replay", _) => "replayed",
        _ => "operator",
    };
    let perhaps = match about {
        About::This => "",
        About::Perhaps => "; whether this message was among them is not kept",
    };
    let reason = entry.actor.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    let detail = format!("{} {} by {}{reason}{perhaps}", entry.action, entry.in_short(), entry.actor.name);
    Step { at: Some(entry.at), route: None, what, detail }
}

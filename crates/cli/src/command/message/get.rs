//! `postrider message get`: the envelope, and where it is on every route.

use std::collections::BTreeMap;

use postrider::core::admin::{MessageTrace, ParkedRow};
use serde_json::{Value, json};

use super::{One, unknown};
use crate::{
    command::envelope::{self, Contents},
    exit::{Code, Outcome},
    table::{Table, printable},
};

pub(super) async fn run(one: &One) -> Outcome {
    let admin = one.store.open().await?.admin;
    let (contents, trace) = (Contents::of(&*admin, one.payload).await?, admin.message(one.id).await?);
    let Some(envelope) = trace.record.as_ref().map(|(envelope, _)| envelope).or(trace.parked.first().map(copy)) else {
        return Err(unknown(one.id));
    };
    let places = places(&trace);
    one.output.object(
        || {
            let mut fields = envelope::as_json(envelope, contents);
            fields.insert("enqueued_at".into(), trace.record.as_ref().map(|(_, at)| at.to_string()).into());
            fields.insert("in_log".into(), trace.record.is_some().into());
            let routes = places.iter().map(|(route, place)| json!({ "route": route, "state": place }));
            fields.insert("routes".into(), routes.collect());
            Value::Object(fields)
        },
        || {
            let mut text = String::new();
            let mut lines = envelope::as_lines(envelope, contents);
            let kept = match &trace.record {
                Some((_, at)) => at.to_string(),
                None => "no longer in the log; this is the copy of its parked row".to_owned(),
            };
            lines.insert(1, ("enqueued at".to_owned(), kept));
            for (name, value) in lines {
                text.push_str(&format!("{:<16} {}\n", printable(&name), printable(&value)));
            }
            let mut table = Table::new(&["ROUTE", "STATE"]);
            places.iter().for_each(|(route, place)| table.row([route.clone(), place.clone()]));
            let routes = if places.is_empty() { "no route reads it\n".to_owned() } else { table.to_string() };
            format!("{text}\n{routes}")
        },
    );
    Ok(Code::Done)
}

fn copy(row: &ParkedRow) -> &postrider::Envelope {
    &row.envelope
}

/// Where it is on every route: parked in some state, passed by the cursor, or waiting for the cursor.
fn places(trace: &MessageTrace) -> BTreeMap<String, String> {
    let mut places = BTreeMap::new();
    for (lane, passed) in &trace.passed {
        places.insert(lane.route.to_string(), if *passed { "passed" } else { "waiting" }.to_owned());
    }
    for row in &trace.parked {
        places.insert(row.route.to_string(), row.state.to_string());
    }
    places
}

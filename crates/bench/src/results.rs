//! The one JSON object that a benchmark prints.

use serde_json::{Value, json};

/// Adds the figures of one measurement to those of the others.
pub(crate) fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

/// Three digits behind the point are more than anybody can measure.
pub(crate) fn rounded(mut results: Value) -> Value {
    for value in results.as_object_mut().into_iter().flat_map(|object| object.values_mut()) {
        if let Some(number) = value.as_f64().filter(|_| value.is_f64()) {
            *value = json!((number * 1000.0).round() / 1000.0);
        }
    }
    results
}

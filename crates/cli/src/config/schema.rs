//! The JSON Schema of the file, from the table of [keys](super::keys): for editors, and for whoever writes such files.

use serde_json::{Map, Value, json};
use toml::de::DeValue;

use super::keys::{Fallback, KEYS, Key, Kind};

/// What a duration looks like.
const DURATION: &str = r"^[0-9]+(\.[0-9]{1,6})?(us|ms|s|m|h|d)$";

/// What a size looks like.
const SIZE: &str = r"^[0-9]+(\.[0-9]{1,6})?(B|KiB|MiB|GiB)$";

/// The whole of it. Draft 7, because that is what editors of TOML know.
pub(crate) fn schema() -> Value {
    let store = section("store");
    let mut named = store.clone();
    if let Some(required) = named["required"].as_array_mut() {
        required.push(json!("name"));
    }
    // A store may get its URL from the environment.
    let mut one = store;
    one["required"] = json!([]);
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Postrider",
        "description": "The configuration of a relay daemon",
        "type": "object",
        "additionalProperties": false,
        "required": ["route"],
        "properties": {
            "store": { "anyOf": [one, { "type": "array", "items": named, "minItems": 1 }] },
            "relay": section("relay"),
            "log": section("log"),
            "admin": section("admin"),
            "telemetry": section("telemetry"),
            "route": { "type": "array", "items": section("route"), "minItems": 1 },
        },
    })
}

/// A table, and the tables inside of it.
fn section(name: &str) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for key in KEYS.iter().filter(|key| key.section() == name) {
        properties.insert(key.name().to_owned(), property(key));
        if matches!(key.fallback, Fallback::Required) {
            required.push(json!(key.name()));
        }
    }
    for key in KEYS {
        let inner = key.section().strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
        if let Some(inner) = inner.filter(|inner| !inner.contains('.')) {
            properties.entry(inner).or_insert_with(|| section(key.section()));
        }
    }
    json!({ "type": "object", "additionalProperties": false, "properties": properties, "required": required })
}

fn property(key: &Key) -> Value {
    let mut property = shape(&key.kind);
    property["description"] = json!(match key.fallback {
        Fallback::Words(words) => format!("{}. Default: {words}.", key.doc),
        Fallback::Required | Fallback::Value(_) => format!("{}.", key.doc),
    });
    property["x-restart-needed"] = json!(!key.live);
    if let Some(value) = key.value().and_then(|text| DeValue::parse(text).ok()) {
        property["default"] = super::show::as_json(value.get_ref());
    }
    property
}

fn shape(kind: &Kind) -> Value {
    let number = |least: &u32, most: &u32| json!({ "type": "integer", "minimum": least, "maximum": most });
    match kind {
        Kind::Text | Kind::Address | Kind::TransportUrl => json!({ "type": "string" }),
        Kind::Texts => one_or_more(&json!({ "type": "string" })),
        Kind::Boolean => json!({ "type": "boolean" }),
        Kind::Number(least, most) => number(least, most),
        Kind::Numbers(least, most) => one_or_more(&number(least, most)),
        Kind::Decimal => json!({ "type": "number" }),
        Kind::Duration | Kind::SomeTime => json!({ "type": "string", "pattern": DURATION }),
        Kind::DurationOr(word) => json!({ "anyOf": [{ "type": "string", "pattern": DURATION }, { "const": word }] }),
        Kind::DurationOrSwitch(word) => {
            json!({ "anyOf": [{ "type": "string", "pattern": DURATION }, { "const": word }, { "type": "boolean" }] })
        }
        Kind::Size(..) => json!({ "type": "string", "pattern": SIZE }),
        Kind::Word(words) => json!({ "type": "string", "enum": words }),
        Kind::Secret | Kind::StoreUrl => secret(),
        Kind::Secrets => one_or_more(&secret()),
        Kind::SecretTable => json!({ "type": "object", "additionalProperties": secret() }),
        Kind::TextTable => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
    }
}

fn one_or_more(one: &Value) -> Value {
    json!({ "anyOf": [one, { "type": "array", "items": one }] })
}

fn secret() -> Value {
    let place = |key: &str| {
        json!({ "type": "object", "additionalProperties": false, "required": [key],
                "properties": { key: { "type": "string" } } })
    };
    json!({ "anyOf": [{ "type": "string" }, place("env"), place("file"), place("value")] })
}

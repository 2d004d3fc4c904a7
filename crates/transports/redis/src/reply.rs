//! The shapes of the replies that hold entries.

use redis::Value;

use crate::mapping::Field;

/// One entry of a stream. One that was deleted while it was pending has no fields.
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) fields: Option<Vec<Field>>,
}

/// The entries of `XREADGROUP`, with their streams. No reply is no entries.
pub(crate) fn of_streams(reply: Value) -> Vec<(String, Vec<Entry>)> {
    match reply {
        Value::Array(streams) => streams
            .into_iter()
            .filter_map(|stream| match stream {
                Value::Array(pair) => {
                    let [name, list] = <[Value; 2]>::try_from(pair).ok()?;
                    Some((text(name)?, entries(list)))
                }
                _ => None,
            })
            .collect(),
        Value::Map(streams) => {
            streams.into_iter().filter_map(|(name, list)| Some((text(name)?, entries(list)))).collect()
        }
        _ => Vec::new(),
    }
}

/// The entries of `XAUTOCLAIM`, and from where to go on.
pub(crate) fn claimed(reply: Value) -> (String, Vec<Entry>) {
    let Value::Array(parts) = reply else { return (String::new(), Vec::new()) };
    let mut parts = parts.into_iter();
    let next = parts.next().and_then(text).unwrap_or_default();
    (next, parts.next().map(entries).unwrap_or_default())
}

/// How often entries were delivered, from the long form of `XPENDING`.
pub(crate) fn deliveries(reply: Value) -> Vec<(String, u32)> {
    let Value::Array(rows) = reply else { return Vec::new() };
    let row = |row| match row {
        Value::Array(columns) => {
            let [id, _, _, count] = <[Value; 4]>::try_from(columns).ok()?;
            match count {
                Value::Int(count) => Some((text(id)?, u32::try_from(count).unwrap_or(u32::MAX))),
                _ => None,
            }
        }
        _ => None,
    };
    rows.into_iter().filter_map(row).collect()
}

/// Entries, as `XRANGE` lists them.
pub(crate) fn entries(list: Value) -> Vec<Entry> {
    let Value::Array(list) = list else { return Vec::new() };
    let entry = |entry| match entry {
        Value::Array(pair) => {
            let [id, fields] = <[Value; 2]>::try_from(pair).ok()?;
            Some(Entry { id: text(id)?, fields: self::fields(fields) })
        }
        _ => None,
    };
    list.into_iter().filter_map(entry).collect()
}

/// An entry's id, as something that sorts: its time, and its number at that time.
pub(crate) fn number(id: &str) -> (u64, u64) {
    let (time, number) = id.split_once('-').unwrap_or((id, "0"));
    (time.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

fn fields(value: Value) -> Option<Vec<Field>> {
    let Value::Array(flat) = value else { return None };
    let mut flat = flat.into_iter();
    let mut fields = Vec::new();
    while let (Some(name), Some(value)) = (flat.next(), flat.next()) {
        fields.push((bytes(name)?, bytes(value)?));
    }
    Some(fields)
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

pub(crate) fn text(value: Value) -> Option<String> {
    bytes(value).and_then(|bytes| String::from_utf8(bytes).ok())
}

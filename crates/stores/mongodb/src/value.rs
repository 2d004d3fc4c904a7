//! Reading values out of documents. Ours have one shape; those that other languages have written may have a few more.

use bytes::Bytes;
use mongodb::bson::{Bson, Document, spec::BinarySubtype};
use postrider_core::time::Timestamp;
use uuid::Uuid;

use crate::{
    cursor::{Tick, tick},
    error::{Work, corrupt},
};

/// A whole number, however wide the client that wrote it made it.
pub(crate) fn long_opt(document: &Document, name: &str) -> Option<i64> {
    match document.get(name) {
        Some(Bson::Int64(number)) => Some(*number),
        Some(Bson::Int32(number)) => Some(i64::from(*number)),
        // What a shell writes: whole up to 2^53.
        Some(Bson::Double(number)) if number.fract() == 0.0 && number.abs() < 9e15 => {
            format!("{number:.0}").parse().ok()
        }
        _ => None,
    }
}

pub(crate) fn long(document: &Document, name: &str) -> Work<i64> {
    Ok(long_opt(document, name).ok_or_else(|| corrupt("a field does not hold the number that was written"))?)
}

/// A number of 32 bits; what is too large is the largest.
pub(crate) fn int(document: &Document, name: &str) -> Work<u32> {
    long(document, name).map(narrow)
}

pub(crate) fn narrow(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

pub(crate) fn text_opt<'d>(document: &'d Document, name: &str) -> Option<&'d str> {
    document.get(name).and_then(Bson::as_str)
}

pub(crate) fn text<'d>(document: &'d Document, name: &str) -> Work<&'d str> {
    Ok(text_opt(document, name).ok_or_else(|| corrupt("a field does not hold the text that was written"))?)
}

pub(crate) fn is_true(document: &Document, name: &str) -> bool {
    document.get(name).and_then(Bson::as_bool).unwrap_or(false)
}

/// An instant: ours are microseconds, those of others mostly dates.
pub(crate) fn instant(document: &Document, name: &str) -> Option<Timestamp> {
    match document.get(name) {
        Some(Bson::DateTime(date)) => Some(Timestamp::from_micros(date.timestamp_millis().saturating_mul(1_000))),
        _ => long_opt(document, name).map(Timestamp::from_micros),
    }
}

/// A date of the server.
pub(crate) fn millis(document: &Document, name: &str) -> Work<Option<Timestamp>> {
    match document.get(name) {
        None | Some(Bson::DateTime(_)) => Ok(instant(document, name)),
        Some(_) => Err(corrupt("a field does not hold the date that was written").into()),
    }
}

/// A point in time of the cluster.
pub(crate) fn point(document: &Document, name: &str) -> Option<Tick> {
    document.get_timestamp(name).ok().map(tick)
}

/// Bytes, or text as its bytes.
pub(crate) fn bytes(value: Option<Bson>) -> Option<Bytes> {
    match value {
        Some(Bson::Binary(binary)) => Some(Bytes::from(binary.bytes)),
        Some(Bson::String(text)) => Some(Bytes::from(text)),
        _ => None,
    }
}

pub(crate) fn binary(bytes: &[u8]) -> Bson {
    Bson::Binary(mongodb::bson::Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() })
}

/// As every driver writes one.
pub(crate) fn uuid(id: Uuid) -> Bson {
    Bson::Binary(mongodb::bson::Binary { subtype: BinarySubtype::Uuid, bytes: id.as_bytes().to_vec() })
}

pub(crate) fn uuid_opt(document: &Document, name: &str) -> Option<Uuid> {
    match document.get(name) {
        Some(Bson::Binary(binary)) => Uuid::from_slice(&binary.bytes).ok(),
        Some(Bson::String(text)) => Uuid::parse_str(text).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use mongodb::bson::{DateTime, doc};

    use super::*;

    #[test]
    fn numbers_and_instants_of_other_languages_are_read() {
        let document = doc! { "a": 7_i32, "b": 7_i64, "c": 7.0, "d": "7", "e": DateTime::from_millis(7) };
        let read: Vec<_> = ["a", "b", "c", "d", "z"].map(|name| long_opt(&document, name)).into();
        assert_eq!(read, [Some(7), Some(7), Some(7), None, None]);
        assert_eq!(instant(&document, "e"), Some(Timestamp::from_micros(7_000)));
        assert_eq!(instant(&document, "b"), Some(Timestamp::from_micros(7)));
        assert!(long(&document, "d").is_err() && text(&document, "a").is_err());
    }

    #[test]
    fn an_id_is_read_from_bytes_and_from_text() {
        let id = Uuid::now_v7();
        let document = doc! { "a": uuid(id), "b": id.to_string(), "c": "no id", "d": 1 };
        let read: Vec<_> = ["a", "b", "c", "d"].map(|name| uuid_opt(&document, name)).into();
        assert_eq!(read, [Some(id), Some(id), None, None]);
    }
}

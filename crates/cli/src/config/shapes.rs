//! Values of the file, each as what it should be: a text, a number inside its range, a duration with its unit.
//!
//! Every function says what it would have taken instead, and never more of the value than is needed to recognise it.

use std::{net::SocketAddr, time::Duration};

use toml::de::DeValue;

use crate::values;

pub(super) fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        other => Err(format!("must be a text in quotes, not {}", kind(other))),
    }
}

/// One text, or several.
pub(super) fn texts(value: &DeValue<'_>) -> Result<Vec<String>, String> {
    match value {
        DeValue::Array(items) => items.iter().map(|item| text(item.get_ref())).collect(),
        other => text(other).map(|one| vec![one]).map_err(|_| format!("must be a list of texts, not {}", kind(other))),
    }
}

/// Names, and a text for each.
pub(super) fn text_table(value: &DeValue<'_>) -> Result<Vec<(String, String)>, String> {
    let DeValue::Table(table) = value else {
        return Err("must be a table: names, and a text for each".to_owned());
    };
    let entry = |name: &str, value: &DeValue<'_>| match text(value) {
        Ok(text) => Ok((name.to_owned(), text)),
        Err(what) => Err(format!("`{}` {what}", name.escape_debug())),
    };
    table.iter().map(|(name, value)| entry(name.get_ref(), value.get_ref())).collect()
}

pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    match value {
        DeValue::Boolean(on) => Ok(*on),
        other => Err(format!("must be true or false, not {}", kind(other))),
    }
}

/// A whole number inside a range.
pub(super) fn number(least: u32, most: u32) -> impl Fn(&DeValue<'_>) -> Result<u32, String> {
    move |value| {
        let DeValue::Integer(digits) = value else {
            return Err(format!("must be a whole number, not {}", kind(value)));
        };
        let parsed = i128::from_str_radix(digits.as_str(), digits.radix()).unwrap_or(i128::MAX);
        let inside = u32::try_from(parsed).ok().filter(|number| (least..=most).contains(number));
        inside.ok_or_else(|| format!("is {digits}; it lies between {least} and {most}"))
    }
}

/// One whole number inside a range, or several.
pub(super) fn numbers(least: u32, most: u32) -> impl Fn(&DeValue<'_>) -> Result<Vec<u32>, String> {
    move |value| match value {
        DeValue::Array(items) => items.iter().map(|item| number(least, most)(item.get_ref())).collect(),
        one => number(least, most)(one).map(|number| vec![number]),
    }
}

/// A number that may have decimals.
pub(super) fn decimal(value: &DeValue<'_>) -> Result<f64, String> {
    let written = match value {
        DeValue::Integer(digits) if digits.radix() == 10 => digits.as_str(),
        DeValue::Float(digits) => digits.as_str(),
        other => return Err(format!("must be a number, not {}", kind(other))),
    };
    written.parse().map_err(|_| format!("`{written}` is not a number"))
}

/// A text that `read` understands, such as a duration.
pub(super) fn written<T>(read: impl Fn(&str) -> Result<T, String>) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| match value {
        DeValue::String(text) => read(text),
        // A number without a unit: the same sentence as for any other text that lacks one.
        DeValue::Integer(digits) => read(&digits.to_string()),
        DeValue::Float(digits) => read(digits.as_str()),
        other => Err(format!("must be a text in quotes, not {}", kind(other))),
    }
}

/// One of a few words.
pub(super) fn one_of<T: Copy>(words: &'static [(&'static str, T)]) -> impl Fn(&DeValue<'_>) -> Result<T, String> {
    move |value| {
        let word = text(value)?;
        let found = words.iter().find(|(name, _)| *name == word).map(|(_, meaning)| *meaning);
        found.ok_or_else(|| {
            let names: Vec<String> = words.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            format!("is \"{word}\"; it is one of {}", names.join(", "))
        })
    }
}

pub(super) fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with decimals",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A duration of which there must be some.
pub(super) fn some_time(text: &str) -> Result<Duration, String> {
    let duration = values::duration(text)?;
    if duration.is_zero() { Err("must be more than nothing".to_owned()) } else { Ok(duration) }
}

/// A size between two, which are written as people write them.
pub(super) fn size_between(least: &'static str, most: &'static str) -> impl Fn(&DeValue<'_>) -> Result<usize, String> {
    move |value| {
        let bytes = written(values::size)(value)?;
        if bytes < values::size(least)? {
            return Err(format!("must be at least \"{least}\""));
        }
        if bytes > values::size(most)? {
            return Err(format!("must be at most \"{most}\""));
        }
        Ok(bytes)
    }
}

/// An address and a port.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "must be an address and a port, such as \"127.0.0.1:9464\"".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_of_their_range_are_refused_however_large() {
        for text in ["0", "300", "-1", "99999999999999999999999999999999999999999"] {
            let value = DeValue::parse(text).unwrap();
            assert!(number(1, 256)(value.get_ref()).unwrap_err().contains("between 1 and 256"), "{text}");
        }
        assert_eq!(number(1, 256)(DeValue::parse("0x10").unwrap().get_ref()), Ok(16));
    }
}

//! How text stands in a `ce-` header: by the percent-encoding of the CloudEvents HTTP binding (section 3.1.3.2).
//!
//! Visible ASCII stands for itself, except for `"` and `%`; everything else, the space included, is written as `%` and two
//! hexadecimal digits for each of its UTF-8 bytes.

use std::fmt::Write;

/// The text as a header's value: nothing but visible ASCII.
#[must_use]
pub fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (b'!'..=b'~').contains(&byte) && byte != b'"' && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a string takes everything");
        }
    }
    encoded
}

/// The inverse. As the binding asks, quotes around the value are taken off first, and a `%` that introduces no byte stands
/// for itself. `None` if the bytes are not UTF-8.
#[must_use]
pub fn decode(value: &str) -> Option<String> {
    let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap_or(value);
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let coded = (first == b'%').then(|| behind.get(..2)).flatten().and_then(hexadecimal);
        bytes.push(coded.unwrap_or(first));
        rest = if coded.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8(bytes).ok()
}

fn hexadecimal(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let value = digit(digits[0])? * 16 + digit(digits[1])?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_binding_hold() {
        assert_eq!(encode("Euro € 😀"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
        assert_eq!(decode("Euro%20%E2%82%AC%20%F0%9F%98%80").as_deref(), Some("Euro € 😀"));
        assert_eq!(decode("%f0%9f%98%80").as_deref(), Some("😀"));
        assert_eq!(decode("\"quoted\"").as_deref(), Some("quoted"));
    }

    #[test]
    fn every_text_comes_back() {
        for text in ["", "%", "%41", "\"", "a\"b", "100%", "\r\nset-cookie: x", "größe", "\u{0}", "a,b;c=d", "%zz"] {
            let encoded = encode(text);
            assert!(encoded.bytes().all(|b| (b'!'..=b'~').contains(&b)), "{encoded:?} is no safe header");
            assert_eq!(decode(&encoded).as_deref(), Some(text), "{encoded:?}");
        }
    }

    #[test]
    fn stray_signs_stand_for_themselves_and_broken_text_is_refused() {
        assert_eq!(decode("100%").as_deref(), Some("100%"));
        assert_eq!(decode("%4").as_deref(), Some("%4"));
        assert_eq!(decode("%+1").as_deref(), Some("%+1"));
        assert_eq!(decode("%FF"), None);
    }
}

//! What is kept of a receiver's answer to explain a rejection: the beginning of its body, made safe to show.
//!
//! A receiver may send back anything, also what we sent it. So our secrets, the headers that were configured, path and query
//! of the URL, and the payload are taken out where they stand verbatim, also where the body ends in the middle of one, as is
//! everything that looks like a token; line breaks and other control characters become spaces; and no more than
//! [`EXCERPT_BYTES_MAX`] remain.

/// Most bytes of an excerpt.
pub(crate) const EXCERPT_BYTES_MAX: usize = 1 << 10;
/// From this length on, letters and digits without a break count as a token.
const TOKEN_CHARS_MIN: usize = 24;
/// What is shorter than this is not worth taking out: it would be found everywhere.
const ECHO_BYTES_MIN: usize = 8;
/// Words behind which something secret follows.
const TELLTALES: [&str; 6] = ["bearer", "basic", "token", "secret", "password", "api_key"];

/// Makes a body safe to show. `known` are values that must not appear.
pub(crate) fn scrub(body: &[u8], payload: &[u8], known: &[String]) -> String {
    // As bytes: a payload need not be text, and what stands in it can be read all the same.
    let mut bytes = without(body, payload, "[payload]");
    for value in known {
        bytes = without(&bytes, value.as_bytes(), "[secret]");
    }
    let text = String::from_utf8_lossy(&bytes);
    let one_line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut shown = String::new();
    let mut behind_telltale = false;
    for word in one_line.split(' ').filter(|word| !word.is_empty()) {
        let safe = if behind_telltale { "[secret]".to_owned() } else { mask(word) };
        behind_telltale = !behind_telltale && tells(word);
        if !shown.is_empty() {
            shown.push(' ');
        }
        shown.push_str(&safe);
        if shown.len() > EXCERPT_BYTES_MAX {
            break;
        }
    }
    cut(&shown)
}

/// Puts something else in the place of a value. No more is read than the beginning of a body, so that it may end in the middle
/// of one.
fn without(body: &[u8], value: &[u8], instead: &str) -> Vec<u8> {
    let (mut kept, mut rest) = (Vec::new(), body);
    if value.len() < ECHO_BYTES_MIN {
        return rest.to_vec();
    }
    while let Some(at) = rest.windows(value.len()).position(|found| found == value) {
        kept.extend_from_slice(&rest[..at]);
        kept.extend_from_slice(instead.as_bytes());
        rest = &rest[at + value.len()..];
    }
    let longest = rest.len().min(value.len());
    let torn = (ECHO_BYTES_MIN..=longest).rev().find(|bytes| rest.ends_with(&value[..*bytes]));
    kept.extend_from_slice(&rest[..rest.len() - torn.unwrap_or(0)]);
    kept.extend_from_slice(torn.map_or("", |_| instead).as_bytes());
    kept
}

/// Whether a word announces a secret: `Bearer`, `token:`, `"password":`.
fn tells(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric()).to_ascii_lowercase();
    TELLTALES.contains(&bare.as_str())
}

/// Replaces what stands behind `secret=` and the like, and every long run of letters and digits.
fn mask(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let assigned = TELLTALES.iter().find_map(|telltale| {
        let behind = lower.find(telltale)? + telltale.len();
        let sign = lower[behind..].find(['=', ':'])?;
        (sign <= 2).then_some(behind + sign + 1)
    });
    if let Some(at) = assigned
        && at < word.len()
        && word.is_char_boundary(at)
    {
        return format!("{}[secret]", &word[..at]);
    }
    let mut masked = String::new();
    let mut run = String::new();
    for c in word.chars().chain(['\0']) {
        if c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '_' | '=') {
            run.push(c);
            continue;
        }
        let token = run.chars().count() >= TOKEN_CHARS_MIN;
        masked.push_str(if token { "[…]" } else { &run });
        run.clear();
        if c != '\0' {
            masked.push(c);
        }
    }
    masked
}

fn cut(text: &str) -> String {
    if text.len() <= EXCERPT_BYTES_MAX {
        return text.to_owned();
    }
    let end = (0..=EXCERPT_BYTES_MAX - '…'.len_utf8()).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_answer_stays_readable() {
        let body = b"{\"error\":\n  \"order 4711 is unknown\"}";
        assert_eq!(scrub(body, b"", &[]), "{\"error\": \"order 4711 is unknown\"}");
        let id = "01977420-dc00-7000-8000-000000000001";
        assert!(scrub(format!("no {id}").as_bytes(), b"", &[]).contains(id), "message ids are for people");
    }

    #[test]
    fn nothing_secret_is_repeated() {
        let known = ["whsec_canary0".to_owned(), "canary with spaces".to_owned()];
        let payload = br#"{"card": "canary 4111"}"#;
        for body in [
            "we got {\"card\": \"canary 4111\"} from you",
            "secret whsec_canary0 seen",
            "header was: canary with spaces!",
            "Authorization: Bearer canary",
            "{\"password\": \"canary\"}",
            "{\"password\":\"canary\"}",
            "?token=canary&x=1",
            "api_key:canary",
            "canaryCANARY0123456789canary0123456789",
        ] {
            let shown = scrub(body.as_bytes(), payload, &known);
            assert!(!shown.to_lowercase().contains("canary"), "{body} became {shown}");
        }
    }

    /// A body is read to a limit, and for a moment: an echo may be longer, or slower.
    #[test]
    fn what_is_cut_off_in_its_middle_is_not_shown_either() {
        let payload = format!("{{\"card\": \"canary 4111\", \"more\": \"{}\"}}", "and more ".repeat(5000));
        for bytes in [20, 1_000, 16 << 10] {
            let body = format!("cannot read {}", &payload[..bytes]);
            assert_eq!(scrub(body.as_bytes(), payload.as_bytes(), &[]), "cannot read [payload]", "{bytes} of it");
        }
        let known = ["canary with spaces".to_owned()];
        assert_eq!(scrub(b"who is canary with", b"", &known), "who is [secret]");
    }

    #[test]
    fn a_payload_that_is_no_text_is_taken_out_too() {
        let payload = b"\x0a\xff\x0bcanary 4111\x12\xfe";
        let body = [b"cannot read ", &payload[..], b" at all"].concat();
        assert_eq!(scrub(&body, payload, &[]), "cannot read [payload] at all");
    }

    #[test]
    fn it_is_short_one_line_and_text() {
        let long = "größe ".repeat(4000);
        let shown = scrub(long.as_bytes(), b"", &[]);
        assert!(shown.len() <= EXCERPT_BYTES_MAX && shown.ends_with('…'), "{} bytes", shown.len());
        assert_eq!(scrub(b"a\r\nb\x1b[31mc\0", b"", &[]), "a b [31mc");
        assert!(scrub(&[0xff; 100], b"", &[]).chars().all(|c| c == '\u{fffd}'));
    }
}

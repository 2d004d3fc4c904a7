//! What is kept of a receiver's answer to explain a rejection: the beginning of its body, made safe to show.
//!
//! A receiver may send back anything, also what we sent it. So our secrets, the headers that were configured, path and query
//! of the URL, and the payload are taken out where they stand verbatim, as is everything that looks like a token; line
//! breaks and other control characters become spaces; and no more than [`EXCERPT_BYTES_MAX`] remain.

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
    let mut text = String::from_utf8_lossy(body).into_owned();
    if let Ok(payload) = std::str::from_utf8(payload)
        && payload.len() >= ECHO_BYTES_MIN
    {
        text = text.replace(payload, "[payload]");
    }
    for value in known.iter().filter(|value| value.len() >= ECHO_BYTES_MIN) {
        text = text.replace(value.as_str(), "[secret]");
    }
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

    #[test]
    fn it_is_short_one_line_and_text() {
        let long = "größe ".repeat(4000);
        let shown = scrub(long.as_bytes(), b"", &[]);
        assert!(shown.len() <= EXCERPT_BYTES_MAX && shown.ends_with('…'), "{} bytes", shown.len());
        assert_eq!(scrub(b"a\r\nb\x1b[31mc\0", b"", &[]), "a b [31mc");
        assert!(scrub(&[0xff; 100], b"", &[]).chars().all(|c| c == '\u{fffd}'));
    }
}

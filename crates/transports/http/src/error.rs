//! What an answer, or the lack of one, means for the message: the table of the crate's docs as code. By status, never by
//! text.

use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use postrider_core::{
    parked::Cause,
    transport::{ASKED_PAUSE_MIN, Outcome, THROTTLE_MAX},
};

/// How long to pause when a receiver asks for it without saying how long.
const PAUSE_DEFAULT: Duration = Duration::from_secs(5);

/// The shortest pause. A receiver that rounds down, or whose clock is behind ours, says that it wants none while it wants
/// one: without this it would be asked again and again in the same moment, and no breaker opens for it.
const PAUSE_MIN: Duration = ASKED_PAUSE_MIN;

/// Whether this answer closes the endpoint.
pub(crate) fn is_gone(status: StatusCode) -> bool {
    status == StatusCode::GONE
}

/// It has just said so.
fn gone(target: &str) -> Outcome {
    Outcome::Unavailable(Cause::new("gone", was_gone(target)))
}

/// Nothing goes to an endpoint that has said so before.
pub(crate) fn kept_back(target: &str) -> Outcome {
    Outcome::Unavailable(Cause::unsent("gone", was_gone(target)))
}

fn was_gone(target: &str) -> String {
    format!("{target} answered 410; nothing is sent to it until it is reopened")
}

/// Whether an answer's body is worth reading for the cause.
pub(crate) fn wants_excerpt(status: StatusCode) -> bool {
    !status.is_success() && !is_gone(status)
}

/// What an answer means. `excerpt` is the beginning of its body, made safe.
pub(crate) fn outcome(status: StatusCode, pause: Option<Duration>, excerpt: &str, target: &str) -> Outcome {
    let cause = |code: &str| {
        let mut detail = format!("{target} answered {status}");
        if !excerpt.is_empty() {
            detail = format!("{detail}: {excerpt}");
        }
        Cause::new(code, detail)
    };
    let code = format!("http-{}", status.as_u16());
    match status.as_u16() {
        200..=299 => Outcome::Durable,
        300..=399 => {
            Outcome::Rejected(Cause::new("redirect", format!("{target} answered {status}; redirects are not followed")))
        }
        // About us and not about the message: a wrong secret must not use up the attempts of a whole backlog.
        401 | 407 => Outcome::Unavailable(cause(&code)),
        408 => Outcome::Unknown(cause(&code)),
        410 => gone(target),
        425 | 429 => Outcome::Throttled(pause.unwrap_or(PAUSE_DEFAULT)),
        502 | 504 => Outcome::Unavailable(cause(&code)),
        503 => pause.map_or_else(|| Outcome::Unavailable(cause(&code)), Outcome::Throttled),
        500..=599 => Outcome::Unknown(cause(&code)),
        _ => Outcome::Rejected(cause(&code)),
    }
}

/// `Retry-After`: seconds, or a date; between [`PAUSE_MIN`] and a day. What is neither is as if it were not there.
pub(crate) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let pause = if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a number has are a long time too.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(value).ok()?.duration_since(now).unwrap_or_default()
    };
    Some(pause.clamp(PAUSE_MIN, THROTTLE_MAX))
}

/// A request went out and no answer came back whole.
pub(crate) fn lost(error: &hyper::Error, target: &str) -> Outcome {
    let code = if error.is_parse() { "bad-response" } else { "connection-lost" };
    Outcome::Unknown(Cause::new(code, format!("{target}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn every_status_has_its_outcome() {
        for number in 100..1000 {
            let status = StatusCode::from_u16(number).unwrap();
            let bare = outcome(status, None, "", "t");
            let paused = outcome(status, Some(Duration::from_secs(7)), "", "t");
            let expected = match number {
                200..=299 => ["durable", "durable"],
                408 => ["unknown", "unknown"],
                401 | 407 | 410 | 502 | 504 => ["unavailable", "unavailable"],
                425 | 429 => ["throttled", "throttled"],
                503 => ["unavailable", "throttled"],
                500..=599 => ["unknown", "unknown"],
                _ => ["rejected", "rejected"],
            };
            assert_eq!([bare.name(), paused.name()], expected, "{number}");
        }
        assert_eq!(outcome(StatusCode::TOO_MANY_REQUESTS, None, "", "t"), Outcome::Throttled(PAUSE_DEFAULT));
    }

    #[test]
    fn a_pause_is_given_in_seconds_or_as_a_date() {
        let now = UNIX_EPOCH + Duration::from_secs(784_111_777); // Sun, 06 Nov 1994 08:49:37 GMT
        let seconds = |value| retry_after(value, now).map(|pause| pause.as_secs());
        assert_eq!(seconds("120"), Some(120));
        assert_eq!(seconds(" 0 "), Some(1), "no shorter than a second");
        assert_eq!(seconds("Sun, 06 Nov 1994 08:50:07 GMT"), Some(30));
        assert_eq!(seconds("Sunday, 06-Nov-94 08:50:07 GMT"), Some(30));
        assert_eq!(seconds("Sun Nov  6 08:50:07 1994"), Some(30));
        assert_eq!(seconds("Sun, 06 Nov 1994 08:00:00 GMT"), Some(1), "a date that has passed");
        assert_eq!(seconds("99999999999999999999999"), Some(86_400), "no longer than a day");
        for nonsense in ["", "soon", "-5", "1.5", "5s", "Sun, 99 Nov 1994 08:49:37 GMT"] {
            assert_eq!(seconds(nonsense), None, "{nonsense:?}");
        }
    }
}

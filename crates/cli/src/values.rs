//! Values that people write: durations, sizes and instants, each with its unit, in the file and on the command line.
//!
//! A bare number is refused, because `30` means seconds to one reader and milliseconds to the next.

use std::time::Duration;

use postrider::core::time::Timestamp;

/// What a unit is worth, in the smallest one.
type Units = [(&'static str, u64)];

const DURATIONS: &Units =
    &[("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000)];

const SIZES: &Units = &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// A duration: `250ms`, `30s`, `1.5h`, `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let micros = quantity(text, DURATIONS).ok_or_else(|| {
        format!("`{text}` is not a duration; write a number with a unit (us, ms, s, m, h or d), such as \"30s\"")
    })?;
    Ok(Duration::from_micros(micros))
}

/// A duration as it would be written: in the largest unit that leaves no rest.
pub(crate) fn show_duration(duration: Duration) -> String {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let whole = DURATIONS.iter().rev().find(|(_, worth)| micros.is_multiple_of(*worth));
    let (unit, worth) = whole.filter(|_| micros > 0).unwrap_or(&("s", 1_000_000));
    format!("{}{unit}", micros / worth)
}

/// A size in bytes: `512B`, `16MiB`.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let bytes = quantity(text, SIZES).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| {
        format!("`{text}` is not a size; write a number with a unit (B, KiB, MiB or GiB), such as \"16MiB\"")
    })
}

/// An instant: RFC 3339 in UTC (`2026-11-15T20:24:41Z`), or a duration for that long ago (`2h`).
pub(crate) fn instant(text: &str) -> Result<Timestamp, String> {
    if let Some(micros) = quantity(text, DURATIONS) {
        return Ok(Timestamp::now().saturating_sub(Duration::from_micros(micros)));
    }
    rfc3339(text).ok_or_else(|| {
        format!("`{text}` is not an instant; write `2026-11-15T20:24:41Z`, or how long ago, such as `2h`")
    })
}

/// Digits, perhaps with decimals, directly followed by a unit.
fn quantity(text: &str, units: &Units) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(split);
    let worth = units.iter().find(|(name, _)| *name == unit)?.1;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || decimals.is_empty() || decimals.len() > 6 {
        return None;
    }
    let scale = 10_u64.pow(u32::try_from(decimals.len()).ok()?);
    let part = decimals.parse::<u64>().ok()?.checked_mul(worth)? / scale;
    whole.parse::<u64>().ok()?.checked_mul(worth)?.checked_add(part)
}

fn rfc3339(text: &str) -> Option<Timestamp> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let [year, month, day] = numbers(date, '-')?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [hour, minute, second] = numbers(clock, ':')?;
    let ranges = [(month, 1, 12), (day, 1, 31), (hour, 0, 23), (minute, 0, 59), (second, 0, 60), (year, 1970, 9999)];
    if ranges.iter().any(|(value, least, most)| value < least || value > most) || fraction.len() > 6 {
        return None;
    }
    let micros: i64 = format!("{fraction:0<6}").parse().ok()?;
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(Timestamp::from_micros(seconds * 1_000_000 + micros))
}

fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let parsed: Vec<i64> = text.split(separator).map(|part| part.parse().ok()).collect::<Option<_>>()?;
    parsed.try_into().ok()
}

/// Days from 1970 to a date, counted in years that begin in March, so that the leap day is the last of its year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        let good = [
            ("250ms", Duration::from_millis(250)),
            ("30s", Duration::from_secs(30)),
            ("1.5h", Duration::from_secs(5400)),
            ("7d", Duration::from_secs(7 * 86_400)),
            ("0s", Duration::ZERO),
        ];
        for (text, expected) in good {
            assert_eq!(duration(text).unwrap(), expected, "{text}");
        }
        for bad in ["30", "", "s", "-1s", "1 s", "1.s", ".5s", "1e3s", "5 minutes", "99999999999999999999d", "1.2.3s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_shown_as_they_are_written() {
        for text in ["250ms", "30s", "90m", "7d", "0s", "1us"] {
            assert_eq!(show_duration(duration(text).unwrap()), text);
        }
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(size("16MiB").unwrap(), 16 << 20);
        assert_eq!(size("0.5KiB").unwrap(), 512);
        assert!(size("16").is_err());
        assert!(size("16MB").is_err());
    }

    #[test]
    fn instants_are_what_timestamps_print() {
        for micros in [0, 951_782_400_000_000, 1_794_774_281_000_250, 4_107_542_399_000_000] {
            let at = Timestamp::from_micros(micros);
            assert_eq!(instant(&at.to_string()).unwrap(), at);
        }
        assert_eq!(instant("1970-01-02T00:00:00Z").unwrap().as_micros(), 86_400_000_000);
        for bad in ["yesterday", "2026-13-01T00:00:00Z", "2026-01-01", "2026-01-01T00:00:00"] {
            assert!(instant(bad).is_err(), "{bad}");
        }
    }
}

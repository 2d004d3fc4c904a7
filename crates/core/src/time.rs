//! Instants that are data: when a message was enqueued, when it is to be delivered.
//!
//! The engine compares none of them. Whatever depends on time arrives there as a [`Duration`] that the store has computed
//! by its own clock, so that no two clocks are ever compared.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From microseconds since 1970.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This process's wall clock. For data only; the engine never decides by it.
    #[must_use]
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// The instant `duration` later, or the last one that can be written down.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The instant `duration` earlier, or the first one that can be written down.
    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Time from `earlier` to this instant; zero if it is not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let micros = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |m| -m),
        };
        Self(micros)
    }
}

/// The first and the last instant that RFC 3339 can write: years 0 to 9999.
const WRITABLE: (i64, i64) = (-62_167_219_200_000_000, 253_402_300_799_999_999);

/// RFC 3339 in UTC with microseconds: `2026-11-15T20:24:41.000250Z`. What lies outside of its years, which only a database
/// that somebody wrote to by hand has, is written as the first or last of them.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.clamp(WRITABLE.0, WRITABLE.1);
        let seconds = shown.div_euclid(1_000_000);
        let micros = shown.rem_euclid(1_000_000);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
    }
}

/// Days since 1970 as year, month, day. Counts in eras of 400 years that begin on 1 March, so that the leap day is last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_print_as_rfc_3339() {
        let cases = [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_794_774_281_000_250, "2026-11-15T20:24:41.000250Z"),
            (4_107_542_399_000_000, "2100-02-28T23:59:59.000000Z"),
            (WRITABLE.0, "0000-01-01T00:00:00.000000Z"),
            (i64::MIN, "0000-01-01T00:00:00.000000Z"),
            (i64::MAX, "9999-12-31T23:59:59.999999Z"),
        ];
        for (micros, text) in cases {
            assert_eq!(Timestamp::from_micros(micros).to_string(), text);
        }
    }

    #[test]
    fn since_never_goes_below_zero() {
        let (early, late) = (Timestamp::from_micros(10), Timestamp::from_micros(35));
        assert_eq!(late.since(early), Duration::from_micros(25));
        assert_eq!(early.since(late), Duration::ZERO);
    }
}

//! How the schema of a store stands: what every store that has migrations says of each of them.

use std::fmt;

use crate::time::Timestamp;

/// One migration, as it stands in one database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its number.
    pub version: u32,
    /// What it is called.
    pub name: String,
    /// The checksum of its text.
    pub checksum: String,
    /// When it was applied, if it was.
    pub applied_at: Option<Timestamp>,
}

/// `0001 log: applied at 2026-01-01T00:00:00.000000Z`.
impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04} {}: ", self.version, self.name)?;
        match self.applied_at {
            Some(at) => write!(f, "applied at {at}"),
            None => f.write_str("pending"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pending_is_told_from_what_is_applied() {
        let mut standing = Standing { version: 2, name: "lanes".into(), checksum: "c".into(), applied_at: None };
        assert_eq!(standing.to_string(), "0002 lanes: pending");
        standing.applied_at = Some(Timestamp::from_micros(0));
        assert_eq!(standing.to_string(), "0002 lanes: applied at 1970-01-01T00:00:00.000000Z");
    }
}

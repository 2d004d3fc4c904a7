//! Values as PostgreSQL keeps them, where the client library has none that fits.

use std::error::Error as StdError;

use postrider_core::time::Timestamp;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, private::BytesMut, to_sql_checked};

use crate::snapshot::Xid;

type Failed = Box<dyn StdError + Sync + Send>;

/// Microseconds from 1970 to 2000, where PostgreSQL begins to count.
const CENTURY_MICROS: i64 = 946_684_800_000_000;

/// The first instant that PostgreSQL can keep: 4713 BC.
const MICROS_MIN: i64 = -211_813_488_000_000_000;

/// Microseconds since 2000, as a `timestamptz` is kept.
pub(crate) fn micros(at: Timestamp) -> i64 {
    at.as_micros().saturating_sub(CENTURY_MICROS).max(MICROS_MIN)
}

/// An instant as a `timestamptz`. Beyond what PostgreSQL can keep it is the first or last instant that it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instant(pub(crate) Timestamp);

impl ToSql for Instant {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Failed> {
        out.extend_from_slice(&micros(self.0).to_be_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Instant {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Failed> {
        let micros = i64::from_be_bytes(raw.try_into()?).saturating_add(CENTURY_MICROS);
        Ok(Self(Timestamp::from_micros(micros)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

/// A transaction id with its epoch, an `xid8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FullXid(pub(crate) Xid);

impl<'a> FromSql<'a> for FullXid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Failed> {
        Ok(Self(Xid::from_be_bytes(raw.try_into()?)))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::XID8
    }
}

/// The bytes of a text. Not checked to be UTF-8: a database in the encoding `SQL_ASCII` does not insist on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a>(pub(crate) &'a [u8]);

impl<'a> FromSql<'a> for Text<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Failed> {
        Ok(Self(raw))
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::TEXT | Type::VARCHAR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_survive_the_wire() {
        for micros in [0, 1_000_001, 4_102_444_800_123_456, -5] {
            let (mut wire, instant) = (BytesMut::new(), Instant(Timestamp::from_micros(micros)));
            instant.to_sql(&Type::TIMESTAMPTZ, &mut wire).unwrap();
            assert_eq!(Instant::from_sql(&Type::TIMESTAMPTZ, &wire).unwrap(), instant);
        }
        let mut wire = BytesMut::new();
        Instant(Timestamp::from_micros(i64::MIN)).to_sql(&Type::TIMESTAMPTZ, &mut wire).unwrap();
        assert_eq!(wire[..], MICROS_MIN.to_be_bytes());
    }
}

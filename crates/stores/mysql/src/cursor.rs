//! The cursor: the place of the last record that is passed, as eight bytes, most significant first. Places are given by the
//! sequencer (see [`crate::order`]), so the order of places is the commit-safe order of the log.

use postrider_core::{Error, Result, log::Cursor};

/// A position in the log: everything up to and including this place is passed.
pub(crate) fn encode(place: i64) -> Cursor {
    Cursor(place.to_be_bytes().to_vec().into())
}

/// The inverse of [`encode`].
pub(crate) fn decode(cursor: &Cursor) -> Result<i64> {
    let bytes: [u8; 8] =
        cursor.0.as_ref().try_into().map_err(|_| {
            Error::invalid("not a cursor of the MySQL store: it has 8 bytes").with("bytes", cursor.0.len())
        })?;
    Ok(i64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_and_a_foreign_cursor_is_refused() {
        for place in [0, 1, i64::MAX] {
            assert_eq!(decode(&encode(place)).unwrap(), place);
        }
        assert!(decode(&Cursor("another store's".into())).is_err());
    }
}

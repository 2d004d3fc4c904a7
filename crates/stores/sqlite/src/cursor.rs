//! The cursor: the `seq` of the last record that is passed, as eight bytes, most significant first.

use postrider_core::{Error, Result, log::Cursor};

/// A position in the log: everything up to and including this `seq` is passed.
pub(crate) fn encode(seq: i64) -> Cursor {
    Cursor(seq.to_be_bytes().to_vec().into())
}

/// The inverse of [`encode`].
pub(crate) fn decode(cursor: &Cursor) -> Result<i64> {
    let bytes: [u8; 8] = cursor.0.as_ref().try_into().map_err(|_| {
        Error::invalid("not a cursor of the SQLite store: it has 8 bytes").with("bytes", cursor.0.len())
    })?;
    Ok(i64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_and_a_foreign_cursor_is_refused() {
        for seq in [0, 1, i64::MAX] {
            assert_eq!(decode(&encode(seq)).unwrap(), seq);
        }
        assert!(decode(&Cursor("another store's".into())).is_err());
    }
}

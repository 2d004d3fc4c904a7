//! The ordering key, and the stable hash of it that the engine works with.
//!
//! Messages with the same key are published one after the other, in the order of their transactions. The engine knows a
//! key only as a 64-bit [`KeyHash`]: it is kept in parked rows and decides the lane, so its algorithm is part of the
//! storage format. Two keys with the same hash only wait for each other; nothing else goes wrong.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The key of a message, as the application gave it: UTF-8 text, for example an order number.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrderingKey(Bytes);

impl OrderingKey {
    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("checked when the key was made")
    }

    /// Takes bytes that a store has kept, without copying them.
    ///
    /// # Errors
    /// If they are not UTF-8.
    pub fn from_utf8(bytes: Bytes) -> Result<Self, std::str::Utf8Error> {
        std::str::from_utf8(&bytes)?;
        Ok(Self(bytes))
    }

    /// The stable hash of this key.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(&self.0)
    }
}

impl From<String> for OrderingKey {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&str> for OrderingKey {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl AsRef<[u8]> for OrderingKey {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for OrderingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for OrderingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// XXH3 (64 bits, seed 0) of the key's UTF-8 bytes.
///
/// Test vectors, part of the storage format:
///
/// | key | hash |
/// |---|---|
/// | (empty) | `2d06800538d394c2` |
/// | `a` | `e6c632b61e964e1f` |
/// | `order-4711` | `eb5ea2963eb0cc60` |
/// | `größe` | `a6d7bbea01d4872c` |
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// The key that every record of a route with total order has.
    pub const TOTAL: Self = Self(0x706f_7374_7269_6465);

    /// The hash of a key's bytes.
    #[must_use]
    pub fn of(key: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_64(key))
    }

    /// The lane of this key when a route has `lanes` lanes.
    #[must_use]
    pub fn lane(self, lanes: u32) -> u32 {
        u32::try_from(self.0 % u64::from(lanes.max(1))).expect("less than a u32")
    }

    /// The hash as the signed number that SQL databases store.
    #[must_use]
    pub fn as_i64(self) -> i64 {
        self.0.cast_signed()
    }

    /// The inverse of [`Self::as_i64`].
    #[must_use]
    pub fn from_i64(value: i64) -> Self {
        Self(value.cast_unsigned())
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_keeps_its_test_vectors() {
        let vectors = [
            ("", 0x2d06_8005_38d3_94c2_u64),
            ("a", 0xe6c6_32b6_1e96_4e1f),
            ("order-4711", 0xeb5e_a296_3eb0_cc60),
            ("größe", 0xa6d7_bbea_01d4_872c),
        ];
        for (key, hash) in vectors {
            assert_eq!(OrderingKey::from(key).hash(), KeyHash(hash), "{key:?}");
        }
    }

    #[test]
    fn a_hash_survives_the_trip_through_a_signed_column() {
        for hash in [0, 1, u64::MAX, 1 << 63] {
            assert_eq!(KeyHash::from_i64(KeyHash(hash).as_i64()), KeyHash(hash));
        }
    }
}

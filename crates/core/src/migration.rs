//! How the schema of a store stands: what every store that has migrations says of each of them, and when it must not be
//! touched.

use std::{collections::HashMap, fmt};

use crate::{
    error::{Error, ErrorKind, Result},
    time::Timestamp,
};

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

impl Standing {
    /// `0001 log`.
    #[must_use]
    pub fn in_words(&self) -> String {
        format!("{:04} {}", self.version, self.name)
    }
}

/// `0001 log: applied at 2026-01-01T00:00:00.000000Z`.
impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.in_words())?;
        match self.applied_at {
            Some(at) => write!(f, "applied at {at}"),
            None => f.write_str("pending"),
        }
    }
}

/// What a database has: the checksum of each migration by its number, and when it was applied.
pub type Applied = HashMap<u32, (String, Timestamp)>;

/// Every migration that a program knows (number, name, checksum; oldest first), beside what a database has.
///
/// # Errors
/// [`ErrorKind::Schema`] if the database is newer than the program, or has a migration with another text.
pub fn standings<'a>(
    known: impl IntoIterator<Item = (u32, &'a str, String)>,
    applied: &Applied,
) -> Result<Vec<Standing>> {
    let known: Vec<_> = known.into_iter().collect();
    let supported = known.last().map_or(0, |(version, ..)| *version);
    if let Some(version) = applied.keys().max().filter(|version| **version > supported) {
        return Err(Error::new(ErrorKind::Schema, "the schema is newer than this program; use a newer Postrider")
            .with("version", version)
            .with("supported", supported));
    }
    let standing = |(version, name, checksum): (u32, &str, String)| {
        let row = applied.get(&version);
        if let Some((other, _)) = row.filter(|(other, _)| *other != checksum) {
            return Err(Error::new(
                ErrorKind::Schema,
                "a migration was applied with another text; restore the database or the program that made it",
            )
            .with("version", version)
            .with("checksum", other)
            .with("expected", checksum));
        }
        Ok(Standing { version, name: name.to_owned(), checksum, applied_at: row.map(|(_, at)| *at) })
    };
    known.into_iter().map(standing).collect()
}

/// For those who migrate by hand: refuses what is not complete. `what` is what there is of it (`the schema is`), and `place`
/// where, as a fact of the error.
///
/// # Errors
/// [`ErrorKind::Schema`] with the version that is there and the one that is needed.
pub fn complete(standings: &[Standing], what: &str, place: (&'static str, &str)) -> Result<()> {
    let applied = standings.iter().rfind(|standing| standing.applied_at.is_some()).map(|standing| standing.version);
    let needed = standings.last().map(|standing| standing.version);
    if applied == needed {
        return Ok(());
    }
    let how = if applied.is_none() { "missing" } else { "older than this program" };
    let advice = format!("{what} {how}; run the migrations, or let the store do it");
    Err(Error::new(ErrorKind::Schema, advice)
        .with(place.0, place.1)
        .with("version", applied.unwrap_or(0))
        .with("needed", needed.unwrap_or(0)))
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

    #[test]
    fn what_is_newer_or_was_altered_is_refused() {
        let known = || [(1, "begin", "a".to_owned()), (2, "lanes", "b".to_owned())];
        let at = Timestamp::from_micros(0);
        let applied = |rows: &[(u32, &str)]| rows.iter().map(|(n, sum)| (*n, ((*sum).to_owned(), at))).collect();
        let found = standings(known(), &applied(&[(1, "a")])).unwrap();
        assert_eq!(found.iter().map(|standing| standing.applied_at).collect::<Vec<_>>(), [Some(at), None]);
        for (rows, told) in [(&[(1, "a"), (3, "c")][..], "newer than this program"), (&[(1, "x")], "another text")] {
            let refused = standings(known(), &applied(rows)).unwrap_err();
            assert!(refused.kind() == ErrorKind::Schema && refused.to_string().contains(told), "{refused}");
        }
    }
    #[test]
    fn what_is_not_complete_is_told_with_the_version_that_is_there() {
        let standing = |version, applied: bool| Standing {
            version,
            name: "n".into(),
            checksum: "c".into(),
            applied_at: applied.then(|| Timestamp::from_micros(0)),
        };
        let told = |rows: &[Standing]| complete(rows, "the schema is", ("prefix", "p_")).unwrap_err().to_string();
        complete(&[standing(1, true), standing(2, true)], "the schema is", ("prefix", "p_")).unwrap();
        let missing = told(&[standing(1, false), standing(2, false)]);
        assert!(missing.contains("missing") && missing.contains("prefix: p_, version: 0, needed: 2"), "{missing}");
        let older = told(&[standing(1, true), standing(2, false)]);
        assert!(older.contains("older") && older.contains("version: 1, needed: 2"), "{older}");
    }
}

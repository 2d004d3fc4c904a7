//! Secrets in a file: given there, or only where to find them.
//!
//! ```toml
//! secret = "whsec_…"                        # the value itself
//! secret = { env = "PARTNER_SECRET" }       # a variable of the environment
//! secret = { file = "secrets/partner" }     # a file that not everybody can read
//! ```
//!
//! Where it is, is checked with the file; what it is, is looked up when the destination is opened. None of it is printed.

use std::{env, fmt, fs, path::PathBuf};

use postrider::{Error, ErrorKind, Result};
use toml::de::DeValue;

use super::reader::{nearest, text};

/// Most bytes of a file with a secret: a file that is larger is not one.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Where a secret is.
#[derive(Clone, PartialEq)]
pub(crate) enum Place {
    Value(String),
    Env(String),
    File(PathBuf),
}

impl Place {
    /// Reads one: a text, or a table with one of the three keys.
    pub(super) fn read(value: &DeValue<'_>) -> Result<Self, String> {
        const KEYS: [&str; 3] = ["value", "env", "file"];
        let DeValue::Table(table) = value else {
            return text(value).map(Self::Value).map_err(|_| {
                "must be a text, or a table that says where it is: `{ env = \"NAME\" }` or `{ file = \"path\" }`"
                    .to_owned()
            });
        };
        if let Some(key) = table.keys().map(|key| key.get_ref().as_ref()).find(|key| !KEYS.contains(key)) {
            let hint = nearest(key, &KEYS)
                .map_or_else(|| format!("known are {}", KEYS.join(", ")), |near| format!("did you mean `{near}`?"));
            return Err(format!("unknown key `{}`; {hint}", key.escape_debug()));
        }
        let mut entries = table.iter();
        let (Some((key, value)), None) = (entries.next(), entries.next()) else {
            return Err("must say where it is once: one of `value`, `env` and `file`".to_owned());
        };
        let given = text(value.get_ref())?;
        Ok(match key.get_ref().as_ref() {
            "env" => Self::Env(given),
            "file" => Self::File(given.into()),
            _ => Self::Value(given),
        })
    }

    /// One, or a list of them.
    pub(super) fn read_some(value: &DeValue<'_>) -> Result<Vec<Self>, String> {
        match value {
            DeValue::Array(items) => items.iter().map(|item| Self::read(item.get_ref())).collect(),
            one => Self::read(one).map(|place| vec![place]),
        }
    }

    /// The secret itself.
    pub(crate) fn look_up(&self) -> Result<String> {
        match self {
            Self::Value(value) => Ok(value.clone()),
            Self::Env(name) => env::var(name).map_err(|_| {
                Error::new(ErrorKind::NotFound, "the variable of the environment that holds a secret is not set")
                    .with("variable", name)
            }),
            Self::File(path) => {
                let failed = |error: std::io::Error| {
                    Error::new(ErrorKind::NotFound, "the file that holds a secret cannot be read")
                        .with("path", path.display())
                        .caused_by(error)
                };
                let metadata = fs::metadata(path).map_err(failed)?;
                refuse_open_file(path, &metadata)?;
                if metadata.len() > FILE_BYTES_MAX {
                    return Err(Error::invalid("the file that holds a secret is larger than 64 KiB")
                        .with("path", path.display()));
                }
                Ok(fs::read_to_string(path).map_err(failed)?.trim().to_owned())
            }
        }
    }
}

/// A secret that everybody on the machine can read is none.
#[cfg(unix)]
fn refuse_open_file(path: &std::path::Path, metadata: &fs::Metadata) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if metadata.permissions().mode() & 0o004 == 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Denied, "the file that holds a secret can be read by everybody; take that right away")
        .with("path", path.display())
        .with("command", format!("chmod o-r {}", path.display())))
}

#[cfg(not(unix))]
fn refuse_open_file(_path: &std::path::Path, _metadata: &fs::Metadata) -> Result<()> {
    Ok(())
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("value (hidden)"),
            Self::Env(name) => write!(f, "env {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(toml: &str) -> Result<Place, String> {
        Place::read(DeValue::parse(toml).unwrap().get_ref())
    }

    #[test]
    fn a_secret_is_given_or_found() {
        assert_eq!(read("\"x\""), Ok(Place::Value("x".into())));
        assert_eq!(read("{ value = \"x\" }"), Ok(Place::Value("x".into())));
        assert_eq!(read("{ env = \"X\" }"), Ok(Place::Env("X".into())));
        assert_eq!(read("{ file = \"f\" }"), Ok(Place::File("f".into())));
        assert_eq!(format!("{:?}", read("\"canary\"").unwrap()), "value (hidden)");
    }

    #[test]
    fn what_says_nothing_or_too_much_is_refused_and_not_repeated() {
        for (toml, word) in [
            ("{ evn = \"canary\" }", "known are value, env, file"),
            ("{ vale = \"canary\" }", "did you mean `value`?"),
            ("{ env = \"canary\", file = \"canary\" }", "once"),
            ("{}", "once"),
            ("7", "must be a text, or a table"),
            ("{ env = 7 }", "must be a text"),
        ] {
            let told = read(toml).unwrap_err();
            assert!(told.contains(word) && !told.contains("canary"), "{toml}: {told}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_everybody_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "canary\n").unwrap();
        let place = Place::File(file.path().to_owned());
        for (mode, fine) in [(0o600, true), (0o640, true), (0o644, false), (0o604, false)] {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            match place.look_up() {
                Ok(secret) => assert!(fine && secret == "canary", "{mode:o}"),
                Err(error) => assert!(!fine && error.to_string().contains("chmod o-r"), "{mode:o}: {error}"),
            }
        }
        assert!(Place::File("no/such/file".into()).look_up().unwrap_err().to_string().contains("no/such/file"));
        assert!(Place::Env("NO_SUCH_VARIABLE".into()).look_up().unwrap_err().to_string().contains("NO_SUCH_VARIABLE"));
    }
}

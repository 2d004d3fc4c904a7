//! Secrets in a file: given there, or only where to find them.
//!
//! ```toml
//! secret = "whsec_…"                        # the value itself
//! secret = { env = "PARTNER_SECRET" }       # a variable of the environment
//! secret = { file = "secrets/partner" }     # a file that not everybody can read
//! ```
//!
//! Where it is, and whether something is there, is checked with the file; it is looked up again whenever what needs it is
//! opened. None of it is printed.
//!
//! A file that everybody can read is refused if it is ours: that can be mended. One that belongs to somebody else is taken,
//! with a warning: a container mounts its secrets like that, owned by root and readable for all who are inside.

use std::{env, fmt, fs, path::PathBuf};

use postrider::{Error, ErrorKind, Result};
use toml::de::DeValue;

use super::{nearest::nearest, shapes::text};
use crate::bounded;

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

    /// Names, and a secret for each.
    pub(super) fn read_table(value: &DeValue<'_>) -> Result<Vec<(String, Self)>, String> {
        let DeValue::Table(table) = value else {
            return Err("must be a table: names, and the value of each or where that is".to_owned());
        };
        let entry = |(name, value): (&toml::Spanned<std::borrow::Cow<'_, str>>, &toml::Spanned<DeValue<'_>>)| {
            let place =
                Self::read(value.get_ref()).map_err(|what| format!("`{}` {what}", name.get_ref().escape_debug()))?;
            Ok((name.get_ref().to_string(), place))
        };
        table.iter().map(entry).collect()
    }

    /// One, or a list of them.
    pub(super) fn read_some(value: &DeValue<'_>) -> Result<Vec<Self>, String> {
        match value {
            DeValue::Array(items) => items.iter().map(|item| Self::read(item.get_ref())).collect(),
            one => Self::read(one).map(|place| vec![place]),
        }
    }

    /// The secret itself.
    pub(crate) fn get(&self) -> Result<String> {
        Ok(self.look_up()?.0)
    }

    /// The secret itself, and what should be said about where it is.
    pub(crate) fn look_up(&self) -> Result<(String, Option<String>)> {
        match self {
            Self::Value(value) => Ok((value.clone(), None)),
            Self::Env(name) => env::var(name).map(|value| (value, None)).map_err(|_| {
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
                let warning = judge_permissions(path, &metadata)?;
                if metadata.len() > FILE_BYTES_MAX {
                    return Err(Error::invalid("the file that holds a secret is larger than 64 KiB")
                        .with("path", path.display()));
                }
                Ok((bounded::text(path, FILE_BYTES_MAX).map_err(failed)?.trim().to_owned(), warning))
            }
        }
    }
}

/// A secret that is looked up and checked once the file is right.
pub(super) struct Later {
    pub(super) at: usize,
    pub(super) key: String,
    /// Which of several sections of this name.
    pub(super) instance: usize,
    pub(super) place: Place,
    pub(super) check: fn(&str) -> Result<(), String>,
}

/// A secret that everybody on the machine can read is none.
#[cfg(unix)]
fn judge_permissions(path: &std::path::Path, metadata: &fs::Metadata) -> Result<Option<String>> {
    use std::os::unix::fs::MetadataExt;
    judge(path, metadata.mode(), metadata.uid(), rustix::process::geteuid().as_raw())
}

#[cfg(unix)]
fn judge(path: &std::path::Path, mode: u32, owner: u32, own: u32) -> Result<Option<String>> {
    if mode & 0o004 == 0 {
        return Ok(None);
    }
    if owner == own {
        let message = "the file that holds a secret can be read by everybody; take that right away (Kubernetes: \
                       `defaultMode: 0400` of the volume)";
        return Err(Error::new(ErrorKind::Denied, message)
            .with("path", path.display())
            .with("command", format!("chmod o-r {}", path.display())));
    }
    Ok(Some(format!(
        "names a file that everybody can read and that belongs to somebody else: {} (Kubernetes: give the volume \
         `defaultMode: 0440`, and the pod an `fsGroup`)",
        path.display()
    )))
}

#[cfg(not(unix))]
fn judge_permissions(_path: &std::path::Path, _metadata: &fs::Metadata) -> Result<Option<String>> {
    Ok(None)
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
            ("{ evn = \"canary\" }", "did you mean `env`?"),
            ("{ colour = \"canary\" }", "known are value, env, file"),
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
            match place.get() {
                Ok(secret) => assert!(fine && secret == "canary", "{mode:o}"),
                Err(error) => assert!(!fine && error.to_string().contains("chmod o-r"), "{mode:o}: {error}"),
            }
        }
        assert!(Place::File("no/such/file".into()).get().unwrap_err().to_string().contains("no/such/file"));
        assert!(Place::Env("NO_SUCH_VARIABLE".into()).get().unwrap_err().to_string().contains("NO_SUCH_VARIABLE"));
    }

    /// As a volume of Kubernetes has it: owned by root, and we are not.
    #[cfg(unix)]
    #[test]
    fn an_open_file_of_somebody_else_is_taken_with_a_warning() {
        let path = std::path::Path::new("mounted/secret");
        let warning = judge(path, 0o100_644, 0, 1000).unwrap().unwrap();
        assert!(warning.contains("mounted/secret") && warning.contains("defaultMode"), "{warning}");
        assert_eq!(judge(path, 0o100_440, 0, 1000).unwrap(), None);
        let refused = judge(path, 0o100_644, 1000, 1000).unwrap_err().to_string();
        assert!(refused.contains("chmod o-r mounted/secret"), "{refused}");
        assert!(judge(path, 0o100_644, 0, 0).is_err(), "root can change what it owns");
    }
}

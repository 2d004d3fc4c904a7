//! The servers that tests run on: those that environment variables name, or those that the workshop has started.
//!
//! `cargo xtask services up` notes what it starts in `services.env`, in the directory where things are built: a variable
//! with the URL, and the same with `_DIR` behind it for the server's own directory. A server that is nowhere is an error of
//! the test that needs it; nothing is skipped for want of one.

use std::path::{Path, PathBuf};

/// Where the servers are noted.
const FILE: &str = "services.env";

/// The URL of the server that this variable stands for, such as `POSTRIDER_TEST_REDIS`.
///
/// # Panics
/// If there is none, with what to do about it.
#[must_use]
pub fn url(variable: &str) -> String {
    noted(variable).unwrap_or_else(|| {
        panic!("there is no server to test with: start one with `cargo xtask services up`, or name one in {variable}")
    })
}

/// The program of that server, for a test that needs a server of its own to kill; `otherwise` where the workshop has started
/// none.
#[must_use]
pub fn program(variable: &str, otherwise: &str) -> PathBuf {
    noted(&format!("{variable}_DIR")).map_or_else(|| otherwise.into(), |dir| Path::new(&dir).join("program"))
}

/// What is said of a variable: by the environment, or else by the workshop.
#[must_use]
pub fn noted(variable: &str) -> Option<String> {
    if let Some(value) = std::env::var(variable).ok().filter(|value| !value.is_empty()) {
        return Some(value);
    }
    find(&std::fs::read_to_string(file()?).ok()?, variable)
}

/// Cargo runs tests in the folder of their package, which is somewhere below that of the workspace.
fn file() -> Option<PathBuf> {
    if let Some(target) = std::env::var_os("CARGO_TARGET_DIR") {
        return Some(Path::new(&target).join(FILE));
    }
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join("target").join(FILE)).find(|file| file.exists())
}

fn find(text: &str, variable: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(variable)?.strip_prefix('=')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_not_found_in_a_longer_one() {
        let text = "NATS_DIR=/x\nNATS=nats://h:1?a=b\n";
        assert_eq!(find(text, "NATS").as_deref(), Some("nats://h:1?a=b"));
        assert_eq!(find(text, "NATS_DIR").as_deref(), Some("/x"));
        assert_eq!(find(text, "REDIS"), None);
    }

    #[test]
    #[should_panic(expected = "POSTRIDER_TEST_NO_SUCH_THING")]
    fn a_server_that_is_nowhere_is_an_error() {
        drop(url("POSTRIDER_TEST_NO_SUCH_THING"));
    }
}

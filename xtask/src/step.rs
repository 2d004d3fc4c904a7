//! One command of a task: printed before it runs, and named when it fails.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// A command with a name.
pub(crate) struct Step {
    name: String,
    program: OsString,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

/// A call of the cargo that runs this program.
pub(crate) fn cargo(name: &str, arguments: &[&str]) -> Step {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Step::new(name, program).args(arguments.iter().map(ToString::to_string))
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

impl Step {
    pub(crate) fn new(name: &str, program: impl Into<OsString>) -> Self {
        Self { name: name.to_owned(), program: program.into(), arguments: Vec::new(), environment: Vec::new() }
    }

    pub(crate) fn args(mut self, arguments: impl IntoIterator<Item = String>) -> Self {
        self.arguments.extend(arguments);
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Runs it; what it prints is shown as it comes.
    pub(crate) fn run(self) -> Result<()> {
        self.announce();
        let status = self.command().status().with_context(|| format!("`{}` cannot be started", self.name))?;
        if !status.success() {
            bail!("`{}` failed ({status})", self.name);
        }
        Ok(())
    }

    /// As [`Self::run`], with what it prints on standard error: for steps on the way to something whose standard output counts.
    pub(crate) fn run_aside(self) -> Result<()> {
        self.announce();
        let mut command = self.command();
        command.stdout(std::io::stderr());
        let status = command.status().with_context(|| format!("`{}` cannot be started", self.name))?;
        if !status.success() {
            bail!("`{}` failed ({status})", self.name);
        }
        Ok(())
    }

    /// Runs it and returns its standard output.
    pub(crate) fn output(self) -> Result<String> {
        self.announce();
        let output = self
            .command()
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("`{}` cannot be started", self.name))?;
        if !output.status.success() {
            bail!("`{}` failed ({})", self.name, output.status);
        }
        String::from_utf8(output.stdout).with_context(|| format!("`{}` did not print text", self.name))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(root());
        command
    }

    /// On standard error, so that standard output stays the command's own.
    fn announce(&self) {
        let program = Path::new(&self.program).file_name().unwrap_or(&self.program).to_string_lossy();
        // A URL may hold a password.
        let shown = |value: &str| if value.contains("://") { "…".to_owned() } else { format!("{value:?}") };
        let set: String = self.environment.iter().map(|(name, value)| format!("{name}={} ", shown(value))).collect();
        eprintln!("[{}] {set}{program} {}", self.name, self.arguments.join(" "));
    }
}

//! The signals that a long run listens to: two that ask for an end, and one that asks a daemon to read its configuration again.

use crate::exit::{Code, Failure, Outcome};

/// Those that ask for an end.
pub(crate) struct Stop {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    /// From here on they no longer end the process by themselves.
    #[cfg(unix)]
    pub(crate) fn install() -> Outcome<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |error: std::io::Error| Failure::because(Code::Problem, "signals cannot be received", &error);
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
        })
    }

    #[cfg(not(unix))]
    pub(crate) fn install() -> Outcome<Self> {
        Ok(Self {})
    }

    /// Waits for the next of them. Dropping the future loses none.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// SIGHUP: read the configuration again. From the first one on it no longer ends the process.
pub(crate) struct Reload {
    #[cfg(unix)]
    hangup: tokio::signal::unix::Signal,
}

impl Reload {
    #[cfg(unix)]
    pub(crate) fn install() -> Outcome<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |error: std::io::Error| Failure::because(Code::Problem, "signals cannot be received", &error);
        Ok(Self { hangup: signal(SignalKind::hangup()).map_err(failed)? })
    }

    #[cfg(not(unix))]
    pub(crate) fn install() -> Outcome<Self> {
        Ok(Self {})
    }

    /// Waits for the next one; several at once are one. Dropping the future loses none.
    #[cfg(unix)]
    pub(crate) async fn next(&mut self) {
        if self.hangup.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }

    #[cfg(not(unix))]
    pub(crate) async fn next(&mut self) {
        std::future::pending::<()>().await;
    }
}

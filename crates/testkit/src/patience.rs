//! How long a test waits: long enough for the slowest machine, and not for ever, because what never ends tells nothing.

use std::time::Duration;

/// Longer than any case takes, on any machine.
pub const CASE_PATIENCE: Duration = Duration::from_secs(300);

/// Waits for a case, so that an adapter that never answers fails it instead of stopping all the others.
///
/// # Panics
/// If it does not end within [`CASE_PATIENCE`].
pub async fn in_time<T>(case: impl Future<Output = T>) -> T {
    tokio::time::timeout(CASE_PATIENCE, case).await.expect("the case ends")
}

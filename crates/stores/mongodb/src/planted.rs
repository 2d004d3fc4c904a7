//! Mistakes of the reader, each of which was made somewhere and turns keys around or loses messages. Tests plant them and
//! must find them; a torture that finds nothing proves nothing. Without the feature `planted` none can be planted.

/// A mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    /// No mistake.
    #[default]
    None,
    /// The log is read by a cursor over `at`, which is drawn before the transaction commits.
    AtCursor,
    /// The scan after a lost history has no upper bound: it passes the place of a message before that commits, and then
    /// meets one that was enqueued after it.
    UnboundedScan,
    /// A scan takes what it sees of a transaction that was open when it began: the later part of it, if the place of the
    /// earlier one is passed.
    TornTransaction,
    /// The scan after a lost history begins at the cursor itself, and not before it.
    NoOverlap,
    /// Mail of documents is carried on without a journaled write in between: a crash of the server takes back what was sent.
    NoBarrier,
    /// A settlement that only parks looks at the lane's epoch and does not write to the lane: a stale owner commits.
    FenceWithoutWrite,
}

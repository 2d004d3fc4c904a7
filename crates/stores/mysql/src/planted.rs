//! Mistakes of the sequencer, each of which was made somewhere and turns keys around or loses messages. Tests plant them and
//! must find them; a torture that finds nothing proves nothing. Without the feature `planted` none can be planted.

/// A mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    /// No mistake.
    #[default]
    None,
    /// Unordered messages are picked with `FOR UPDATE SKIP LOCKED`, which looks row by row and not at one state: it passes a
    /// row that is locked, its transaction commits, and the same scan takes what was enqueued after that.
    SkipLocked,
    /// Messages are picked by a cursor over their numbers, which were drawn before their transactions committed.
    IdCursor,
    /// What was picked is deleted as a range of numbers, and with it what commits in between.
    RangeDelete,
}

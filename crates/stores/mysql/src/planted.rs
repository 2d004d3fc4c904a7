//! Mistakes of the sequencer and of its reader, each of which was made somewhere and turns keys around or loses messages. Tests
//! plant them and must find them; a torture that finds nothing proves nothing. Without the feature `planted` none can be planted.

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
    /// No mistake of ours, but what MariaDB does seldom, done often: views that hide a commit and show a later one.
    TornViews,
    /// With such views, what was picked is taken for all that is there.
    OneLook,
    /// With such views, the order list is read on behind a batch that is missing.
    NoGapCheck,
}

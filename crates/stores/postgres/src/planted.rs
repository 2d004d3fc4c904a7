//! Mistakes of the reader that the tests must find. Without the feature `planted` none of them can be switched on.
//!
//! Each of them is a shortcut that looks right and loses messages, or turns them around, on a real server.

/// A mistake to plant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    /// None.
    #[default]
    None,
    /// A cursor over numbers: every round begins behind the last number of the one before.
    IdCursor,
    /// A round delivers what lies below the oldest open transaction.
    BelowXmin,
    /// The snapshot's `xmax` is taken for the id that is handed out next.
    XmaxIsNotYetBegun,
    /// The next id is read before the last number.
    NextBeforeLast,
    /// The last number is read before the snapshot.
    LastBeforeTarget,
    /// A round that was half done goes on with a new target.
    PositionWithoutTarget,
    /// What a session has seen counts also when it is over.
    BaseKeptOverLostConnection,
    /// A sequence whose numbers are drawn ahead is accepted.
    SequenceCache,
    /// Old ids are asked of the new cluster's snapshots: a cursor of another cluster is taken as it is.
    NoRebase,
}

impl Plant {
    /// Whether this mistake is to be made.
    pub(crate) fn is(self, plant: Self) -> bool {
        cfg!(feature = "planted") && self == plant
    }
}

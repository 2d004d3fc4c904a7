//! Mistakes that the checks must find: those of the engine, and those of a store.

pub use postrider::relay::planted::Plant as EnginePlant;

/// A mistake of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorePlant {
    /// None.
    #[default]
    None,
    /// A stale owner may write.
    NoEpochCheck,
    /// The cursor is the greatest id seen.
    IdCursor,
    /// Leases are counted by the clocks of the nodes.
    NodeClock,
    /// Retention looks at the age alone.
    PurgeByAge,
    /// A held row does not become due when it is the first of its line.
    HeldNeverDue,
    /// A repeated settlement is applied again.
    RepeatByContent,
    /// New lanes begin at the greatest cursor of the old ones.
    GreatestCursor,
    /// Scheduled rows come half a second early.
    ScheduledEarly,
    /// A route reads what the last node to register asks for, whatever the others want.
    OwnTopicsOnly,
}

/// One mistake of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Of the engine.
    Engine(EnginePlant),
    /// Of the store.
    Store(StorePlant),
}

impl Plant {
    /// No mistake at all.
    pub const NONE: Self = Self::Store(StorePlant::None);

    /// The engine's part.
    #[must_use]
    pub fn engine(self) -> EnginePlant {
        match self {
            Self::Engine(plant) => plant,
            Self::Store(_) => EnginePlant::None,
        }
    }

    /// The store's part.
    #[must_use]
    pub fn store(self) -> StorePlant {
        match self {
            Self::Engine(_) => StorePlant::None,
            Self::Store(plant) => plant,
        }
    }

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(_, plant)| *plant == self).map_or("none", |(name, _)| name)
    }
}

/// All of them by name.
pub const ALL: &[(&str, Plant)] = &[
    ("mark-before-send", Plant::Engine(EnginePlant::MarkBeforeSend)),
    ("no-epoch-check", Plant::Store(StorePlant::NoEpochCheck)),
    ("id-cursor", Plant::Store(StorePlant::IdCursor)),
    ("attempts-while-open", Plant::Engine(EnginePlant::AttemptsWhileOpen)),
    ("dead-head-blocks-silently", Plant::Engine(EnginePlant::DeadHeadBlocksSilently)),
    ("whole-batch-on-partial", Plant::Engine(EnginePlant::WholeBatchOnPartial)),
    ("node-clock", Plant::Store(StorePlant::NodeClock)),
    ("purge-by-age", Plant::Store(StorePlant::PurgeByAge)),
    ("retry-to-tail", Plant::Engine(EnginePlant::RetryToTail)),
    ("forget-blocked-keys", Plant::Engine(EnginePlant::ForgetBlockedKeys)),
    ("held-never-due", Plant::Store(StorePlant::HeldNeverDue)),
    ("held-not-parked", Plant::Engine(EnginePlant::HeldNotParked)),
    ("verdict-not-committed", Plant::Engine(EnginePlant::VerdictNotCommitted)),
    ("drain-leaves-holes", Plant::Engine(EnginePlant::DrainLeavesHoles)),
    ("repeat-by-content", Plant::Store(StorePlant::RepeatByContent)),
    ("unknown-is-durable", Plant::Engine(EnginePlant::UnknownIsDurable)),
    ("ignore-lease", Plant::Engine(EnginePlant::IgnoreLease)),
    ("lease-from-answer", Plant::Engine(EnginePlant::LeaseFromAnswer)),
    ("greatest-cursor", Plant::Store(StorePlant::GreatestCursor)),
    ("scheduled-early", Plant::Store(StorePlant::ScheduledEarly)),
    ("own-topics-only", Plant::Store(StorePlant::OwnTopicsOnly)),
];

//! Mistakes of the engine that the simulator must find. Without the feature `planted` none of them can be switched on.

/// A mistake to plant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    /// None.
    #[default]
    None,
    /// The cursor passes what was sent but not answered.
    MarkBeforeSend,
    /// A new owner does not ask which keys have a line in the store.
    ForgetBlockedKeys,
    /// What waits behind a head is passed without being parked.
    HeldNotParked,
    /// An outage counts as an attempt.
    AttemptsWhileOpen,
    /// A rejected message goes to the tail of its key.
    RetryToTail,
    /// A key goes on before the verdict on its dead head is committed.
    VerdictNotCommitted,
    /// A drain does not publish what lies before messages that went out.
    DrainLeavesHoles,
    /// One durable message settles the rest of its batch.
    WholeBatchOnPartial,
    /// An unknown outcome counts as durable.
    UnknownIsDurable,
    /// A dead head is never written down.
    DeadHeadBlocksSilently,
    /// The lane publishes and settles although its lease may be over.
    IgnoreLease,
    /// A lease's safety is counted from the answer of the heartbeat instead of from its sending.
    LeaseFromAnswer,
}

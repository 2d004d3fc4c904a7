//! Transactional outbox, relay, inbox and sagas: the engine and the one crate an application depends on.

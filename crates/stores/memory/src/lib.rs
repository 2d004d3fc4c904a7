//! A store in memory: the reference implementation of the contracts, for tests and for trying things out.

//! Conformance suites, fault-injecting wrappers and checkers for anyone who writes a store or a transport.

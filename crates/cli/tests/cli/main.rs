//! The real binary, end to end: what it prints and how it exits, and what it loses (nothing) when it is killed, stopped,
//! continued and drained.

#![allow(clippy::unwrap_used, reason = "a test that fails here has found something")]

mod admin;
mod alerts;
mod bad_input;
mod brokers;
mod capture;
mod commands;
mod configuration;
mod daemon;
mod demonstration;
mod disagreement;
mod fleet;
#[cfg(feature = "kafka")]
mod kafka;
mod let_go;
mod mongodb;
mod monitoring;
mod mysql;
mod operators;
mod operators_postgres;
mod postgres;
mod psql;
mod redis;
mod reference;
mod reload;
mod retention;
mod settings_in_docs;
mod sql_in_docs;
mod standstill;
mod support;
#[cfg(feature = "otlp")]
mod traces;
mod transcripts;
mod webhook;

//! Everything that crosses a socket: real proxies, a scripted upstream, a raw client, real stores.
//!
//! A scenario builds its [`support::World`] in three lines and is named after the fault it guards against: `a1_…` to
//! `i5_…` are faults that products of this kind have had. What involves the store runs once per store, and the
//! store's name is the last part of the test's name. Rules, parsers and state machines are tested beside their code.

#![allow(clippy::unwrap_used, reason = "a test may panic; so may what only tests call")]

#[macro_use]
mod support;

mod documents;

mod history;
mod layout;
mod model;

mod admin;
mod commands;
mod contract;
mod disk;
mod postgres_server;
mod redis_server;
mod redis_store;
mod store_check;

mod bodies;
mod browsers;
mod callers;
mod claiming;
mod crash;
mod duplicates;
mod keys;
mod sameness;

mod keeping;
mod replay;
mod resend;
mod stopping;
mod streams;

mod authorize;
mod egress;
mod grpc;
mod http2_requests;
mod http2_upstream;
mod limits;
mod newcomers;
mod outcomes;
mod overload;
mod production;
mod readiness;
mod reload;
mod senders;
mod soak;
mod store_faults;
mod unprotected;
mod upgrades;
mod upstream_faults;
mod verify;
mod webhooks;

mod answers;
mod corpus;
mod hops;
mod listening;
mod problems;
mod raw_bytes;
mod raw_frames;
mod request_log;
mod secrets;
#[cfg(feature = "otel")]
mod traces;
mod vectors;

mod storm;
mod topologies;

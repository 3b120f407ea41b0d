//! onceproxy: an HTTP proxy that makes side effects happen once.
//!
//! It reads an idempotency key, claims it atomically in a store, forwards the request one time, records the whole
//! response and replays it to every duplicate. It knows three outcomes, not two: not sent, answered, **unknown**; an
//! unknown outcome is held for a person and never silently run again.
//!
//! # The life of a request
//!
//! `listen → route → key → fingerprint → claim → forward → record → respond`
//!
//! [`server`] listens. [`proxy`] is the other seven steps, a file each, called in that order by one short function. The
//! steps know the [`store`]'s contract and the [`record`]'s rules, never a back-end. See `docs/life-of-a-request.md`.

// The modules stand in the order in which a request meets them; blank lines keep them so.

pub mod cli;

pub mod app;

pub mod config;

pub mod server;

pub mod proxy;

pub mod upstream;

pub mod reach;

pub mod record;

pub mod store;

pub mod admin;

pub mod metrics;

pub mod trace;

pub mod telemetry;

pub mod shutdown;

pub mod alarm;

pub mod chain;

pub mod seldom;

pub mod pulse;

pub mod trust;

pub mod fields;

pub mod interim;

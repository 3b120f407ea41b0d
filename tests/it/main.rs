//! Everything that crosses a socket, a process or the public API, in one binary.

#![allow(clippy::unwrap_used, reason = "a test may panic; so may what only tests call")]

mod commands;
mod contract;

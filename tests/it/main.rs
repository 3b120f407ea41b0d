//! Everything that crosses a socket, a process or the public API, in one binary.

// Clippy's exception for tests covers test functions, not their helpers.
#![allow(clippy::unwrap_used)]

mod contract;
mod disk;
mod model;

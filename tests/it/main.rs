//! Everything that crosses a socket, a process or the public API, in one binary.

mod contract;
mod disk;
mod model;
mod redis_server;
mod redis_store;

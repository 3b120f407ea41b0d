//! The store as it is run in production: each topology on real servers that the tests start themselves.
//!
//! `make test-stores` runs these alone. Each holds to the contract, and then shows what it adds and what it survives.

mod postgres;
mod second_line;

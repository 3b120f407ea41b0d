//! What each fuzz target does with its input, as plain functions: an input that shows a fault makes them panic.
//!
//! Separate from the targets, so that the tests of the main package can run the kept inputs through the same functions
//! on a stable compiler. One module a target. What has no public door (`head`) is in the main package instead, in
//! `src/server/fuzzing.rs`.

pub mod codec;
pub mod form;
pub mod json;
pub mod key;
pub mod multipart;
pub mod names;
pub mod settings;
pub mod values;

mod request;
mod tree;

/// Takes one input.
pub type Target = fn(&[u8]);

/// Every target that is here, by the name of its folder in `fuzz/corpus`.
pub const TARGETS: [(&str, Target); 8] = [
    ("codec", codec::run),
    ("form", form::run),
    ("json", json::run),
    ("key", key::run),
    ("multipart", multipart::run),
    ("names", names::run),
    ("settings", settings::run),
    ("values", values::run),
];

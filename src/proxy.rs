//! The steps of a request, a file each.

pub mod fingerprint;
pub mod key;

//! Stub.

use crate::config::Loaded;

/// Why the proxy did not run, or did not stop in order.
#[derive(Debug, thiserror::Error)]
#[error("not built yet")]
pub struct RunError;

impl RunError {
    /// Whether the settings are to blame.
    pub fn is_wrong_settings(&self) -> bool {
        false
    }
}

/// Runs until it is told to stop.
pub fn run(_loaded: Loaded) -> Result<(), RunError> {
    Err(RunError)
}

//! Stub.

use std::sync::Arc;

use super::{OpenError, Opened};
use crate::config::store::StoreConfig;
use crate::metrics::Metrics;

/// Opens the store.
pub(super) fn open(_config: &StoreConfig, _metrics: &Arc<Metrics>) -> Result<Opened, OpenError> {
    Err(OpenError::new("not built yet"))
}

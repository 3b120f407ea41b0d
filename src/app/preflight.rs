//! `store check`: the store of these settings, opened, looked at and tried, without a proxy around it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::config::store::StoreConfig;
use crate::metrics::Metrics;
pub use crate::store::report::{Report, SECOND, Weight};
use crate::store::{self, OpenError, Store, StoreError, preflight};

/// How often a store that is away is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// Why a store could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Its settings can never work.
    #[error("cannot open the store")]
    Open(#[from] OpenError),
    /// It was away for the whole time.
    #[error("the store cannot be reached")]
    Away(#[source] StoreError),
    /// It answered with an error instead of its state.
    #[error("the store cannot be looked at")]
    Failed(#[source] StoreError),
    /// The operating system refused a runtime.
    #[error("cannot start a runtime")]
    System(#[from] std::io::Error),
}

impl CheckError {
    /// Whether other settings would mend it.
    pub fn is_wrong_settings(&self) -> bool {
        matches!(self, CheckError::Open(_))
    }
}

/// Looks at a store and tries it. One that is away is asked again for `patience`.
///
/// # Errors
/// If it could not be looked at. That the promise does not hold on it is no error, but in the report.
pub fn check_store(config: &StoreConfig, patience: Duration) -> Result<Report, CheckError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let opened = store::open(config, &Metrics::new())?;
        let background = tokio::spawn(opened.background);
        let report = seen(&opened.store, patience).await;
        background.abort();
        report
    })
}

async fn seen(store: &Arc<dyn Store>, patience: Duration) -> Result<Report, CheckError> {
    let mut away = None;
    let look = async {
        loop {
            match look(store).await {
                Err(error) if error.is_away() => away = Some(error),
                seen => return seen,
            }
            sleep(AGAIN).await;
        }
    };
    match timeout(patience, look).await {
        Ok(seen) => seen.map_err(CheckError::Failed),
        Err(_) => Err(CheckError::Away(away.unwrap_or_else(|| {
            let message = format!("there was no answer within {patience:?}");
            StoreError::new(store::StoreErrorKind::TimedOut, false, message)
        }))),
    }
}

async fn look(store: &Arc<dyn Store>) -> Result<Report, StoreError> {
    let mut report = store.inspect().await?;
    // A store that must not be used is not written to.
    if report.broken().is_none() {
        report.add_trial(preflight::probe(&**store).await?);
    }
    Ok(report)
}

/// Why a store could not be prepared.
#[derive(Debug, thiserror::Error)]
#[error("cannot prepare the store")]
pub struct PrepareError(#[from] store::InitError);

impl PrepareError {
    /// Whether other settings would mend it.
    pub fn is_wrong_settings(&self) -> bool {
        matches!(self.0, store::InitError::Settings(_))
    }
}

/// Prepares what the store needs once, such as the schema in Postgres. Says what was done, line by line.
///
/// # Errors
/// If it was not done.
pub fn init_store(config: &StoreConfig) -> Result<Vec<String>, PrepareError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| store::InitError::Failed(e.to_string()))?;
    Ok(runtime.block_on(store::init(config))?)
}

//! `store check`: the store of these settings, opened, looked at and tried, without a proxy around it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::config::store::{Backend, StoreConfig};
use crate::metrics::Metrics;
pub use crate::store::report::{Report, SECOND, Weight};
use crate::store::{self, FolderState, OpenError, Store, StoreError, preflight};

/// How often a store that is away is asked again.
const AGAIN: Duration = Duration::from_millis(100);

/// Why a store could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Its settings can never work.
    #[error("cannot open the store")]
    Open(#[from] OpenError),
    /// There is no folder, and a check makes none.
    #[error(
        "the folder {} does not exist, and a check makes nothing: `onceproxy serve` makes it when it starts; to try the \
         place before that, make the folder yourself, with mode 0700",
        dir.display()
    )]
    NoFolder {
        /// Where it should be.
        dir: PathBuf,
    },
    /// It was away for the whole time.
    #[error("cannot look at the store")]
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
        matches!(self, CheckError::Open(error) if error.is_wrong_settings())
    }
}

/// Looks at a store and tries it. One that is away is asked again for `patience`. Nothing is made: a folder without
/// records is tried in a folder inside, which is removed again.
///
/// # Errors
/// If it could not be looked at. That the promise does not hold on it is no error, but in the report.
pub fn check_store(config: &StoreConfig, patience: Duration) -> Result<Report, CheckError> {
    let Backend::Disk { dir } = &config.backend else { return check(config, patience) };
    match store::look_at_folder(dir) {
        FolderState::Records => check(config, patience),
        FolderState::Nothing => Err(CheckError::NoFolder { dir: dir.clone() }),
        FolderState::Empty => {
            let trial = Trial(dir.join(format!(".onceproxy-check-{}", std::process::id())));
            let backend = Backend::Disk { dir: trial.0.clone() };
            let mut report = check(&StoreConfig { backend, ..config.clone() }, patience)?;
            report.fact("records", "none yet: tried in a folder inside, which was removed again");
            Ok(report)
        }
    }
}

/// A folder for a trial; removed in the end, with all that is in it.
struct Trial(PathBuf);

impl Drop for Trial {
    fn drop(&mut self) {
        // It may not be there, if it could not be made; what is left of it harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn check(config: &StoreConfig, patience: Duration) -> Result<Report, CheckError> {
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
            StoreError::without_effect(store::StoreErrorKind::TimedOut, message)
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

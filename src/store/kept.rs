//! What the files of a store's settings hold (a password, certificates), made ready for its driver; read again when they
//! change, for the connections that are opened from then on.
//!
//! The files are looked at before a connection is opened and at SIGHUP. Files that cannot be used change nothing: they may
//! be replaced one by one, and what does not fit together now may fit the next time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use secrecy::SecretString;
use tokio::time::timeout;

use super::OpenError;
use crate::chain::Chain;
use crate::config::Content;
use crate::config::store::Password;
use crate::seldom::Seldom;

/// How long a connection waits for the files. They may lie on a disk that has gone away.
const PATIENCE: Duration = Duration::from_millis(500);

/// All files of a store's settings that can be read again. Clones are the same.
#[derive(Clone, Default)]
pub struct Renewals(Arc<Mutex<Vec<Arc<dyn Renew>>>>);

impl Renewals {
    /// Looks at the files now, takes what changed, and says so in the log, also of what cannot be taken. May block.
    pub fn renew(&self) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Not `any`: each is to be looked at.
        if all.iter().filter(|files| files.renew(true)).count() == 0 {
            tracing::info!("the store's certificates and passwords are as they were");
        }
    }
}

trait Renew: Send + Sync {
    /// Says whether there was something new. What cannot be taken is told once a minute, but to whoever asks for it.
    fn renew(&self, is_asked: bool) -> bool;
}

/// A value that is made from files.
pub(super) struct Kept<T> {
    /// The section of the settings that names the files.
    section: String,
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, OpenError> + Send + Sync>,
    current: ArcSwap<T>,
    /// What the files held when `current` was made.
    taken: Mutex<Vec<Option<Content>>>,
    told: Seldom<()>,
}

impl<T: Send + Sync + 'static> Kept<T> {
    /// Makes it for the first time.
    pub(super) fn new<'a>(
        renewals: &Renewals,
        section: &str,
        files: impl IntoIterator<Item = &'a Path>,
        make: impl Fn() -> Result<T, OpenError> + Send + Sync + 'static,
    ) -> Result<Arc<Kept<T>>, OpenError> {
        let files: Vec<_> = files.into_iter().map(Path::to_owned).collect();
        // Looked at before they are read: a change in between is then taken for one that is still to come.
        let taken = contents(&files);
        let current = ArcSwap::from_pointee(make()?);
        let (section, make, told) = (section.to_owned(), Box::new(make), Seldom::each_minute());
        let kept = Arc::new(Kept { section, files, make, current, taken: Mutex::new(taken), told });
        renewals.0.lock().unwrap_or_else(PoisonError::into_inner).push(kept.clone());
        Ok(kept)
    }

    /// What a new connection is to use.
    pub(super) async fn fresh(self: &Arc<Self>) -> Arc<T> {
        if !self.files.is_empty() {
            let this = Arc::clone(self);
            let _ = timeout(PATIENCE, tokio::task::spawn_blocking(move || this.renew(false))).await;
        }
        self.current.load_full()
    }
}

impl<T: Send + Sync + 'static> Renew for Kept<T> {
    fn renew(&self, is_asked: bool) -> bool {
        let now = contents(&self.files);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if *taken == now {
            return false;
        }
        match (self.make)() {
            Ok(made) => {
                self.current.store(Arc::new(made));
                let changed = self.files.iter().zip(taken.iter().zip(&now)).filter(|(_, (before, now))| before != now);
                let files: Vec<_> = changed.map(|(file, _)| file.display().to_string()).collect();
                tracing::info!(section = self.section, files = files.join(" "), "took new files of the store");
                *taken = now;
            }
            Err(error) => {
                if self.told.count(()).is_some() || is_asked {
                    tracing::error!(error = %Chain(&error), "cannot take new files of the store, keeping the old ones");
                }
            }
        }
        true
    }
}

fn contents(files: &[PathBuf]) -> Vec<Option<Content>> {
    files.iter().map(|file| Content::of(file)).collect()
}

/// The password itself. `setting` is what is named in errors.
pub(super) fn password(password: &Password, setting: &str) -> Result<SecretString, OpenError> {
    let file = match password {
        Password::Given(secret) => return Ok(secret.clone()),
        Password::InFile(file) => file,
    };
    let unusable = |what: &str| OpenError::new(format!("{setting}: {} {what}", file.display()));
    let text = std::fs::read_to_string(file)
        .map_err(|e| unusable("must be a file that can be read and holds a password").because(e))?;
    // What an editor or `echo` puts behind it.
    let text = text.strip_suffix('\n').unwrap_or(&text);
    match text.strip_suffix('\r').unwrap_or(text) {
        "" => Err(unusable("is empty; write the password into it")),
        text if text.contains(['\n', '\0']) => Err(unusable("must hold one line, the password")),
        text => Ok(text.to_owned().into()),
    }
}

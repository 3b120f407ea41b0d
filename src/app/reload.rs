//! Reload: other settings for a running process, at SIGHUP or when the file holds something else.
//!
//! All or nothing: settings with a mistake change nothing, and say why. What a process cannot change while it runs is
//! named in a warning. Requests under way are not touched: see [`crate::proxy::reload`].

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::{RunError, system};
use crate::admin;
use crate::config::{self, Changed, Config, Content, Loaded, Mistakes, Sources};
use crate::metrics::{Metrics, Reload};
use crate::proxy::{self, Proxy, UnusableRoute};
use crate::telemetry::LevelHandle;

/// How often the file is looked at. A change counts once two looks have seen the same, so that a file that is still
/// being written is left alone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why settings were not taken.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error("{0}")]
    Mistakes(Mistakes),
    #[error("cannot prepare TLS to the upstream of route `{}`", .0.0)]
    Upstream(Box<UnusableRoute>),
    #[error("reading them failed")]
    Panicked(#[from] tokio::task::JoinError),
}

/// The settings in force, and all that follows them.
pub(super) struct Reloader {
    sources: Sources,
    config: Config,
    cores: Vec<Proxy>,
    admin: Arc<ArcSwap<admin::Settings>>,
    level: LevelHandle,
    metrics: Arc<Metrics>,
    watched: Option<Watched>,
    hangups: Signal,
}

/// The file, and what was seen of it.
struct Watched {
    file: PathBuf,
    /// What was read last, whether or not it could be used.
    taken: Option<Content>,
    /// What the last look saw.
    seen: Option<Content>,
}

impl Watched {
    /// The file that the settings were read from, if it is one that can change.
    fn new(loaded: &Loaded) -> Option<Watched> {
        let (file, content) = (loaded.file.clone()?, loaded.content?);
        Some(Watched { file, taken: Some(content), seen: Some(content) })
    }

    /// Looks at the file, and says whether it has come to rest at something new.
    fn look(&mut self, now: Option<Content>) -> bool {
        let rests = self.seen == now;
        self.seen = now;
        let changed = rests && self.taken != now;
        if changed {
            self.taken = now;
        }
        changed
    }
}

impl Reloader {
    /// Must be made within the runtime.
    pub(super) fn new(
        sources: Sources,
        loaded: &Loaded,
        cores: Vec<Proxy>,
        level: LevelHandle,
        metrics: Arc<Metrics>,
    ) -> Result<Reloader, RunError> {
        let hangups = signal(SignalKind::hangup()).map_err(system("a signal handler"))?;
        let admin = Arc::new(ArcSwap::from_pointee(admin_settings(&loaded.config)));
        let watched = Watched::new(loaded);
        Ok(Reloader { sources, config: loaded.config.clone(), cores, admin, level, metrics, watched, hangups })
    }

    /// What the admin listener goes by.
    pub(super) fn admin(&self) -> &Arc<ArcSwap<admin::Settings>> {
        &self.admin
    }

    /// The settings in force.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Follows the file and SIGHUP until it is dropped.
    pub(super) async fn run(&mut self) -> Infallible {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = self.hangups.recv() => {
                    let now = self.content().await;
                    if let Some(watched) = &mut self.watched {
                        (watched.taken, watched.seen) = (now, now);
                    }
                    self.reload("SIGHUP").await;
                }
                _ = looks.tick() => {
                    let now = self.content().await;
                    if self.watched.as_mut().is_some_and(|watched| watched.look(now)) {
                        self.reload("the file changed").await;
                    }
                }
            }
        }
    }

    async fn content(&self) -> Option<Content> {
        let file = self.watched.as_ref()?.file.clone();
        tokio::task::spawn_blocking(move || Content::of(&file)).await.ok().flatten()
    }

    async fn reload(&mut self, why: &'static str) {
        match self.take().await {
            Ok(()) => {
                self.metrics.reloaded(Reload::Success);
                tracing::info!(why, routes = self.config.routes.len(), "settings reloaded");
            }
            Err(error) => {
                self.metrics.reloaded(Reload::Failure);
                match &error {
                    ReloadError::Mistakes(mistakes) => mistakes.0.iter().for_each(|wrong| tracing::error!("{wrong}")),
                    ReloadError::Upstream(unusable) => {
                        tracing::error!(route = unusable.0, error = &unusable.1 as &dyn std::error::Error, "{error}");
                    }
                    ReloadError::Panicked(_) => tracing::error!("{error}"),
                }
                tracing::error!(why, "settings not reloaded, the old ones stay in force");
            }
        }
    }

    /// Reads the settings and puts them in force.
    async fn take(&mut self) -> Result<(), ReloadError> {
        let (sources, running, cores) = (self.sources.clone(), self.config.clone(), self.cores.clone());
        // Files are read, certificates too: this thread has connections to accept meanwhile.
        let taken = tokio::task::spawn_blocking(move || {
            let loaded = config::load(&sources).map_err(ReloadError::Mistakes)?;
            let changed = config::change(&running, &loaded.config);
            proxy::reload(&cores, &changed.config).map_err(|error| ReloadError::Upstream(Box::new(error)))?;
            Ok::<_, ReloadError>((loaded.warnings, changed))
        });
        let (warnings, Changed { config, after_restart }) = taken.await??;
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        if !after_restart.is_empty() {
            tracing::warn!(settings = after_restart.join(" "), "takes effect after a restart");
        }
        // A level that was set by hand stays, until the settings say something else than they did.
        if config.log.level != self.config.log.level {
            self.level.set_level(config.log.level);
        }
        self.admin.store(Arc::new(admin_settings(&config)));
        self.config = config;
        Ok(())
    }
}

fn admin_settings(config: &Config) -> admin::Settings {
    let retention: HashMap<_, _> =
        config.routes.iter().map(|route| (route.name.to_string(), route.retention)).collect();
    admin::Settings { effective: config::effective(config).into(), token: config.admin.token.clone(), retention }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_once_it_rests() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("onceproxy.toml");
        let content = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Content::of(&file)
        };
        let (old, half, new) = (content("old"), content("ne"), content("new"));
        let mut watched = Watched { file: file.clone(), taken: old, seen: old };
        assert!(!watched.look(old));
        assert!(!watched.look(half));
        assert!(!watched.look(new), "it has only just become so");
        assert!(watched.look(new));
        assert!(!watched.look(new), "once");
        assert!(!watched.look(None), "a moment without a file is not a change");
        assert!(!watched.look(new));
        assert!(!watched.look(None));
        assert!(watched.look(None), "but one that stays away is");
    }
}

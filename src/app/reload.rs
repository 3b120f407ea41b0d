//! Reload: other settings for a running process, at SIGHUP or when the file holds something else.
//!
//! Certificates of upstreams and secrets of senders are looked at as well, and taken under the settings in force when they
//! change.
//!
//! All or nothing: settings with a mistake change nothing, and say why. What a process cannot change while it runs is
//! named in a warning. Requests under way are not touched: see [`crate::proxy::reload`].

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{RunError, system};
use crate::admin;
use crate::chain::Chain;
use crate::config::{self, Changed, Config, Content, Loaded, Mistakes, Sources};
use crate::metrics::{Metrics, Reload};
use crate::proxy::{self, Proxy, UnusableRoute};
use crate::store::kept::Renewals;
use crate::telemetry::LevelHandle;

/// How often the files are looked at. A change counts once two looks have seen the same, so that a file that is still
/// being written is left alone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long the metrics show a route that is not in the settings any more.
const SERIES_STAY: Duration = Duration::from_secs(60 * 60);

/// Why settings were not taken.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error("{0}")]
    Mistakes(Mistakes),
    #[error("cannot prepare route `{}`", .0.0)]
    Route(Box<UnusableRoute>),
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
    of_store: Renewals,
    watched: Option<Watched>,
    of_routes: Watched,
    departed: Departed,
    hangups: Signal,
}

/// Routes that are not in the settings any more, and since when. Their series stay in the metrics for a while: whoever
/// looks for what happened before the change finds them.
#[derive(Default)]
struct Departed(HashMap<String, Instant>);

impl Departed {
    /// Notes a change of the settings.
    fn note(&mut self, before: &Config, after: &Config) {
        let now = Instant::now();
        self.0.extend(before.routes.iter().map(|route| (route.name.to_string(), now)));
        for route in &after.routes {
            self.0.remove(&*route.name);
        }
    }

    /// Those that have been gone for long enough; once.
    fn due(&mut self) -> impl Iterator<Item = String> {
        self.0.extract_if(|_, since| since.elapsed() >= SERIES_STAY).map(|(name, _)| name)
    }
}

/// Files, and what was seen of them.
struct Watched {
    files: Vec<PathBuf>,
    /// What was read last, whether or not it could be used.
    taken: Contents,
    /// What the last look saw.
    seen: Contents,
}

type Contents = Vec<Option<Content>>;

impl Watched {
    fn new(files: Vec<PathBuf>, now: Contents) -> Watched {
        Watched { files, taken: now.clone(), seen: now }
    }

    /// The file that the settings were read from, if it is one that can change.
    fn settings(loaded: &Loaded) -> Option<Watched> {
        let (file, content) = (loaded.file.clone()?, loaded.content?);
        Some(Watched::new(vec![file], vec![Some(content)]))
    }

    /// The certificates, keys and secrets of routes, as they stand now.
    fn of_routes(config: &Config) -> Watched {
        let files = config.routes.iter().flat_map(|route| {
            let (certificate, key) = route.upstream.client.clone().unzip();
            let secrets = route.verify.iter().flat_map(|verify| verify.files().map(Path::to_owned));
            let authorizer = route.authorize.as_ref().and_then(|service| service.upstream.ca_file.clone());
            [route.upstream.ca_file.clone(), certificate, key, authorizer].into_iter().flatten().chain(secrets)
        });
        let files: Vec<_> = files.collect();
        let now = contents(&files);
        Watched::new(files, now)
    }

    /// Looks at the files, and says whether they have come to rest at something new.
    fn look(&mut self, now: Contents) -> bool {
        let rests = self.seen == now;
        let changed = rests && self.taken != now;
        if changed {
            self.taken.clone_from(&now);
        }
        self.seen = now;
        changed
    }
}

fn contents(files: &[PathBuf]) -> Contents {
    files.iter().map(|file| Content::of(file)).collect()
}

/// What these files hold now. They may lie on a disk that has gone away, and this thread has connections to accept.
async fn read(watched: &Watched) -> Contents {
    let files = watched.files.clone();
    if files.is_empty() {
        return Contents::new();
    }
    let unread = vec![None; files.len()];
    tokio::task::spawn_blocking(move || contents(&files)).await.unwrap_or(unread)
}

impl Reloader {
    /// Must be made within the runtime.
    pub(super) fn new(
        sources: Sources,
        loaded: &Loaded,
        cores: Vec<Proxy>,
        level: LevelHandle,
        metrics: Arc<Metrics>,
        of_store: Renewals,
    ) -> Result<Reloader, RunError> {
        let hangups = signal(SignalKind::hangup()).map_err(system("a signal handler"))?;
        let admin = Arc::new(ArcSwap::from_pointee(admin_settings(&loaded.config)));
        let watched = Watched::settings(loaded);
        let (config, of_routes) = (loaded.config.clone(), Watched::of_routes(&loaded.config));
        Ok(Reloader {
            sources,
            config,
            cores,
            admin,
            level,
            metrics,
            of_store,
            watched,
            of_routes,
            departed: Departed::default(),
            hangups,
        })
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
                    if let Some(watched) = &mut self.watched {
                        let now = read(watched).await;
                        (watched.taken, watched.seen) = (now.clone(), now);
                    }
                    self.reload("SIGHUP").await;
                    self.renew_store().await;
                }
                _ = looks.tick() => {
                    for route in self.departed.due() {
                        self.metrics.forget_route(&route);
                    }
                    if let Some(watched) = &mut self.watched {
                        let now = read(watched).await;
                        if watched.look(now) {
                            self.reload("the file changed").await;
                            continue;
                        }
                    }
                    let now = read(&self.of_routes).await;
                    if self.of_routes.look(now) {
                        self.renew().await;
                    }
                }
            }
        }
    }

    /// Takes changed certificates and secrets, under the settings in force. Those that cannot be used change nothing.
    async fn renew(&mut self) {
        let (cores, config) = (self.cores.clone(), self.config.clone());
        let renewed = tokio::task::spawn_blocking(move || proxy::reload(&cores, &config)).await;
        let metrics = self.metrics.listeners();
        match renewed {
            Ok(Ok(())) => {
                metrics.certificate_reloads.inc();
                tracing::info!("took new certificates and secrets of routes");
            }
            Ok(Err((route, error))) => {
                metrics.certificate_reload_failures.inc();
                tracing::error!(
                    route,
                    error = %Chain(&error),
                    "cannot take new certificates or secrets of a route, keeping the old ones"
                );
            }
            Err(error) => tracing::error!(%error, "reading certificates and secrets failed"),
        }
    }

    /// Takes the changed files of the store now, and not with the next connection.
    async fn renew_store(&self) {
        let of_store = self.of_store.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || of_store.renew()).await {
            tracing::error!(%error, "reading the store's certificates and passwords failed");
        }
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
                    ReloadError::Route(unusable) => {
                        tracing::error!(route = unusable.0, error = %Chain(&unusable.1), "{error}");
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
        // Files are read, certificates and secrets too: this thread has connections to accept meanwhile.
        let taken = tokio::task::spawn_blocking(move || {
            let loaded = config::load(&sources).map_err(ReloadError::Mistakes)?;
            let changed = config::change(&running, &loaded.config);
            // Looked at before they are read: a change in between is then taken for one that is still to come.
            let of_routes = Watched::of_routes(&changed.config);
            proxy::reload(&cores, &changed.config).map_err(|error| ReloadError::Route(Box::new(error)))?;
            Ok::<_, ReloadError>((loaded.warnings, changed, of_routes))
        });
        let (warnings, Changed { config, after_restart, forgetting }, of_routes) = taken.await??;
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        if !after_restart.is_empty() {
            tracing::warn!(settings = after_restart.join(" "), "takes effect after a restart");
        }
        if !forgetting.is_empty() {
            let settings = forgetting.join(" ");
            tracing::warn!(settings, "records of earlier requests are not found any more, repeats of those run again");
        }
        // A level that was set by hand stays, until the settings say something else than they did.
        if config.log.level != self.config.log.level {
            self.level.set_level(config.log.level);
        }
        self.admin.store(Arc::new(admin_settings(&config)));
        self.departed.note(&self.config, &config);
        (self.config, self.of_routes) = (config, of_routes);
        Ok(())
    }
}

fn admin_settings(config: &Config) -> admin::Settings {
    let retention: HashMap<_, _> =
        config.routes.iter().map(|route| (route.name.to_string(), route.retention)).collect();
    let keep_headers = config.routes.iter().map(|route| (route.name.to_string(), route.keep_headers.clone())).collect();
    let (effective, token) = (config::effective(config).into(), config.admin.token.clone());
    admin::Settings { effective, token, retention, keep_headers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_route_is_forgotten_an_hour_after_it_went_and_not_if_it_comes_back() {
        let with = |names: &[&str]| {
            let route =
                |name: &&str| format!("[[route]]\nname = {name:?}\npath = \"/{name}\"\nupstream = \"http://u\"\n");
            config::load(&Sources::text(names.iter().map(route).collect::<String>())).unwrap().config
        };
        let mut departed = Departed::default();
        departed.note(&with(&["a", "b", "c"]), &with(&["a"]));
        tokio::time::advance(Duration::from_secs(1800)).await;
        departed.note(&with(&["a"]), &with(&["a", "c"]));
        departed.note(&with(&["a", "c"]), &with(&["c"]));
        assert_eq!(departed.due().count(), 0);
        tokio::time::advance(Duration::from_secs(1800)).await;
        assert_eq!(departed.due().collect::<Vec<_>>(), ["b"]);
        tokio::time::advance(Duration::from_secs(1800)).await;
        assert_eq!(departed.due().collect::<Vec<_>>(), ["a"]);
        assert_eq!(departed.due().count(), 0);
    }

    #[test]
    fn a_file_counts_once_it_rests() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("onceproxy.toml");
        let content = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Content::of(&file)
        };
        let (old, half, new) = (content("old"), content("ne"), content("new"));
        let mut watched = Watched::new(vec![file.clone()], vec![old]);
        assert!(!watched.look(vec![old]));
        assert!(!watched.look(vec![half]));
        assert!(!watched.look(vec![new]), "it has only just become so");
        assert!(watched.look(vec![new]));
        assert!(!watched.look(vec![new]), "once");
        assert!(!watched.look(vec![None]), "a moment without a file is not a change");
        assert!(!watched.look(vec![new]));
        assert!(!watched.look(vec![None]));
        assert!(watched.look(vec![None]), "but one that stays away is");
    }
}

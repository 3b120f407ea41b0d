//! The whole: settings in, running parts out; and the only place that knows them all and stops them in order.
//!
//! Threads: this one accepts, answers operators and does the store's background work; each core is a thread with a
//! runtime of its own that serves clients. A core's runtime outlives its last connection until no attempt runs any more.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::introduction::Introduction;
use self::reload::Reloader;
use crate::admin::{self, AdminState};
use crate::config::store::Backend;
use crate::config::{self, Config, Loaded, ScopePart, Sources};
use crate::metrics::Metrics;
use crate::proxy::{self, Proxy, RouteFault, Shared};
use crate::pulse::Pulses;
use crate::server::{self, BindError, CertificateError, Door, Inbox, Listener};
use crate::shutdown::{Ready, Signal, TaskGuard, Tasks};
use crate::store::{self, Background, OpenError, Opened};
use crate::telemetry::{self, LevelHandle};
use crate::trace;

mod files;
mod introduction;
mod open_files;
mod preflight;
mod reload;

pub use files::{FileFault, check_files};
pub use preflight::{CheckError, PrepareError, Report, SECOND, Weight, check_store, init_store};

/// How long, after the drain's end, what was cut off may take to say so to the store, beyond the store's own timeout.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why the proxy did not start, or did not stop as it should.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log could not be started.
    #[error("cannot start the log")]
    Log(#[from] telemetry::StartError),
    /// A listener's address cannot be had.
    #[error("{setting} (or {flag})")]
    Bind {
        /// Which setting names it.
        setting: &'static str,
        /// And which flag.
        flag: &'static str,
        /// What is wrong.
        source: BindError,
    },
    /// The proxy's certificate cannot be used.
    #[error("cannot speak TLS")]
    Certificate(#[from] CertificateError),
    /// The store's settings can never work, or its folder cannot be used.
    #[error("cannot open the store")]
    Store(#[from] OpenError),
    /// The certificates or secrets of a route cannot be used.
    #[error("cannot prepare route `{route}`")]
    Route {
        /// The route.
        route: String,
        /// What is wrong.
        source: Box<RouteFault>,
    },
    /// Nothing can be accepted any more; what ran was ended in order.
    #[error("cannot accept connections any more")]
    Accept(#[source] io::Error),
    /// Traces cannot be sent to the collector that is set.
    #[error("cannot send traces")]
    Trace(#[from] trace::StartError),
    /// The operating system refused a thread, a signal handler or a runtime.
    #[error("cannot start: {what}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl RunError {
    /// Whether other settings would mend it.
    pub fn is_wrong_settings(&self) -> bool {
        match self {
            RunError::Store(error) => error.is_wrong_settings(),
            RunError::Certificate(_) | RunError::Route { .. } | RunError::Trace(_) => true,
            RunError::Log(_) | RunError::Bind { .. } | RunError::Accept(_) | RunError::System { .. } => false,
        }
    }
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |source| RunError::System { what, source }
}

/// Runs the proxy until it is told to stop (SIGTERM or SIGINT), and stops it in order. While it runs, the settings are
/// read again from `sources` at SIGHUP, and when their file holds something else.
///
/// # Errors
/// If it cannot start, or can serve nobody any more. A stop that had to cut attempts off is not an error: each of them was
/// doubted or released.
pub fn run(loaded: Loaded, sources: Sources) -> Result<(), RunError> {
    let metrics = Metrics::new();
    // Kept to the end, which waits for what it still has to write.
    let log = telemetry::start(&loaded.config.log, metrics.log_lines_dropped().clone())?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        file = loaded.file.as_ref().map(|file| file.display().to_string()),
        threads = loaded.config.threads,
        routes = loaded.config.routes.len(),
        "starting"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system("a runtime"))?;
    runtime.block_on(App::start(&loaded, metrics)?.run(loaded, sources, log.level.clone()))
}

/// The running parts.
struct App {
    config: Config,
    metrics: Arc<Metrics>,
    ready: Ready,
    shared: Shared,
    store: Opened,
    doors: Vec<Door>,
    tls: Option<server::Tls>,
    admin: Option<Listener>,
    cores: Vec<server::Core>,
    proxies: Vec<Proxy>,
    threads: Vec<JoinHandle<()>>,
    signals: Signals,
    pulses: Pulses,
    export: Option<trace::Export>,
    /// Given when the last span has been made.
    traced: Signal,
}

/// What the cores are told, and what they tell.
#[derive(Clone, Default)]
struct Signals {
    /// Stop accepting; connections finish their requests.
    stop: Signal,
    /// Cores whose connections are still open.
    serving: Tasks,
    /// No attempt runs any more; the cores' runtimes may go.
    end: Signal,
}

impl App {
    /// Binds, opens and prepares everything that can fail, and starts the cores.
    fn start(loaded: &Loaded, metrics: Arc<Metrics>) -> Result<App, RunError> {
        let mut config = loaded.config.clone();
        // What is shown and reloaded is the settings'; this is what the process goes by.
        config.limits.connections = open_files::connections(open_files::raise(), &config.limits, config.threads);
        let tls = config.tls.as_ref().map(|files| server::Tls::load(files, metrics.listeners().clone())).transpose()?;
        let doors = config.listen.iter().map(|listen| Door::open(listen, tls.as_ref(), config.h2c));
        let doors = doors.collect::<Result<Vec<_>, _>>();
        let doors = doors.map_err(|source| RunError::Bind { setting: "listen", flag: "--listen", source })?;
        let admin = config.admin.listen.map(server::bind).transpose();
        let admin =
            admin.map_err(|source| RunError::Bind { setting: "admin.listen", flag: "--admin-listen", source })?;
        for route in &config.routes {
            tracing::info!(route = &*route.name, callers = route.callers(), "route");
        }
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let store = store::open(&config.store, &metrics)?;
        let traced = Signal::new();
        let (tracer, export) = trace::start(&config.trace, &metrics.spans(), &traced)?;
        let shared = Shared::new(&config.limits, &metrics, tracer);
        let signals = Signals { stop: shared.stopping.clone(), ..Signals::default() };
        let mut app = App {
            metrics,
            ready: Ready::default(),
            shared,
            store,
            doors,
            tls,
            admin,
            cores: Vec::new(),
            proxies: Vec::new(),
            threads: Vec::new(),
            signals,
            pulses: Pulses::default(),
            export,
            traced,
            config,
        };
        let (store, upkeep) = app.store.cores.handle();
        let first = Proxy::new(&app.config, &app.shared, store)
            .map_err(|(route, source)| RunError::Route { route, source: Box::new(source) })?;
        for number in 1..app.config.threads {
            let (store, upkeep) = app.store.cores.handle();
            app.start_core(number, first.for_another_core(store), upkeep)?;
        }
        app.start_core(0, first, upkeep)?;
        Ok(app)
    }

    fn start_core(&mut self, number: usize, proxy: Proxy, upkeep: Background) -> Result<(), RunError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system("a runtime"))?;
        let (core, inbox) = server::core();
        let limits = self.config.limits.clone();
        let (signals, pulses) = (self.signals.clone(), self.pulses.clone());
        let serving = signals.serving.enter();
        self.proxies.push(proxy.clone());
        let thread = std::thread::Builder::new()
            .name(format!("core-{number}"))
            .spawn(move || runtime.block_on(run_core(inbox, proxy, limits, signals, (pulses, upkeep), serving)))
            .map_err(system("a thread"))?;
        self.cores.push(core);
        self.threads.push(thread);
        Ok(())
    }

    async fn run(self, loaded: Loaded, sources: Sources, level: LevelHandle) -> Result<(), RunError> {
        let App {
            config,
            metrics,
            ready,
            shared,
            store,
            doors,
            tls,
            admin,
            cores,
            proxies,
            threads,
            signals,
            pulses,
            ..
        } = self;
        let mut reloader = Reloader::new(sources, &loaded, proxies, level.clone(), metrics.clone(), store.renewals)?;
        let mut told = Told::listen()?;
        let Opened { store, background, cores: handles, .. } = store;
        let mut parts = JoinSet::new();
        let beating = pulses.clone();
        parts.spawn(async move { match beating.beat().await {} });
        parts.spawn(background);
        let tried = store::preflight::Standing::default();
        parts.spawn(store::preflight::watch(store.clone(), tried.clone()));
        if let Some(upstream) = commanded_upstream(&config) {
            parts.spawn(store::marker::note_upstream(store.for_core(), upstream));
        }
        if let Some(tls) = tls {
            parts.spawn(tls.watch());
        }
        let traces = self.export.map(|export| tokio::spawn(export.run()));
        let admin_stop = Signal::new();
        let mut admin_part = JoinSet::new();
        if let Some(admin) = admin {
            tracing::info!(listener = "admin", address = %admin.address(), "listening");
            let state = AdminState {
                store: store.clone(),
                tried,
                ways: handles.ways().clone(),
                metrics: metrics.clone(),
                ready: ready.clone(),
                settings: reloader.admin().clone(),
                pulses: pulses.clone(),
                liveness_stall: config.liveness_stall,
                level: Some(level),
                loopback: admin.address().ip().is_loopback(),
            };
            let socket = admin.into_tokio().map_err(system("the admin listener"))?;
            admin_part.spawn(admin::serve(socket, admin::router(state), admin_stop.clone()));
        }
        for door in &doors {
            tracing::info!(listener = "proxy", address = %door, tls = door.is_secured(), "listening");
        }
        // It invites to a try, which works once the store does.
        let introduction = Introduction::new(&config, &doors);
        if store.ready().is_ok() {
            introduction.say();
        } else {
            parts.spawn(introduction.say_when_ready(store.for_core()));
        }
        ready.set(true);
        let failed = Signal::new();
        let accepting = async {
            let accepted = server::accept(doors, cores, &config.limits, &signals.stop, &metrics).await;
            accepted.inspect_err(|_| failed.give())
        };
        let stopping = async {
            tokio::select! {
                () = told.stop() => {}
                () = failed.given() => {}
                never = reloader.run() => match never {},
            }
            ready.set(false);
            tracing::info!(running = shared.tasks.running(), "stopping");
            let _ = timeout(reloader.config().drain_delay, told.stop()).await;
            signals.stop.give();
        };
        let (accepted, ()) = tokio::join!(accepting, stopping);
        drain(reloader.config(), &shared, &signals, &mut told).await;
        admin_stop.give();
        while admin_part.join_next().await.is_some() {}
        signals.end.give();
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a core ended in a panic");
            }
        }
        self.traced.give();
        if let Some(traces) = traces
            && let Err(error) = traces.await
        {
            tracing::error!(%error, "the sender of traces ended in a panic");
        }
        parts.shutdown().await;
        drop(store);
        tracing::info!("stopped");
        accepted.map_err(RunError::Accept)
    }
}

/// The upstream of the command line's route, as it stands in that route's scope; none where the store ends with the process.
fn commanded_upstream(config: &Config) -> Option<String> {
    let route = config.routes.iter().find(|route| &*route.name == config::COMMANDED_ROUTE)?;
    let named = route.scope.iter().find_map(|part| match part {
        ScopePart::Constant(upstream) => Some(upstream.clone()),
        _ => None,
    });
    named.filter(|_| !matches!(config.store.backend, Backend::Memory))
}

async fn run_core(
    inbox: Inbox,
    proxy: Proxy,
    limits: config::Limits,
    signals: Signals,
    (pulses, upkeep): (Pulses, Background),
    serving: TaskGuard,
) {
    // Both end with the runtime.
    tokio::spawn(async move { pulses.beat_for_core().await });
    tokio::spawn(upkeep);
    let service = move |mut request: http::Request<hyper::body::Incoming>, peer: server::Peer| {
        if let Some(name) = request.extensions_mut().remove::<server::ClientName>() {
            request.extensions_mut().insert(proxy::ClientName(name.into_bytes()));
        }
        let from = proxy::Peer { ip: peer.remote.map(|remote| remote.ip()), tls: peer.tls };
        let client = proxy::Client { peer: from, interim: peer.interim };
        proxy.handle(request, client)
    };
    tokio::select! {
        () = server::serve(inbox, service, &limits, &signals.stop) => {}
        () = signals.end.given() => {}
    }
    drop(serving);
    // Attempts may go on after their callers have left.
    signals.end.given().await;
}

/// Waits for what runs, up to the deadline; then cuts it off, and waits for it to be doubted or released.
async fn drain(config: &Config, shared: &Shared, signals: &Signals, told: &mut Told) {
    let quiet = async {
        shared.tasks.finished().await;
        signals.serving.finished().await;
    };
    tokio::select! {
        () = quiet => return,
        () = tokio::time::sleep(config.drain_timeout) => {
            tracing::warn!(attempts = shared.tasks.running(), "the drain is over, cutting off what still runs");
        }
        () = told.stop() => tracing::warn!(attempts = shared.tasks.running(), "told to stop again, cutting off"),
    }
    shared.cut_off.give();
    if timeout(config.store.longest_operation() + LAST_WORDS, shared.tasks.finished()).await.is_err() {
        tracing::error!(attempts = shared.tasks.running(), "left behind without a word to the store");
    }
    // Their callers get the news if they read it now.
    let _ = timeout(LAST_WORDS, signals.serving.finished()).await;
}

/// The signals by which a process is told to stop.
struct Told {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Told {
    fn listen() -> Result<Told, RunError> {
        let listen = |kind| signal(kind).map_err(system("a signal handler"));
        Ok(Told { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Returns at the next of them.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

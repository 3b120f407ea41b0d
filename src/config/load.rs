//! Puts the layers together: built-in, file, environment, flags, later ones winning.
//!
//! The one place of the program that reads the environment, and the one that opens the settings' file. Reading goes on
//! after a mistake, and all of them come back together.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::DeTable;

use super::commanded::{self, Commanded};
use super::mistakes::{Located, Mistake, Mistakes, Origin, Report, Warning, nearest, wrong};
use super::route::{self, Made};
use super::sections::{self, Outer, Top};
use super::store::StoreConfig;
use super::tree::{File, Section};
use super::{Admin, Config, Content, Egress, Limits, Listen, Route, ScopePart, Tls, Upstream, address, risks};

/// The settings that flags give, as they were typed.
#[derive(Clone, Default)]
pub struct Flags {
    /// `--listen`.
    pub listen: Option<String>,
    /// `--upstream`.
    pub upstream: Option<String>,
    /// `--store`.
    pub store: Option<String>,
    /// `--admin-listen`.
    pub admin_listen: Option<String>,
    /// `--preset`.
    pub preset: Option<String>,
    /// `--key-header`.
    pub key_header: Option<String>,
    /// `--log-requests`.
    pub log_requests: bool,
}

const VARIABLES: [&str; 7] = [
    "ONCEPROXY_CONFIG",
    "ONCEPROXY_LISTEN",
    "ONCEPROXY_UPSTREAM",
    "ONCEPROXY_STORE",
    "ONCEPROXY_ADMIN_LISTEN",
    "ONCEPROXY_ADMIN_TOKEN",
    "ONCEPROXY_LOG",
];

/// What the names of all variables begin with.
const OURS: &str = "ONCEPROXY_";

/// The variables of the environment that are settings. Other names that begin with `ONCEPROXY_` are warned about and not
/// refused: they may be somebody else's, and Kubernetes makes such variables for every service called `onceproxy`.
#[derive(Clone, Default)]
pub struct Environment {
    values: BTreeMap<&'static str, String>,
    pub(super) not_text: BTreeSet<&'static str>,
    unknown: BTreeSet<String>,
    /// Variables that are no settings, where they are not the process's own.
    others: BTreeMap<String, String>,
    is_real: bool,
}

impl Environment {
    /// No variable is set. For tests, which never touch the real environment.
    pub fn empty() -> Environment {
        Environment::default()
    }

    /// The process's own environment. An empty variable counts as not set.
    pub fn real() -> Environment {
        let mut environment = Environment { is_real: true, ..Environment::default() };
        for name in VARIABLES {
            #[expect(clippy::disallowed_methods, reason = "this is the place that reads the environment")]
            match std::env::var(name) {
                Ok(value) => environment = environment.with(name, &value),
                Err(std::env::VarError::NotPresent) => {}
                Err(std::env::VarError::NotUnicode(_)) => drop(environment.not_text.insert(name)),
            }
        }
        #[expect(clippy::disallowed_methods, reason = "this is the place that reads the environment")]
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        environment.unknown.extend(names.filter(|name| is_no_setting(name)));
        environment
    }

    /// The same environment with this variable set; an empty value counts as not set.
    pub fn with(mut self, name: &str, value: &str) -> Environment {
        if let Some(name) = VARIABLES.into_iter().find(|known| *known == name).filter(|_| !value.is_empty()) {
            self.values.insert(name, value.to_owned());
        } else if is_no_setting(name) {
            self.unknown.insert(name.to_owned());
        } else {
            self.others.insert(name.to_owned(), value.to_owned());
        }
        self
    }

    /// What a variable holds that a setting names; `None` where it is not set, empty, or not text.
    pub(super) fn other(&self, name: &str) -> Option<String> {
        #[expect(clippy::disallowed_methods, reason = "this is the place that reads the environment")]
        let real = || self.is_real.then(|| std::env::var(name).ok()).flatten();
        self.others.get(name).cloned().or_else(real).filter(|value| !value.is_empty())
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }
}

/// Whether whoever looks at the terminal wants colours: `NO_COLOR` is not set, or empty (no-color.org), and `TERM` is not
/// `dumb`. Not settings, but what all programs of a terminal go by.
pub fn takes_colours() -> bool {
    #[expect(clippy::disallowed_methods, reason = "this is the place that reads the environment")]
    let [refused, terminal] = ["NO_COLOR", "TERM"].map(std::env::var_os);
    refused.is_none_or(|value| value.is_empty()) && terminal.is_none_or(|name| name != "dumb")
}

/// Whether the name looks like a setting's and is none: a typing error, or a wish. Those that Kubernetes makes of a
/// service's name (`ONCEPROXY_SERVICE_HOST`, `ONCEPROXY_PORT_80_TCP`) nobody wrote.
fn is_no_setting(name: &str) -> bool {
    let made = ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT_"].iter().any(|part| name.contains(part));
    name.starts_with(OURS) && !VARIABLES.contains(&name) && !made && !name.ends_with("_PORT")
}

/// Warns of variables that set nothing.
fn unknown_variables(environment: &Environment, report: &Report) {
    for name in &environment.unknown {
        let longer = || VARIABLES.into_iter().find(|known| name.starts_with(&format!("{known}_")));
        let remedy = match nearest(name, VARIABLES.into_iter()).or_else(longer) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there are {}; the rest is set in the file", VARIABLES.join(", ")),
        };
        report.warning(Origin::BuiltIn, name, "this variable of the environment sets nothing", &remedy);
    }
}

/// Where settings come from.
#[derive(Clone, Default)]
pub struct Sources {
    /// `--config`; wins over `ONCEPROXY_CONFIG`. No file is looked for elsewhere.
    pub file: Option<PathBuf>,
    /// The command line.
    pub flags: Flags,
    /// The environment.
    pub environment: Environment,
    pub(super) text: Option<String>,
}

impl Sources {
    /// This file and these flags, with the process's own environment.
    pub fn real(file: Option<PathBuf>, flags: Flags) -> Sources {
        Sources { file, flags, environment: Environment::real(), text: None }
    }

    /// A text in place of a file, without environment or flags; both can be set afterwards. For tests and `demo`.
    pub fn text(text: impl Into<String>) -> Sources {
        Sources { text: Some(text.into()), ..Sources::default() }
    }
}

/// Settings that hold, and what is risky about them.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// What should be said at start, in the order of the file.
    pub warnings: Vec<Warning>,
    /// The file they came from, if any.
    pub file: Option<PathBuf>,
    /// What it held. A change after the settings were read shows as something else.
    pub content: Option<Content>,
}

/// Puts the layers together and checks everything.
///
/// `--upstream` and `ONCEPROXY_UPSTREAM` make the one route `default`, where there is no file or the file has no routes.
/// `--preset` and `--key-header` are about that route. Together with routes of a file all of them are a mistake, since it is
/// not clear which route they are meant for. Paths are taken from the folder in which the process was started.
///
/// # Errors
///
/// Every mistake of every layer. Only a file that is not TOML hides others: those of its own settings.
pub fn load(sources: &Sources) -> Result<Loaded, Mistakes> {
    let report = Report::default();
    load_with(sources, &report)
}

/// The same, for tests that look at the report afterwards.
pub(super) fn load_with(sources: &Sources, report: &Report) -> Result<Loaded, Mistakes> {
    let (config, file, content) = read(sources, report, Broken::Hidden);
    let warnings = report.finish()?;
    Ok(Loaded { config, warnings, file, content })
}

/// The section `[admin]` alone, for whoever asks a running proxy something, and the mistakes of all the rest. Such a proxy
/// goes on under its old settings when its file breaks, so its health must be asked for all the same.
///
/// # Errors
///
/// The mistakes, if one of them is about the section or the file cannot be read.
pub fn load_admin(sources: &Sources) -> Result<(Admin, Vec<Mistake>), Mistakes> {
    let report = Report::default();
    let (config, ..) = read(sources, &report, Broken::Recovered);
    let Err(mistakes) = report.finish() else { return Ok((config.admin, Vec::new())) };
    let matters = |key: &str| ["admin", "config", "environment"].contains(&key.split('.').next().unwrap_or(key));
    if mistakes.0.iter().any(|mistake| matters(&mistake.key)) {
        return Err(mistakes);
    }
    // Nobody has to say here where requests go.
    let others = mistakes.0.into_iter().filter(|mistake| mistake.origin != Origin::BuiltIn);
    Ok((config.admin, others.collect()))
}

/// What becomes of a file that is not TOML in one place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    /// Nothing of it is looked at: what the parser took a broken text for would only make more mistakes.
    Hidden,
    /// What the parser could make of it is.
    Recovered,
}

/// Reads all layers; every mistake is in the report.
fn read(sources: &Sources, report: &Report, broken: Broken) -> (Config, Option<PathBuf>, Option<Content>) {
    for name in &sources.environment.not_text {
        report.mistake(
            Origin::Environment(name),
            "environment",
            wrong("the value is not UTF-8", "set it again, or unset it"),
        );
    }
    unknown_variables(&sources.environment, report);
    let path = sources.file.clone().or_else(|| sources.environment.get("ONCEPROXY_CONFIG").map(PathBuf::from));
    let path = if sources.text.is_some() { None } else { path };
    // Looked at before it is read: a change in between is then taken for one that is still to come.
    let content = path.as_deref().and_then(Content::of);
    let read = || path.as_deref().and_then(|path| read_file(path, sources.file.is_some(), report));
    let text = sources.text.clone().or_else(read);
    let from_file = sources.text.is_some() || path.is_some();
    let file =
        File { path: path.as_deref().map(Arc::from), text: text.as_deref().unwrap_or(""), empty: DeTable::new() };
    let (tree, is_whole) = parse(&file, report);
    let tree = if is_whole || broken == Broken::Recovered { &tree } else { &file.empty };

    let mut root = Section::root(report, &file, tree);
    let layers = Layers { flags: &sources.flags, environment: &sources.environment };
    let routes_from = match (from_file, text.is_some() && is_whole) {
        (false, _) => RoutesFrom::OutsideOnly,
        (true, true) => RoutesFrom::File,
        (true, false) => RoutesFrom::Nowhere,
    };
    let config = sections(&mut root, &layers, &routes_from);
    root.finish();
    (config, path, content)
}

/// The file's text, or `None` after reporting why there is none.
fn read_file(path: &Path, by_flag: bool, report: &Report) -> Option<String> {
    let at = if by_flag { Origin::Flag("--config") } else { Origin::Environment("ONCEPROXY_CONFIG") };
    let why = match std::fs::read(path) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => return Some(text),
            Err(_) => "it is not UTF-8".to_owned(),
        },
        Err(error) => error.to_string(),
    };
    let what = wrong(format!("{} cannot be read: {why}", path.display()), "name a TOML file that can be read");
    report.mistake(at, "config", what);
    None
}

/// The file's tree, and whether that is all of it. Every place at which it is not TOML is reported. The parser's own
/// rendering would quote lines, and with them secrets; its bare message does not.
fn parse<'a>(file: &File<'a>, report: &Report) -> (DeTable<'a>, bool) {
    let (tree, errors) = DeTable::parse_recoverable(file.text);
    let is_whole = errors.is_empty();
    for error in errors {
        let at = file.at(error.span().map_or(0, |span| span.start));
        let message = error.message().replace('\n', ", ").replace(", expected nothing", "");
        let right = "correct the syntax (text stands in quotes); the file's settings are checked afterwards";
        report.mistake(at, "TOML", wrong(message, right));
    }
    (tree.into_inner(), is_whole)
}

struct Layers<'a> {
    flags: &'a Flags,
    environment: &'a Environment,
}

impl<'a> Layers<'a> {
    fn outer(&self, variable: &'static str, flag: &'static str, given: Option<&'a String>) -> Outer<'a> {
        Outer { variable: (variable, self.environment.get(variable)), flag: (flag, given.map(String::as_str)) }
    }
}

/// Where routes may come from.
enum RoutesFrom {
    /// There is no file.
    OutsideOnly,
    /// The file, or from outside if it has none.
    File,
    /// The file cannot be read, so nothing is said about its routes.
    Nowhere,
}

fn sections(root: &mut Section<'_>, layers: &Layers<'_>, from: &RoutesFrom) -> Config {
    let flags = layers.flags;
    let Top { listen, h2c, drain_timeout, drain_delay, liveness_stall, threads } =
        sections::top(root, &layers.outer("ONCEPROXY_LISTEN", "--listen", flags.listen.as_ref()));
    let tls = sections::tls(root, &listen);
    let limits = sections::limits(root);
    let log = sections::log(root, &layers.outer("ONCEPROXY_LOG", "--log", None), flags.log_requests);
    let trace = sections::trace(root);
    let (admin, admin_at) = sections::admin(
        root,
        &layers.outer("ONCEPROXY_ADMIN_LISTEN", "--admin-listen", flags.admin_listen.as_ref()),
        &layers.outer("ONCEPROXY_ADMIN_TOKEN", "--admin-token", None),
    );
    let mut store = sections::store(root, &layers.outer("ONCEPROXY_STORE", "--store", flags.store.as_ref()));
    store.second_line = sections::second_line(root, &store);
    same_address(root.report, &listen, &admin, admin_at);
    let egress = Arc::new(sections::egress(root));
    let upstream = layers.outer("ONCEPROXY_UPSTREAM", "--upstream", flags.upstream.as_ref());
    let routes = routes(
        root,
        &upstream,
        flags,
        from,
        &Around {
            listen: &listen,
            tls: tls.as_ref(),
            store: &store,
            limits: &limits,
            egress: &egress,
            environment: layers.environment,
        },
    );
    let listen = listen.into_iter().map(|located| located.value).collect();
    Config {
        listen,
        tls,
        h2c,
        drain_timeout,
        drain_delay,
        liveness_stall,
        threads,
        limits,
        log,
        trace,
        admin,
        egress,
        store,
        routes,
    }
}

/// Two listeners cannot share an address. Said where it was written, which may be either of the two.
fn same_address(report: &Report, listen: &[Located<Listen>], admin: &Admin, admin_at: Origin) {
    let Some(address) = admin.listen.filter(|address| address.port() != 0) else { return };
    let Some(listen) = listen.iter().find(|listen| listen.value.address() == Some(address)) else { return };
    let (at, key, other) = match admin_at {
        Origin::BuiltIn => (listen.at.clone(), "listen", "admin.listen"),
        at => (at, "admin.listen", "listen"),
    };
    report.mistake(at, key, wrong(format!("{address} is `{other}` too"), "give each a port of its own"));
}

/// What a route is checked against.
struct Around<'a> {
    listen: &'a [Located<Listen>],
    tls: Option<&'a Tls>,
    store: &'a StoreConfig,
    limits: &'a Limits,
    egress: &'a Arc<Egress>,
    environment: &'a Environment,
}

fn routes(
    root: &mut Section<'_>,
    outer: &Outer<'_>,
    flags: &Flags,
    from: &RoutesFrom,
    around: &Around<'_>,
) -> Vec<Arc<Route>> {
    let report = root.report;
    let written = root.sections("route");
    let commanded = commanded::read(report, outer, flags, !written.is_empty());
    if !written.is_empty() {
        let made = written.into_iter().map(|section| one_route(section, None, around)).collect();
        return unique(report, made);
    }
    match (commanded, from) {
        (Some(commanded), _) => {
            let mut section = root.absent("route.default", "route");
            section.head = outer.given().unwrap_or(Origin::BuiltIn);
            return vec![Arc::new(one_route(section, Some(&commanded), around).route)];
        }
        _ if outer.given().is_some() || root.has("route") => {}
        (None, RoutesFrom::Nowhere) => {}
        (None, RoutesFrom::File) => {
            let what =
                wrong("the file has no route", "add [[route]] with a name and an upstream, or give --upstream URL");
            report.mistake(root.head.clone(), "route", what);
        }
        (None, RoutesFrom::OutsideOnly) => {
            let right = "give --config FILE, or --upstream http://HOST:PORT for one route called \"default\"";
            report.mistake(Origin::BuiltIn, "upstream", wrong("there is neither a file nor an upstream", right));
        }
    }
    Vec::new()
}

/// A route, with the places of its name and of what it matches; `None` where that was wrong or missing.
struct Placed {
    route: Route,
    name: Option<(Origin, String)>,
    matched: Option<(Origin, String)>,
}

fn one_route(mut section: Section<'_>, outer: Option<&Commanded>, around: &Around<'_>) -> Placed {
    let made = route::read(&mut section, outer, around.egress, around.environment);
    let open = around.listen.iter().filter_map(|listen| listen.value.address()).find(|at| !at.ip().is_loopback());
    risks::of_route(&section, &made, around.store, around.limits, open);
    let Made { route, is_named, is_matchable, .. } = made;
    if route.scope.contains(&ScopePart::ClientCert) {
        client_certificates(&section, around);
    }
    not_itself(&section, "upstream", &route.upstream, around);
    if let Some(authorize) = &route.authorize {
        not_itself(&section, "authorize", &authorize.upstream, around);
    }
    let place = |key| (section.at(key), section.name(key));
    let name = is_named.then(|| place("name"));
    let matched =
        is_matchable.then(|| place(if section.has("path") || !section.has("host") { "path" } else { "host" }));
    section.finish();
    Placed { route, name, matched }
}

/// Refuses a place that is one of this proxy's own.
fn not_itself(section: &Section<'_>, key: &str, target: &Upstream, around: &Around<'_>) {
    let is_tcp = target.socket.is_none() && target.proxy.is_none();
    let mut addresses = around.listen.iter().filter_map(|listen| listen.value.address());
    if is_tcp && addresses.any(|listen| target.port == listen.port() && is_reached_by(&target.host, listen)) {
        let what = format!("{} is this proxy itself", target.authority());
        let right =
            if key == "upstream" { "name the server behind it" } else { "name the service that is to be asked" };
        section.mistake(key, wrong(what, right));
    }
    if target.socket.as_deref().is_some_and(|socket| around.listen.iter().any(|listen| is_at(&listen.value, socket))) {
        let what = "this socket is this proxy's own";
        section.mistake(key, wrong(what, "name the socket of the server behind it"));
    }
}

/// A scope of clients' certificates needs a place to connect where clients show one.
fn client_certificates(section: &Section<'_>, around: &Around<'_>) {
    let (secured, others): (Vec<&Listen>, Vec<_>) =
        around.listen.iter().map(|located| &located.value).partition(|listen| listen.is_secured());
    if around.tls.is_none_or(|tls| tls.client_ca_file.is_none()) || secured.is_empty() {
        let what = "no client shows a certificate, so callers would not be told apart";
        section.mistake("scope", wrong(what, "set tls.client_ca_file, and listen on an address without http://"));
    } else if let Some(other) = others.first() {
        let risk = format!("clients that come by {other} show no certificate, and are all one caller");
        section.warning("scope", &risk, "give them a route of their own, or take that place out of `listen`");
    }
}

/// Whether a loopback host leads to the listener. Another loopback address than the listener's may be another server.
fn is_reached_by(host: &str, listen: SocketAddr) -> bool {
    let same = host.parse().map_or(listen.ip().is_loopback(), |ip: IpAddr| ip == listen.ip());
    address::is_loopback(host) && listen.port() != 0 && (listen.ip().is_unspecified() || same)
}

/// Whether this is where the listener's socket file lies, by whichever links and dots its folder is written.
fn is_at(listen: &Listen, socket: &Path) -> bool {
    let Listen::Unix(own) = listen else { return false };
    place_of(own) == place_of(socket)
}

/// The folder as the system has it, as far as it is there, and the file's name.
fn place_of(socket: &Path) -> PathBuf {
    let whole = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let folder = whole.parent().and_then(|folder| folder.canonicalize().ok());
    folder.zip(whole.file_name()).map_or(whole.clone(), |(folder, name)| folder.join(name))
}

/// Refuses two routes of one name, and two that match the same: the later one would never see a request.
fn unique(report: &Report, all: Vec<Placed>) -> Vec<Arc<Route>> {
    let same = |a: &Route, b: &Route| a.host == b.host && a.path.trim_end_matches('/') == b.path.trim_end_matches('/');
    for (index, Placed { route, name, matched }) in all.iter().enumerate() {
        let earlier = &all[..index];
        if let (Some((at, key)), true) = (name, earlier.iter().any(|e| e.name.is_some() && e.route.name == route.name))
        {
            let what = wrong(format!("another route is called {:?}", route.name), "give each route a name of its own");
            report.mistake(at.clone(), key, what);
        }
        let twin = earlier.iter().find(|earlier| earlier.matched.is_some() && same(&earlier.route, route));
        if let (Some((at, key)), Some(twin)) = (matched, twin) {
            let what = format!("route {:?} takes the same host and path", twin.route.name);
            report.mistake(at.clone(), key, wrong(what, "give one another host or path"));
        }
    }
    all.into_iter().map(|placed| Arc::new(placed.route)).collect()
}

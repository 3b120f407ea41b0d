//! The sections of which there is one: the top of the file, `[tls]`, `[limits]`, `[log]`, `[trace]`, `[admin]`,
//! `[store]`.
//!
//! Each setting is one line: its name, how it is parsed, its default. Where the environment or a flag may set it too,
//! [`Outer`] says so.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::address::{admin_listen, collector, listen};
use super::egress::{Egress, Hosts, allowed, tunnel};
use super::mistakes::{Located, Origin, Report, Wrong, wrong};
use super::store::{Acknowledged, Backend, Password, Postgres, RedisTls, SecondLine, SslMode, StoreConfig, Topology};
use super::tree::{Section, shown};
use super::values::{at_least, choice, count, duration, part, service_name, size};
use super::{Admin, Limits, Listen, Log, LogFormat, LogLevel, Tls, Trace, postgres_url, risks, store_url};

/// The words of `log.level`.
pub(super) const LEVELS: [(&str, LogLevel); 5] = [
    (LogLevel::Error.as_str(), LogLevel::Error),
    (LogLevel::Warn.as_str(), LogLevel::Warn),
    (LogLevel::Info.as_str(), LogLevel::Info),
    (LogLevel::Debug.as_str(), LogLevel::Debug),
    (LogLevel::Trace.as_str(), LogLevel::Trace),
];

/// The words of `log.format`.
pub(super) const FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

/// What the environment and a flag say about one setting; the flag wins.
pub(super) struct Outer<'a> {
    pub(super) variable: (&'static str, Option<&'a str>),
    pub(super) flag: (&'static str, Option<&'a str>),
}

impl<'a> Outer<'a> {
    /// What a flag says alone, for a setting that has no variable.
    pub(super) fn flag(name: &'static str, given: Option<&'a String>) -> Outer<'a> {
        Outer { variable: ("", None), flag: (name, given.map(String::as_str)) }
    }

    /// The value of the outermost layer that has one. Every layer is parsed, so that each one's mistakes are reported.
    pub(super) fn over<T>(
        &self,
        report: &Report,
        key: &str,
        inner: Option<Located<T>>,
        parse: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Option<Located<T>> {
        let layers =
            [(Origin::Environment(self.variable.0), self.variable.1), (Origin::Flag(self.flag.0), self.flag.1)];
        layers.into_iter().fold(inner, |inner, (at, text)| match text.map(&parse) {
            None => inner,
            Some(Ok(value)) => Some(Located { value, at }),
            Some(Err(what)) => {
                report.mistake(at, key, what);
                inner
            }
        })
    }

    /// Where the outermost layer said something, if any did.
    pub(super) fn given(&self) -> Option<Origin> {
        let flag = self.flag.1.map(|_| Origin::Flag(self.flag.0));
        flag.or(self.variable.1.map(|_| Origin::Environment(self.variable.0)))
    }
}

/// What is left when neither file, environment nor flags have a value.
fn or<T>(given: Option<Located<T>>, default: T) -> Located<T> {
    given.unwrap_or(Located { value: default, at: Origin::BuiltIn })
}

const MOMENT: Duration = Duration::from_millis(1);

/// The settings at the top that concern the process.
pub(super) struct Top {
    pub(super) listen: Vec<Located<Listen>>,
    pub(super) h2c: bool,
    pub(super) drain_timeout: Duration,
    pub(super) drain_delay: Duration,
    pub(super) liveness_stall: Duration,
    pub(super) threads: usize,
}

/// Reads the settings before the first section.
pub(super) fn top(root: &mut Section<'_>, outer: &Outer<'_>) -> Top {
    let listen = listeners(root, outer);
    Top {
        listen,
        h2c: root.flag("h2c", false),
        drain_timeout: root.duration("drain_timeout", Duration::ZERO, Duration::from_secs(25)),
        drain_delay: root.duration("drain_delay", Duration::ZERO, Duration::ZERO),
        liveness_stall: root.duration("liveness_stall", Duration::from_secs(2), Duration::from_secs(10)),
        threads: root.read("threads", threads).and_then(|given| given.value).unwrap_or_else(usual_threads),
    }
}

/// Reads `listen`, one place or a list of them. The environment and the flag name one, in place of all others.
fn listeners(root: &mut Section<'_>, outer: &Outer<'_>) -> Vec<Located<Listen>> {
    let default = Listen::Tcp { address: SocketAddr::from(([127, 0, 0, 1], 8080)), plain: false };
    if root.is_empty_list("listen") {
        root.mistake("listen", wrong("the list is empty", "name a place to listen on, or take it out"));
    }
    let given = root.one_or_several("listen", listen).filter(|given| !given.is_empty());
    let report = root.report;
    match outer.over(report, "listen", None, listen) {
        Some(one) => vec![one],
        None => given.unwrap_or_else(|| vec![or(None, default)]),
    }
}

/// Reads `[tls]`. Without the section, or with an empty one, the proxy speaks no TLS.
pub(super) fn tls(root: &mut Section<'_>, listen: &[Located<Listen>]) -> Option<Tls> {
    const FILES: [&str; 3] = ["cert_file", "key_file", "client_ca_file"];
    let mut section = root.section("tls");
    let [cert_file, key_file, client_ca_file] = FILES.map(|key| section.path(key));
    if FILES.into_iter().any(|key| section.has(key)) {
        for key in FILES[..2].iter().filter(|key| !section.has(key)) {
            let what = wrong("TLS needs a certificate and its key", "give cert_file and key_file");
            section.mistake(key, what);
        }
    }
    let tls = cert_file.zip(key_file).map(|(cert_file, key_file)| Tls { cert_file, key_file, client_ca_file });
    if tls.is_some() && !listen.iter().any(|place| place.value.is_secured()) {
        let risk = "no listener speaks TLS: Unix sockets and addresses with http:// do not";
        section.warning("cert_file", risk, "add an address without http:// to `listen`, or take [tls] out");
    }
    section.finish();
    tls
}

fn threads(value: &toml::de::DeValue<'_>) -> Result<Option<usize>, Wrong> {
    if value.as_str() == Some("auto") {
        return Ok(None);
    }
    let right = "write \"auto\", or a whole number from 1 to 256 without quotes";
    count(1, 256)(value).map(Some).map_err(|_| wrong(format!("{} is not a number of threads", shown(value)), right))
}

/// One thread a CPU that the cgroup grants, at most four: a sidecar shares its host with the worker it stands beside.
fn usual_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(4)
}

impl Section<'_> {
    /// A duration of at least `least`.
    pub(super) fn duration(&mut self, key: &'static str, least: Duration, default: Duration) -> Duration {
        let given = if least.is_zero() { self.text(key, duration) } else { self.text(key, at_least(least)) };
        given.map_or(default, |located| located.value)
    }

    fn count(&mut self, key: &'static str, least: usize, default: usize) -> usize {
        self.read(key, count(least, 10_000_000)).map_or(default, |located| located.value)
    }
}

/// Reads `[limits]`.
pub(super) fn limits(root: &mut Section<'_>) -> Limits {
    let mut section = root.section("limits");
    let limits = Limits {
        connections: section.count("connections", 1, 16384),
        streams: section.count("streams", 1, 100),
        in_flight: section.count("in_flight", 1, 4096),
        waiting: section.count("waiting", 0, 16384),
        buffered: section.text("buffered", size(1 << 20, 1 << 40)).map_or(512 << 20, |located| located.value),
        // The HTTP parser's buffer cannot be smaller than 8 KiB.
        header_bytes: section.text("header_bytes", size(8 << 10, 1 << 20)).map_or(64 << 10, |located| located.value),
        header_timeout: section.duration("header_timeout", MOMENT, Duration::from_secs(10)),
        body_timeout: section.duration("body_timeout", MOMENT, Duration::from_secs(30)),
        idle_timeout: section.duration("idle_timeout", MOMENT, Duration::from_secs(60)),
    };
    section.finish();
    limits
}

/// Reads `[log]`. With `requests` a flag asks for the lines of requests.
pub(super) fn log(root: &mut Section<'_>, outer: &Outer<'_>, requests: bool) -> Log {
    let mut section = root.section("log");
    let given = section.text("level", choice(&LEVELS));
    let log = Log {
        level: or(outer.over(root.report, "log.level", given, choice(&LEVELS)), LogLevel::Info).value,
        format: section.text("format", choice(&FORMATS)).map_or(LogFormat::Text, |located| located.value),
        requests: section.flag("requests", false) || requests,
    };
    section.finish();
    log
}

/// Reads `[trace]`. An endpoint is a mistake in a build that cannot send traces: silence would look like no traffic.
pub(super) fn trace(root: &mut Section<'_>) -> Trace {
    let mut section = root.section("trace");
    let endpoint = section.text("otlp_endpoint", |text| match collector(text) {
        Ok(_) if !cfg!(feature = "otel") => Err(wrong(
            "this build of onceproxy makes no traces",
            "take the container image or the static binary of a release, build with `--features otel`, or take it out",
        )),
        read => read,
    });
    let trace = Trace {
        otlp_endpoint: endpoint.map(|located| located.value),
        sample: section.read("sample", part).map_or(1.0, |located| located.value),
        service_name: section
            .text("service_name", service_name)
            .map_or_else(|| "onceproxy".to_owned(), |located| located.value),
    };
    section.finish();
    trace
}

/// Reads `[admin]`. Its calls resolve and forget records, so beyond this host they need a token.
pub(super) fn admin(root: &mut Section<'_>, address: &Outer<'_>, secret: &Outer<'_>) -> (Admin, Origin) {
    let mut section = root.section("admin");
    let report = root.report;
    let given = section.text("listen", admin_listen);
    let listen = address.over(report, "admin.listen", given, admin_listen);
    let listen = or(listen, Some(SocketAddr::from(([127, 0, 0, 1], 9090))));
    let given = section.read("token", |value| value.as_str().map_or(Err(not_a_token()), token));
    let token = secret.over(report, "admin.token", given, token);
    let has_token = token.is_some() || section.has("token") || secret.given().is_some();
    if !has_token && listen.value.is_some_and(|address| !address.ip().is_loopback()) {
        let what = wrong(
            "this address can be reached from other hosts, and there is no token",
            "set admin.token (better: ONCEPROXY_ADMIN_TOKEN), or listen on 127.0.0.1",
        );
        report.mistake(listen.at.clone(), "admin.listen", what);
    }
    if let Some(token) = token.as_ref().filter(|token| store_url::is_mask(Some(&token.value))) {
        report.warning(
            token.at.clone(),
            "admin.token",
            "the token is the mask of printed settings, which anybody can guess",
            "put the real token in its place",
        );
    }
    section.finish();
    (Admin { listen: listen.value, token: token.map(|token| token.value) }, listen.at)
}

/// Parses a bearer token (RFC 6750, 2.1), without ever showing it.
fn token(text: &str) -> Result<SecretString, Wrong> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    let is_token = !text.is_empty() && text.bytes().all(allowed);
    // Printed settings load again, with a warning.
    if is_token || text == store_url::MASK { Ok(text.into()) } else { Err(not_a_token()) }
}

fn not_a_token() -> Wrong {
    wrong("this cannot be a bearer token", "write a string of letters, digits and - . _ ~ + / =")
}

/// Reads `[egress]`.
pub(super) fn egress(root: &mut Section<'_>) -> Egress {
    let mut section = root.section("egress");
    let allow = Hosts(section.texts("allow", allowed).unwrap_or_default());
    let tunnels = Hosts(section.texts("tunnels", tunnel).unwrap_or_default());
    let egress = Egress { allow, tunnels };
    risks::of_egress(&section, &egress);
    section.finish();
    egress
}

/// Reads `[store]`.
pub(super) fn store(root: &mut Section<'_>, outer: &Outer<'_>) -> StoreConfig {
    let mut section = root.section("store");
    let given = section.text("url", store_url::parse);
    let wrongly_given = given.is_none() && section.has("url");
    let url = outer.over(root.report, "store.url", given, store_url::parse);
    let mut url = or(url, Backend::Disk { dir: "./onceproxy-data".into() });
    let timeout = section.duration("timeout", MOMENT, Duration::from_secs(1));
    with_own_settings(&mut section, &mut url, timeout, wrongly_given);
    let config = StoreConfig {
        backend: url.value,
        timeout,
        prefix: section.text("prefix", prefix).map_or_else(|| DEFAULT_PREFIX.to_owned(), |located| located.value),
        allow_eviction: section.flag("allow_eviction", false),
        second_line: None,
    };
    if matches!(config.backend, Backend::Postgres(_)) && !names_a_schema(&config.prefix) {
        section.mistake("prefix", wrong(format!("{:?} cannot name a schema", config.prefix), SCHEMA));
    }
    risks::of_store(&section, &config, &url.at);
    section.finish();
    config
}

/// Reads `[second_line]`, which stands behind the store that was read before.
pub(super) fn second_line(root: &mut Section<'_>, store: &StoreConfig) -> Option<SecondLine> {
    let mut section = root.section("second_line");
    let url = section.text("url", |text| match text.split_once(':') {
        Some(("postgres" | "postgresql", rest)) => postgres_url::parse(rest),
        _ => Err(wrong("the second line is a Postgres", "write postgres://USER:PASSWORD@HOST/DATABASE")),
    });
    let timeout = section.duration("timeout", MOMENT, Duration::from_secs(1));
    let ca_file = section.path("ca_file");
    if !section.has("url") {
        section.path("password_file");
        for key in ["timeout", "ca_file", "password_file"].into_iter().filter(|key| section.has(key)) {
            section.mistake(key, wrong("there is no second line", "give its url, or take this out"));
        }
    }
    let line = url.map(|url| {
        let mut postgres: Postgres = url.value;
        match (postgres.sslmode, ca_file) {
            (SslMode::Disable, Some(_)) => {
                let what = wrong("the second line is not reached by TLS", "take it out, or write ?sslmode=verify-full");
                section.mistake("ca_file", what);
            }
            (_, file) => postgres.ca_file = file,
        }
        postgres.password = section.password("password_file", postgres.password.take(), "the password of url");
        if !matches!(store.backend, Backend::Redis(_)) {
            let what =
                wrong("a second line stands behind Redis alone", "take it out, or set store.url to redis://HOST");
            section.mistake("url", what);
        }
        if !names_a_schema(&store.prefix) {
            let what = format!("store.prefix {:?} cannot name a schema", store.prefix);
            section.mistake("url", wrong(what, SCHEMA));
        }
        risks::of_second_line(&section, &postgres);
        SecondLine { postgres, timeout }
    });
    section.finish();
    line
}

/// Whether Postgres takes a prefix for the name of a schema: it cuts long ones off, and keeps `pg_` to itself.
fn names_a_schema(prefix: &str) -> bool {
    prefix.len() <= 63 && !prefix.starts_with("pg_")
}

const SCHEMA: &str = "at most 63 characters, and not pg_ at the beginning";

/// The prefix that every deployment has which does not set one.
pub(super) const DEFAULT_PREFIX: &str = "once";

const OF_TLS: [&str; 3] = ["ca_file", "client_cert_file", "client_key_file"];
const LOGIN_OF_SENTINELS: [&str; 2] = ["sentinel_username", "sentinel_password"];
const OF_SENTINELS: [&str; 3] = ["sentinel_username", "sentinel_password", "sentinel_password_file"];
const OF_REPLICAS: [&str; 2] = ["wait_replicas", "wait_aof"];

/// Reads what only some stores have, and refuses what does not fit to the URL; where that is wrong itself, nothing is said.
fn with_own_settings(section: &mut Section<'_>, url: &mut Located<Backend>, timeout: Duration, wrongly_given: bool) {
    let Located { value: backend, at } = url;
    let tls = RedisTls { ca_file: section.path("ca_file"), client: section.client_certificate() };
    let acknowledged = acknowledged(section, timeout);
    let [username, given] = LOGIN_OF_SENTINELS.map(|key| section.text(key, login).map(|located| located.value));
    let password = section.password("sentinel_password_file", given.map(Into::into), "sentinel_password");
    match backend {
        Backend::Redis(redis) => {
            redis.password = section.password("password_file", redis.password.take(), "the password of url");
            if redis.username.is_some() && redis.password.is_none() && !section.has("password_file") {
                let what = wrong(
                    "a user without a password",
                    "write USER:PASSWORD (of a socket &pass=PASSWORD), or give password_file",
                );
                section.report.mistake(at.clone(), "store.url", what);
            }
        }
        Backend::Postgres(postgres) => {
            postgres.password = section.password("password_file", postgres.password.take(), "the password of url");
        }
        Backend::Memory | Backend::Disk { .. } => {
            section.path("password_file");
        }
    }
    let refuse = |keys: &[&str], what: &str, right: &str| {
        for key in keys.iter().filter(|key| !wrongly_given && section.has(key)) {
            section.mistake(key, wrong(what, right));
        }
    };
    let Backend::Redis(redis) = backend else {
        match backend {
            Backend::Postgres(postgres) if postgres.sslmode != SslMode::Disable => {
                (postgres.ca_file, postgres.client) = (tls.ca_file, tls.client);
            }
            _ => refuse(&OF_TLS, "the store is not reached by TLS", NO_TLS),
        }
        if !matches!(backend, Backend::Postgres(_)) {
            refuse(
                &["password_file"],
                "nobody asks for a password",
                "take it out, or name a Redis or a Postgres in the store's URL",
            );
        }
        refuse(&OF_SENTINELS, "the store has no sentinels", NO_SENTINELS);
        if acknowledged.is_some() {
            refuse(&OF_REPLICAS, "the store has no replicas", "take it out, or name a Redis in the store's URL");
        }
        return;
    };
    match &mut redis.tls {
        Some(given) => *given = tls,
        None => refuse(&OF_TLS, "the store is not reached by TLS", NO_TLS),
    }
    match &mut redis.topology {
        Topology::Sentinel(sentinels) => {
            if username.is_some() && password.is_none() {
                section.mistake(
                    "sentinel_username",
                    wrong("a user without a password", "give sentinel_password or sentinel_password_file"),
                );
            }
            (sentinels.username, sentinels.password) = (username, password);
        }
        _ => refuse(&OF_SENTINELS, "the store has no sentinels", NO_SENTINELS),
    }
    redis.acknowledged = acknowledged;
}

const NO_TLS: &str = "take it out, or write rediss:// (Postgres: ?sslmode=verify-full) in the store's URL";
const NO_SENTINELS: &str = "take it out, or write redis+sentinel:// in the store's URL";

/// How many waits for replicas must fit into `store.timeout`: a claim may come in behind the wait of others, and must
/// have the time for a second try.
const WAITS_IN_A_TIMEOUT: u32 = 4;

/// Reads what a claim waits for.
fn acknowledged(section: &mut Section<'_>, timeout: Duration) -> Option<Acknowledged> {
    let replicas = section.read("wait_replicas", count(0, 100)).map_or(0, |located| located.value);
    let on_disk = section.flag("wait_aof", false);
    let longest = timeout / WAITS_IN_A_TIMEOUT;
    let usual = Duration::from_millis(200).min(longest).max(MOMENT);
    let wait = section.duration("wait_timeout", MOMENT, usual);
    if wait > longest && section.has("wait_timeout") {
        let what = "a claim may wait for the replicas twice, and then has no time for another try";
        section.mistake("wait_timeout", wrong(what, "set it to at most a quarter of store.timeout"));
    }
    let replicas = u32::try_from(replicas).unwrap_or(u32::MAX);
    (replicas > 0 || on_disk).then_some(Acknowledged { replicas, on_disk, timeout: wait })
}

fn login(text: &str) -> Result<String, Wrong> {
    if text.is_empty() { Err(wrong("it is empty", "give it, or take it out")) } else { Ok(text.to_owned()) }
}

impl Section<'_> {
    /// The files of a client's certificate and its key, which come together.
    pub(super) fn client_certificate(&mut self) -> Option<(PathBuf, PathBuf)> {
        let (cert, key) = (self.path("client_cert_file"), self.path("client_key_file"));
        if self.has("client_cert_file") != self.has("client_key_file") {
            let given = if self.has("client_cert_file") { "client_cert_file" } else { "client_key_file" };
            let what = wrong("a client certificate needs its key, and a key its certificate", "give both or none");
            self.mistake(given, what);
        }
        cert.zip(key)
    }

    /// A password in a file, or else the one that was given elsewhere.
    fn password(&mut self, key: &'static str, given: Option<Password>, elsewhere: &str) -> Option<Password> {
        let file = self.path(key);
        if given.is_some() && self.has(key) {
            self.mistake(key, wrong("there are two passwords", format!("take it out, or {elsewhere}")));
        }
        given.or(file.map(Password::InFile))
    }

    /// The path of a file, from the folder in which the proxy is started.
    pub(super) fn path(&mut self, key: &'static str) -> Option<PathBuf> {
        let given = self.text(key, |text| match text {
            "" => Err(wrong("the path is empty", "write the path of a file, or take it out")),
            path => Ok(PathBuf::from(path)),
        });
        given.map(|located| located.value)
    }
}

/// Parses the prefix of keys. Braces would move the hash tag of a Redis cluster; the rest keeps keys easy to type.
fn prefix(text: &str) -> Result<String, Wrong> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
    if (1..=64).contains(&text.len()) && text.bytes().all(allowed) {
        return Ok(text.to_owned());
    }
    Err(wrong(format!("{text:?} cannot begin a key"), "1 to 64 letters, digits and - _ . : /"))
}

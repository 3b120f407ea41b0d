//! The settings, checked: what the rest of the program reads. Nothing here is a string that still has to be parsed.
//!
//! Settings come in four layers, later ones winning: built-in, file, environment, flags. [`load()`] puts them together and
//! reports every mistake at once. One struct a section; each field says what it means, its unit and its default.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::{Method, Uri};
use secrecy::SecretString;

pub mod rules;
pub mod statuses;
pub mod store;
pub mod verify;

mod address;
mod authorize;
mod callers;
mod changes;
mod commanded;
mod effective;
mod egress;
mod load;
mod mistakes;
mod origins;
mod postgres_url;
mod presets;
mod risks;
mod route;
mod sections;
mod signed;
mod socket_url;
mod sources;
mod store_url;
mod tree;
mod values;

#[cfg(test)]
mod tests;

pub use authorize::Authorize;
pub use changes::{Changed, Content, change};
pub use effective::effective;
pub use egress::{Allowed, Egress, Hosts};
pub use load::{Environment, Flags, Loaded, Sources, load, load_admin, takes_colours};
pub use mistakes::{Mistake, Mistakes, Origin, Warning};
pub use rules::Rule;
pub use statuses::{StatusPolicy, Verdict};
pub use store::StoreConfig;
pub use values::print_size;
pub use verify::Verify;

/// Everything that was set.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect: at least one place, none twice. Default `127.0.0.1:8080`.
    pub listen: Vec<Listen>,
    /// How the addresses of `listen` speak TLS; `None` when they do not. Default none.
    pub tls: Option<Tls>,
    /// Whether connections without TLS may begin in HTTP/2 (prior knowledge). Default false.
    pub h2c: bool,
    /// How long a stop waits for running attempts before each is doubted as `drained`, or released. Default 25 s.
    pub drain_timeout: Duration,
    /// How long a stop goes on accepting after `/readyz` turned false. Default 0.
    pub drain_delay: Duration,
    /// After so long without a turn of a core's loop `/livez` fails. Default 10 s.
    pub liveness_stall: Duration,
    /// Worker threads, each with a runtime of its own. Default: the CPUs of the cgroup, at most 4.
    pub threads: usize,
    /// What one process will hold at a time.
    pub limits: Limits,
    /// How it logs.
    pub log: Log,
    /// Where it sends traces.
    pub trace: Trace,
    /// The operator's listener.
    pub admin: Admin,
    /// What may be reached by routes whose upstream each request names, and by tunnels.
    pub egress: Arc<Egress>,
    /// Where records are kept.
    pub store: StoreConfig,
    /// At least one, in the order of the file. Names are unique.
    pub routes: Vec<Arc<Route>>,
}

/// A place where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// An address of the network.
    Tcp {
        /// Port 0 takes a free one.
        address: SocketAddr,
        /// Written as `http://ADDRESS`: without TLS, whatever `[tls]` says.
        plain: bool,
    },
    /// A Unix socket at this path, written as `unix:PATH`; never with TLS.
    Unix(PathBuf),
}

impl Listen {
    /// The address, if it is one of the network.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listen::Tcp { address, .. } => Some(*address),
            Listen::Unix(_) => None,
        }
    }

    /// Whether it speaks TLS where certificates are set.
    pub fn is_secured(&self) -> bool {
        matches!(self, Listen::Tcp { plain: false, .. })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp { address, plain: false } => write!(f, "{address}"),
            Listen::Tcp { address, plain: true } => write!(f, "http://{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The proxy's own certificate, and whether clients need one. The files are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// PEM: the certificate and those that lead from it to an authority.
    pub cert_file: PathBuf,
    /// PEM: its key.
    pub key_file: PathBuf,
    /// PEM: authorities, one of which must have signed a client's certificate; `None` asks clients for none. Default none.
    pub client_ca_file: Option<PathBuf>,
}

/// Bounds on what one process holds at a time.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Client connections; further ones wait in the listener's backlog. Default 16384.
    pub connections: usize,
    /// Requests at a time on one HTTP/2 connection; further ones wait for the client to hold them back. Default 100.
    pub streams: usize,
    /// Attempts and plain requests that are being forwarded. Over it: 503 `overloaded`. Default 4096.
    pub in_flight: usize,
    /// Duplicates that wait for a running attempt. Over it: 503 `overloaded`. Default 16384.
    pub waiting: usize,
    /// Bytes of request and response bodies held in memory. Over it: 503 `overloaded`. Default 512 MiB.
    pub buffered: usize,
    /// Bytes of a request's line and header fields. Over it: 431. Default 64 KiB.
    pub header_bytes: usize,
    /// Until a request's head must be complete. Default 10 s.
    pub header_timeout: Duration,
    /// Until a keyed request's body must be complete. Over it: 408. Default 30 s.
    pub body_timeout: Duration,
    /// How long a client connection may be idle between requests. Default 60 s.
    pub idle_timeout: Duration,
}

/// How the process logs.
#[derive(Clone, Debug)]
pub struct Log {
    /// The least severe level that is written. Default `info`.
    pub level: LogLevel,
    /// Default `text`.
    pub format: LogFormat,
    /// Whether each request gets a line. Default false.
    pub requests: bool,
}

/// Severity, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// What needs a person.
    Error,
    /// What may come to need one.
    Warn,
    /// What an operator wants to read afterwards.
    Info,
    /// What helps to find a fault.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// Every level, most severe first.
    pub const ALL: [LogLevel; 5] = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];

    /// The word in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Traces: what one request did, as spans that a collector takes.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The collector's URL for OTLP over HTTP, to which `/v1/traces` is added; `None` makes no traces. Default none.
    pub otlp_endpoint: Option<Uri>,
    /// The part of requests that are traced, from 0 to 1, among those that come without a trace of their own; the others
    /// are what their caller decided. Default 1.
    pub sample: f64,
    /// The name of this service in traces. Default `onceproxy`.
    pub service_name: String,
}

/// The operator's listener.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Where it listens; `None` when switched off (`"off"`). Default `127.0.0.1:9090`. Anything but loopback needs a token.
    pub listen: Option<SocketAddr>,
    /// The bearer token of all calls but `/livez`, `/readyz` and `/metrics`. Default none.
    pub token: Option<SecretString>,
}

/// The name of the route that the command line or the environment makes.
pub const COMMANDED_ROUTE: &str = "default";

/// One route: which requests it takes, where they go and how they are protected.
#[derive(Clone, Debug)]
pub struct Route {
    /// Its name, in record ids, metrics and logs: 1–64 characters of `a-z 0-9 - _`.
    pub name: Arc<str>,
    /// The host it takes, lower-case without port; `None` is any. Default any.
    pub host: Option<String>,
    /// The path prefix it takes, by whole segments; begins with `/`. Default `/`.
    pub path: String,
    /// The preset that its defaults are of, by name. For people: nothing goes by it.
    pub preset: &'static str,
    /// Whether the matched path is taken off before forwarding. Default false.
    pub strip_prefix: bool,
    /// Where requests go.
    pub upstream: Upstream,
    /// Methods that are protected.
    pub methods: Vec<Method>,
    /// Where the key is looked for, in order; the first source present decides.
    pub key: Vec<KeySource>,
    /// Whether a protected method without a key is refused (400) or passed through. Default false.
    pub key_required: bool,
    /// The longest key, in bytes. Default 255.
    pub max_key_length: usize,
    /// The request parts that separate callers.
    pub scope: Vec<ScopePart>,
    /// Who is asked before each replay and each join; `None` is nobody. Default none.
    pub authorize: Option<Authorize>,
    /// How long it may take to say. Default 1 s.
    pub authorize_timeout: Duration,
    /// How the sender of webhooks proves itself; `None` demands nothing. Default none.
    pub verify: Option<Verify>,
    /// Who gets an answer that is kept. Default the first caller's credentials, unless the preset says otherwise.
    pub replay_to: ReplayTo,
    /// What makes two requests the same.
    pub fingerprint: Fingerprint,
    /// What a duplicate of a running attempt gets. Default wait.
    pub on_duplicate: OnDuplicate,
    /// How long a duplicate waits. Default 30 s.
    pub wait_timeout: Duration,
    /// What each status of the upstream means.
    pub statuses: StatusPolicy,
    /// What the body of an answer means, before its status is asked; the first rule that matches decides. Default none.
    pub when: Vec<Rule>,
    /// Media types, in lower case, of answers that flow to the caller while they arrive. Default: those of events, lines of
    /// JSON and parts that replace each other.
    pub stream_types: Vec<String>,
    /// What a duplicate of an unknown record does. Default hold.
    pub on_unknown: OnUnknown,
    /// How long a completed record is kept. Default 24 h.
    pub retention: Duration,
    /// The age at which an unknown record lapses; `None` is never, the default.
    pub unknown_retention: Option<Duration>,
    /// How long the caller waits. Default 30 s.
    pub timeout: Duration,
    /// How long the proxy listens for a late answer. Default 5 min.
    pub abandon_after: Duration,
    /// How long a claim is believed alive; renewed every third of it. Default 10 s.
    pub lease: Duration,
    /// Attempts and plain requests of this route that are being forwarded; `None` leaves it to `limits.in_flight`, the
    /// default. Over it: 503 `overloaded`.
    pub max_in_flight: Option<usize>,
    /// The largest body of a keyed request, in bytes. Over it: 413. Default 8 MiB.
    pub max_request_body: usize,
    /// The largest response body that is kept, in bytes; larger ones pass on whole. Default 1 MiB.
    pub max_response_body: usize,
    /// What happens to keyed requests while the store cannot be reached. Default reject.
    pub on_store_error: OnStoreError,
    /// Fields that are recorded although they are by default not: `set-cookie` and the like. Default none.
    pub keep_headers: Vec<HeaderName>,
    /// Origins whose pages may read problems and replays, as browsers write them. Default none: nothing is said.
    pub cors_origins: Vec<String>,
    /// What the upstream sees of the key. Default the same.
    pub forward_key: ForwardKey,
    /// Whether the upstream sees the client's `Host`. Default true.
    pub preserve_host: bool,
    /// Fields such as `Idempotency_Key`, which applications read as the one with dashes. Default `drop`.
    pub underscores: Underscores,
    /// What happens to `Forwarded` and `X-Forwarded-*`. Default append.
    pub forwarded: Forwarded,
    /// Until a connection to the upstream must stand, TLS included. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a connection to the upstream is kept unused. Default 4 s: below the 5 s of common servers.
    pub idle_timeout: Duration,
}

impl Route {
    /// Whether the upstream sees which host a request names: then it is part of what the request is.
    pub fn shows_host(&self) -> bool {
        self.preserve_host || self.upstream.egress.is_some()
    }

    /// Whether a duplicate is answered only if its credentials are those of the first request. Where a service is asked, it
    /// judges them.
    pub fn compares_credentials(&self) -> bool {
        self.replay_to == ReplayTo::SameCredentials && self.authorize.is_none()
    }
}

/// Where a route's requests go: `http://host[:port]`, `https://host[:port]` or `unix:/path`, without a path of requests;
/// with `{host}` as its host, to the one that each request names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// A DNS name or an IP address (v6 without brackets).
    pub host: String,
    /// The port, 80 or 443 if none was given.
    pub port: u16,
    /// A Unix socket in place of host and port, which then are `localhost` and 80. Never with TLS or a proxy.
    pub socket: Option<PathBuf>,
    /// The HTTP proxy to go through. Default none, whatever the environment says.
    pub proxy: Option<HttpProxy>,
    /// Whether it is spoken to in HTTP/2, over TLS by ALPN, else without being asked. Default HTTP/1.1.
    pub http2: bool,
    /// When a connection of HTTP/2 is asked whether the upstream is there.
    pub pings: Pings,
    /// How often its name is asked for again.
    pub dns_refresh: DnsRefresh,
    /// A file of PEM certificates to trust instead of the system's. Only with TLS.
    pub ca_file: Option<PathBuf>,
    /// The certificate to show and its key, files of PEM. Only with TLS.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name to ask for and to find in the certificate, in place of the host. Only with TLS.
    pub server_name: Option<String>,
    /// Set where requests name the host: what may be reached. The host is empty then, and port 0 stands for the one that
    /// the request names; [`Upstream::at`] fills both in.
    pub egress: Option<Arc<Egress>>,
}

/// How often the name of an upstream is asked for again while requests go there. Default 30 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsRefresh(pub Duration);

impl Default for DnsRefresh {
    fn default() -> DnsRefresh {
        DnsRefresh(Duration::from_secs(30))
    }
}

/// When an HTTP/2 connection to an upstream is pinged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pings {
    /// After so long without progress while requests are on it. Default 2 s.
    pub after: Duration,
    /// So long the answer may take. Default 2 s.
    pub timeout: Duration,
}

impl Default for Pings {
    fn default() -> Pings {
        Pings { after: Duration::from_secs(2), timeout: Duration::from_secs(2) }
    }
}

/// An HTTP proxy on the way to an upstream: `http://host:port`. It is asked to connect (`CONNECT`), for plain upstreams too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProxy {
    /// A DNS name or an IP address (v6 without brackets).
    pub host: String,
    /// The port.
    pub port: u16,
}

impl HttpProxy {
    /// `host:port`, IPv6 in brackets.
    pub fn authority(&self) -> String {
        format!("{}:{}", bracketed(&self.host), self.port)
    }
}

/// A host as it stands in a URL.
fn bracketed(host: &str) -> Cow<'_, str> {
    if host.contains(':') { format!("[{host}]").into() } else { host.into() }
}

impl Upstream {
    /// `host:port`, always with the port, IPv6 in brackets.
    pub fn host_and_port(&self) -> String {
        format!("{}:{}", bracketed(&self.host), self.port)
    }

    /// Whether each request names the host.
    pub fn is_requested(&self) -> bool {
        self.egress.is_some() && self.host.is_empty()
    }

    /// The upstream that a request for this host and port goes to: by the port of the settings, else the one that was
    /// named, else that of the scheme. `None` if it may not be reached.
    ///
    /// A client that speaks `http` to this proxy and means `https` names port 80, or none.
    pub fn at(&self, host: &str, port: Option<u16>) -> Option<Upstream> {
        let egress = self.egress.as_ref()?;
        let own = if self.tls { 443 } else { 80 };
        let port = match (self.port, port) {
            (0, None | Some(80)) => own,
            (0, Some(named)) => named,
            (set, _) => set,
        };
        egress.allow.permit(host, port).then(|| Upstream {
            host: host.trim_end_matches('.').to_ascii_lowercase(),
            port,
            ..self.clone()
        })
    }

    /// The URL, as it is written in a file.
    pub fn shown(&self) -> String {
        address::print_upstream(self)
    }

    /// `host[:port]` as it stands in a `Host` field: without the scheme's default port, IPv6 in brackets.
    pub fn authority(&self) -> String {
        let default = if self.tls { 443 } else { 80 };
        if self.port == default { bracketed(&self.host).into_owned() } else { self.host_and_port() }
    }
}

/// Where a key is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A header field. Only here may a key be quoted.
    Header(HeaderName),
    /// A parameter of the query, percent-decoded.
    Query(String),
    /// A string or number in a JSON body, by JSON pointer (RFC 6901).
    Json(String),
    /// A field of a form in the body (`application/x-www-form-urlencoded`), decoded.
    Form(String),
    /// The request itself: its fingerprint is its key.
    Fingerprint,
    /// Several parts that make one key together; all must be there.
    Joined(Vec<KeySource>),
}

/// A request part that separates callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopePart {
    /// A header field; missing is not empty. Equal lines count once, different ones are refused.
    Header(HeaderName),
    /// A parameter of the query, likewise.
    Query(String),
    /// A cookie, likewise. Its name is case-sensitive.
    Cookie(String),
    /// The host that the request is for, with its port where that is not the scheme's own.
    Host,
    /// The path as received, without the query.
    Path,
    /// The name in the certificate that the client has shown; none is not an empty one. It stays the same when the
    /// certificate is renewed.
    ClientCert,
    /// A constant: the command line's route has its upstream's authority here. A file can name one (`constant:TEXT`), so
    /// that effective settings can be written down and loaded again.
    Constant(String),
}

/// The header fields by which clients choose an operation, whatever method and path say.
pub static OPERATION: [HeaderName; 4] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
    HeaderName::from_static("x-amz-target"),
    HeaderName::from_static("soapaction"),
];

/// Whose requests are answered from a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayTo {
    /// Those with the credentials of the first one, as far as these are not in the scope.
    SameCredentials,
    /// All that share the scope.
    Scope,
}

/// What makes two requests the same, besides method, path and query, and the host where the upstream sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// How the body counts. Default `bytes`.
    pub body: BodyMode,
    /// Header fields that count. Default [`OPERATION`].
    pub headers: Vec<HeaderName>,
    /// Parameters of the query that do not count. Default none.
    pub ignore_query: Vec<String>,
    /// JSON pointers to members that do not count; with [`BodyMode::Json`] only. Default none.
    pub ignore: Vec<String>,
}

/// How a body counts in the fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyMode {
    /// Byte by byte.
    Bytes,
    /// As JSON: member order and white space do not count, number text does, duplicate members are refused.
    Json,
    /// As `application/x-www-form-urlencoded`: the order of different names does not count.
    Form,
    /// As `multipart/form-data`: the boundary does not count.
    Multipart,
    /// Not at all.
    Ignore,
}

/// What a duplicate of a running attempt gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDuplicate {
    /// The attempt's answer, after waiting for it.
    Wait,
    /// 409 at once.
    Reject,
}

/// What a duplicate of an unknown record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// It is told so; a person decides.
    Hold,
    /// It is forwarded: the upstream honours the key itself.
    Resend,
}

/// What happens to keyed requests while the store cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreError {
    /// 503.
    Reject,
    /// They are forwarded without protection, marked and counted.
    Forward,
}

/// What the upstream sees of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardKey {
    /// The field as it came.
    Same,
    /// Nothing.
    None,
    /// The key under another name.
    Renamed(HeaderName),
}

/// What happens to fields with an underscore that applications read as one that means something here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Underscores {
    /// They are taken off.
    Drop,
    /// They are forwarded.
    Pass,
    /// The request is refused.
    Refuse,
}

/// What happens to `Forwarded` and `X-Forwarded-For`, `-Proto`, `-Host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarded {
    /// This hop is appended.
    Append,
    /// They are taken off.
    Drop,
}

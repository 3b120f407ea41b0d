//! The section `[store]`: one variant a back-end, so that a nonsense mix cannot be written.

use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;

/// Where records are kept, and how long an operation may take.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Which back-end. Default `disk:./onceproxy-data`.
    pub backend: Backend,
    /// For one operation, retries included. Default 1 s.
    pub timeout: Duration,
    /// The first part of every key in a shared store. Default `once`.
    pub prefix: String,
    /// Whether a Redis that evicts keys is accepted, although a forgotten claim is a second execution. Default false.
    pub allow_eviction: bool,
    /// A Postgres behind the store in which every granted claim is entered as well. Only behind Redis.
    pub second_line: Option<SecondLine>,
}

impl StoreConfig {
    /// The URL, as it is written in a file, with the password masked.
    pub fn shown(&self) -> String {
        super::store_url::print(&self.backend)
    }

    /// The longest that one operation may take, all servers together.
    pub fn longest_operation(&self) -> Duration {
        let second = self.second_line.as_ref().map_or(Duration::ZERO, |second| second.timeout);
        self.timeout.saturating_add(second)
    }
}

/// The section `[second_line]`.
#[derive(Clone, Debug)]
pub struct SecondLine {
    /// Where it is.
    pub postgres: Postgres,
    /// For one operation there, retries included. Default 1 s.
    pub timeout: Duration,
}

/// The back-ends.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a process has one")]
pub enum Backend {
    /// In this process, gone with it.
    Memory,
    /// A folder of this host, held by one process.
    Disk {
        /// The folder; made if it is not there.
        dir: PathBuf,
    },
    /// Redis: one server, one behind sentinels, or a cluster.
    Redis(Redis),
    /// One Postgres server, or a pooler before it.
    Postgres(Postgres),
}

impl Backend {
    /// Whether several proxies can share it.
    pub fn is_shared(&self) -> bool {
        matches!(self, Backend::Redis(_) | Backend::Postgres(_))
    }
}

/// A password.
#[derive(Clone, Debug)]
pub enum Password {
    /// As the settings give it.
    Given(SecretString),
    /// What this file holds, less a line's end behind it (`password_file`). It is read again when it changes.
    InFile(PathBuf),
}

impl Password {
    /// The password, where the settings give it.
    pub fn given(&self) -> Option<&SecretString> {
        match self {
            Password::Given(secret) => Some(secret),
            Password::InFile(_) => None,
        }
    }

    /// The file, where it is in one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Password::Given(_) => None,
            Password::InFile(file) => Some(file),
        }
    }
}

impl From<String> for Password {
    fn from(given: String) -> Password {
        Password::Given(given.into())
    }
}

/// Redis, in any of its topologies.
#[derive(Clone, Debug)]
pub struct Redis {
    /// Which servers, and who says which of them is the master.
    pub topology: Topology,
    /// The database number, 0 on a cluster. Default 0.
    pub db: i64,
    /// The ACL user; `None` is the server's default user.
    pub username: Option<String>,
    /// The password, if one is needed.
    pub password: Option<Password>,
    /// Set for `rediss://` and its kin; sentinels are reached by TLS as well then.
    pub tls: Option<RedisTls>,
    /// What a claim waits for before it counts; `None` is the server's own answer.
    pub acknowledged: Option<Acknowledged>,
}

impl RedisTls {
    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let client = self.client.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.ca_file.iter().chain(client).map(PathBuf::as_path)
    }
}

impl Redis {
    /// These servers without a password, with everything else as by default.
    pub fn new(topology: Topology) -> Redis {
        Redis { topology, db: 0, username: None, password: None, tls: None, acknowledged: None }
    }
}

/// How the servers of one Redis hang together.
#[derive(Clone, Debug)]
pub enum Topology {
    /// One server: `redis://[user[:password]@]host[:port][/db]`.
    One(Place),
    /// One server on this host, through its Unix socket: `redis+unix:///path[?db=0&user=…&pass=…]`.
    Socket(PathBuf),
    /// A master that sentinels name: `redis+sentinel://[user[:password]@]host[:port],…/name[/db]`.
    Sentinel(Sentinels),
    /// A cluster, found through any of these nodes: `redis+cluster://[user[:password]@]host[:port],…`.
    Cluster(Vec<Place>),
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// A DNS name or an IP address (v6 without brackets).
    pub host: String,
    /// Default 6379, of a sentinel 26379.
    pub port: u16,
}

/// The sentinels, and what they call the master.
#[derive(Clone, Debug)]
pub struct Sentinels {
    /// All that are known: one that does not answer holds nothing up.
    pub places: Vec<Place>,
    /// The name of the master in their settings.
    pub master: String,
    /// The ACL user at the sentinels (`store.sentinel_username`).
    pub username: Option<String>,
    /// The password at the sentinels (`store.sentinel_password`, or in `store.sentinel_password_file`); the store's own is
    /// never sent to them.
    pub password: Option<Password>,
}

/// What must be acknowledged before a claim counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// By how many replicas (`store.wait_replicas`).
    pub replicas: u32,
    /// Whether having it in memory is not enough: the master and each of these replicas must have it on disk
    /// (`store.wait_aof`, Redis 7.2).
    pub on_disk: bool,
    /// How long is waited for them (`store.wait_timeout`). Default 200 ms.
    pub timeout: Duration,
}

/// How TLS to Redis is verified.
#[derive(Clone, Debug, Default)]
pub struct RedisTls {
    /// PEM certificates to trust instead of the system's (`store.ca_file`).
    pub ca_file: Option<PathBuf>,
    /// PEM client certificate and key (`store.client_cert_file`, `store.client_key_file`), both or none.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// One Postgres server: `postgres://user[:password]@host[:port]/database[?sslmode=…]`, or through its Unix socket
/// `postgres://user[:password]@/database?host=/folder[&port=…]`.
#[derive(Clone, Debug)]
pub struct Postgres {
    /// A DNS name or an IP address (v6 without brackets); or, as in libpq, the folder of the server's Unix socket, which
    /// begins with a slash.
    pub host: String,
    /// Default 5432. It is in the name of a Unix socket, too.
    pub port: u16,
    /// The database's name.
    pub database: String,
    /// The role to log in as.
    pub user: String,
    /// The password, if one is needed.
    pub password: Option<Password>,
    /// Whether TLS is spoken, and what it proves. Default disable.
    pub sslmode: SslMode,
    /// PEM certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM client certificate and key, both or none.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Postgres {
    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let client = self.client.iter().flat_map(|(certificate, key)| [certificate, key]);
        let password = self.password.iter().filter_map(Password::file);
        self.ca_file.iter().chain(client).map(PathBuf::as_path).chain(password)
    }

    /// The server's Unix socket, where the host is a folder.
    pub fn socket(&self) -> Option<PathBuf> {
        let folder = self.host.starts_with('/').then_some(&self.host)?;
        Some(PathBuf::from(folder).join(format!(".s.PGSQL.{}", self.port)))
    }
}

/// What TLS to Postgres is asked to prove; the words are those of libpq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// TLS. With a CA file the server's certificate must come from there; the name in it is not looked at. Without one
    /// nothing is proven.
    Require,
    /// TLS, and the certificate must be trusted and carry the host of the URL.
    VerifyFull,
}

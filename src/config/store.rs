//! The section `[store]`: one variant a back-end, so that a nonsense mix cannot be written.

use std::path::PathBuf;
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
pub enum Backend {
    /// In this process, gone with it.
    Memory,
    /// A folder of this host, held by one process.
    Disk {
        /// The folder; made if it is not there.
        dir: PathBuf,
    },
    /// One Redis server.
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

/// One Redis server: `redis://[user[:password]@]host[:port][/db]`, or `rediss://` for TLS.
#[derive(Clone, Debug)]
pub struct Redis {
    /// A DNS name or an IP address (v6 without brackets).
    pub host: String,
    /// Default 6379.
    pub port: u16,
    /// The database number. Default 0.
    pub db: i64,
    /// The ACL user; `None` is the server's default user.
    pub username: Option<String>,
    /// The password, if one is needed.
    pub password: Option<SecretString>,
    /// Set for `rediss://`.
    pub tls: Option<RedisTls>,
}

/// How TLS to Redis is verified.
#[derive(Clone, Debug, Default)]
pub struct RedisTls {
    /// PEM certificates to trust instead of the system's (`store.ca_file`).
    pub ca_file: Option<PathBuf>,
    /// PEM client certificate and key (`store.client_cert_file`, `store.client_key_file`), both or none.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// One Postgres server: `postgres://user[:password]@host[:port]/database[?sslmode=…]`.
#[derive(Clone, Debug)]
pub struct Postgres {
    /// A DNS name or an IP address (v6 without brackets).
    pub host: String,
    /// Default 5432.
    pub port: u16,
    /// The database's name.
    pub database: String,
    /// The role to log in as.
    pub user: String,
    /// The password, if one is needed.
    pub password: Option<SecretString>,
    /// Whether TLS is spoken, and what it proves. Default disable.
    pub sslmode: SslMode,
    /// PEM certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM client certificate and key, both or none.
    pub client: Option<(PathBuf, PathBuf)>,
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

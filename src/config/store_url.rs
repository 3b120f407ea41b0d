//! The URL of the store: which back-end, and how to reach it. Parsed and printed here, with the password masked.
//!
//! Messages never show a URL back: what was meant as a password may stand anywhere in it.

use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};

use super::address::host_and_port;
use super::mistakes::{Wrong, wrong};
use super::store::{Backend, Password, Place, Redis, RedisTls, Sentinels, Topology};
use super::{postgres_url, socket_url};

/// What stands where a secret stood.
pub(super) const MASK: &str = "***";

const KINDS: &str = "write \"memory:\", \"disk:DIR\", \"redis://HOST\", \"redis+unix:///SOCKET\", \
                     \"redis+sentinel://HOSTS/NAME\", \"redis+cluster://HOSTS\" (rediss for TLS) or \"postgres://USER:PASSWORD@HOST/DATABASE\"";
const REDIS: &str = "write redis://[USER:PASSWORD@]HOST[:PORT][/DB], with odd characters of the password as %XX";
const SENTINEL: &str = "write redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…/MASTER[/DB]";
const CLUSTER: &str = "write redis+cluster://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],…";
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Parses the URL of a store.
pub(super) fn parse(text: &str) -> Result<Backend, Wrong> {
    let Some((scheme, rest)) = text.split_once(':') else {
        return Err(wrong("this is not the URL of a store", KINDS));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Backend::Memory),
        "memory" => Err(wrong("the memory store has no place", "write \"memory:\"")),
        "disk" => disk(rest),
        "redis" => redis(rest, false),
        "redis+unix" | "unix" => socket_url::parse(rest).map(Backend::Redis),
        "rediss" => redis(rest, true),
        "redis+sentinel" => sentinel(rest, false),
        "rediss+sentinel" => sentinel(rest, true),
        "redis+cluster" => cluster(rest, false),
        "rediss+cluster" => cluster(rest, true),
        "postgres" | "postgresql" => postgres_url::parse(rest).map(Backend::Postgres),
        _ if scheme.contains("unix") => Err(not_by_socket(scheme)),
        _ => Err(wrong("there is no store of this kind", KINDS)),
    }
}

fn not_by_socket(scheme: &str) -> Wrong {
    let right = "write redis+unix:///PATH, redis+sentinel://HOSTS/NAME or redis+cluster://HOSTS";
    match scheme {
        "rediss+unix" => wrong("there is no TLS on a Unix socket, which nobody outside this host can read", right),
        _ => wrong("only a single Redis is reached through a Unix socket: others name their servers by host", right),
    }
}

fn disk(dir: &str) -> Result<Backend, Wrong> {
    if dir.is_empty() {
        return Err(wrong("the disk store needs a folder", "write \"disk:DIR\", such as \"disk:./onceproxy-data\""));
    }
    if let Some(path) = dir.strip_prefix("//") {
        // `disk://data` might mean a host, a folder here or one at the root: better not to guess where records are.
        let relative = path.trim_start_matches('/');
        let right = format!("write \"disk:./{relative}\" for a folder here, \"disk:/{relative}\" from the root");
        return Err(wrong("the disk store's folder begins with two slashes", right));
    }
    Ok(Backend::Disk { dir: PathBuf::from(dir) })
}

fn redis(rest: &str, tls: bool) -> Result<Backend, Wrong> {
    let (login, place, path) = parts(rest, REDIS)?;
    if place.is_empty() && !path.is_empty() {
        return Err(wrong("the URL has a path but no host", "write redis+unix:///PATH for a Unix socket"));
    }
    let topology = Topology::One(self::place(place, PORT, REDIS)?);
    Ok(Backend::Redis(Redis { db: database(path)?, ..login.to(topology, tls) }))
}

fn sentinel(rest: &str, tls: bool) -> Result<Backend, Wrong> {
    let (login, hosts, path) = parts(rest, SENTINEL)?;
    let places = places(hosts, SENTINEL_PORT, SENTINEL)?;
    let (master, db) = path.split_once('/').unwrap_or((path, ""));
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if master.is_empty() || !master.bytes().all(allowed) {
        return Err(wrong("the name under which the sentinels know the master is missing, or odd", SENTINEL));
    }
    let sentinels = Sentinels { places, master: master.to_owned(), username: None, password: None };
    Ok(Backend::Redis(Redis { db: database(db)?, ..login.to(Topology::Sentinel(sentinels), tls) }))
}

fn cluster(rest: &str, tls: bool) -> Result<Backend, Wrong> {
    let (login, hosts, path) = parts(rest, CLUSTER)?;
    let places = places(hosts, PORT, CLUSTER)?;
    if database(path)? != 0 {
        return Err(wrong("a cluster has only database 0", "take the number out, and set store.prefix"));
    }
    Ok(Backend::Redis(login.to(Topology::Cluster(places), tls)))
}

/// The parts that all URLs of Redis have: who comes in, where, and what follows the first slash.
fn parts<'a>(rest: &'a str, right: &'static str) -> Result<(Login, &'a str, &'a str), Wrong> {
    let rest = rest.strip_prefix("//").ok_or_else(|| wrong("two slashes are missing after the scheme", right))?;
    // A password with a raw `/`, `?` or `#` would end the authority too early; then a later part holds the `@`.
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if path.contains('@') {
        return Err(wrong("the password holds a slash", "write it as %2F"));
    }
    if rest.contains(['?', '#']) {
        return Err(wrong("the URL holds ? or #", "write %3F or %23 in a password; give options as keys of [store]"));
    }
    let (user, place) = match authority.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, authority),
    };
    let (username, password) = user.map_or(Ok((None, None)), credentials)?;
    Ok((Login { username, password }, place, path))
}

struct Login {
    username: Option<String>,
    password: Option<Password>,
}

impl Login {
    fn to(self, topology: Topology, tls: bool) -> Redis {
        let Login { username, password } = self;
        Redis { username, password, tls: tls.then(RedisTls::default), ..Redis::new(topology) }
    }
}

fn places(text: &str, usual_port: u16, right: &'static str) -> Result<Vec<Place>, Wrong> {
    text.split(',').map(|one| place(one, usual_port, right)).collect()
}

fn place(text: &str, usual_port: u16, right: &'static str) -> Result<Place, Wrong> {
    let (host, port) = host_and_port(text).map_err(|()| wrong("the URL has no valid host and port", right))?;
    match port {
        Some(0) => Err(wrong("port 0 cannot be connected to", right)),
        given => Ok(Place { host, port: given.unwrap_or(usual_port) }),
    }
}

pub(super) fn database(path: &str) -> Result<i64, Wrong> {
    match path {
        "" => Ok(0),
        digits if digits.bytes().all(|b| b.is_ascii_digit()) && digits.len() <= 5 => Ok(digits.parse().unwrap_or(0)),
        _ => Err(wrong("what follows the host is not a database number", "write a number such as /0, or nothing")),
    }
}

/// A user and a password.
pub(super) type Credentials = (Option<String>, Option<Password>);

/// The user before an `@`, and the password if it is there.
pub(super) fn credentials(text: &str) -> Result<Credentials, Wrong> {
    match text.split_once(':') {
        Some((user, password)) => login(decoded(user)?, decoded(password)?),
        None => Ok((Some(decoded(text)?).filter(|user| !user.is_empty()), None)),
    }
}

/// A user, empty for the default one, and a password.
pub(super) fn login(user: String, password: String) -> Result<Credentials, Wrong> {
    if password.is_empty() {
        return Err(wrong("the password is empty", "write USER:PASSWORD@, or leave out everything before the host"));
    }
    Ok(((!user.is_empty()).then_some(user), Some(password.into())))
}

/// What a part of a URL says.
pub(super) fn decoded(part: &str) -> Result<String, Wrong> {
    percent_decode(part).ok_or_else(|| wrong("a % is not followed by two hex digits, or not UTF-8", "write a % as %25"))
}

pub(super) fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
            let (high, low) = (digit()?, digit()?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

pub(super) fn percent_encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// A store's URL as it is written in a file, with the password masked.
pub(super) fn print(backend: &Backend) -> String {
    match backend {
        Backend::Memory => "memory:".to_owned(),
        Backend::Disk { dir } => format!("disk:{}", dir.display()),
        Backend::Redis(redis) => {
            let scheme = if redis.tls.is_some() { "rediss" } else { "redis" };
            let user = redis.username.as_deref().map(percent_encode).unwrap_or_default();
            let given = redis.password.as_ref().and_then(Password::given);
            let user = match given {
                Some(_) => format!("{user}:{MASK}@"),
                None if user.is_empty() => user,
                None => format!("{user}@"),
            };
            let list = |places: &[Place]| places.iter().map(print_place).collect::<Vec<_>>().join(",");
            match &redis.topology {
                Topology::One(place) => format!("{scheme}://{user}{}/{}", print_place(place), redis.db),
                Topology::Socket(path) => socket_url::print(path, redis.db, redis.username.as_deref(), given),
                Topology::Sentinel(Sentinels { places, master, .. }) => {
                    format!("{scheme}+sentinel://{user}{}/{master}/{}", list(places), redis.db)
                }
                Topology::Cluster(places) => format!("{scheme}+cluster://{user}{}", list(places)),
            }
        }
        Backend::Postgres(postgres) => postgres_url::print(postgres),
    }
}

fn print_place(Place { host, port }: &Place) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

impl std::fmt::Display for Backend {
    /// The URL as it is written in a file, with the password masked.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&print(self))
    }
}

/// Whether a secret is the mask itself, copied from printed settings.
pub(super) fn is_mask(secret: Option<&SecretString>) -> bool {
    secret.is_some_and(|secret| secret.expose_secret() == MASK)
}

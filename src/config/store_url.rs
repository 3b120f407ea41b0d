//! The URL of the store: which back-end, and how to reach it. Parsed and printed here, with the password masked.
//!
//! Messages never show a URL back: what was meant as a password may stand anywhere in it.

use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};

use super::address::host_and_port;
use super::mistakes::{Wrong, wrong};
use super::postgres_url;
use super::store::{Backend, Redis, RedisTls};

/// What stands where a secret stood.
pub(super) const MASK: &str = "***";

const KINDS: &str = "write \"memory:\", \"disk:DIR\", \"redis://HOST\", \"rediss://HOST\" or \"postgres://USER:PASSWORD@HOST/DATABASE\"";
const REDIS: &str = "write redis://[USER:PASSWORD@]HOST[:PORT][/DB], with odd characters of the password as %XX";

/// Parses the URL of a store.
pub(super) fn parse(text: &str) -> Result<Backend, Wrong> {
    let Some((scheme, rest)) = text.split_once(':') else {
        return Err(wrong("this is not the URL of a store", KINDS));
    };
    match scheme {
        "memory" if rest.is_empty() => Ok(Backend::Memory),
        "memory" => Err(wrong("the memory store has no place", "write \"memory:\"")),
        "disk" => disk(rest),
        "redis" => redis(rest, None),
        "rediss" => redis(rest, Some(RedisTls::default())),
        "postgres" | "postgresql" => postgres_url::parse(rest).map(Backend::Postgres),
        "redis+sentinel" | "redis+cluster" => {
            Err(wrong(format!("{scheme}:// is not supported by this version"), KINDS))
        }
        _ => Err(wrong("there is no store of this kind", KINDS)),
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

fn redis(rest: &str, tls: Option<RedisTls>) -> Result<Backend, Wrong> {
    let rest = rest.strip_prefix("//").ok_or_else(|| wrong("two slashes are missing after the scheme", REDIS))?;
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
    let (host, port) = host_and_port(place).map_err(|()| wrong("the URL has no valid host and port", REDIS))?;
    let port = match port {
        Some(0) => return Err(wrong("port 0 cannot be connected to", REDIS)),
        given => given.unwrap_or(6379),
    };
    let db = match path {
        "" => 0,
        digits if digits.bytes().all(|b| b.is_ascii_digit()) && digits.len() <= 5 => digits.parse().unwrap_or(0),
        _ => {
            return Err(wrong(
                "what follows the host is not a database number",
                "write a number such as /0, or nothing",
            ));
        }
    };
    Ok(Backend::Redis(Redis { host, port, db, username, password, tls }))
}

/// A user and a password.
pub(super) type Credentials = (Option<String>, Option<SecretString>);

/// The user and the password before an `@`.
pub(super) fn credentials(text: &str) -> Result<Credentials, Wrong> {
    let Some((user, password)) = text.split_once(':') else {
        return Err(wrong("a user without a password", "write USER:PASSWORD@, or :PASSWORD@ for the default user"));
    };
    let decode = |part: &str| {
        percent_decode(part)
            .ok_or_else(|| wrong("a % is not followed by two hex digits, or not UTF-8", "write a % as %25"))
    };
    let (user, password) = (decode(user)?, decode(password)?);
    if password.is_empty() {
        return Err(wrong("the password is empty", "write USER:PASSWORD@, or leave out everything before the host"));
    }
    Ok(((!user.is_empty()).then_some(user), Some(password.into())))
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
            let user = if redis.password.is_some() { format!("{user}:{MASK}@") } else { String::new() };
            let host = if redis.host.contains(':') { format!("[{}]", redis.host) } else { redis.host.clone() };
            format!("{scheme}://{user}{host}:{}/{}", redis.port, redis.db)
        }
        Backend::Postgres(postgres) => postgres_url::print(postgres),
    }
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

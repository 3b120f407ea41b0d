//! The URL of a Redis on this host that is reached through its Unix socket, written as the clients of Redis write it:
//! `redis+unix:///PATH?db=0&user=USER&pass=PASSWORD`.
//!
//! A file of its own, because nothing in it is where the URLs of servers on a network have it: where those have a host,
//! a password and a number, this one has a path and options.

use std::path::Path;

use secrecy::SecretString;

use super::address::absolute_socket;
use super::mistakes::{Wrong, wrong};
use super::store::{Redis, Topology};
use super::store_url::{MASK, database, decoded, login, percent_encode};

const RIGHT: &str = "write redis+unix:///PATH[?db=0&user=USER&pass=PASSWORD], with odd characters as %XX";

/// Parses what follows `redis+unix:` or `unix:`.
pub(super) fn parse(rest: &str) -> Result<Redis, Wrong> {
    let rest = rest.strip_prefix("//").ok_or_else(|| wrong("two slashes are missing after the scheme", RIGHT))?;
    if rest.contains('#') {
        return Err(wrong("the URL holds #", "write %23 in a password"));
    }
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err(match path.contains('@') {
            true => wrong("a Unix socket has no place for a user before it", RIGHT),
            false => wrong("the path of the Unix socket does not begin at the root", RIGHT),
        });
    }
    let path = decoded(path)?;
    absolute_socket(&path, RIGHT)?;
    let options = Options::parse(query)?;
    let (username, password) = match (options.user, options.pass) {
        (user, None) => (user.filter(|user| !user.is_empty()), None),
        (user, Some(password)) => login(user.unwrap_or_default(), password)?,
    };
    let db = options.db.map_or(Ok(0), |db| database(&db))?;
    Ok(Redis { db, username, password, ..Redis::new(Topology::Socket(path.into())) })
}

#[derive(Default)]
struct Options {
    db: Option<String>,
    user: Option<String>,
    pass: Option<String>,
}

impl Options {
    fn parse(query: &str) -> Result<Options, Wrong> {
        let mut options = Options::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let place = match name {
                "db" => &mut options.db,
                "user" => &mut options.user,
                "pass" => &mut options.pass,
                // It is not shown: it may be the end of a password.
                _ => return Err(wrong("an option of the URL is not known", format!("{RIGHT}, & among them as %26"))),
            };
            if place.replace(decoded(value)?).is_some() {
                return Err(wrong(format!("{name} is given twice"), "write it once"));
            }
        }
        Ok(options)
    }
}

/// The URL as it is written in a file, with the password masked.
pub(super) fn print(path: &Path, db: i64, username: Option<&str>, password: Option<&SecretString>) -> String {
    let path: Vec<_> = path.to_string_lossy().split('/').map(percent_encode).collect();
    let user = username.map(|user| format!("&user={}", percent_encode(user))).unwrap_or_default();
    let password = password.map(|_| format!("&pass={MASK}")).unwrap_or_default();
    format!("redis+unix://{}?db={db}{user}{password}", path.join("/"))
}

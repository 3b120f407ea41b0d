//! The URL of a Postgres server, parsed and printed. A file of its own, because two settings hold one: `store.url` and
//! `second_line.url`.

use super::address::host_and_port;
use super::mistakes::{Wrong, wrong};
use super::store::{Postgres, SslMode};
use super::store_url::{MASK, credentials, percent_decode, percent_encode};

const RIGHT: &str = "write postgres://USER:PASSWORD@HOST[:PORT]/DATABASE[?sslmode=disable|require|verify-full], with odd \
                     characters of the password as %XX";
const PORT: u16 = 5432;

/// The words of `sslmode`.
const MODES: [(&str, SslMode); 3] =
    [("disable", SslMode::Disable), ("require", SslMode::Require), ("verify-full", SslMode::VerifyFull)];

/// Parses what follows `postgres:`.
pub(super) fn parse(rest: &str) -> Result<Postgres, Wrong> {
    let rest = rest.strip_prefix("//").ok_or_else(|| wrong("two slashes are missing after the scheme", RIGHT))?;
    if rest.contains('#') {
        return Err(wrong("the URL holds #", "write %23 in a password"));
    }
    // A password with a raw `/` or `?` would end the authority too early; then a later part holds the `@`.
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if path.contains('@') || query.contains('@') {
        return Err(wrong("the password holds a slash or a question mark", "write it as %2F or %3F"));
    }
    let Some((user, place)) = authority.rsplit_once('@') else {
        return Err(wrong("the URL names no user", RIGHT));
    };
    let (user, password) = match user.contains(':') {
        true => credentials(user)?,
        // The server may know the user by its certificate, or trust the network.
        false => (percent_decode(user), None),
    };
    let user = user.filter(|user| !user.is_empty()).ok_or_else(|| wrong("the URL names no user", RIGHT))?;
    let (host, port) = host_and_port(place).map_err(|()| wrong("the URL has no valid host and port", RIGHT))?;
    let port = match port {
        Some(0) => return Err(wrong("port 0 cannot be connected to", RIGHT)),
        given => given.unwrap_or(PORT),
    };
    let database = percent_decode(path).filter(|name| !name.is_empty() && !name.contains(['/', '\0']));
    let database = database.ok_or_else(|| wrong("the URL names no database", RIGHT))?;
    let mut sslmode = None;
    for part in query.split('&').filter(|part| !part.is_empty()) {
        if sslmode.replace(option(part)?).is_some() {
            return Err(wrong("sslmode is given twice", "write it once"));
        }
    }
    let sslmode = sslmode.unwrap_or(SslMode::Disable);
    Ok(Postgres { host, port, database, user, password, sslmode, ca_file: None, client: None })
}

fn option(text: &str) -> Result<SslMode, Wrong> {
    let known = text.strip_prefix("sslmode=").and_then(|word| MODES.iter().find(|(name, _)| *name == word));
    // The rest of the text is not shown: it may be the end of a password.
    known
        .map(|(_, mode)| *mode)
        .ok_or_else(|| wrong("an option of the URL is not known", "write ?sslmode=disable, require or verify-full"))
}

/// The URL as it is written in a file, with the password masked.
pub(super) fn print(postgres: &Postgres) -> String {
    let Postgres { host, port, database, user, password, sslmode, .. } = postgres;
    let user = percent_encode(user);
    let password = if password.is_some() { format!(":{MASK}") } else { String::new() };
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mode = super::values::word(&MODES, sslmode);
    format!("postgres://{user}{password}@{host}:{port}/{}?sslmode={mode}", percent_encode(database))
}

//! The URL of a Postgres server, parsed and printed. A file of its own, because two settings hold one: `store.url` and
//! `second_line.url`.

use super::address::{absolute_socket, host_and_port};
use super::mistakes::{Wrong, wrong};
use super::store::{Password, Postgres, SslMode};
use super::store_url::{MASK, credentials, decoded, percent_decode, percent_encode};

const RIGHT: &str = "write postgres://USER:PASSWORD@HOST[:PORT]/DATABASE[?sslmode=disable|require|verify-full], with odd \
                     characters of the password as %XX";
const SOCKET: &str = "write postgres://USER:PASSWORD@/DATABASE?host=/FOLDER[&port=PORT]";
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
    // Without a password: the server may know the user by its certificate, or trust the network.
    let (user, password) = credentials(user)?;
    let user = user.ok_or_else(|| wrong("the URL names no user", RIGHT))?;
    let database = percent_decode(path).filter(|name| !name.is_empty() && !name.contains(['/', '\0']));
    let database = database.ok_or_else(|| wrong("the URL names no database", RIGHT))?;
    let options = Options::parse(query)?;
    let sslmode = options.sslmode.unwrap_or(SslMode::Disable);
    let (host, port) = match options.folder {
        Some(_) if !place.is_empty() => return Err(wrong("the URL names a host twice", SOCKET)),
        Some(_) if sslmode != SslMode::Disable => return Err(wrong("there is no TLS on a Unix socket", SOCKET)),
        Some(folder) => (folder, options.port),
        None if options.port.is_some() => return Err(wrong("the port is not behind the host", RIGHT)),
        None => host_and_port(place).map_err(|()| wrong("the URL has no valid host and port", RIGHT))?,
    };
    let port = match port {
        Some(0) => return Err(wrong("port 0 cannot be connected to", RIGHT)),
        given => given.unwrap_or(PORT),
    };
    let postgres = Postgres { host, port, database, user, password, sslmode, ca_file: None, client: None };
    if let Some(socket) = postgres.socket() {
        absolute_socket(&socket.to_string_lossy(), SOCKET)?;
    }
    Ok(postgres)
}

#[derive(Default)]
struct Options {
    sslmode: Option<SslMode>,
    folder: Option<String>,
    port: Option<u16>,
}

impl Options {
    fn parse(query: &str) -> Result<Options, Wrong> {
        // Neither name nor value is shown: it may be the end of a password.
        let unknown = || wrong("an option of the URL is not known", "write ?sslmode=disable, require or verify-full");
        let mut options = Options::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(unknown)?;
            let was_given = match name {
                "sslmode" => {
                    let (_, mode) = MODES.iter().find(|(word, _)| *word == value).ok_or_else(unknown)?;
                    options.sslmode.replace(*mode).is_some()
                }
                "host" => {
                    let folder = decoded(value)?.trim_end_matches('/').to_owned();
                    if !folder.starts_with('/') {
                        return Err(wrong("host= is for the folder of a Unix socket, from the root", SOCKET));
                    }
                    options.folder.replace(folder).is_some()
                }
                "port" => {
                    let port = value.parse().map_err(|_| wrong("the URL has no valid port", SOCKET))?;
                    options.port.replace(port).is_some()
                }
                _ => return Err(unknown()),
            };
            if was_given {
                return Err(wrong(format!("{name} is given twice"), "write it once"));
            }
        }
        Ok(options)
    }
}

/// The URL as it is written in a file, with the password masked.
pub(super) fn print(postgres: &Postgres) -> String {
    let Postgres { host, port, database, user, password, sslmode, .. } = postgres;
    let user = percent_encode(user);
    let given = password.as_ref().and_then(Password::given);
    let password = if given.is_some() { format!(":{MASK}") } else { String::new() };
    if postgres.socket().is_some() {
        let folder: Vec<_> = host.split('/').map(percent_encode).collect();
        return format!(
            "postgres://{user}{password}@/{}?host={}&port={port}",
            percent_encode(database),
            folder.join("/")
        );
    }
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    let mode = super::values::word(&MODES, sslmode);
    format!("postgres://{user}{password}@{host}:{port}/{}?sslmode={mode}", percent_encode(database))
}

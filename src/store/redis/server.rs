//! One server: where it is, how to get in, and what was last seen of it. One on this host may be behind a Unix socket.
//!
//! Which servers there are, and which of them an operation goes to, is `topology`'s affair.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, Value};
use rustls::pki_types::ServerName;
use secrecy::ExposeSecret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::health::{Condition, Watched};
use super::link::Connection;
use super::tls;
use crate::config::store::{Password, Place, Redis, RedisTls, Sentinels};
use crate::reach::{self, Patience};
use crate::store::OpenError;
use crate::store::kept::{self, Kept, Renewals};

// Callers beyond this many wait for the writer to take theirs; they do not fail.
const QUEUE: usize = 4096;
const KEEPALIVE: Duration = Duration::from_secs(10);
// Never less than this: a lost segment takes a fifth of a second and more to be sent again.
const LEAST_USER_TIMEOUT: Duration = Duration::from_secs(2);

/// How to get into the servers of a store; the same for all of them.
#[derive(Clone)]
pub(super) struct Access {
    entry: Arc<Kept<Entry>>,
    /// The TLS of the settings.
    tls: Option<RedisTls>,
    renewals: Renewals,
    user_timeout: Duration,
    watched: Watched,
}

impl Access {
    /// Reads the files.
    pub(super) fn new(
        config: &Redis,
        timeout: Duration,
        watched: Watched,
        renewals: Renewals,
    ) -> Result<Access, OpenError> {
        let login = Login {
            username: config.username.clone(),
            password: config.password.clone(),
            db: config.db,
            setting: "store.password_file",
        };
        let entry = Entry::kept(&renewals, login, config.tls.clone())?;
        let user_timeout = (timeout * 2).max(LEAST_USER_TIMEOUT);
        Ok(Access { entry, tls: config.tls.clone(), renewals, watched, user_timeout })
    }

    /// The same way to the sentinels, who have users and passwords of their own.
    pub(super) fn to_sentinels(&self, config: &Sentinels) -> Result<Access, OpenError> {
        let login = Login {
            username: config.username.clone(),
            password: config.password.clone(),
            db: 0,
            setting: "store.sentinel_password_file",
        };
        Ok(Access { entry: Entry::kept(&self.renewals, login, self.tls.clone())?, ..self.clone() })
    }
}

/// What the settings say of a login.
struct Login {
    username: Option<String>,
    password: Option<Password>,
    db: i64,
    /// Which names the file of the password.
    setting: &'static str,
}

/// What a connection needs of what is in files.
struct Entry {
    login: RedisConnectionInfo,
    tls: Option<TlsConnector>,
}

impl Entry {
    fn kept(renewals: &Renewals, login: Login, tls: Option<RedisTls>) -> Result<Arc<Kept<Entry>>, OpenError> {
        let password = login.password.as_ref().and_then(Password::file).map(Path::to_owned);
        let of_tls: Vec<_> = tls.iter().flat_map(RedisTls::files).map(Path::to_owned).collect();
        let files: Vec<_> = password.into_iter().chain(of_tls).collect();
        let make = move || {
            let tls = tls.as_ref().map(tls::connector).transpose()?;
            Ok(Entry { login: login.read()?, tls })
        };
        Kept::new(renewals, "store", files.iter().map(PathBuf::as_path), make)
    }
}

impl Login {
    fn read(&self) -> Result<RedisConnectionInfo, OpenError> {
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name().set_db(self.db);
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(kept::password(password, self.setting)?.expose_secret());
        }
        Ok(login)
    }
}

/// How bytes get to a server.
enum Way {
    Tcp(Place),
    Tls(Place, ServerName<'static>),
    Socket(PathBuf),
}

/// A server.
pub(super) struct Server {
    way: Way,
    access: Arc<Access>,
    // Whether each connection begins with the question whether this is a master.
    asks_role: bool,
    is_left: AtomicBool,
    // Connections of an earlier one are given up.
    generation: AtomicU64,
    /// What was last seen of it.
    pub(super) condition: Condition,
}

impl Server {
    /// A server at this place. Fails if no certificate can carry the host's name.
    pub(super) fn new(place: Place, access: Arc<Access>) -> Result<Server, OpenError> {
        if access.tls.is_none() {
            return Ok(Server::by(Way::Tcp(place), access));
        }
        let name = ServerName::try_from(place.host.clone()).map_err(|e| {
            OpenError::new(format!("store.url: {} is not a name that a certificate can carry", place.host)).because(e)
        })?;
        Ok(Server::by(Way::Tls(place, name), access))
    }

    /// The server that listens on this socket.
    pub(super) fn at_socket(path: PathBuf, access: Arc<Access>) -> Server {
        Server::by(Way::Socket(path), access)
    }

    fn by(way: Way, access: Arc<Access>) -> Server {
        let condition = Condition::new(access.watched.clone());
        let (is_left, generation) = (AtomicBool::new(false), AtomicU64::new(0));
        Server { way, access, asks_role: false, is_left, generation, condition }
    }

    /// The same, of which every connection must be one to a master.
    pub(super) fn only_as_master(self) -> Server {
        Server { asks_role: true, ..self }
    }

    /// Where it is, on a network.
    pub(super) fn place(&self) -> Option<&Place> {
        match &self.way {
            Way::Tcp(place) | Way::Tls(place, ..) => Some(place),
            Way::Socket(_) => None,
        }
    }

    /// Where it is, for the log.
    pub(super) fn address(&self) -> String {
        match &self.way {
            Way::Tcp(Place { host, port }) | Way::Tls(Place { host, port }, ..) if host.contains(':') => {
                format!("[{host}]:{port}")
            }
            Way::Tcp(Place { host, port }) | Way::Tls(Place { host, port }, ..) => format!("{host}:{port}"),
            Way::Socket(path) => path.display().to_string(),
        }
    }

    /// Whether another server has its part by now.
    pub(super) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    /// Gives it up.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
        self.renounce_connections();
    }

    /// Gives all connections up that are open now. New ones find out anew what it is.
    pub(super) fn renounce_connections(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Which connections count: those that were opened in this generation.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    async fn tcp(&self, place: &Place) -> io::Result<TcpStream> {
        let unacknowledged = self.access.user_timeout;
        let patience = Patience { keepalive: KEEPALIVE, interval: KEEPALIVE / 4, unacknowledged };
        reach::tcp(&place.host, place.port, &patience).await
    }

    /// A connection for commands, logged in.
    pub(super) async fn connect(&self) -> Result<Connection, RedisError> {
        let entry = self.access.entry.fresh().await;
        let mut connection = self.connect_with(&entry, &entry.login, plain()).await?;
        if self.asks_role {
            check_role(connection.commands.send_packed_command(&redis::cmd("ROLE")).await?.extract_error()?)?;
        }
        Ok(connection)
    }

    /// A connection that hears published messages. They, and the end of the connection, go to `pushes`.
    pub(super) async fn connect_listener(&self, pushes: UnboundedSender<PushInfo>) -> Result<Connection, RedisError> {
        let entry = self.access.entry.fresh().await;
        let login = entry.login.clone().set_protocol(ProtocolVersion::RESP3);
        self.connect_with(&entry, &login, plain().set_push_sender(pushes)).await
    }

    async fn connect_with(
        &self,
        entry: &Entry,
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<Connection, RedisError> {
        let generation = self.generation();
        let (commands, task) = match &self.way {
            Way::Tcp(place) => log_in(login, self.tcp(place).await?, config).await?,
            Way::Tls(place, name) => {
                let connector = entry.tls.as_ref().expect("a server by TLS has its entry by TLS");
                let stream = connector.connect(name.clone(), self.tcp(place).await?).await?;
                log_in(login, stream, config).await?
            }
            Way::Socket(path) => log_in(login, UnixStream::connect(path).await?, config).await?,
        };
        Ok(Connection::new(commands, task, generation))
    }
}

/// Logs in, and has a task move the bytes from then on.
async fn log_in<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    login: &RedisConnectionInfo,
    stream: S,
    config: AsyncConnectionConfig,
) -> Result<(MultiplexedConnection, JoinHandle<()>), RedisError> {
    let (commands, driver) = MultiplexedConnection::new_with_config(login, stream, config).await?;
    Ok((commands, tokio::spawn(driver)))
}

/// A server that was demoted still takes connections, and would answer what only reads from data that lag behind.
fn check_role(answer: Value) -> Result<(), RedisError> {
    let Value::Array(parts) = answer else {
        return Err((ErrorKind::UnexpectedReturnType, "ROLE is not understood").into());
    };
    match parts.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(()),
        _ => Err(redis::make_extension_error("READONLY".into(), Some("this is a replica".into()))),
    }
}

fn plain() -> AsyncConnectionConfig {
    // Deadlines are kept in `ask`, where they are for the whole operation.
    AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(QUEUE)
}

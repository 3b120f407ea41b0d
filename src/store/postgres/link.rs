//! Connections to the server: how one is made, and the link that keeps one for many callers.
//!
//! How such a link works is `store::link`'s; whether to repeat what was asked on it is decided in `ask`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use secrecy::ExposeSecret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::config::SslMode as DriverSslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::TlsConnect;
use tokio_postgres::{AsyncMessage, Client, Config, Connection as Driver, NoTls};

use super::tls::Tls;
use crate::config::store::Postgres;
use crate::reach::{self, Patience};
use crate::store::OpenError;
use crate::store::kept::{self, Kept, Renewals};
use crate::store::link::Peer;

const KEEPALIVE: Duration = Duration::from_secs(10);
// Never less than this: a lost segment takes a fifth of a second and more to be sent again.
const LEAST_USER_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the server is and how to get in.
pub(super) struct Endpoint {
    host: String,
    port: u16,
    /// Where the host is a folder.
    socket: Option<PathBuf>,
    entry: Arc<Kept<Entry>>,
    /// Asked for at login: bounds on the server's side, and a mark by which a direct connection is known.
    options: String,
    user_timeout: Duration,
    /// A pooler was met, which takes no options.
    takes_no_options: AtomicBool,
}

/// What a connection needs of what is in files.
struct Entry {
    login: Config,
    tls: Option<Tls>,
}

impl Entry {
    /// Reads the files. `section` is named in errors.
    fn read(config: &Postgres, section: &str) -> Result<Entry, OpenError> {
        let tls = Tls::new(config, section)?;
        let mut login = Config::new();
        login.user(&config.user).dbname(&config.database).application_name("onceproxy");
        login.ssl_mode(if tls.is_some() { DriverSslMode::Require } else { DriverSslMode::Disable });
        if let Some(password) = &config.password {
            let password = kept::password(password, &format!("{section}.password_file"))?;
            login.password(password.expose_secret());
        }
        Ok(Entry { login, tls })
    }
}

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(super) enum Unconnected {
    /// The server or the network did not let it come about.
    Io(Arc<io::Error>),
    /// The server answered that it will not, or the login failed.
    Driver(Arc<tokio_postgres::Error>),
}

impl Endpoint {
    /// Reads the files, which is what can be wrong for good. `section` is named in errors.
    pub(super) fn new(
        config: &Postgres,
        timeout: Duration,
        section: &str,
        renewals: &Renewals,
    ) -> Result<Endpoint, OpenError> {
        let (settings, named) = (config.clone(), section.to_owned());
        let entry = Kept::new(renewals, section, config.files(), move || Entry::read(&settings, &named))?;
        let ms = timeout.as_millis().max(1);
        let options = format!("-c statement_timeout={ms} -c lock_timeout={ms} -c onceproxy.direct=yes");
        let user_timeout = (timeout * 2).max(LEAST_USER_TIMEOUT);
        let takes_no_options = AtomicBool::new(false);
        Ok(Endpoint {
            host: config.host.clone(),
            port: config.port,
            socket: config.socket(),
            entry,
            options,
            user_timeout,
            takes_no_options,
        })
    }

    /// Where it is, for the log.
    pub(super) fn address(&self) -> String {
        match &self.socket {
            Some(path) => path.display().to_string(),
            None if self.host.contains(':') => format!("[{}]:{}", self.host, self.port),
            None => format!("{}:{}", self.host, self.port),
        }
    }

    async fn tcp(&self) -> io::Result<TcpStream> {
        let unacknowledged = self.user_timeout;
        let patience = Patience { keepalive: KEEPALIVE, interval: KEEPALIVE / 4, unacknowledged };
        reach::tcp(&self.host, self.port, &patience).await
    }

    /// A connection, logged in. Notifications that it hears go to `heard`, which is dropped at its end.
    pub(super) async fn connect(&self, heard: Option<UnboundedSender<String>>) -> Result<Connection, Unconnected> {
        let Entry { login, tls } = &*self.entry.fresh().await;
        if !self.takes_no_options.load(Ordering::Relaxed) {
            let mut login = login.clone();
            login.options(&self.options);
            match self.log_in(&login, tls.as_ref(), heard.clone()).await {
                Err(Unconnected::Driver(error)) if is_about_options(&error) => {
                    self.takes_no_options.store(true, Ordering::Relaxed);
                }
                connected => return connected,
            }
        }
        self.log_in(login, tls.as_ref(), heard).await
    }

    async fn log_in(
        &self,
        login: &Config,
        tls: Option<&Tls>,
        heard: Option<UnboundedSender<String>>,
    ) -> Result<Connection, Unconnected> {
        let away = |e| Unconnected::Io(Arc::new(e));
        if let Some(path) = &self.socket {
            return begin(login, UnixStream::connect(path).await.map_err(away)?, NoTls, heard).await;
        }
        let tcp = self.tcp().await.map_err(away)?;
        match tls {
            None => begin(login, tcp, NoTls, heard).await,
            Some(tls) => begin(login, tcp, tls.clone(), heard).await,
        }
    }
}

/// Logs in, and has a task move the bytes from then on.
async fn begin<S, T>(
    login: &Config,
    stream: S,
    tls: T,
    heard: Option<UnboundedSender<String>>,
) -> Result<Connection, Unconnected>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: TlsConnect<S>,
    T::Stream: Send + 'static,
{
    let connected = login.connect_raw(stream, tls).await;
    let (client, driver) = connected.map_err(|e| Unconnected::Driver(Arc::new(e)))?;
    let task = tokio::spawn(drive(driver, heard));
    Ok(Connection { client: Arc::new(client), driver: Arc::new(Running(task)) })
}

/// A pooler in transaction mode knows only some of the parameters of a login.
fn is_about_options(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::PROTOCOL_VIOLATION) && error.as_db_error().is_some_and(|e| says(e, "startup param"))
}

fn says(error: &tokio_postgres::error::DbError, what: &str) -> bool {
    error.message().contains(what)
}

async fn drive<S, T>(mut driver: Driver<S, T>, heard: Option<UnboundedSender<String>>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = std::future::poll_fn(|cx| driver.poll_message(cx)).await {
        match message {
            Ok(AsyncMessage::Notification(said)) => {
                if let Some(heard) = &heard {
                    let _ = heard.send(said.payload().to_owned());
                }
            }
            Ok(_) => {}
            // Whoever waits for an answer on it is told by the driver.
            Err(_) => return,
        }
    }
}

/// An open connection. Clones share it; it closes when the last one is dropped.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) client: Arc<Client>,
    driver: Arc<Running>,
}

impl Connection {
    fn is(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }

    fn is_closed(&self) -> bool {
        self.driver.0.is_finished() || self.client.is_closed()
    }
}

struct Running(tokio::task::JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A connection to the server that is there when it is needed.
pub(super) type Link = crate::store::link::Link<Endpoint>;

impl Link {
    /// Where it leads.
    pub(super) fn endpoint(&self) -> &Endpoint {
        self.peer()
    }
}

impl Peer for Endpoint {
    type Connection = Connection;
    type Failure = Unconnected;

    fn connect(&self) -> impl Future<Output = Result<Connection, Unconnected>> + Send {
        Endpoint::connect(self, None)
    }

    fn is_open(&self, connection: &Connection) -> bool {
        !connection.is_closed()
    }

    fn is_same(one: &Connection, other: &Connection) -> bool {
        one.is(other)
    }
}

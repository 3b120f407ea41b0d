//! Connections to the server: how one is made, and one kept open for many callers.
//!
//! A [`Link`] holds a single connection on which all callers' commands follow each other without waiting; it never
//! sends anything twice by itself. Whether to repeat is decided in `ask`.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use secrecy::ExposeSecret;
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio_rustls::TlsConnector;

use crate::config::store::{Redis, RedisTls};
use crate::store::OpenError;

// Callers beyond this many wait for the writer to take theirs; they do not fail.
const QUEUE: usize = 4096;
const KEEPALIVE: Duration = Duration::from_secs(10);
// Never less than this: a lost segment takes a fifth of a second and more to be sent again.
const LEAST_USER_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the server is and how to get in.
pub(super) struct Endpoint {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    login: RedisConnectionInfo,
    user_timeout: Duration,
}

impl Endpoint {
    /// Reads the certificate files, which is what can be wrong for good.
    pub(super) fn new(config: &Redis, timeout: Duration) -> Result<Endpoint, OpenError> {
        let mut login = RedisConnectionInfo::default().set_db(config.db).set_skip_set_lib_name();
        if let Some(username) = &config.username {
            login = login.set_username(username);
        }
        if let Some(password) = &config.password {
            login = login.set_password(password.expose_secret());
        }
        let tls = config.tls.as_ref().map(|tls| connector(tls, &config.host)).transpose()?;
        let user_timeout = (timeout * 2).max(LEAST_USER_TIMEOUT);
        Ok(Endpoint { host: config.host.clone(), port: config.port, tls, login, user_timeout })
    }

    /// Where it is, for the log.
    pub(super) fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    async fn tcp(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let socket = socket2::SockRef::from(&stream);
        socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4))?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(self.user_timeout))?;
        Ok(stream)
    }

    /// A connection for commands, logged in.
    async fn connect(&self) -> Result<Connection, RedisError> {
        self.connect_with(&self.login, plain()).await
    }

    /// A connection that hears published messages. They, and the end of the connection, go to `pushes`.
    pub(super) async fn connect_listener(&self, pushes: UnboundedSender<PushInfo>) -> Result<Connection, RedisError> {
        let login = self.login.clone().set_protocol(ProtocolVersion::RESP3);
        self.connect_with(&login, plain().set_push_sender(pushes)).await
    }

    async fn connect_with(
        &self,
        login: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
    ) -> Result<Connection, RedisError> {
        let tcp = self.tcp().await?;
        let (commands, driver) = match &self.tls {
            None => {
                let (commands, driver) = MultiplexedConnection::new_with_config(login, tcp, config).await?;
                (commands, tokio::spawn(driver))
            }
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), tcp).await?;
                let (commands, driver) = MultiplexedConnection::new_with_config(login, stream, config).await?;
                (commands, tokio::spawn(driver))
            }
        };
        Ok(Connection { commands, driver: Arc::new(Driver(driver)) })
    }
}

fn plain() -> AsyncConnectionConfig {
    // Deadlines are kept in `ask`, where they are for the whole operation.
    AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(QUEUE)
}

fn connector(tls: &RedisTls, host: &str) -> Result<(TlsConnector, ServerName<'static>), OpenError> {
    let name = ServerName::try_from(host.to_owned()).map_err(|e| {
        OpenError::new(format!("store.url: {host} is not a name that a certificate can carry")).because(e)
    })?;
    let mut roots = RootCertStore::empty();
    match &tls.ca_file {
        Some(file) => {
            for certificate in certificates(file, "store.ca_file")? {
                roots.add(certificate).map_err(|e| unreadable("store.ca_file", file, "certificates").because(e))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(OpenError::new("this system has no certificate store; set store.ca_file to a PEM file"));
            }
        }
    }
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| OpenError::new("TLS cannot be set up").because(e))?
        .with_root_certificates(roots);
    let config = match &tls.client {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain = certificates(certificate, "store.client_cert_file")?;
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|e| unreadable("store.client_key_file", key, "a private key").because(e))?;
            builder.with_client_auth_cert(chain, key).map_err(|e| {
                OpenError::new("store.client_cert_file and store.client_key_file do not belong together").because(e)
            })?
        }
    };
    Ok((TlsConnector::from(Arc::new(config)), name))
}

fn certificates(file: &std::path::Path, setting: &str) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|e| unreadable(setting, file, "certificates").because(e))?;
    match certificates.is_empty() {
        true => Err(unreadable(setting, file, "certificates")),
        false => Ok(certificates),
    }
}

fn unreadable(setting: &str, file: &std::path::Path, what: &str) -> OpenError {
    let file = file.display();
    OpenError::new(format!("{setting}: {file} must be a file that can be read and holds {what} in PEM form"))
}

/// An open connection. Clones share it; it closes when the last one is dropped.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) commands: MultiplexedConnection,
    driver: Arc<Driver>,
}

impl Connection {
    fn is(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }

    fn is_closed(&self) -> bool {
        self.driver.0.is_finished()
    }
}

struct Driver(tokio::task::JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One connection for many callers, opened by the first and again when it broke.
pub(super) struct Link {
    endpoint: Arc<Endpoint>,
    // Held only to look or to put in, never across an await.
    current: Mutex<Current>,
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Current {
    connection: Option<Connection>,
    failed_attempts: u64,
    failure: Option<RedisError>,
}

impl Link {
    /// A link that is not open yet.
    pub(super) fn new(endpoint: Arc<Endpoint>) -> Link {
        Link { endpoint, current: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// Where it leads.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The open connection. One caller opens it while the others wait, and all who waited share its failure.
    pub(super) async fn connection(&self) -> Result<Connection, RedisError> {
        let failed_before = match self.look() {
            Ok(connection) => return Ok(connection),
            Err(failed) => failed,
        };
        let _connecting = self.connecting.lock().await;
        match self.look() {
            Ok(connection) => return Ok(connection),
            Err(failed) if failed != failed_before => {
                if let Some(failure) = self.lock().failure.clone() {
                    return Err(failure);
                }
            }
            Err(_) => {}
        }
        // Boxed, as all that is rare here and in `redis.rs`: it would make the future of every operation larger.
        let connected = Box::pin(self.endpoint.connect()).await;
        let mut current = self.lock();
        match &connected {
            Ok(connection) => current.connection = Some(connection.clone()),
            Err(failure) => {
                current.failed_attempts += 1;
                current.failure = Some(failure.clone());
            }
        }
        connected
    }

    /// The open connection, or how many attempts have failed so far.
    fn look(&self) -> Result<Connection, u64> {
        let current = self.lock();
        match &current.connection {
            Some(connection) if !connection.is_closed() => Ok(connection.clone()),
            _ => Err(current.failed_attempts),
        }
    }

    /// Gives this connection up, so that the next caller opens another. What is under way on it goes on.
    pub(super) fn discard(&self, broken: &Connection) {
        self.lock().connection.take_if(|current| current.is(broken));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! One connection for many callers, opened by the first and again when it broke.
//!
//! All callers' commands follow each other on it without waiting; nothing is ever sent twice by itself. Whether to
//! repeat is decided in `ask`.

use std::sync::{Arc, Mutex, PoisonError};

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::acknowledge::Group;
use super::server::Server;

/// An open connection. Clones share it; it closes when the last one is dropped.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) commands: MultiplexedConnection,
    driver: Arc<Driver>,
}

impl Connection {
    /// An open connection, and the task that moves its bytes.
    pub(super) fn new(
        commands: MultiplexedConnection,
        task: tokio::task::JoinHandle<()>,
        generation: u64,
    ) -> Connection {
        Connection { commands, driver: Arc::new(Driver { task, generation, group: Arc::default() }) }
    }

    fn is(&self, other: &Connection) -> bool {
        Arc::ptr_eq(&self.driver, &other.driver)
    }

    fn is_open(&self, server: &Server) -> bool {
        !self.driver.task.is_finished() && self.driver.generation == server.generation()
    }

    /// The claims on it that wait for replicas together.
    pub(super) fn group(&self) -> &Arc<Group> {
        &self.driver.group
    }
}

struct Driver {
    task: tokio::task::JoinHandle<()>,
    generation: u64,
    group: Arc<Group>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A connection to one server that is there when it is needed.
pub(super) struct Link {
    server: Arc<Server>,
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
    pub(super) fn new(server: Arc<Server>) -> Link {
        Link { server, current: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    /// Where it leads.
    pub(super) fn server(&self) -> &Arc<Server> {
        &self.server
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
        let connected = Box::pin(self.server.connect()).await;
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
            Some(connection) if connection.is_open(&self.server) => Ok(connection.clone()),
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

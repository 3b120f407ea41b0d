//! The open connections to a server, and the link that keeps one for many callers.
//!
//! How such a link works is `store::link`'s; whether to repeat what was asked on it is decided in `ask`.

use std::sync::Arc;

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::acknowledge::Group;
use super::server::Server;
use crate::store::link::Peer;

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
pub(super) type Link = crate::store::link::Link<Server>;

impl Link {
    /// Where it leads.
    pub(super) fn server(&self) -> &Arc<Server> {
        self.peer()
    }
}

impl Peer for Server {
    type Connection = Connection;
    type Failure = RedisError;

    fn connect(&self) -> impl Future<Output = Result<Connection, RedisError>> + Send {
        Server::connect(self)
    }

    fn is_open(&self, connection: &Connection) -> bool {
        connection.is_open(self)
    }

    fn is_same(one: &Connection, other: &Connection) -> bool {
        Arc::ptr_eq(&one.driver, &other.driver)
    }
}

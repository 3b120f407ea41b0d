//! A real Redis of its own for one test: in a temporary folder, on a free port, ended by its process id.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::eventually;
use super::proxy::signal;
use super::topologies::Entry;
use crate::redis_server;

/// The server. Dropping it ends it.
pub(crate) struct RedisServer {
    /// Where it listens in clear, for the test's own questions.
    pub(crate) address: SocketAddr,
    /// Where the proxies are to connect: the same, or where it listens with TLS.
    pub(crate) reached: SocketAddr,
    child: Child,
    folder: tempfile::TempDir,
    settings: Vec<String>,
}

impl RedisServer {
    /// Starts one with these further arguments, by default without persistence, and waits until it answers. Fails,
    /// never skips, where there is no `redis-server`.
    pub(crate) async fn start(settings: &[&str]) -> RedisServer {
        RedisServer::start_with(settings, None).await
    }

    /// The same, with these demands on whoever enters.
    pub(crate) async fn start_with(settings: &[&str], entry: Option<&Entry>) -> RedisServer {
        for _ in 0..10 {
            // Another process may take the port between this line and Redis: then Redis exits, and we try the next.
            let [address, secured] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
            let mut settings: Vec<String> = settings.iter().map(|&word| word.to_owned()).collect();
            let mut reached = address;
            if let Some(entry) = entry {
                settings.extend(entry.tls_settings(&[], secured.port()));
                settings.extend(entry.user_settings());
                reached = secured;
            }
            let folder = tempfile::tempdir().unwrap();
            let child = spawn(address, folder.path(), &settings);
            let mut server = RedisServer { address, reached, child, folder, settings };
            if server.came_up().await {
                return server;
            }
        }
        panic!("no free port for redis-server");
    }

    /// Ends it as a crash would; without persistence its data are gone.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same port, with what its persistence kept: by default nothing.
    pub(crate) async fn restart(&mut self) {
        for _ in 0..10 {
            self.kill();
            self.child = spawn(self.address, self.folder.path(), &self.settings);
            // A connection of another process may have its port for a moment.
            if self.came_up().await {
                return;
            }
        }
        panic!("redis-server did not come back on {}", self.address);
    }

    /// It goes on holding its connections, and answers nothing.
    pub(crate) fn pause(&self) {
        signal("STOP", self.child.id());
    }

    /// It goes on.
    pub(crate) fn resume(&self) {
        signal("CONT", self.child.id());
    }

    /// From now on its log does not grow any more (`false`), as on a full disk; or there is room again.
    pub(crate) fn leave_room(&self, room: bool) {
        let limit = (!room).then(|| {
            let folder = std::fs::read_dir(self.folder.path().join("appendonlydir")).expect("a Redis that keeps a log");
            let sizes = folder.map(|file| file.unwrap().metadata().unwrap().len());
            sizes.max().expect("the files of the log")
        });
        let limit = limit.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        let arguments = ["--pid", &self.child.id().to_string(), &format!("--fsize={limit}:unlimited")];
        let done = Command::new("prlimit").args(arguments).status().expect("prlimit of util-linux is installed");
        assert!(done.success());
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Sends one command and returns the raw reply.
    pub(crate) async fn command(&self, words: &[&str]) -> Vec<u8> {
        command(self.address, words).await.expect("a reply of redis-server")
    }

    /// Every key and value that it holds, as raw bytes in a row.
    pub(crate) async fn dump(&self) -> Vec<u8> {
        let script = "local all = {} for _, k in ipairs(redis.call('KEYS', '*')) do all[#all + 1] = k \
                      if redis.call('TYPE', k).ok == 'string' then all[#all + 1] = redis.call('GET', k) end \
                      if redis.call('TYPE', k).ok == 'hash' then \
                      for _, v in ipairs(redis.call('HGETALL', k)) do all[#all + 1] = v end end end return all";
        self.command(&["EVAL", script, "0"]).await
    }

    async fn came_up(&mut self) -> bool {
        let address = self.address;
        let child = &mut self.child;
        eventually("redis-server to answer", async || {
            if child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            command(address, &["PING"]).await.is_some_and(|reply| reply == b"+PONG\r\n").then_some(true)
        })
        .await
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(address: SocketAddr, folder: &std::path::Path, settings: &[String]) -> Child {
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    redis_server::begin(folder, address.port(), &settings)
}

async fn command(address: SocketAddr, words: &[&str]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    // A QUIT behind the command ends the connection, and so the reply.
    bytes.extend(b"*1\r\n$4\r\nQUIT\r\n");
    stream.write_all(&bytes).await.ok()?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await.ok()?;
    reply.strip_suffix(b"+OK\r\n").map(<[u8]>::to_vec)
}

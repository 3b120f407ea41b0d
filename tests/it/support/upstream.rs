//! The scripted upstream: a raw server that counts what it executes and can misbehave at any byte.
//!
//! An *execution* is a request that was read to its end: from then on a real upstream may have charged somebody.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::DEADLINE;
use super::wire::{Fields, Framing, Wire, values};

/// What a request waits at until the test opens it.
#[derive(Clone, Debug)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    /// A closed one.
    pub(crate) fn new() -> Gate {
        Gate(watch::Sender::new(false))
    }

    /// Lets everyone through, now and later.
    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    /// Returns when it is open.
    pub(crate) async fn passed(&self) {
        // This gate holds the sender, so the wait ends only when it is opened.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

/// What the upstream does with one request, in order. Afterwards the connection serves the next one.
#[derive(Clone, Debug)]
pub(crate) struct Script(pub(crate) Vec<Step>);

/// One thing it does.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Reply(Reply),
    Bytes(Vec<u8>),
    Pause(Duration),
    Wait(Gate),
    /// Lets the test take note that it came to this.
    Note(Note),
    /// Closes with FIN.
    Close,
    /// Closes with RST.
    Reset,
    /// Does nothing more, and keeps the connection.
    Never,
}

/// What a test does when a script comes to it.
#[derive(Clone)]
pub(crate) struct Note(pub(crate) Arc<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Note")
    }
}

impl Script {
    /// Closes without an answer.
    pub(crate) fn close() -> Script {
        Script(vec![Step::Close])
    }

    /// Resets the connection without an answer.
    pub(crate) fn reset() -> Script {
        Script(vec![Step::Reset])
    }

    /// Never answers.
    pub(crate) fn never() -> Script {
        Script(vec![Step::Never])
    }

    /// These bytes, then FIN.
    pub(crate) fn bytes_then_close(bytes: impl AsRef<[u8]>) -> Script {
        Script(vec![Step::Bytes(bytes.as_ref().to_vec()), Step::Close])
    }

    /// The same, once the gate is open.
    pub(crate) fn behind(mut self, gate: &Gate) -> Script {
        self.0.insert(0, Step::Wait(gate.clone()));
        self
    }

    /// The same, this much later.
    pub(crate) fn delayed(mut self, time: Duration) -> Script {
        self.0.insert(0, Step::Pause(time));
        self
    }
}

/// A well-formed answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    status: u16,
    fields: Fields,
    body: Vec<u8>,
}

/// An answer of this status with a `Date` and no body.
pub(crate) fn reply(status: u16) -> Reply {
    let date = httpdate::fmt_http_date(SystemTime::now());
    Reply { status, fields: vec![("Date".into(), date.into_bytes())], body: Vec::new() }
}

impl Reply {
    /// One more field line.
    pub(crate) fn field(mut self, name: &str, value: impl AsRef<[u8]>) -> Reply {
        self.fields.push((name.into(), value.as_ref().to_vec()));
        self
    }

    /// With this body.
    pub(crate) fn body(mut self, body: impl AsRef<[u8]>) -> Reply {
        self.body = body.as_ref().to_vec();
        self
    }

    /// Once the gate is open.
    pub(crate) fn behind(self, gate: &Gate) -> Script {
        Script::from(self).behind(gate)
    }

    /// This much later.
    pub(crate) fn delayed(self, time: Duration) -> Script {
        Script::from(self).delayed(time)
    }

    fn to_bytes(&self, head_only: bool) -> Vec<u8> {
        let mut bytes = format!("HTTP/1.1 {} Scripted\r\n", self.status).into_bytes();
        for (name, value) in &self.fields {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        if !matches!(self.status, 204 | 304) {
            bytes.extend(format!("Content-Length: {}\r\n", self.body.len()).as_bytes());
        }
        bytes.extend(b"\r\n");
        if !head_only {
            bytes.extend(&self.body);
        }
        bytes
    }
}

impl From<Reply> for Script {
    fn from(reply: Reply) -> Script {
        Script(vec![Step::Reply(reply)])
    }
}

/// A request that was executed.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    /// Which execution it was, from 1.
    pub(crate) number: usize,
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) fields: Fields,
    /// Every byte of the head.
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
    /// Which connection it came on, from 1.
    pub(crate) connection: usize,
}

impl Received {
    /// The first value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        values(&self.fields, name).next().map(|value| String::from_utf8_lossy(value).into_owned())
    }

    /// All values of a field.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        values(&self.fields, name).map(|value| String::from_utf8_lossy(value).into_owned()).collect()
    }
}

type Behaviour = Arc<dyn Fn(&Received) -> Script + Send + Sync>;

struct State {
    received: Vec<Received>,
    connections: usize,
    queue: VecDeque<Script>,
    otherwise: Behaviour,
    tls: Option<TlsAcceptor>,
}

/// The scripted upstream. Dropping it closes everything.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<State>>,
    count: watch::Sender<usize>,
    unopened: Option<TcpSocket>,
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Upstream {
    /// One that listens and answers 201 with the number of the execution.
    pub(crate) fn start() -> Upstream {
        let mut upstream = Upstream::closed();
        upstream.open();
        upstream
    }

    /// One whose port is taken but refuses connections until it is opened.
    pub(crate) fn closed() -> Upstream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let state = State {
            received: Vec::new(),
            connections: 0,
            queue: VecDeque::new(),
            otherwise: Arc::new(created),
            tls: None,
        };
        Upstream {
            address: socket.local_addr().unwrap(),
            state: Arc::new(Mutex::new(state)),
            count: watch::Sender::new(0),
            unopened: Some(socket),
            task: None,
        }
    }

    /// Accepts connections from now on.
    pub(crate) fn open(&mut self) {
        let listener = self.unopened.take().expect("opened once").listen(1024).unwrap();
        self.task = Some(tokio::spawn(accept(listener, self.state.clone(), self.count.clone())));
    }

    /// Speaks TLS with this certificate from the next connection on.
    pub(crate) fn speak_tls(&self, acceptor: TlsAcceptor) {
        self.state.lock().unwrap().tls = Some(acceptor);
    }

    /// What it does with the next request that no other script was queued for.
    pub(crate) fn next(&self, script: impl Into<Script>) {
        self.state.lock().unwrap().queue.push_back(script.into());
    }

    /// What it does whenever the queue is empty.
    pub(crate) fn always(&self, behaviour: impl Fn(&Received) -> Script + Send + Sync + 'static) {
        self.state.lock().unwrap().otherwise = Arc::new(behaviour);
    }

    /// How many requests it executed: **U** of the cases.
    pub(crate) fn executions(&self) -> usize {
        *self.count.borrow()
    }

    /// Waits until it executed this many.
    pub(crate) async fn reached(&self, executions: usize) {
        let mut count = self.count.subscribe();
        let wait = count.wait_for(|count| *count >= executions);
        let reached = tokio::time::timeout(DEADLINE, wait).await.is_ok_and(|r| r.is_ok());
        assert!(reached, "executions: {} of {executions}", self.executions());
    }

    /// Everything it executed, in order.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.state.lock().unwrap().received.clone()
    }

    /// The last request that it executed.
    pub(crate) fn last(&self) -> Received {
        self.received().pop().expect("an execution")
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

fn created(request: &Received) -> Script {
    let body = format!(r#"{{"execution":{}}}"#, request.number);
    reply(201).field("Content-Type", "application/json").body(body).into()
}

trait Socket: AsyncRead + AsyncWrite + Unpin + Send {
    fn tcp(&self) -> &TcpStream;
}

impl Socket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Socket for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>, count: watch::Sender<usize>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        let (tls, number) = {
            let mut state = state.lock().unwrap();
            state.connections += 1;
            (state.tls.clone(), state.connections)
        };
        let (state, count) = (state.clone(), count.clone());
        connections.spawn(async move {
            match tls {
                None => serve(stream, number, &state, &count).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        serve(stream, number, &state, &count).await;
                    }
                }
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve<S: Socket>(socket: S, connection: usize, state: &Mutex<State>, count: &watch::Sender<usize>) {
    let mut wire = Wire::new(socket);
    while let Ok(Some(head)) = wire.head().await {
        let body = wire.body(head.framing(Framing::None)).await;
        if !body.complete {
            return;
        }
        let mut words = head.start.split(' ').map(str::to_owned);
        let mut request = Received {
            number: 0,
            method: words.next().unwrap_or_default(),
            target: words.next().unwrap_or_default(),
            fields: head.fields,
            head: head.raw,
            body: body.bytes,
            trailers: body.trailers,
            connection,
        };
        let script = {
            let mut state = state.lock().unwrap();
            request.number = state.received.len() + 1;
            state.received.push(request.clone());
            state.queue.pop_front().unwrap_or_else(|| (state.otherwise)(&request))
        };
        count.send_modify(|count| *count += 1);
        if !act(&mut wire, script, request.method == "HEAD").await {
            return;
        }
    }
}

/// Plays a script; false when the connection is over.
async fn act<S: Socket>(wire: &mut Wire<S>, script: Script, head_only: bool) -> bool {
    for step in script.0 {
        match step {
            Step::Reply(reply) => {
                if wire.write(&reply.to_bytes(head_only)).await.is_err() {
                    return false;
                }
            }
            Step::Bytes(bytes) => {
                if wire.write(&bytes).await.is_err() {
                    return false;
                }
            }
            Step::Pause(time) => tokio::time::sleep(time).await,
            Step::Wait(gate) => gate.passed().await,
            Step::Note(note) => (note.0)(),
            Step::Close => {
                let _ = wire.socket.shutdown().await;
                return false;
            }
            Step::Reset => {
                socket2::SockRef::from(wire.socket.tcp()).set_linger(Some(Duration::ZERO)).unwrap();
                return false;
            }
            Step::Never => std::future::pending().await,
        }
    }
    true
}

//! The limit of `make bench-limit`: the least that a proxy on the same libraries can do, as a bound and not as a product.
//!
//! Both ways it is hyper, with a runtime for each core; for a key two commands of Redis itself, one before the request goes
//! out and one behind its answer. It checks, bounds and counts nothing, knows no unknown, no fingerprint and no end of its
//! server's clock, and whatever fails ends the connection.
//!
//! limit PORT UPSTREAM-PORT REDIS-PORT

use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::thread;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use redis::aio::MultiplexedConnection;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};

const CLAIM_MILLIS: u64 = 30_000;
const RECORD_MILLIS: u64 = 86_400_000;

/// One core: its idle connections to the upstream, and its one to Redis.
#[derive(Clone)]
struct Core {
    upstream: SocketAddr,
    idle: Rc<RefCell<Vec<SendRequest<Full<Bytes>>>>>,
    redis: MultiplexedConnection,
}

impl Core {
    async fn handle(mut self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let key = head.headers.get("idempotency-key").cloned();
        if let Some(key) = &key
            && let Some(done) = self.claim(key.as_bytes()).await?
        {
            return Ok(Response::new(Full::new(done.into())));
        }
        let (head, body) = self.send(Request::from_parts(head, Full::new(body))).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        if let Some(key) = &key {
            self.complete(key.as_bytes(), &body).await?;
        }
        Ok(Response::from_parts(head, Full::new(body)))
    }

    async fn claim(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut command = redis::cmd("SET");
        command.arg(key).arg("claimed").arg("NX").arg("GET").arg("PX").arg(CLAIM_MILLIS);
        Ok(command.query_async(&mut self.redis).await?)
    }

    async fn complete(&mut self, key: &[u8], body: &[u8]) -> Result<()> {
        let mut command = redis::cmd("SET");
        Ok(command.arg(key).arg(body).arg("PX").arg(RECORD_MILLIS).query_async(&mut self.redis).await?)
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let idle = self.idle.borrow_mut().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        connection.ready().await?;
        let response = connection.send_request(request).await?;
        self.idle.borrow_mut().push(connection);
        Ok(response)
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(self.upstream).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        spawn_local(connection);
        Ok(sender)
    }
}

/// Serves the connections that are dealt to this core.
async fn serve(
    upstream: SocketAddr,
    redis: redis::Client,
    mut dealt: UnboundedReceiver<std::net::TcpStream>,
) -> Result<()> {
    let core = Core { upstream, idle: Rc::default(), redis: redis.get_multiplexed_async_connection().await? };
    while let Some(stream) = dealt.recv().await {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (core, io) = (core.clone(), TokioIo::new(TcpStream::from_std(stream)?));
        spawn_local(
            http1::Builder::new().serve_connection(io, service_fn(move |request| core.clone().handle(request))),
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let ports = std::env::args().skip(1).map(|port| port.parse()).collect::<Result<Vec<u16>, _>>()?;
    let &[port, upstream, redis] = ports.as_slice() else {
        anyhow::bail!("usage: limit PORT UPSTREAM-PORT REDIS-PORT")
    };
    let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let redis = redis::Client::open(format!("redis://{}", loopback(redis)))?;
    let listener = TcpListener::bind(loopback(port))?;

    let mut cores = Vec::new();
    // As many as onceproxy's `threads = "auto"`.
    for _ in 0..thread::available_parallelism()?.get().min(4) {
        let (deal, dealt) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let redis = redis.clone();
        thread::spawn(move || LocalSet::new().block_on(&runtime, serve(loopback(upstream), redis, dealt)));
        cores.push(deal);
    }
    for core in cores.iter().cycle() {
        core.send(listener.accept()?.0).context("a core has ended")?;
    }
    Ok(())
}

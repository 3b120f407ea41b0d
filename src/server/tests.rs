//! The server over real sockets: a world of one acceptor, some cores and a scripted service, and clients that write
//! bytes by hand.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::StatusCode;
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::*;
use crate::config::Listen;
use crate::metrics::Metrics;

mod closing;
mod deadlines;
mod dealing;
mod framing;
mod http2;
mod http2_abuse;
mod stopping;
mod tls;
mod unix;

/// How much `/big` and `/long` answer with: more than sockets and buffers hold.
const BIG: usize = 64 * 1024 * 1024;

type TestBody = UnsyncBoxBody<Bytes, Infallible>;

pub(super) fn limits() -> Limits {
    Limits {
        connections: 100,
        streams: 100,
        in_flight: 100,
        waiting: 100,
        buffered: 1 << 20,
        header_bytes: 16 * 1024,
        header_timeout: Duration::from_secs(10),
        body_timeout: Duration::from_secs(30),
        idle_timeout: Duration::from_secs(60),
    }
}

/// A running server.
struct World {
    address: SocketAddr,
    stop: Signal,
    metrics: Arc<Metrics>,
    script: Arc<Script>,
    accept: JoinHandle<std::io::Result<()>>,
    serve: Vec<JoinHandle<()>>,
}

/// What the service counts, and what it waits for.
#[derive(Default)]
struct Script {
    served: AtomicUsize,
    /// Given to let `/wait` and the second half of `/stream` go on.
    go: Signal,
}

impl World {
    fn start() -> World {
        World::with(limits(), 1)
    }

    fn with(limits: Limits, cores: usize) -> World {
        World::on(bind("127.0.0.1:0".parse().unwrap()).unwrap(), limits, cores)
    }

    fn on(listener: Listener, limits: Limits, cores: usize) -> World {
        let address = listener.address();
        World::behind(vec![listener.into()], address, Metrics::new(), limits, cores)
    }

    /// A world behind these doors, one of which is at this address.
    fn behind(doors: Vec<Door>, address: SocketAddr, metrics: Arc<Metrics>, limits: Limits, cores: usize) -> World {
        let (stop, script) = (Signal::new(), Arc::new(Script::default()));
        let (handles, inboxes): (Vec<_>, Vec<_>) = (0..cores).map(|_| core()).unzip();
        let serve = inboxes.into_iter().enumerate().map(|(number, inbox)| {
            let (limits, stop, script) = (limits.clone(), stop.clone(), script.clone());
            let service = move |request, _peer| respond(script.clone(), number, request);
            tokio::spawn(async move { serve(inbox, service, &limits, &stop).await })
        });
        let serve = serve.collect();
        let (until, counts) = (stop.clone(), metrics.clone());
        let accept = tokio::spawn(async move { accept(doors, handles, &limits, &until, &counts).await });
        World { address, stop, metrics, script, accept, serve }
    }

    /// A world behind one door that greets like this.
    fn greeting(tls: Option<&Tls>, h2c: bool, limits: Limits) -> World {
        let listen = Listen::Tcp { address: "127.0.0.1:0".parse().unwrap(), plain: false };
        let door = Door::open(&listen, tls, h2c).unwrap();
        let address = door.to_string().parse().unwrap();
        World::behind(vec![door], address, Metrics::new(), limits, 1)
    }

    /// Connections that were closed because of what their clients did.
    fn abused(&self) -> u64 {
        self.metrics.listeners().abused.get()
    }

    async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    fn served(&self) -> usize {
        self.script.served.load(Ordering::SeqCst)
    }

    /// Waits for the acceptor and the cores, which end after a stop.
    async fn ended(self) {
        patiently(async {
            self.accept.await.unwrap().unwrap();
            for serve in self.serve {
                serve.await.unwrap();
            }
        })
        .await;
        assert_eq!(self.metrics.listeners().connections.get(), 0);
    }
}

async fn respond(script: Arc<Script>, core: usize, request: Request<Incoming>) -> Response<TestBody> {
    script.served.fetch_add(1, Ordering::SeqCst);
    let path = request.uri().path().to_owned();
    match path.as_str() {
        "/early" => return text(StatusCode::PAYLOAD_TOO_LARGE, "no"),
        "/wait" => script.go.given().await,
        "/seen" => return text(StatusCode::OK, &seen(&request)),
        "/trailers" => return trailers(),
        "/panic" => panic!("on purpose"),
        "/core" => return text(StatusCode::OK, &core.to_string()),
        "/stream" => return stream(script),
        "/long" => return long(),
        "/big" => return text(StatusCode::OK, &"x".repeat(BIG)),
        _ => {}
    }
    match request.into_body().collect().await {
        Ok(body) => text(StatusCode::OK, &format!("{path} {}", body.to_bytes().escape_ascii())),
        Err(_) => text(StatusCode::BAD_REQUEST, "a broken body"),
    }
}

/// What the service sees of a request's head.
fn seen(request: &Request<Incoming>) -> String {
    let fields = request.headers().iter().map(|(name, value)| format!("{name}={}", value.as_bytes().escape_ascii()));
    format!("{} {} {}", request.method(), request.uri(), fields.collect::<Vec<_>>().join(" "))
}

/// A body with a trailer.
fn trailers() -> Response<TestBody> {
    let mut fields = http::HeaderMap::new();
    fields.insert("x-sum", http::HeaderValue::from_static("6"));
    let body = Full::new(Bytes::from("1+2+3")).with_trailers(std::future::ready(Some(Ok(fields))));
    Response::new(body.boxed_unsync())
}

fn text(status: StatusCode, text: &str) -> Response<TestBody> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())).boxed_unsync());
    *response.status_mut() = status;
    response
}

/// Sends one half at once and the other when told.
fn stream(script: Arc<Script>) -> Response<TestBody> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        sender.send(Bytes::from("first ")).unwrap();
        script.go.given().await;
        sender.send(Bytes::from("second")).unwrap();
    });
    Response::new(Frames(receiver).boxed_unsync())
}

/// Sends as much as `/big`, but in many frames, so that the service is not done with it early.
fn long() -> Response<TestBody> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    let part = Bytes::from("x".repeat(BIG / 64));
    for _ in 0..64 {
        sender.send(part.clone()).unwrap();
    }
    Response::new(Frames(receiver).boxed_unsync())
}

struct Frames(tokio::sync::mpsc::UnboundedReceiver<Bytes>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}

/// A client that knows no HTTP.
struct Client(TcpStream);

impl Client {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Everything until the server closes. A reset is a failure.
    async fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        patiently(self.0.read_to_end(&mut bytes)).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Whether the server has closed, as far as is known here.
    fn is_closed(&self) -> bool {
        matches!(self.0.try_read(&mut [0; 64 * 1024]), Ok(0))
    }

    /// Reads until the text ends so.
    async fn until(&mut self, end: &str) -> String {
        let mut bytes = Vec::new();
        while !bytes.ends_with(end.as_bytes()) {
            let byte = patiently(self.0.read_u8()).await;
            bytes.push(byte.unwrap_or_else(|error| panic!("{error} after {:?}", bytes.escape_ascii().to_string())));
        }
        String::from_utf8(bytes).unwrap()
    }

    /// Asks for a path and returns the answer's body.
    async fn get(&mut self, path: &str) -> String {
        self.send(get(path)).await;
        self.answer().await
    }

    /// The body of the next answer, which has a length.
    async fn answer(&mut self) -> String {
        let head = self.until("\r\n\r\n").await;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect(&head);
        let mut body = vec![0; length.parse().unwrap()];
        patiently(self.0.read_exact(&mut body)).await.unwrap();
        String::from_utf8(body).unwrap()
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// Bounds a wait that only a fault makes long, so that a red test ends.
async fn patiently<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("waited in vain")
}

/// Lets time pass without waiting. Sockets are served meanwhile; afterwards the clock runs as it does outside.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::sleep(time).await;
    tokio::time::resume();
}

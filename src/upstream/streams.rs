//! HTTP/2 towards the upstream: requests share connections, one stream each.
//!
//! On `h2` itself and not on hyper, which cannot say what matters here: hyper ends a body in good order when the upstream
//! cancels its stream, and queues requests that it has no stream for. Here a stream is free before a request is handed
//! over, and two signs alone say that a request on its way did not run: the upstream's own `REFUSED_STREAM` (RFC 9113
//! section 8.7), and a GOAWAY whose last stream is a lower one (section 6.8), which [`super::frames`] reads.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong, Reason, RecvStream, SendStream};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, Request, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::body::{BodyError, BoxError, RequestBody};
use super::connection::SendError;
use super::interim::OnInterim;
use super::moves::Moves;
use super::wire::{Meter, Wire};
use crate::config::{self, Pings};

/// More requests than this do not share a connection, whatever the upstream allows.
const MOST_STREAMS: usize = 100;
/// What an upstream may send of one response before it is read, and of all on one connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// A response head may have this many bytes.
const MAX_HEAD: u32 = 256 * 1024;
/// How often an upstream is asked again from which nothing else came: gRPC's servers end a connection, with all calls on it,
/// for the third ping in silence that comes less than five minutes after the one before.
const PING_IN_SILENCE: Duration = Duration::from_secs(305);

/// The shared connections of one pool.
#[derive(Debug)]
pub(super) struct Sessions {
    idle_timeout: Duration,
    pings: Pings,
    moves: Arc<Moves>,
    open: Mutex<Vec<Session>>,
    /// Held while connecting, so that a burst of first requests makes one connection.
    dialing: tokio::sync::Mutex<()>,
}

/// One connection.
#[derive(Clone, Debug)]
struct Session {
    sender: SendRequest<Bytes>,
    usage: Arc<Usage>,
}

/// How a connection is used.
#[derive(Debug)]
struct Usage {
    streams: AtomicUsize,
    /// When the last stream ended.
    since: Mutex<Instant>,
    /// Whether it takes no more requests.
    over: AtomicBool,
    /// Whether the upstream has been asked if it is there, and has not answered: it gets no request until it does.
    is_in_doubt: AtomicBool,
    begun: Instant,
    /// Since when nothing has come that is waited for, in milliseconds from `begun`.
    quiet_since: AtomicU64,
    /// Whether something of a response came since the upstream was last asked.
    heard: AtomicBool,
    meter: Arc<Meter>,
}

impl Usage {
    fn new(meter: Arc<Meter>) -> Usage {
        let now = Instant::now();
        Usage {
            streams: AtomicUsize::default(),
            since: Mutex::new(now),
            over: AtomicBool::default(),
            is_in_doubt: AtomicBool::default(),
            begun: now,
            quiet_since: AtomicU64::default(),
            heard: AtomicBool::new(true),
            meter,
        }
    }

    /// Notes that something of a response came.
    fn hears(&self) {
        self.heard.store(true, Ordering::Relaxed);
        self.waits();
    }

    /// Notes that from now on something is waited for.
    fn waits(&self) {
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.quiet_since.store(now, Ordering::Relaxed);
    }

    fn quiet_since(&self) -> Instant {
        self.begun + Duration::from_millis(self.quiet_since.load(Ordering::Relaxed))
    }

    /// When it will have been unused for this long; `None` while it is used.
    fn idle_until(&self, idle: Duration) -> Option<Instant> {
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        (self.streams.load(Ordering::Relaxed) == 0).then(|| since + idle)
    }
}

/// A stream that is free for one request, and then taken by it until its response has ended.
#[derive(Debug)]
pub(super) struct Stream {
    session: Session,
}

impl Stream {
    fn of(session: &Session) -> Stream {
        if session.usage.streams.fetch_add(1, Ordering::Relaxed) == 0 {
            session.usage.waits();
        }
        Stream { session: session.clone() }
    }

    /// Whether the upstream takes this request beside those that are under way, as last heard.
    pub(super) fn is_allowed(&self) -> bool {
        self.session.usage.streams.load(Ordering::Relaxed) <= self.session.sender.current_max_send_streams()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        *self.session.usage.since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.session.usage.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Sessions {
    pub(super) fn new(idle_timeout: Duration, pings: Pings, moves: Arc<Moves>) -> Sessions {
        Sessions { idle_timeout, pings, moves, open: Mutex::default(), dialing: tokio::sync::Mutex::default() }
    }

    /// A stream on a connection that is there.
    pub(super) fn take(&self) -> Option<Stream> {
        self.moves.look();
        let mut open = self.lock();
        // One that leads elsewhere goes with its last stream.
        open.retain(|session| {
            let usage = &session.usage;
            !usage.over.load(Ordering::Relaxed) && !self.moves.left(usage.meter.peer())
        });
        let free = |session: &&Session| {
            let most = session.sender.current_max_send_streams().min(MOST_STREAMS);
            session.usage.streams.load(Ordering::Relaxed) < most && !session.usage.is_in_doubt.load(Ordering::Relaxed)
        };
        open.iter().find(free).map(Stream::of)
    }

    /// The right to connect, so that others wait for what comes of it.
    pub(super) async fn dialing(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.dialing.lock().await
    }

    /// Begins HTTP/2 on a fresh connection, and makes sure that the upstream speaks it: by a ping, whose answer comes
    /// behind the upstream's settings. No request exists yet. `None` if it takes none.
    pub(super) async fn begin(&self, mut wire: Wire) -> Result<Option<Stream>, h2::Error> {
        let meter = wire.follow_frames();
        let (sender, mut connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEAD)
            .handshake(wire)
            .await?;
        let mut pings = connection.ping_pong().expect("nobody has taken it before");
        tokio::select! {
            biased;
            ended = &mut connection => {
                ended?;
                return Err(Reason::NO_ERROR.into());
            }
            pong = pings.ping(Ping::opaque()) => {
                pong?;
            }
        }
        let usage = Arc::new(Usage::new(meter));
        let session = Session { sender, usage: usage.clone() };
        let (idle, times) = (self.idle_timeout, self.pings);
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(error = &error as &dyn std::error::Error, "an HTTP/2 connection failed");
                },
                () = watch(&mut pings, &usage, idle, times) => {}
            }
            usage.over.store(true, Ordering::Relaxed);
        });
        let stream = Stream::of(&session);
        if !stream.is_allowed() {
            return Ok(None);
        }
        // In front: what is fresh is the likeliest to be alive.
        self.lock().insert(0, session);
        Ok(Some(stream))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Session>> {
        // No code that holds it can leave it half changed.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns when the connection has been unused for too long, or its upstream does not answer. A kernel's keepalive would
/// not notice an upstream that hangs.
async fn watch(pings: &mut PingPong, usage: &Usage, idle: Duration, times: Pings) {
    let mut asked = Instant::now();
    loop {
        let now = Instant::now();
        let is_unused = usage.idle_until(idle);
        if is_unused.is_some_and(|end| end <= now) {
            usage.over.store(true, Ordering::Relaxed);
            return;
        }
        let silent_from = usage.quiet_since() + times.after;
        let due = match usage.heard.load(Ordering::Relaxed) {
            true => silent_from,
            false => silent_from.max(asked + PING_IN_SILENCE),
        };
        if is_unused.is_some() || due > now {
            // Requests may come at any time, and make a ping due that much later.
            sleep_until(is_unused.unwrap_or(due).min(now + times.after)).await;
            continue;
        }
        asked = now;
        usage.heard.store(false, Ordering::Relaxed);
        usage.is_in_doubt.store(true, Ordering::Relaxed);
        if !matches!(timeout(times.timeout, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
            return;
        }
        usage.is_in_doubt.store(false, Ordering::Relaxed);
    }
}

impl Stream {
    /// Sends one request and waits for the head of its response.
    pub(super) async fn send(
        mut self,
        request: Request<RequestBody>,
        interim: Option<OnInterim>,
        upstream: &config::Upstream,
    ) -> Result<(http::response::Parts, StreamBody), SendError> {
        if let Err(source) = poll_fn(|cx| self.session.sender.poll_ready(cx)).await {
            self.session.usage.over.store(true, Ordering::Relaxed);
            return Err(SendError::NotSent { request: Some(Box::new(request)), body: None, source: source.into() });
        }
        let (head, body) = request.into_parts();
        let head = Request::from_parts(translated(head, upstream), ());
        let sent = self.session.sender.send_request(head, body.is_end_stream());
        // What it refuses here, it has not begun to write.
        let (mut response, sender) = match sent {
            Ok(sent) => sent,
            Err(source) => {
                return Err(SendError::NotSent { request: None, body: Some(Box::new(body)), source: source.into() });
            }
        };
        let (number, mut upload) = (response.stream_id().as_u32(), upload(sender, body));
        let answer = poll_fn(|cx| {
            if let Some(interim) = &interim {
                while let Poll::Ready(Some(Ok(said))) = response.poll_informational(cx) {
                    // Not `100 Continue`, for which the proxy has not asked.
                    if said.status().as_u16() > 101 {
                        interim.tell(said.status(), said.version(), said.headers());
                    }
                }
            }
            Pin::new(&mut response).poll(cx)
        });
        match answer.await {
            Ok(response) => {
                self.session.usage.hears();
                let (head, incoming) = response.into_parts();
                Ok((head, StreamBody::new(incoming, upload.task(), self)))
            }
            Err(error) if is_refusal(&error) || self.session.usage.meter.never_processed(number) => {
                if !error.is_reset() {
                    self.session.usage.over.store(true, Ordering::Relaxed);
                }
                let body = upload.take_back().await.map(Box::new);
                Err(SendError::NotSent { request: None, body, source: error.into() })
            }
            Err(error) => {
                if !error.is_reset() {
                    self.session.usage.over.store(true, Ordering::Relaxed);
                }
                Err(SendError::MayHaveRun { source: error.into() })
            }
        }
    }
}

/// Whether the upstream itself says that it has not processed the request (RFC 9113 section 8.7).
fn is_refusal(error: &h2::Error) -> bool {
    error.is_remote() && error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM)
}

/// The head as HTTP/2 says it: the target with scheme and authority, without the fields of an HTTP/1.1 connection (RFC
/// 9113 section 8.2.2).
fn translated(mut head: http::request::Parts, upstream: &config::Upstream) -> http::request::Parts {
    let host = head.headers.remove(HOST);
    let authority = host
        .and_then(|host| Authority::try_from(host.as_bytes()).ok())
        .or_else(|| Authority::try_from(upstream.authority()).ok());
    let mut target = head.uri.into_parts();
    target.scheme = Some(if upstream.tls { Scheme::HTTPS } else { Scheme::HTTP });
    target.authority = authority;
    head.uri = Uri::from_parts(target).unwrap_or_default();
    for name in [CONNECTION, UPGRADE, TRANSFER_ENCODING] {
        head.headers.remove(name);
    }
    head.version = Version::HTTP_2;
    head
}

/// A body on its way.
#[derive(Debug)]
enum Upload {
    /// All of it was handed over at once, and can be again.
    Whole(Bytes),
    /// A task sends it.
    Task(UploadTask),
}

/// The task that sends a body; ended with its request.
#[derive(Debug)]
struct UploadTask {
    /// Ends with the body if nothing was taken from it.
    task: JoinHandle<Option<RequestBody>>,
    /// Has it end so; dropped, it changes nothing.
    stop: Option<oneshot::Sender<()>>,
}

impl Drop for UploadTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Upload {
    fn task(self) -> Option<UploadTask> {
        match self {
            Upload::Whole(_) => None,
            Upload::Task(task) => Some(task),
        }
    }

    /// The body, if all of it is still there.
    async fn take_back(&mut self) -> Option<RequestBody> {
        match self {
            Upload::Whole(bytes) => Some(RequestBody::full(std::mem::take(bytes))),
            Upload::Task(UploadTask { task, stop }) => {
                // Nobody hears it where the first of the body was taken: there is nothing to wait for.
                stop.take()?.send(()).ok()?;
                task.await.ok().flatten()
            }
        }
    }
}

/// Sends the body: at once if it is there, else as a task. Ended early, it resets the stream.
fn upload(mut sender: SendStream<Bytes>, body: RequestBody) -> Upload {
    if body.is_end_stream() {
        return Upload::Whole(Bytes::new());
    }
    if let RequestBody::Full(body) = body {
        let data = body.into_inner().unwrap_or_default();
        // An error is the stream's, and its response has it too.
        let _ = sender.send_data(data.clone(), true);
        return Upload::Whole(data);
    }
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        let mut body = body;
        let first = tokio::select! {
            biased;
            Ok(()) = stopped => return Some(body),
            first = body.frame() => first,
        };
        if pour(&mut sender, first, body).await.is_err() {
            sender.send_reset(Reason::CANCEL);
        }
        None
    });
    Upload::Task(UploadTask { task, stop: Some(stop) })
}

async fn pour(
    sender: &mut SendStream<Bytes>,
    mut next: Option<Result<Frame<Bytes>, BoxError>>,
    mut body: RequestBody,
) -> Result<(), BoxError> {
    while let Some(frame) = next {
        match frame?.into_data() {
            Ok(mut data) => {
                while !data.is_empty() {
                    sender.reserve_capacity(data.len());
                    let room =
                        poll_fn(|cx| sender.poll_capacity(cx)).await.ok_or(h2::Error::from(Reason::CANCEL))??;
                    sender.send_data(data.split_to(room.min(data.len())), false)?;
                }
            }
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    return Ok(sender.send_trailers(trailers)?);
                }
            }
        }
        next = body.frame().await;
    }
    Ok(sender.send_data(Bytes::new(), true)?)
}

/// The body of a response on a stream. It ends properly with the upstream's END_STREAM alone.
#[derive(Debug)]
pub(super) struct StreamBody {
    incoming: RecvStream,
    /// Until the end.
    rest: Option<(Option<UploadTask>, Stream)>,
    /// What is still to come, where that was said.
    left: Option<u64>,
}

impl StreamBody {
    fn new(incoming: RecvStream, upload: Option<UploadTask>, stream: Stream) -> StreamBody {
        StreamBody { incoming, rest: Some((upload, stream)), left: None }
    }

    /// Notes the length that the head declares, and whether it is the whole response.
    pub(super) fn declared(mut self, headers: &HeaderMap, has_body: bool) -> StreamBody {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        self.left = if has_body { length } else { Some(0) };
        // `is_end_stream` of the stream itself is true for one that was reset, too.
        let mut cx = Context::from_waker(Waker::noop());
        if self.incoming.is_end_stream()
            && matches!(self.incoming.poll_data(&mut cx), Poll::Ready(None))
            && matches!(self.incoming.poll_trailers(&mut cx), Poll::Ready(Ok(None)))
        {
            self.rest = None;
        }
        self
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.rest.is_none() {
            return Poll::Ready(None);
        }
        let failed = |source: h2::Error| Poll::Ready(Some(Err(BodyError::new(source))));
        match ready!(self.incoming.poll_data(cx)) {
            Some(Ok(data)) => {
                // The window's share is given back once the bytes have left for the client or the record.
                let _ = self.incoming.flow_control().release_capacity(data.len());
                if let Some((_, stream)) = &self.rest {
                    stream.session.usage.hears();
                }
                self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            Some(Err(error)) => {
                self.rest = None;
                return failed(error);
            }
            None => {}
        }
        match ready!(self.incoming.poll_trailers(cx)) {
            Ok(trailers) => {
                self.rest = None;
                Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
            }
            Err(error) => {
                self.rest = None;
                failed(error)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match (self.left, self.rest.is_some()) {
            (_, false) => SizeHint::with_exact(0),
            (Some(left), true) => SizeHint::with_exact(left),
            (None, true) => SizeHint::default(),
        }
    }
}

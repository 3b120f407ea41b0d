//! Requests by HTTP/2 end to end: what is its own there (`Expect`, trailers, gRPC) under the promise that is the same.

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response, StatusCode};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::support::{DEADLINE, Store, World};

/// A client of one connection by prior knowledge.
struct Client {
    sender: SendRequest<Bytes>,
    connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    async fn open(world: &World) -> Client {
        let stream = TcpStream::connect(world.address()).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        Client { sender, connection: tokio::spawn(connection) }
    }

    /// Sends a request with this body; `None` leaves the stream open, without a body so far.
    fn send(&mut self, request: http::request::Builder, body: Option<&[u8]>) -> h2::client::ResponseFuture {
        let (response, mut stream) = self.sender.send_request(request.body(()).unwrap(), false).unwrap();
        match body {
            Some(body) => stream.send_data(Bytes::copy_from_slice(body), true).unwrap(),
            // Dropping it would take the request back.
            None => std::mem::forget(stream),
        }
        response
    }

    async fn ask(&mut self, request: http::request::Builder, body: Option<&[u8]>) -> Answer {
        let response = self.send(request, body);
        Answer::read(in_time(response).await.unwrap()).await
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// A whole answer.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    fields: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Answer {
    async fn read(response: Response<RecvStream>) -> Answer {
        let (head, body) = response.into_parts();
        let (body, trailers) = whole(body).await;
        Answer { status: head.status, fields: head.headers, body, trailers }
    }

    fn is_replay(&self) -> bool {
        self.fields.contains_key("idempotent-replayed")
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

async fn whole(mut body: RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut bytes = Vec::new();
    while let Some(data) = in_time(body.data()).await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    (bytes, in_time(body.trailers()).await.unwrap())
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("something in time")
}

fn post(path: &str) -> http::request::Builder {
    Request::post(format!("http://shop.test{path}"))
}

#[tokio::test]
async fn a_client_that_waits_to_be_told_to_send_its_body_is_not_left_waiting() {
    let world = World::build(Store::Memory)
        .top("h2c = true")
        .route("path = \"/v1\"\n max_request_body = \"1KiB\"")
        .start()
        .await;
    let mut client = Client::open(&world).await;
    let expecting = |path: &str| post(path).header("expect", "100-continue");
    // What needs no body is refused at once.
    let large = expecting("/v1/pay").header("idempotency-key", "k-1").header("content-length", 2048);
    for (request, status) in
        [(expecting("/other"), 404), (expecting("/v1/pay").header("idempotency-key", "a,b"), 400), (large, 413)]
    {
        assert_eq!(client.ask(request, None).await.status, status);
    }
    // A 100 cannot be sent here. Who waits for it is told to come again, and who does not is served, key or not.
    let waiting = [expecting("/v1/pay").header("idempotency-key", "k-1"), expecting("/v1/pay")];
    let waiting = waiting.map(|request| client.send(request, None));
    for response in waiting {
        let answer = Answer::read(in_time(response).await.unwrap()).await;
        assert_eq!(answer.status, 417, "{}", answer.text());
        assert!(answer.text().contains("urn:onceproxy:problem:expectation-failed"), "{}", answer.text());
    }
    assert_eq!(world.executions(), 0);
    let keyed = || expecting("/v1/pay").header("idempotency-key", "k-1");
    assert_eq!(client.ask(keyed(), Some(b"{}")).await.status, 201);
    assert!(client.ask(keyed(), Some(b"{}")).await.is_replay());
    assert_eq!(client.ask(expecting("/v1/pay").header("content-length", 2), Some(b"{}")).await.status, 201);
    let received = world.upstream.received();
    assert_eq!(received.len(), 2);
    assert!(received.iter().all(|one| one.body == b"{}" && one.field("Expect").is_none()), "{received:?}");
}

#[tokio::test]
async fn an_unknown_expectation_is_refused_at_once() {
    let world = World::build(Store::Memory).top("h2c = true").start().await;
    let mut client = Client::open(&world).await;
    for key in [Some("k-1"), None] {
        let request = post("/v1/pay").header("expect", "something-else");
        let request = key.map_or_else(
            || post("/v1/pay").header("expect", "100-continue, x"),
            |key| request.header("idempotency-key", key),
        );
        // Without a body, which does not come: the answer does.
        let response = client.send(request, None);
        let answer = Answer::read(in_time(response).await.unwrap()).await;
        assert_eq!(answer.status, 417, "{}", answer.text());
        assert!(answer.text().contains("urn:onceproxy:problem:expectation-failed"), "{}", answer.text());
        assert!(answer.text().contains("other than 100-continue"), "{}", answer.text());
    }
    assert_eq!(world.upstream.received().len(), 0);
}

/// A gRPC service that tells what it got, in the bytes of HTTP/2.
struct Service {
    url: String,
    asked: mpsc::UnboundedReceiver<(http::request::Parts, Vec<u8>)>,
}

impl Service {
    async fn start() -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (told, asked) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let told = told.clone();
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        tokio::spawn(serve(request, respond, told.clone()));
                    }
                });
            }
        });
        Service { url, asked }
    }

    async fn world(&self) -> World {
        let route = format!("upstream = \"{}\"\n upstream_protocol = \"h2\"", self.url);
        World::build(Store::Memory).top("h2c = true").route(&route).start().await
    }

    fn calls(&mut self) -> Vec<(http::request::Parts, Vec<u8>)> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).collect()
    }
}

async fn serve(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    told: mpsc::UnboundedSender<(http::request::Parts, Vec<u8>)>,
) {
    let (head, body) = request.into_parts();
    let (body, _) = whole(body).await;
    let code = match head.uri.path().rsplit('/').next() {
        Some("Fail") => Some("9"),
        Some("Away") => Some("14"),
        Some("Deny") => Some("7"),
        _ => None,
    };
    let _ = told.send((head, body));
    let answer = Response::builder().header("content-type", "application/grpc");
    if let Some(code) = code {
        // Trailers alone: the status of the call stands in the head.
        let answer = answer.header("grpc-status", code).header("grpc-message", "no%20funds").body(()).unwrap();
        respond.send_response(answer, true).unwrap();
        return;
    }
    let mut body = respond.send_response(answer.body(()).unwrap(), false).unwrap();
    body.send_data(Bytes::from_static(REPLY), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    trailers.insert("x-charge-bin", "AAEC".parse().unwrap());
    body.send_trailers(trailers).unwrap();
}

/// Messages as gRPC frames them: not compressed, and their length.
const CALL: &[u8] = b"\0\0\0\0\x03\x08\x96\x01";
const REPLY: &[u8] = b"\0\0\0\0\x04\x0a\x02ok";

fn call(method: &str, key: &str) -> http::request::Builder {
    post(&format!("/shop.Payments/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", "10S")
        .header("idempotency-key", key)
}

#[tokio::test]
async fn a_unary_grpc_call_is_executed_once_and_replayed_whole() {
    let mut service = Service::start().await;
    let world = service.world().await;
    for replay in [false, true, true] {
        let mut client = Client::open(&world).await;
        let answer = client.ask(call("Charge", "k-1"), Some(CALL)).await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (200, replay), "{answer:?}");
        assert_eq!(
            (answer.body.as_slice(), &answer.fields["content-type"]),
            (REPLY, &"application/grpc".parse().unwrap())
        );
        let trailers = answer.trailers.expect("trailers");
        assert_eq!(
            (&trailers["grpc-status"], &trailers["x-charge-bin"], trailers.len()),
            (&"0".parse().unwrap(), &"AAEC".parse().unwrap(), 2)
        );
        // The length is left open: trailers follow.
        assert_eq!(answer.fields.get("content-length"), None);
    }
    let [(head, body)] = &service.calls()[..] else { panic!("not one call") };
    assert_eq!((body.as_slice(), head.uri.path()), (CALL, "/shop.Payments/Charge"));
    assert_eq!(head.headers["te"], "trailers");
    assert_eq!(head.headers["grpc-timeout"], "10S");
}

/// HTTP says 200 to all of them; the key goes by what gRPC says.
#[tokio::test]
async fn a_grpc_code_decides_what_becomes_of_the_key() {
    let mut service = Service::start().await;
    let world = service.world().await;
    let mut client = Client::open(&world).await;
    let away = client.ask(call("Away", "k-1"), Some(CALL)).await;
    assert_eq!((away.status.as_u16(), &away.fields["grpc-status"]), (200, &"14".parse().unwrap()), "{away:?}");
    assert_eq!(away.fields["cache-status"], "onceproxy; fwd=miss; detail=outcome-unknown");
    let held = client.ask(call("Away", "k-1"), Some(CALL)).await;
    assert_eq!(held.status.as_u16(), 409, "{held:?}");
    assert_eq!(service.calls().len(), 1);
    for _ in 0..2 {
        let denied = client.ask(call("Deny", "k-2"), Some(CALL)).await;
        assert_eq!((denied.status.as_u16(), denied.is_replay()), (200, false), "{denied:?}");
    }
    assert_eq!(service.calls().len(), 2, "what was refused for its credentials may be sent again");
}

#[tokio::test]
async fn a_grpc_call_that_fails_in_its_head_is_an_answer_too() {
    let mut service = Service::start().await;
    let world = service.world().await;
    let mut client = Client::open(&world).await;
    for replay in [false, true] {
        let answer = client.ask(call("Fail", "k-1"), Some(CALL)).await;
        assert_eq!((answer.status.as_u16(), answer.is_replay()), (200, replay), "{answer:?}");
        assert_eq!(
            (&answer.fields["grpc-status"], &answer.fields["grpc-message"]),
            (&"9".parse().unwrap(), &"no%20funds".parse().unwrap())
        );
        assert!(answer.body.is_empty() && answer.trailers.is_none(), "{answer:?}");
    }
    assert_eq!(service.calls().len(), 1);
}

#[tokio::test]
async fn a_plain_grpc_call_passes_with_its_trailers() {
    let mut service = Service::start().await;
    let world = service.world().await;
    let mut client = Client::open(&world).await;
    for _ in 0..2 {
        let plain = post("/shop.Payments/List").header("content-type", "application/grpc").header("te", "trailers");
        let answer = client.ask(plain, Some(CALL)).await;
        assert_eq!((answer.status.as_u16(), answer.body.as_slice()), (200, REPLY));
        assert_eq!(answer.trailers.expect("trailers")["grpc-status"], "0");
    }
    let calls = service.calls();
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|(head, body)| head.headers["te"] == "trailers" && body == CALL));
}

//! Requests by HTTP/2 end to end: what is its own there (`Expect`) under the promise that is the same.

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::{HeaderMap, Request, Response, StatusCode};
use tokio::net::TcpStream;

use crate::support::{DEADLINE, Store, World};

/// A client of one connection by prior knowledge.
pub(crate) struct Client {
    sender: SendRequest<Bytes>,
    connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    pub(crate) async fn open(world: &World) -> Client {
        let stream = TcpStream::connect(world.address()).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        Client { sender, connection: tokio::spawn(connection) }
    }

    /// Sends a request with this body; `None` leaves the stream open, without a body so far.
    pub(crate) fn send(&mut self, request: http::request::Builder, body: Option<&[u8]>) -> h2::client::ResponseFuture {
        let (response, mut stream) = self.sender.send_request(request.body(()).unwrap(), false).unwrap();
        match body {
            Some(body) => stream.send_data(Bytes::copy_from_slice(body), true).unwrap(),
            // Dropping it would take the request back.
            None => std::mem::forget(stream),
        }
        response
    }

    pub(crate) async fn ask(&mut self, request: http::request::Builder, body: Option<&[u8]>) -> Answer {
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
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Answer {
    pub(crate) async fn read(response: Response<RecvStream>) -> Answer {
        let (head, body) = response.into_parts();
        let (body, trailers) = whole(body).await;
        Answer { status: head.status, fields: head.headers, body, trailers }
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.fields.contains_key("idempotent-replayed")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

pub(crate) async fn whole(mut body: RecvStream) -> (Vec<u8>, Option<HeaderMap>) {
    let mut bytes = Vec::new();
    while let Some(data) = in_time(body.data()).await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    (bytes, in_time(body.trailers()).await.unwrap())
}

pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("something in time")
}

pub(crate) fn post(path: &str) -> http::request::Builder {
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

/// As in HTTP/1, whichever of the two a duplicate comes by.
#[tokio::test]
async fn the_authority_is_the_host_of_a_request_and_each_cookie_may_have_a_line() {
    let world = World::build(Store::Memory).top("h2c = true").start().await;
    let mut client = Client::open(&world).await;
    let to = |host: &str| Request::post(format!("http://{host}/pay")).header("idempotency-key", "k-1");
    let sid = format!("sid={}", "s".repeat(32));
    let asked = |host: &str| to(host).header("cookie", "theme=dark").header("cookie", &sid);
    assert_eq!(client.ask(asked("a.test"), Some(b"{}")).await.status, 201);
    for same in ["a.test", "A.test:80"] {
        assert!(client.ask(asked(same), Some(b"{}")).await.is_replay(), "{same}");
    }
    let other = client.ask(asked("b.test"), Some(b"{}")).await;
    assert_eq!(other.status, 422);
    assert!(other.text().contains(r#""differs":["host"]"#), "{}", other.text());
    assert_eq!(client.ask(to("a.test"), Some(b"{}")).await.status, 403);
    let by_http1 = crate::support::Request::new("POST", "/pay").key("k-1").host("a.test").body("{}");
    let cookies = format!("{sid}; theme=light");
    world.send(&by_http1.field("Cookie", cookies)).await.assert_replay(201);
    assert_eq!(world.executions(), 1);
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

#[tokio::test]
async fn l4_equal_fields_of_the_scope_count_once() {
    let world = World::build(Store::Memory).top("h2c = true").start().await;
    let mut client = Client::open(&world).await;
    let with = |credentials: &[&'static str]| {
        let request = post("/pay").header("idempotency-key", "k-1");
        credentials.iter().fold(request, |request, value| request.header("authorization", *value))
    };
    assert_eq!(client.ask(with(&["Bearer a", "Bearer a"]), Some(b"{}")).await.status, 201);
    let again = client.ask(with(&["Bearer a"]), Some(b"{}")).await;
    assert!(again.is_replay(), "{again:?}");
    let different = client.ask(with(&["Bearer a", "Bearer b"]), Some(b"{}")).await;
    assert!(different.status == 400 && different.text().contains("scope-invalid"), "{different:?}");
    assert_eq!(world.executions(), 1);
}

#[tokio::test]
async fn hosts_and_cookies_of_a_scope_are_those_of_http1() {
    let route = "scope = [\"host\", \"cookie:sid\"]";
    let world = World::build(Store::Memory).top("h2c = true").route(route).start().await;
    let first = crate::support::Request::new("POST", "/pay").key("k-1").field("Cookie", "lb=1; sid=a").body("{}");
    world.send(&first).await.assert_executed(201);
    let mut client = Client::open(&world).await;
    for authority in ["shop.test", "SHOP.test:80"] {
        let request = Request::post(format!("http://{authority}/pay")).header("idempotency-key", "k-1");
        let request = request.header("cookie", "sid=a").header("cookie", "lb=2");
        let answer = client.ask(request, Some(b"{}")).await;
        assert!(answer.is_replay(), "{authority}: {answer:?}");
    }
    assert_eq!(world.executions(), 1);
}

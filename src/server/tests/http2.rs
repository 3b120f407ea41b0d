//! HTTP/2 as a client of good will speaks it, by prior knowledge.

use h2::client::SendRequest;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn world() -> World {
    World::greeting(None, true, limits())
}

/// A client whose connection runs until it is closed.
async fn client(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static) -> H2 {
    let (sender, connection) = patiently(h2::client::handshake(stream)).await.unwrap();
    H2 { sender, connection: tokio::spawn(connection) }
}

struct H2 {
    sender: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl H2 {
    async fn of(world: &World) -> H2 {
        client(world.connect().await.0).await
    }

    fn send(&mut self, request: http::request::Builder, body: &'static str) -> h2::client::ResponseFuture {
        let request = request.body(()).unwrap();
        let (response, mut stream) = self.sender.send_request(request, body.is_empty()).unwrap();
        if !body.is_empty() {
            stream.send_data(Bytes::from(body), true).unwrap();
        }
        response
    }

    async fn get(&mut self, path: &str) -> (StatusCode, String) {
        let response = self.send(Request::get(format!("http://a{path}")), "");
        let response = patiently(response).await.unwrap();
        (response.status(), whole(response).await)
    }
}

async fn whole(response: Response<h2::RecvStream>) -> String {
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(data) = patiently(body.data()).await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    String::from_utf8(bytes).unwrap()
}

fn ok(text: &str) -> (StatusCode, String) {
    (StatusCode::OK, text.to_owned())
}

#[tokio::test]
async fn the_service_sees_a_request_as_if_it_had_come_by_http_1() {
    let world = world();
    let mut client = H2::of(&world).await;
    let request = Request::post("http://a:81/seen?x=%2F").header("cookie", "a=1").header("cookie", "b=2");
    let response = patiently(client.send(request, "abc")).await.unwrap();
    assert_eq!(whole(response).await, "POST /seen?x=%2F host=a:81 cookie=a=1; b=2");
    let response = patiently(client.send(Request::post("http://a/echo"), "abc")).await.unwrap();
    assert_eq!(whole(response).await, "/echo abc");
    // Many at a time, on one connection.
    let requests: Vec<_> = (0..50).map(|_| client.send(Request::get("http://a/wait"), "")).collect();
    assert_eq!(client.get("/").await, ok("/ "));
    world.script.go.give();
    for response in requests {
        assert_eq!(patiently(response).await.unwrap().status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn uploads_that_nobody_reads_hold_up_no_other_request() {
    let world = world();
    let mut client = H2::of(&world).await;
    let mut stalled = Vec::new();
    for _ in 0..8 {
        let request = Request::post("http://a/wait").body(()).unwrap();
        let (response, mut body) = client.sender.send_request(request, false).unwrap();
        body.send_data(vec![0; 1 << 20].into(), false).unwrap();
        stalled.push((response, body));
    }
    patiently(async {
        while world.served() < stalled.len() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for _ in 0..20 {
        let response = patiently(client.send(Request::post("http://a/echo"), "abc")).await.unwrap();
        assert_eq!(whole(response).await, "/echo abc");
    }
}

#[tokio::test]
async fn http_1_is_spoken_at_the_same_door_however_slowly_it_begins() {
    let world = world();
    let mut client = world.connect().await;
    for byte in b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" {
        client.send([*byte]).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(client.answer().await, "/ abc");
    assert_eq!(client.get("/x").await, "/x ");
    let mut client = world.connect().await;
    // Begins like the preface, and is not.
    client.send("PRI * HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(client.rest().await.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn a_request_with_two_addressees_is_refused_and_the_connection_goes_on() {
    let world = world();
    let mut client = H2::of(&world).await;
    for (hosts, refusal) in [
        (&["b"][..], "Host names another authority than the request target\n"),
        (&["a", "a"], "the request has more than one Host\n"),
        (&["a/b"], "Host is not a host with an optional port\n"),
    ] {
        let request = hosts.iter().fold(Request::get("http://a/"), |request, host| request.header("host", *host));
        let response = patiently(client.send(request, "")).await.unwrap();
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(whole(response).await, refusal);
    }
    let connect = Request::builder().method("CONNECT").uri("a:443");
    let refused = patiently(client.send(connect, "")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::NOT_IMPLEMENTED);
    assert_eq!(whole(refused).await, "tunnels are opened by HTTP/1.1\n");
    let many = (0..100).fold(Request::get("http://a/"), |request, number| request.header("x", number));
    assert_eq!(patiently(client.send(many, "")).await.unwrap().status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(world.served(), 0);
    assert_eq!(client.get("/").await, ok("/ "));
}

#[tokio::test]
async fn a_list_of_fields_over_the_limit_gets_431() {
    let world = world();
    let mut client = H2::of(&world).await;
    let request = Request::get("http://a/").header("x", "x".repeat(17 * 1024));
    let response = patiently(client.send(request, "")).await.unwrap();
    assert_eq!(response.status(), StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(world.served(), 0);
    assert_eq!(client.get("/").await, ok("/ "));
}

#[tokio::test]
async fn trailers_arrive_and_large_answers_arrive_whole() {
    let world = world();
    let mut client = H2::of(&world).await;
    let response = patiently(client.send(Request::get("http://a/trailers"), "")).await.unwrap();
    let mut body = response.into_body();
    assert_eq!(patiently(body.data()).await.unwrap().unwrap(), "1+2+3");
    assert!(patiently(body.data()).await.is_none());
    assert_eq!(patiently(body.trailers()).await.unwrap().unwrap()["x-sum"], "6");
    for path in ["/big", "/long"] {
        assert_eq!(client.get(path).await.1.len(), BIG, "{path}");
    }
    assert_eq!(world.abused(), 0);
}

#[tokio::test]
async fn a_head_request_gets_the_length_and_no_body() {
    let world = world();
    let mut client = H2::of(&world).await;
    let response = patiently(client.send(Request::head("http://a/core"), "")).await.unwrap();
    assert_eq!(response.headers()["content-length"], "1");
    assert_eq!(whole(response).await, "");
    assert_eq!(client.get("/").await, ok("/ "));
}

#[tokio::test]
async fn a_stop_lets_running_requests_finish_and_waits_for_no_idle_client() {
    let world = world();
    let (mut idle, mut running, mut streaming) = (H2::of(&world).await, H2::of(&world).await, H2::of(&world).await);
    assert_eq!(idle.get("/").await, ok("/ "));
    let waiting = running.send(Request::get("http://a/wait"), "");
    let stream = patiently(streaming.send(Request::get("http://a/stream"), "")).await.unwrap();
    // One that was accepted and says nothing, and one in the middle of the preface.
    let silent = world.connect().await;
    let mut halfway = world.connect().await;
    halfway.send("PRI * HT").await;
    world.stop.give();
    patiently(idle.connection).await.unwrap().unwrap();
    world.script.go.give();
    assert_eq!(whole(patiently(waiting).await.unwrap()).await, "/wait ");
    assert_eq!(whole(stream).await, "first second");
    patiently(running.connection).await.unwrap().unwrap();
    patiently(streaming.connection).await.unwrap().unwrap();
    world.ended().await;
    drop((silent, halfway));
}

#[tokio::test]
async fn an_idle_connection_is_closed_at_the_idle_timeout_and_a_busy_one_is_not() {
    let world = world();
    let (mut idle, mut busy) = (H2::of(&world).await, H2::of(&world).await);
    let waiting = busy.send(Request::get("http://a/wait"), "");
    for _ in 0..3 {
        assert_eq!(idle.get("/").await, ok("/ "));
        pass(59 * SECOND).await;
    }
    assert!(!idle.connection.is_finished());
    pass(61 * SECOND).await;
    patiently(idle.connection).await.unwrap().unwrap();
    world.script.go.give();
    assert_eq!(whole(patiently(waiting).await.unwrap()).await, "/wait ");
}

#[tokio::test]
async fn a_client_that_does_not_say_what_it_speaks_is_closed_at_the_header_timeout() {
    let world = World::greeting(None, true, Limits { idle_timeout: 1000 * SECOND, ..limits() });
    for beginning in ["", "P", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut client = world.connect().await;
        client.send(beginning).await;
        pass(9 * SECOND).await;
        assert_eq!(world.connect().await.get("/").await, "/ ");
        assert!(!client.is_closed());
        pass(3 * SECOND).await;
        let mut rest = Vec::new();
        patiently(client.0.read_to_end(&mut rest)).await.unwrap();
    }
}

//! What reaches the wire, and which heads come back.

use super::*;

async fn head_sent(request: http::Request<RequestBody>) -> String {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let (response, (_stream, sent)) = tokio::join!(send(&pool, request), peer.answer_one(OK));
    response.unwrap();
    String::from_utf8(sent).unwrap()
}

#[tokio::test]
async fn target_reaches_the_wire_verbatim() {
    for target in [
        "/",
        "/a/../b",
        "/a/%2e%2e/b",
        "/a/%2E/b",
        "/./a",
        "//x",
        "//x//y/",
        "/p?",
        "/p??",
        "/p?a=1&a=2",
        "/p?q=a'b",
        "/a\\b",
        "/x{y}|^",
        "/a%2Fb",
        "/%zz",
        "/;p=1/x",
        "/p?a=1;b=[2]",
        "/*",
        "/http://other/x",
        "/a:b@c",
    ] {
        let sent = head_sent(post(target, "")).await;
        assert_eq!(sent.lines().next(), Some(format!("POST {target} HTTP/1.1").as_str()));
    }
}

#[tokio::test]
async fn nothing_is_added_to_an_empty_post() {
    let mut request = post("/pay", "");
    *request.version_mut() = http::Version::HTTP_10;
    let sent = head_sent(request).await;
    assert_eq!(sent, "POST /pay HTTP/1.1\r\nhost: upstream.test\r\ncontent-length: 0\r\n\r\n");
}

#[tokio::test]
async fn repeated_and_odd_fields_pass_in_order() {
    let mut request = post("/", "");
    for value in [&b"1"[..], b"\xff\xfe", b"a,  b", b""] {
        request.headers_mut().append("x-many", http::HeaderValue::from_bytes(value).unwrap());
    }
    let peer = Peer::start().await;
    let pool = peer.pool();
    let (response, (_stream, sent)) = tokio::join!(send(&pool, request), peer.answer_one(OK));
    response.unwrap();
    let expected = b"x-many: 1\r\nx-many: \xff\xfe\r\nx-many: a,  b\r\nx-many: \r\n";
    assert!(sent.windows(expected.len()).any(|part| part == expected), "{sent:?}");
}

#[tokio::test]
async fn stream_without_length_is_chunked_and_with_length_is_not() {
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    for part in ["ab", "cde"] {
        sender.send(Bytes::from_static(part.as_bytes())).await.unwrap();
    }
    drop(sender);
    let chunked = http::Request::post("/").body(RequestBody::stream(Channel(receiver))).unwrap();
    let sent = head_sent(chunked).await;
    assert!(
        sent.contains("transfer-encoding: chunked") && sent.ends_with("2\r\nab\r\n3\r\ncde\r\n0\r\n\r\n"),
        "{sent}"
    );

    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    sender.send(Bytes::from_static(b"abcde")).await.unwrap();
    drop(sender);
    let sized = http::Request::post("/").header("content-length", 5).body(RequestBody::stream(Channel(receiver)));
    let sent = head_sent(sized.unwrap()).await;
    assert!(sent.ends_with("content-length: 5\r\n\r\nabcde"), "{sent}");
}

/// A body of what a channel brings.
pub(super) struct Channel(pub(super) tokio::sync::mpsc::Receiver<Bytes>);

impl http_body::Body for Channel {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|part| part.map(|part| Ok(http_body::Frame::data(part))))
    }
}

#[tokio::test]
async fn interim_responses_are_passed_over_but_101_is_returned() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    let answer = [&interim[..], OK].concat();
    let (response, (mut first, _)) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(&answer));
    let response = response.unwrap();
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("link"));
    assert_eq!(text(response).await, "ok");

    let switch = async {
        read_request(&mut first).await;
        first.write_all(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n").await.unwrap();
    };
    let (response, ()) = tokio::join!(send(&pool, post("/", "")), switch);
    assert_eq!(response.unwrap().status(), 101);
    // It speaks something else now and must not see a request.
    closed_by_us(&mut first).await;
}

#[tokio::test]
async fn heads_may_be_large_but_not_boundless() {
    let fields = |count: usize| (0..count).map(|n| format!("x-{n}: {n}\r\n")).collect::<String>();
    for (count, fine) in [(250, true), (300, false)] {
        let peer = Peer::start().await;
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n{}\r\n", fields(count));
        let pool = peer.pool();
        let (response, _) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(answer.as_bytes()));
        match response {
            Ok(response) => assert!(fine && response.headers().len() == count + 1),
            Err(error) => assert!(!fine && error.may_have_run(), "{error:?}"),
        }
    }
}

#[tokio::test]
async fn ambiguous_responses_are_doubt() {
    for (head, fine) in [
        ("content-length: 2\r\n", true),
        ("content-length: 2\r\ncontent-length: 2\r\n", true),
        ("content-length: 2, 2\r\n", true),
        ("content-length: 2\r\ncontent-length: 3\r\n", false),
        ("content-length: 2, 3\r\n", false),
        ("content-length: +2\r\n", false),
        ("content-length: \r\n", false),
        ("content-length: 18446744073709551616\r\n", false),
        ("transfer-encoding: chunked\r\ncontent-length: 2\r\n", false),
        ("content-length: 2\r\ntransfer-encoding: identity\r\n", false),
        ("transfer-encoding: gzip, chunked\r\n", false),
        ("transfer-encoding: chunked, chunked\r\n", false),
        ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", false),
        ("transfer-encoding: xchunked\r\n", false),
        ("content-length: 2\r\nx: a\r\n b\r\n", false),
        ("content-length : 2\r\n", false),
    ] {
        let peer = Peer::start().await;
        let pool = peer.pool();
        let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\nok");
        let (response, (mut stream, _)) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(answer.as_bytes()));
        match response {
            Ok(response) => {
                assert!(fine, "{head:?} was taken");
                assert_eq!(response.headers().get_all("content-length").iter().collect::<Vec<_>>(), ["2"]);
                assert_eq!(text(response).await, "ok");
            }
            Err(error) => {
                assert!(!fine && error.may_have_run(), "{head:?}: {error:?}");
                assert!(std::error::Error::source(&error).is_some());
                closed_by_us(&mut stream).await;
            }
        }
    }
}

#[tokio::test]
async fn responses_without_a_body_leave_the_connection_usable() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let serve = async {
        let mut stream = peer.accept().await;
        for answer in [
            "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        ] {
            read_request(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        stream
    };
    let ask = async {
        for (method, length) in [("HEAD", Some("1000")), ("POST", None), ("GET", Some("7")), ("POST", Some("0"))] {
            let request = http::Request::builder().method(method).uri("/").body(RequestBody::empty()).unwrap();
            let response = send(&pool, request).await.unwrap();
            assert_eq!(response.headers().get("content-length").map(|v| v.to_str().unwrap()), length);
            assert_eq!(text(response).await, "");
        }
    };
    let (_stream, ()) = tokio::join!(serve, ask);
    assert!(!peer.has_another().await);
}

/// What TLS stacks say to bytes that are no TLS.
const ALERTS: [&[u8]; 4] = [
    b"\x15\x03\x01\x00\x02\x02\x46",
    b"\x15\x03\x03\x00\x02\x02\x0a",
    b"\x15\x03\x02\x00\x02\x02\x16",
    b"\x15\x03\x00\x00\x02\x01\x00",
];

#[tokio::test]
async fn an_alert_of_tls_says_that_no_server_of_http_has_read_the_request() {
    for alert in ALERTS {
        let peer = Peer::start().await;
        let pool = peer.pool();
        let (sent, _) = tokio::join!(send(&pool, post("/", "x")), peer.answer_one(alert));
        let error = sent.unwrap_err();
        assert!(matches!(error, SendError::SpeaksTls { .. }), "{alert:?}: {error:?}");
        assert!(!error.may_have_run() && error.to_string().contains("https://"), "{error}");
    }
}

#[tokio::test]
async fn what_only_looks_like_an_alert_leaves_the_doubt() {
    let torn: [&[u8]; 6] = [
        b"\x15\x03\x03\x00\x02\x02",
        b"\x15\x03\x03\x00\x03\x02\x0a\x00",
        b"\x15\x03\x03\x00\x02\x03\x0a",
        b"\x16\x03\x03\x00\x02\x02\x0a",
        b"\x15\x04\x03\x00\x02\x02\x0a",
        b"HTTP/1.1 \x15\x03\x03\x00\x02\x02\x0a",
    ];
    for answer in torn {
        let peer = Peer::start().await;
        let pool = peer.pool();
        let (sent, _) = tokio::join!(send(&pool, post("/", "x")), async { drop(peer.answer_one(answer).await) });
        assert!(sent.unwrap_err().may_have_run(), "{answer:?}");
    }
    // On a connection that has answered before, it is none of a TLS stack.
    let peer = Peer::start().await;
    let pool = peer.pool();
    let mut stream = exchange(&peer, &pool).await;
    let again = async {
        read_request(&mut stream).await;
        stream.write_all(ALERTS[0]).await.unwrap();
        drop(stream);
    };
    let (sent, ()) = tokio::join!(send(&pool, post("/", "x")), again);
    assert!(sent.unwrap_err().may_have_run());
}

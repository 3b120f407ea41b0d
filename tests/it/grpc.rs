//! gRPC through the proxy: calls that are protected, calls that stream, and the code that decides what becomes of a key.

use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

use crate::http2_requests::{Client, in_time, post, whole};
use crate::support::{Store, World};

/// A gRPC service that tells what it got, in the bytes of HTTP/2.
struct Service {
    url: String,
    asked: mpsc::UnboundedReceiver<(http::request::Parts, Vec<u8>)>,
    /// A permit for each further message of a stream.
    messages: Arc<Semaphore>,
}

impl Service {
    async fn start() -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (told, asked) = mpsc::unbounded_channel();
        let messages = Arc::new(Semaphore::new(0));
        let gate = messages.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (told, gate) = (told.clone(), gate.clone());
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        tokio::spawn(serve(request, respond, told.clone(), gate.clone()));
                    }
                });
            }
        });
        Service { url, asked, messages }
    }

    async fn world(&self) -> World {
        self.world_on(Store::Memory, "").await
    }

    async fn world_on(&self, store: Store, route: &str) -> World {
        let upstream = format!("upstream = \"{}\"\n upstream_protocol = \"h2\"", self.url);
        World::build(store).top("h2c = true").route(&upstream).route(route).start().await
    }

    fn calls(&mut self) -> Vec<(http::request::Parts, Vec<u8>)> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).collect()
    }
}

async fn serve(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    told: mpsc::UnboundedSender<(http::request::Parts, Vec<u8>)>,
    messages: Arc<Semaphore>,
) {
    let (head, body) = request.into_parts();
    let (body, _) = whole(body).await;
    let method = head.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    let code = match method.as_str() {
        "Fail" => Some("9"),
        "Away" => Some("14"),
        "Deny" => Some("7"),
        _ => None,
    };
    let _ = told.send((head, body));
    if let Some((kind, code)) = method.split_once('_') {
        return serve_long(kind, code, respond, &messages).await;
    }
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

/// `Large_CODE`: one message longer than is kept; `Stream_CODE`: three, one by one; and then this code, or no end.
async fn serve_long(kind: &str, code: &str, mut respond: SendResponse<Bytes>, messages: &Semaphore) {
    let answer = Response::builder().header("content-type", "application/grpc+proto").body(()).unwrap();
    let mut body = respond.send_response(answer, false).unwrap();
    if kind == "Large" {
        body.send_data(large().into(), false).unwrap();
    } else {
        for n in 0..3 {
            if n > 0 {
                messages.acquire().await.unwrap().forget();
            }
            body.send_data(message(n).into(), false).unwrap();
        }
    }
    match code {
        "cut" => body.send_reset(h2::Reason::INTERNAL_ERROR),
        "none" => body.send_data(Bytes::new(), true).unwrap(),
        code => {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", code.parse().unwrap());
            body.send_trailers(trailers).unwrap();
        }
    }
}

/// A message that is longer than `max_response_body = "1KiB"`.
fn large() -> Vec<u8> {
    [b"\0\0\0\x10\0".as_slice(), &[b'x'; 4096]].concat()
}

fn message(n: u8) -> Vec<u8> {
    vec![0, 0, 0, 0, 2, 8, n]
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

on_each_store! {
    async fn an_answer_too_long_to_be_kept_is_judged_by_its_trailers(store) {
        let service = Service::start().await;
        let world = service.world_on(store, "max_response_body = \"1KiB\"").await;
        let mut client = Client::open(&world).await;
        for (method, repeat) in [
            ("Large_0", Some("response-not-retained")),
            ("Large_9", Some("response-not-retained")),
            ("Large_14", Some("outcome-unknown")),
            ("Large_none", Some("outcome-unknown")),
            ("Large_nonsense", Some("outcome-unknown")),
            ("Large_7", None),
            ("Large_8", None),
        ] {
            let first = client.ask(call(method, method), Some(CALL)).await;
            assert_eq!((first.status.as_u16(), first.body.len()), (200, large().len()), "{method}: {first:?}");
            let code = first.trailers.as_ref().map(|trailers| trailers["grpc-status"].to_str().unwrap());
            assert_eq!(code, method.strip_prefix("Large_").filter(|code| *code != "none"));
            // By its head nobody can say more.
            assert_eq!(first.fields["cache-status"], "onceproxy; fwd=miss; detail=flowing");
            let second = client.ask(call(method, method), Some(CALL)).await;
            match repeat {
                Some(problem) => {
                    assert_eq!(second.status.as_u16(), 409, "{method}: {second:?}");
                    assert!(second.text().contains(problem), "{method}: {}", second.text());
                }
                None => assert_eq!((second.status.as_u16(), second.is_replay()), (200, false), "{method}: {second:?}"),
            }
        }
    }

    async fn a_stream_of_messages_flows_and_is_replayed_whole(store) {
        let mut service = Service::start().await;
        let world = service.world_on(store, "").await;
        let all = [message(0), message(1), message(2)].concat();
        for key in [None, Some("k-1")] {
            let request = match key {
                Some(key) => call("Stream_0", key),
                None => post("/shop.Payments/Stream_0").header("content-type", "application/grpc"),
            };
            let mut client = Client::open(&world).await;
            let response = client.send(request, Some(CALL));
            let (head, mut body) = in_time(response).await.unwrap().into_parts();
            assert_eq!(head.status.as_u16(), 200);
            for n in 0..3 {
                // The service sends the next message only once this one has arrived here.
                assert_eq!(in_time(body.data()).await.unwrap().unwrap(), message(n), "message {n} of {key:?}");
                service.messages.add_permits(1);
            }
            let (rest, trailers) = whole(body).await;
            assert_eq!((rest.len(), &trailers.unwrap()["grpc-status"]), (0, &"0".parse().unwrap()));
            // Two were taken.
            in_time(service.messages.acquire()).await.unwrap().forget();
        }
        let mut client = Client::open(&world).await;
        let replay = client.ask(call("Stream_0", "k-1"), Some(CALL)).await;
        assert!(replay.is_replay() && replay.body == all, "{replay:?}");
        assert_eq!(replay.trailers.unwrap()["grpc-status"], "0");
        assert_eq!(service.calls().len(), 2);
    }

    async fn a_stream_is_judged_by_the_code_at_its_end(store) {
        let mut service = Service::start().await;
        let world = service.world_on(store, "").await;
        service.messages.add_permits(1000);
        let mut client = Client::open(&world).await;
        for (method, repeat) in [("Stream_14", "unknown"), ("Stream_13", "replay"), ("Stream_16", "again")] {
            let first = client.ask(call(method, method), Some(CALL)).await;
            assert_eq!((first.status.as_u16(), first.is_replay()), (200, false), "{method}: {first:?}");
            let second = client.ask(call(method, method), Some(CALL)).await;
            match repeat {
                "unknown" => assert!(second.text().contains("outcome-unknown"), "{method}: {second:?}"),
                "replay" => assert!(second.is_replay() && second.body == first.body, "{method}: {second:?}"),
                _ => assert_eq!((second.status.as_u16(), second.is_replay()), (200, false), "{method}: {second:?}"),
            }
        }
        assert_eq!(service.calls().len(), 4);
    }

    async fn a_stream_that_breaks_off_is_held_and_breaks_off_for_the_caller(store) {
        let mut service = Service::start().await;
        let world = service.world_on(store, "").await;
        let mut client = Client::open(&world).await;
        let response = client.send(call("Stream_cut", "k-1"), Some(CALL));
        let mut body = in_time(response).await.unwrap().into_body();
        assert_eq!(in_time(body.data()).await.unwrap().unwrap(), message(0));
        service.messages.add_permits(2);
        let broken = async {
            while let Some(data) = body.data().await {
                data?;
            }
            body.trailers().await.map(drop)
        };
        in_time(broken).await.expect_err("a whole answer");
        let mut client = Client::open(&world).await;
        let repeat = client.ask(call("Stream_cut", "k-1"), Some(CALL)).await;
        assert!(repeat.text().contains("outcome-unknown"), "{repeat:?}");
        assert_eq!(service.calls().len(), 1);
    }
}

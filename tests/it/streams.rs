//! Bodies and streams: over-long, without an end, and broken off.

use crate::support::{Connection, Gate, Request, Script, Step, Store, World, eventually, ms, reply};

const MIB: usize = 1024 * 1024;

fn bytes(text: impl AsRef<[u8]>) -> Step {
    Step::Bytes(text.as_ref().to_vec())
}

on_each_store! {
    async fn f1_an_over_long_body_claims_nothing(store) {
        let world = World::with(store, "max_request_body = \"1MiB\"").await;
        let long = Request::new("POST", "/pay").key("k-1").body(vec![b'x'; 2 * MIB]);
        for request in [long.clone(), long.chunked(64 * 1024)] {
            let answer = world.send(&request).await;
            answer.assert_problem(413, "body-too-large");
            assert_eq!(answer.retry(), "after-correction");
        }
        assert!(world.proxy().open_records("").await.is_empty());
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 1);
    }

    async fn f1_a_body_that_breaks_off_claims_nothing(store) {
        let world = World::new(store).await;
        let whole = Request::pay().key("k-1").to_bytes();
        let chunked = Request::pay().key("k-1").chunked(4).to_bytes();
        for part in [&whole[..whole.len() - 1], &chunked[..chunked.len() - 2], &chunked[..chunked.len() - 12]] {
            let mut caller = Connection::open(world.address()).await;
            caller.write(part).await;
            drop(caller);
        }
        world.pay("k-2").await.assert_executed(201);
        assert!(world.proxy().open_records("").await.is_empty());
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn f1_a_body_of_exactly_the_limit_passes(store) {
        let world = World::with(store, "max_request_body = \"1KiB\"").await;
        let request = Request::new("POST", "/pay").key("k-1");
        world.send(&request.clone().body(vec![b'x'; 1024])).await.assert_executed(201);
        let answer = world.send(&request.body(vec![b'x'; 1025])).await;
        answer.assert_problem(413, "body-too-large");
        assert_eq!(world.upstream.last().body.len(), 1024);
    }

    async fn f2_an_over_long_response_passes_whole_and_is_never_run_again(store) {
        let world = World::with(store, "max_response_body = \"1MiB\"").await;
        let body: Vec<u8> = (0..20 * MIB).map(|n| (n % 251) as u8).collect();
        let mut chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for chunk in body.chunks(MIB / 2) {
            chunked.extend([format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat());
        }
        chunked.extend(b"0\r\n\r\n");
        let declared = Script::from(reply(200).body(&body));
        for (n, script) in [declared, Script(vec![bytes(&chunked)])].into_iter().enumerate() {
            let key = format!("k-{n}");
            world.upstream.next(script);
            let first = world.pay(&key).await;
            assert!(first.complete && first.body == body, "{} bytes of {}", first.body.len(), body.len());
            assert_eq!(first.field("Cache-Status"), Some("onceproxy; fwd=miss; detail=response-not-retained"));
            let second = world.pay(&key).await;
            second.assert_problem(409, "response-not-retained");
            assert_eq!((second.retry().as_str(), &second.json()["original_status"]), ("never", &200.into()));
            assert_eq!(world.executions(), n + 1);
        }
    }

    async fn f3_an_event_stream_flows_at_once_and_is_replayed_whole(store) {
        let world = World::with(store, "on_duplicate = \"reject\"").await;
        let gates: Vec<_> = (0..3).map(|_| Gate::new()).collect();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut steps = vec![bytes(head)];
        for (n, gate) in gates.iter().enumerate() {
            let event = format!("data: event-{n}\n\n");
            steps.extend([bytes(format!("{:x}\r\n{event}\r\n", event.len())), Step::Wait(gate.clone())]);
        }
        steps.push(bytes("0\r\n\r\n"));
        world.upstream.next(Script(steps));

        let mut caller = Connection::open(world.address()).await;
        caller.send(&Request::pay().key("k-1")).await;
        let head = caller.head().await;
        assert_eq!((head.status, head.field("Content-Type")), (200, Some("text/event-stream")));
        for (n, gate) in gates.iter().enumerate() {
            // The upstream sends the next event only once this one has arrived here.
            caller.body_until(&format!("event-{n}")).await;
            world.pay("k-1").await.assert_in_flight();
            gate.open();
        }
        // Its end comes once it is recorded.
        caller.body_until("0\r\n\r\n").await;
        let repeat = world.pay("k-1").await;
        assert_eq!(repeat.assert_replay(200).text(), "data: event-0\n\ndata: event-1\n\ndata: event-2\n\n");
        assert_eq!(repeat.field("Content-Type"), Some("text/event-stream"));
        assert_eq!(world.executions(), 1);
    }

    async fn f3_a_stream_may_last_longer_than_the_proxy_listens_for_an_answer(store) {
        let world = World::with(store, "timeout = \"1500ms\"\n abandon_after = \"2s\"\n lease = \"1s\"").await;
        let mut steps = vec![bytes("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")];
        for n in 0..5 {
            steps.extend([bytes(format!("data: {n}\n\n")), Step::Pause(ms(600))]);
        }
        steps.extend([bytes("data: last\n\n"), Step::Close]);
        world.upstream.next(Script(steps));
        let first = world.pay("k-1").await;
        assert!(first.complete && first.text().ends_with("data: last\n\n"), "{}", first.shown());
        assert_eq!(first.field("Cache-Status"), Some("onceproxy; fwd=miss; detail=flowing"));
        assert_eq!(world.pay("k-1").await.assert_replay(200).text(), first.text());
        assert_eq!(world.executions(), 1);
    }

    async fn f4_half_a_response_is_no_response(store) {
        let halves = [
            format!("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "x".repeat(50)),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf\n\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nha".to_owned(),
        ];
        let world = World::new(store).await;
        for (n, half) in halves.into_iter().enumerate() {
            let key = format!("k-{n}");
            world.upstream.next(Script::bytes_then_close(half));
            world.pay(&key).await.assert_problem(502, "outcome-unknown");
            let repeat = world.pay(&key).await;
            repeat.assert_unknown();
            let record = world.proxy().record(&repeat.record()).await.unwrap();
            assert_eq!(record["reason"], "truncated");
            assert_eq!(world.executions(), n + 1);
        }
    }

    async fn f4_a_stream_that_breaks_off_breaks_off_for_the_caller_too(store) {
        let world = World::new(store).await;
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        world.upstream.next(Script(vec![bytes(head), bytes("9\r\ndata: 1\n\n\r\n"), Step::Close]));
        let first = world.pay("k-1").await;
        assert_eq!((first.status, first.complete), (200, false), "{}", first.shown());
        // It breaks off once the doubt is written.
        assert!(world.proxy().open_records("claimed").await.is_empty());
        world.pay("k-1").await.assert_unknown();
        assert_eq!(world.executions(), 1);
    }

    async fn h1_a_caller_that_hangs_up_costs_nothing(store) {
        let world = World::new(store).await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("done").behind(&gate));
        let caller = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        caller.hang_up().await;
        let connections = async || world.proxy().metric("onceproxy_connections", &[]).await;
        eventually("the proxy to see that it left", async || (connections().await == 0.0).then_some(())).await;
        let repeat = world.begin_pay("k-1");
        gate.open();
        assert_eq!(repeat.answer().await.assert_replay(201).text(), "done");
        assert_eq!(world.proxy().metric("onceproxy_late_answers_total", &[("route", "pay")]).await, 1.0);
        assert_eq!(world.pay("k-1").await.assert_replay(201).text(), "done");
        assert_eq!(world.executions(), 1);
    }

    async fn h1_a_hang_up_in_the_middle_of_a_stream_does_not_stop_it(store) {
        let world = World::new(store).await;
        let gate = Gate::new();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        world.upstream.next(Script(vec![
            bytes(head),
            bytes("9\r\ndata: 1\n\n\r\n"),
            Step::Wait(gate.clone()),
            bytes("0\r\n\r\n"),
        ]));
        let mut caller = Connection::open(world.address()).await;
        caller.send(&Request::pay().key("k-1")).await;
        caller.head().await;
        caller.body_until("data: 1").await;
        drop(caller);
        gate.open();
        assert_eq!(world.pay("k-1").await.assert_replay(200).text(), "data: 1\n\n");
        assert_eq!(world.executions(), 1);
    }

    async fn p1_a_stream_of_lines_flows_at_once_and_is_replayed_whole(store) {
        let world = World::new(store).await;
        let gates: Vec<_> = (0..10).map(|_| Gate::new()).collect();
        world.upstream.next(in_pieces("application/x-ndjson", &gates));
        let mut caller = Connection::open(world.address()).await;
        caller.send(&Request::pay().key("k-1")).await;
        let head = caller.head().await;
        assert_eq!((head.status, head.field("Cache-Status")), (200, Some("onceproxy; fwd=miss; detail=flowing")));
        let mut joiner = None;
        for (n, gate) in gates.iter().enumerate() {
            caller.body_until(&format!("piece-{n}\n")).await;
            if n == 4 {
                joiner = Some(world.begin_pay("k-1"));
                one_waits(&world).await;
            }
            gate.open();
        }
        caller.body_until("0\r\n\r\n").await;
        let whole: String = (0..10).map(|n| format!("piece-{n}\n")).collect();
        let joined = joiner.unwrap().answer().await;
        assert_eq!(joined.assert_replay(200).text(), whole);
        assert_eq!(joined.field("Cache-Status"), Some("onceproxy; hit; collapsed"));
        let repeat = world.pay("k-1").await;
        assert_eq!(repeat.assert_replay(200).text(), whole);
        assert_eq!(repeat.field("Content-Type"), Some("application/x-ndjson"));
        assert_eq!(world.executions(), 1);
    }

    async fn p1_a_stream_over_the_limit_flows_on_and_is_not_kept(store) {
        let world = World::with(store, "max_response_body = \"25B\"").await;
        let gates: Vec<_> = (0..4).map(|_| Gate::new()).collect();
        world.upstream.next(in_pieces("application/x-ndjson", &gates));
        let mut caller = Connection::open(world.address()).await;
        caller.send(&Request::pay().key("k-1")).await;
        caller.head().await;
        for (n, gate) in gates.iter().enumerate() {
            caller.body_until(&format!("piece-{n}\n")).await;
            gate.open();
        }
        caller.body_until("0\r\n\r\n").await;
        let repeat = world.pay("k-1").await;
        repeat.assert_problem(409, "response-not-retained");
        assert_eq!(repeat.json()["original_status"], 200);
        assert_eq!(world.proxy().metric("onceproxy_buffered_bytes", &[]).await, 0.0);
        assert_eq!(world.executions(), 1);
    }

    async fn p1_a_stream_of_lines_that_breaks_off_is_held(store) {
        let world = World::new(store).await;
        let gate = Gate::new();
        world.upstream.next(Script(vec![
            bytes("HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"),
            bytes("8\r\npiece-0\n\r\n"),
            Step::Wait(gate.clone()),
            Step::Close,
        ]));
        let first = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        gate.open();
        let first = first.answer().await;
        assert_eq!((first.status, first.text().as_str(), first.complete), (200, "piece-0\n", false));
        // Its caller sees that only once the doubt is written.
        let repeat = world.pay("k-1").await;
        repeat.assert_unknown();
        assert_eq!(world.proxy().record(&repeat.record()).await.unwrap()["reason"], "truncated");
        assert_eq!(world.executions(), 1);
    }

    async fn p1_a_stream_that_means_not_executed_frees_the_key_at_its_end(store) {
        let world = World::new(store).await;
        for (n, status) in [429, 200].into_iter().enumerate() {
            let gate = Gate::new();
            let head = format!("HTTP/1.1 {status} Scripted\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            world.upstream.next(Script(vec![
                bytes(head),
                bytes("8\r\npiece-0\n\r\n"),
                Step::Wait(gate.clone()),
                bytes("0\r\n\r\n"),
            ]));
            let mut caller = Connection::open(world.address()).await;
            caller.send(&Request::pay().key("k-1")).await;
            assert_eq!(caller.head().await.field("Cache-Status"), Some("onceproxy; fwd=miss; detail=flowing"));
            caller.body_until("piece-0\n").await;
            gate.open();
            caller.body_until("0\r\n\r\n").await;
            assert_eq!(world.executions(), n + 1);
        }
        world.pay("k-1").await.assert_replay(200);
    }
}

async fn one_waits(world: &World) {
    eventually("the duplicate to wait", async || {
        (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
    })
    .await;
}

/// An answer of this type whose pieces come one by one, each behind the gate of the one before.
fn in_pieces(content_type: &str, gates: &[Gate]) -> Script {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut steps = vec![bytes(head)];
    for (n, gate) in gates.iter().enumerate() {
        let piece = format!("piece-{n}\n");
        steps.extend([bytes(format!("{:x}\r\n{piece}\r\n", piece.len())), Step::Wait(gate.clone())]);
    }
    steps.push(bytes("0\r\n\r\n"));
    Script(steps)
}

/// What the head of an answer of this type says, whose second piece comes once the head is there if it is to flow, and
/// else once another request has been answered.
async fn said_of(world: &World, key: &str, content_type: &str, flows: bool) -> String {
    let gates = [Gate::new(), Gate::new()];
    world.upstream.next(in_pieces(content_type, &gates));
    let before = world.executions();
    let mut caller = Connection::open(world.address()).await;
    caller.send(&Request::pay().key(key)).await;
    world.upstream.reached(before + 1).await;
    if !flows {
        world.pay(&format!("{key}-other")).await.assert_executed(201);
        gates.iter().for_each(Gate::open);
    }
    let head = caller.head().await;
    gates.iter().for_each(Gate::open);
    head.field("Cache-Status").unwrap().to_owned()
}

#[tokio::test]
async fn p1_what_flows_goes_by_the_media_type_alone() {
    let world = World::new(Store::Memory).await;
    for (n, (content_type, right)) in [
        ("Text/Event-Stream; charset=utf-8", true),
        ("application/jsonl", true),
        ("application/json-seq", true),
        ("multipart/x-mixed-replace; boundary=\"a;b\"", true),
        ("APPLICATION/X-NDJSON ;v=1", true),
        ("application/grpc+proto", true),
        ("application/json", false),
        ("text/event-streams", false),
        ("multipart/mixed", false),
    ]
    .into_iter()
    .enumerate()
    {
        let said = said_of(&world, &format!("k-{n}"), content_type, right).await;
        let fate = if right { "detail=flowing" } else { "stored" };
        assert_eq!(said, format!("onceproxy; fwd=miss; {fate}"), "{content_type}");
    }
    let world = World::with(Store::Memory, "stream_types = [\"Application/Vnd.Shop+Json\"]").await;
    for (n, (content_type, right)) in
        [("application/vnd.shop+json", true), ("text/event-stream", false)].into_iter().enumerate()
    {
        let said = said_of(&world, &format!("k-{n}"), content_type, right).await;
        let fate = if right { "detail=flowing" } else { "stored" };
        assert_eq!(said, format!("onceproxy; fwd=miss; {fate}"), "{content_type}");
    }
}

#[tokio::test]
async fn p1_a_stream_that_finds_no_room_flows_on_and_is_not_kept() {
    let limits = "[limits]\nbuffered = \"1MiB\"\n";
    let world = World::build(Store::Memory).route("max_response_body = \"8MiB\"").more(limits).start().await;
    let piece = [b"80000\r\n", "x".repeat(MIB / 2).as_bytes(), b"\r\n"].concat();
    let gate = Gate::new();
    world.upstream.next(Script(vec![
        bytes("HTTP/1.1 200 OK\r\nContent-Type: application/jsonl\r\nTransfer-Encoding: chunked\r\n\r\n"),
        bytes(&piece),
        Step::Wait(gate.clone()),
        bytes(piece.repeat(2)),
        bytes("0\r\n\r\n"),
    ]));
    let first = world.begin_pay("k-1");
    world.upstream.reached(1).await;
    gate.open();
    let first = first.answer().await;
    assert!(first.complete && first.body.len() == 3 * MIB / 2, "{} bytes", first.body.len());
    world.pay("k-1").await.assert_problem(409, "response-not-retained");
    assert_eq!(world.proxy().metric("onceproxy_buffered_bytes", &[]).await, 0.0);
}

#[tokio::test]
async fn p1_trailers_and_a_declared_length_of_a_stream_are_replayed() {
    let world = World::new(Store::Memory).await;
    let gate = Gate::new();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";
    let chunked = Script(vec![
        bytes(format!("{head}Trailer: X-End\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")),
        Step::Wait(gate.clone()),
        bytes("3\r\ntwo\r\n0\r\nX-End: 1\r\n\r\n"),
    ]);
    let declared =
        Script(vec![bytes(format!("{head}Content-Length: 6\r\n\r\none")), Step::Wait(gate.clone()), bytes("two")]);
    gate.open();
    for (key, script, end) in [("k-1", chunked, Some("1")), ("k-2", declared, None)] {
        world.upstream.next(script);
        for _ in 0..2 {
            let answer = world.send(&Request::pay().key(key).field("TE", "trailers").field("Connection", "TE")).await;
            assert!(answer.complete && answer.text() == "onetwo", "{}", answer.shown());
            let trailer = answer.trailers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-end"));
            assert_eq!(trailer.map(|(_, value)| value.as_slice()), end.map(str::as_bytes), "{key}");
        }
        world.pay(key).await.assert_replay(200);
    }
}

//! Bodies and streams: over-long, without an end, and broken off.

use crate::support::{Connection, Gate, Request, Script, Step, World, eventually, ms, reply};

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
        // A repeat that comes before the doubt is written joins the attempt and is told the same: nobody can tell.
        let repeat = world.pay("k-1").await;
        assert_eq!((repeat.problem().as_str(), repeat.retry().as_str()), ("outcome-unknown", "operator"));
        eventually("the doubt", async || (world.proxy().open_records("claimed").await.is_empty()).then_some(())).await;
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
}

//! `on_store_error = "forward"`: what goes out without a claim says so, to the caller and to all who joined, and is not
//! held up by the store a second time.

use crate::support::{Answer, Gate, Script, Step, Store, World, eventually, reply};

const MARK: Option<&str> = Some("onceproxy; fwd=bypass; detail=store-error");

/// A world whose store is gone.
async fn without_store(store: Store) -> World {
    let builder = World::build(store).alone().store("timeout = \"500ms\"");
    let mut world = builder.route("on_store_error = \"forward\"\n max_response_body = \"1KiB\"").start().await;
    world.stop_store();
    world
}

async fn unprotected(world: &World) -> f64 {
    world.proxy().metric("onceproxy_requests_total", &[("result", "unprotected")]).await
}

fn event_stream() -> Script {
    let event = "data: one\n\n";
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    Script(vec![Step::Bytes(format!("{head}{:x}\r\n{event}\r\n0\r\n\r\n", event.len()).into())])
}

fn endless_head() -> Script {
    let body = "x".repeat(2048);
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    Script(vec![Step::Bytes(format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).into())])
}

on_shared_stores! {
    async fn what_flows_without_protection_says_so(store) {
        let world = without_store(store).await;
        let declared = Script::from(reply(200).body(vec![b'x'; 2048]));
        for (n, script) in [declared, endless_head(), event_stream()].into_iter().enumerate() {
            world.upstream.next(script);
            let answer = world.pay(&format!("k-{n}")).await;
            answer.assert_executed(200);
            assert!(answer.complete, "{}", answer.shown());
            assert_eq!(answer.field("Cache-Status"), MARK, "{}", answer.shown());
            assert_eq!(unprotected(&world).await, n as f64 + 1.0);
        }
    }

    async fn who_joined_what_is_not_protected_is_told_so(store) {
        let world = without_store(store).await;
        let gate = Gate::new();
        world.upstream.next(reply(201).body("one").behind(&gate));
        let first = world.begin_pay("k-1");
        world.upstream.reached(1).await;
        let second = world.begin_pay("k-1");
        eventually("the duplicate to wait", async || {
            (world.proxy().metric("onceproxy_waiting", &[]).await == 1.0).then_some(())
        })
        .await;
        gate.open();
        for answer in [first.answer().await, second.answer().await] {
            assert_eq!((answer.text().as_str(), answer.field("Cache-Status")), ("one", MARK), "{}", answer.shown());
            assert!(!answer.is_replay(), "it comes from no record: {}", answer.shown());
        }
        assert_eq!(world.executions(), 1);
    }

    async fn an_unprotected_outcome_that_is_lost_names_no_record(store) {
        let world = without_store(store).await;
        world.upstream.next(Script::reset());
        let answer: Answer = world.pay("k-1").await;
        answer.assert_problem(502, "outcome-unknown");
        assert!(answer.json().get("record").is_none(), "{}", answer.shown());
        // Nothing holds the key.
        world.pay("k-1").await.assert_executed(201);
        assert_eq!(world.executions(), 2);
    }

    async fn a_store_that_hangs_holds_an_unprotected_answer_up_once(store) {
        let builder = World::build(store).relayed().store("timeout = \"4s\"");
        let world = builder.route("on_store_error = \"forward\"").start().await;
        world.pay("warm-up").await.assert_executed(201);
        let completions = async || {
            world.proxy().metric("onceproxy_store_seconds_count", &[("operation", "complete")]).await
        };
        let before = completions().await;
        world.relay().hang();
        let answer = world.pay("k-1").await;
        assert_eq!(answer.assert_executed(201).field("Cache-Status"), MARK);
        // The answer did not wait for the store's word on the completion, which takes the store's timeout to come.
        assert_eq!(completions().await, before);
        world.relay().mend();
    }
}

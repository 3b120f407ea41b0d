//! The end of a storm: all is healed, nothing runs any more, and every proxy is asked about every key.

use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinSet;

use super::log::{Log, Wish};
use super::storms::Storm;
use crate::history::{Key, Left, Meaning, Seen};
use crate::support::proxy::Proxy;
use crate::support::{World, eventually, ms};

/// How often a key is asked for that does not come to an end.
const TRIES: usize = 60;
/// How often the proxies are looked at that do not come to rest.
const LOOKS: usize = 400;

/// Waits until no attempt runs and no write can still be repeated. Looks a bounded number of times: what still runs
/// then, the judge sees.
pub(super) async fn wait_for(world: &World, longest_attempt: Duration) {
    for proxy in &world.proxies {
        proxy.ready().await;
    }
    tokio::time::sleep(longest_attempt + ms(500)).await;
    for _ in 0..LOOKS {
        let mut running = 0.0;
        for proxy in &world.proxies {
            running += open_records(proxy, "&state=claimed").await.len() as f64;
            running += proxy.metric("onceproxy_in_flight", &[]).await;
        }
        if running == 0.0 {
            return;
        }
        tokio::time::sleep(ms(50)).await;
    }
}

/// Asks every proxy about every key until it has come to an end. Says whether nothing stood in the way: on a machine that
/// is busy enough an attempt of this very moment may have to give up, and what it leaves behind is not at rest.
pub(super) async fn ask(log: &Log, keys: Vec<Key>, storm: &Storm) -> bool {
    let (proxies, resends) = (storm.proxies, storm.resend_after.is_some());
    log.mark_none_as_last();
    let first = log.calls();
    let mut asked = JoinSet::new();
    for key in keys {
        // A few at a time: this is no storm any more.
        while asked.len() >= 16 {
            asked.join_next().await;
        }
        let log = log.clone();
        asked.spawn(async move {
            for proxy in 0..proxies {
                for request in [0, 1] {
                    let ended = bring_to_an_end(&log, Wish { key, request, proxy, patience: None }, resends).await;
                    let other = matches!(&ended, Seen::Problem(problem) if problem.kind == "key-reused");
                    if !other {
                        break;
                    }
                }
            }
        });
    }
    asked.join_all().await;
    log.all().1[first..].iter().all(|call| match &call.seen {
        Seen::Nothing => false,
        Seen::Answer(answer) => answer.kept,
        Seen::Problem(problem) => problem.retry != "same-key" && problem.status == 409 || problem.kind == "key-reused",
    })
}

async fn bring_to_an_end(log: &Log, wish: Wish, resends: bool) -> Seen {
    for left in (0..TRIES).rev() {
        let call = log.call(wish).await;
        let ended = match &call.seen {
            Seen::Nothing => false,
            Seen::Answer(answer) => Meaning::of(answer.given.status) == Meaning::Final,
            // Told to come again while the attempt still runs, it has not come to an end.
            Seen::Problem(problem) if problem.kind == "outcome-unknown" => problem.retry == "operator" && !resends,
            Seen::Problem(problem) => !matches!(
                problem.kind.as_str(),
                "request-in-progress" | "store-unavailable" | "upstream-unreachable" | "overloaded"
            ),
        };
        if ended || left == 0 {
            log.mark_last(call.number);
            return call.seen;
        }
        tokio::time::sleep(ms(100)).await;
    }
    unreachable!("the last try returns")
}

/// What the operator's list shows of it all.
pub(super) async fn left(world: &World) -> Vec<Left> {
    let records = open_records(world.proxy(), "").await;
    let text = |record: &Value, name: &str| record[name].as_str().expect(name).to_owned();
    records.iter().map(|record| Left { record: text(record, "id"), state: text(record, "state") }).collect()
}

/// All open records of the callers, page by page. What a proxy tries at its start under a name of its own, and may leave
/// for some seconds when it is killed, is none of them.
async fn open_records(proxy: &Proxy, query: &str) -> Vec<Value> {
    let mut records = Vec::new();
    let mut cursor = String::new();
    loop {
        // A busy machine may still let an operation time out.
        let answer = eventually("the list of open records", async || {
            let answer = proxy.admin("GET", &format!("/records?route=pay&limit=50{query}{cursor}"), None).await;
            assert!(matches!(answer.status, 200 | 503), "{}", answer.shown());
            (answer.status == 200).then_some(answer)
        })
        .await;
        let json = answer.json();
        records.extend_from_slice(json["records"].as_array().expect("a list of records"));
        match json["cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return records,
        }
    }
}

//! What a server refuses: memory, sizes, eviction policies; and values that are not records.

use onceproxy::record::{DoubtReply, Reason, ReleaseReply, RenewReply, State};
use onceproxy::store::{Query, StoreErrorKind};

use super::*;

#[tokio::test]
async fn a_full_server_refuses_claims_and_nothing_else() {
    let server = RedisServer::start(&[]);
    let store = quiet(&config(server.port()));
    let done = completed(&*store, &response(10)).await;
    let (large, small, doubted, released) = (claim(), claim(), claim(), claim());
    for claim in [&large, &small, &doubted, &released] {
        assert_eq!(store.claim(claim).await.unwrap(), GRANTED);
    }
    server.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let error = store.claim(&claim()).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
    assert!(error.message.contains("OOM"), "{error}");
    assert_eq!(replay(&*store, &done).await, response(10), "a replay needs no memory");
    assert_eq!(store.renew(&large).await.unwrap(), RenewReply::Extended);
    let without_body = CompleteReply::WithoutBody { rewritten: false };
    assert_eq!(store.complete(&large, &response(100_000), DAY).await.unwrap(), without_body);
    let forgotten = CompleteReply::WithoutBody { rewritten: true };
    assert_eq!(store.complete(&claim(), &response(100_000), DAY).await.unwrap(), forgotten);
    assert_eq!(replay(&*store, &large).await, response(100_000).without_body());
    assert_eq!(store.complete(&small, &response(100), DAY).await.unwrap(), CompleteReply::Stored);
    assert_eq!(replay(&*store, &small).await, response(100));
    let said = store.doubt(&doubted, Reason::Status, Some(&response(100_000))).await.unwrap();
    assert_eq!(said, DoubtReply::Held);
    assert_eq!(store.get(&doubted.id).await.unwrap().unwrap().original_status(), Some(201));
    assert_eq!(store.release(&released).await.unwrap(), ReleaseReply::Absent);
    assert!(store.ready().is_ok(), "a full server still answers");
}

#[tokio::test]
async fn a_body_larger_than_the_server_takes_is_not_kept() {
    let server = RedisServer::start(&["--proto-max-bulk-len", "1mb"]);
    let store = quiet(&config(server.port()));
    let large = claim();
    assert_eq!(store.claim(&large).await.unwrap(), GRANTED);
    let reply = store.complete(&large, &response(3 * 1024 * 1024), DAY).await.unwrap();
    assert_eq!(reply, CompleteReply::WithoutBody { rewritten: false });
    assert_eq!(replay(&*store, &large).await, response(0).without_body());
    let fitting = completed(&*store, &response(900 * 1024)).await;
    assert_eq!(replay(&*store, &fitting).await, response(900 * 1024));
}

#[tokio::test]
async fn a_server_that_may_forget_claims_gets_none() {
    let server = RedisServer::start(&["--maxmemory-policy", "volatile-lru"]);
    let process = Process::open(&config(server.port()));
    // The claim may come before the first look at the server.
    let error = process.store.claim(&claim()).await.unwrap_err();
    assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Refused, false), "{error}");
    assert!(error.message.contains("volatile-lru"), "{error}");
    assert!(process.becomes_unready().await.contains("noeviction"));
    assert_eq!(server.command(&["DBSIZE"]).parse::<u64>().unwrap(), keys_of_the_sweep(&server));
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    process.becomes_ready().await;
    completed(&*process.store, &response(1)).await;
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    process.becomes_unready().await;
    let reckless = Process::ready(&StoreConfig { allow_eviction: true, ..config(server.port()) }).await;
    completed(&*reckless.store, &response(1)).await;
}

fn keys_of_the_sweep(server: &RedisServer) -> u64 {
    server.command(&["EXISTS", "once:sweep", "once:counts"]).parse().unwrap()
}

#[tokio::test]
async fn what_cannot_be_read_fails_closed() {
    let server = RedisServer::start(&[]);
    let process = Process::ready(&config(server.port())).await;
    let store = &process.store;
    let fine = claim();
    store.claim(&fine).await.unwrap();
    let spoilers: [&dyn Fn(&str); 5] = [
        &|key| drop(server.command(&["SETRANGE", key, "0", "\u{3}"])),
        &|key| drop(server.command(&["SETRANGE", key, "1", "\u{1}"])),
        &|key| drop(server.command(&["SET", key, "short"])),
        &|key| drop(server.command(&["SETRANGE", key, "2", "\u{9}"])),
        &|key| {
            server.command(&["DEL", key]);
            server.command(&["LPUSH", key, "a list"]);
        },
    ];
    for (number, spoil) in spoilers.into_iter().enumerate() {
        let spoiled = claim();
        store.claim(&spoiled).await.unwrap();
        spoil(&key_of(&spoiled.id));
        for error in [
            store.claim(&spoiled).await.unwrap_err(),
            store.claim(&again(&spoiled)).await.unwrap_err(),
            store.renew(&spoiled).await.unwrap_err(),
            store.complete(&spoiled, &response(1), DAY).await.unwrap_err(),
            store.get(&spoiled.id).await.unwrap_err(),
        ] {
            assert_eq!((error.kind, error.may_have_run), (StoreErrorKind::Unreadable, false), "{number}: {error}");
        }
    }
    // A cut body is found when it is read: by the replay that would give it away.
    let cut = completed(&**store, &response(10)).await;
    let key = key_of(&cut.id);
    let length: usize = server.command(&["STRLEN", &key]).parse().unwrap();
    let value = server.command(&[
        "EVAL",
        "return redis.call('SET', KEYS[1], redis.call('GETRANGE', KEYS[1], 0, ARGV[1]))",
        "1",
        &key,
        &(length - 2).to_string(),
    ]);
    assert_eq!(value, "OK");
    assert_eq!(store.claim(&again(&cut)).await.unwrap_err().kind, StoreErrorKind::Unreadable);
    // The list shows what can be read.
    let page = store.list(&Query { limit: 100, ..Query::default() }).await.unwrap();
    let listed: Vec<_> = page.records.iter().map(|(id, _)| id).collect();
    assert_eq!(listed, [&fine.id]);
    assert!(store.ready().is_ok());
}

#[tokio::test]
async fn a_list_is_paged_across_the_shards_and_filtered() {
    let server = RedisServer::start(&[]);
    let process = Process::ready(&config(server.port())).await;
    let store = &process.store;
    let mut ids = Vec::new();
    for number in 0..40_u8 {
        let route = if number % 4 == 0 { "some" } else { "other" };
        // Two shards with many records, and some with one.
        let hash = [if number < 30 { number % 2 } else { number }, number, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let claim = Claim { id: RecordId::new(route.into(), hash), ..claim() };
        store.claim(&claim).await.unwrap();
        if number % 3 == 0 {
            store.doubt(&claim, Reason::Reset, None).await.unwrap();
        }
        ids.push(claim.id);
    }
    for (state, route, expected) in [
        (None, None, 40),
        (Some(onceproxy::store::OpenState::Unknown), None, 14),
        (Some(onceproxy::store::OpenState::Claimed), None, 26),
        (None, Some("some"), 10),
        (Some(onceproxy::store::OpenState::Unknown), Some("some"), 4),
    ] {
        for limit in [1, 7, 100] {
            let (mut found, mut cursor) = (Vec::new(), None);
            loop {
                let route = route.map(str::to_owned);
                let page = store.list(&Query { state, route, limit, cursor }).await.unwrap();
                assert!(page.records.len() <= limit);
                found.extend(page.records);
                cursor = page.cursor;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(found.len(), expected, "{state:?} {route:?} {limit}");
            assert!(found.iter().all(|(id, _)| ids.contains(id)));
            assert!(found.iter().all(|(id, _)| route.is_none_or(|route| route == id.route())));
            assert!(state.is_none_or(|_| found.iter().all(|(_, r)| {
                matches!(r.state, State::Unknown { .. }) == (state == Some(onceproxy::store::OpenState::Unknown))
            })));
            let mut unique: Vec<String> = found.iter().map(|(id, _)| id.to_string()).collect();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), expected);
        }
    }
    let odd = Query { limit: 1, cursor: Some("zz.1.x".into()), ..Query::default() };
    assert_eq!(store.list(&odd).await.unwrap_err().kind, StoreErrorKind::BadQuery);
}

#[tokio::test]
async fn the_sweep_counts_and_forgets_what_was_removed_by_hand() {
    let server = RedisServer::start(&[]);
    let process = Process::ready(&config(server.port())).await;
    let held: Vec<Claim> = (0..3).map(|_| claim()).collect();
    for claim in &held {
        process.store.claim(claim).await.unwrap();
        process.store.doubt(claim, Reason::Reset, None).await.unwrap();
    }
    let other = Process::ready(&config(server.port())).await;
    let shows = |process: &Process, count: u64| {
        process.metrics.expose().0.contains(&format!("onceproxy_records_open{{state=\"unknown\"}} {count}\n"))
    };
    for process in [&process, &other] {
        until("both show the count", async || shows(process, 3).then_some(())).await;
    }
    server.command(&["DEL", &key_of(&held[0].id)]);
    for process in [&process, &other] {
        until("both show that one is gone", async || shows(process, 2).then_some(())).await;
    }
}

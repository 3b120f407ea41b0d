//! How many round trips operations take, counted by the server.

use super::*;

#[tokio::test]
async fn a_first_execution_takes_two_trips_and_a_replay_one() {
    let server = RedisServer::start(&[]);
    let store = quiet(&config(server.port()));
    // Connects, looks at the server and teaches it the scripts.
    let warm = completed(&*store, &response(10)).await;
    server.command(&["CONFIG", "RESETSTAT"]);
    let first = completed(&*store, &response(10)).await;
    assert_eq!((server.calls_of("evalsha"), server.calls_of("eval")), (2, 0));
    replay(&*store, &first).await;
    assert_eq!(server.calls_of("evalsha"), 3);
    // A second trip would be a GET.
    assert_eq!((server.calls_of("get"), server.calls_of("script|load")), (0, 0));
    replay(&*store, &warm).await;
    assert_eq!((server.calls_of("evalsha"), server.calls_of("get")), (4, 0));
    let larger = completed(&*store, &response(4096)).await;
    assert_eq!(server.calls_of("evalsha"), 6);
    replay(&*store, &larger).await;
    // This one is read with a GET from inside.
    assert_eq!((server.calls_of("evalsha"), server.calls_of("get")), (7, 1));
}

#[tokio::test]
async fn a_claim_copies_no_large_body_and_the_replay_fetches_it_once() {
    let server = RedisServer::start(&[]);
    let store = quiet(&config(server.port()));
    let large = response(64 * 1024 + 1);
    let first = completed(&*store, &large).await;
    server.command(&["CONFIG", "RESETSTAT"]);
    assert_eq!(replay(&*store, &first).await, large);
    assert_eq!((server.calls_of("evalsha"), server.calls_of("get")), (1, 1));
}

#[tokio::test]
async fn many_callers_share_one_connection_which_one_of_them_opens() {
    let server = RedisServer::start(&[]);
    let store = quiet(&config(server.port()));
    let before = connections(&server);
    let claims: Vec<Claim> = (0..300).map(|_| claim()).collect();
    let running: Vec<_> = claims
        .into_iter()
        .map(|claim| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.claim(&claim).await.unwrap() })
        })
        .collect();
    for claim in running {
        assert_eq!(claim.await.unwrap(), GRANTED);
    }
    // One is the question itself.
    assert_eq!(connections(&server) - before, 2);
    let core = store.for_core();
    completed(&*core, &response(1)).await;
    assert_eq!(connections(&server) - before, 5, "each core has a connection for claims and one for bodies");
}

fn connections(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "stats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:")).unwrap();
    line.parse().unwrap()
}

#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_told_them_again() {
    let server = RedisServer::start(&[]);
    let store = quiet(&config(server.port()));
    let claim = claim();
    assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(store.claim(&claim).await.unwrap(), GRANTED);
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(store.complete(&claim, &response(1), DAY).await.unwrap(), CompleteReply::Stored);
    server.command(&["SCRIPT", "FLUSH"]);
    replay(&*store, &claim).await;
    assert_eq!(server.calls_of("script|load"), 0);
}

#[tokio::test]
async fn keys_are_named_as_documented_and_lie_in_one_slot() {
    let server = RedisServer::start(&[]);
    let store = quiet(&StoreConfig { prefix: "team".into(), ..config(server.port()) });
    let id: RecordId = "redis:3fa90000000000000000000000000001".parse().unwrap();
    let claim = Claim { id, ..claim() };
    store.claim(&claim).await.unwrap();
    let keys = server.command(&["KEYS", "*"]);
    let mut keys: Vec<_> = keys.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys, ["team:{3f}:open", "team:{3f}:r:3fa90000000000000000000000000001"]);
    assert_eq!(server.command(&["ZRANGE", "team:{3f}:open", "0", "-1"]), "redis:3fa90000000000000000000000000001");
    store.complete(&claim, &response(1), DAY).await.unwrap();
    assert_eq!(server.command(&["EXISTS", "team:{3f}:open"]), "0");
    let left: u64 = server.command(&["PTTL", "team:{3f}:r:3fa90000000000000000000000000001"]).parse().unwrap();
    assert!(left > 86_000_000, "{left}");
}

//! Waking those who wait in one process for what another does.

use onceproxy::store::Watch;

use super::*;

/// Waits to be woken. The deadline is for a wake that never comes; nothing is concluded from it.
async fn woken(watch: &mut dyn Watch) {
    tokio::time::timeout(Duration::from_secs(30), watch.changed()).await.expect("a wake comes");
}

async fn numsub(server: &RedisServer, channel: &str, count: &str) {
    until("the subscriptions are as they should be", async || {
        let answer = server.command(&["PUBSUB", "NUMSUB", channel]);
        (answer.lines().nth(1) == Some(count)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_process_subscribes_once_for_all_who_wait_and_lets_go_after_the_last() {
    let server = RedisServer::start(&[]);
    let process = Process::ready(&config(server.port())).await;
    let claim = claim();
    let channel = key_of(&claim.id);
    process.store.claim(&claim).await.unwrap();
    numsub(&server, &channel, "0").await;
    let mut first = process.store.watch(&claim.id).await.unwrap();
    let mut second = process.store.for_core().watch(&claim.id).await.unwrap();
    numsub(&server, &channel, "1").await;
    // The first slow poll wakes once. After that nothing about the record changes, so only a message can.
    woken(&mut *first).await;
    woken(&mut *second).await;
    until("one message wakes all", async || {
        server.command(&["PUBLISH", &channel, ""]);
        let both = async { tokio::join!(first.changed(), second.changed()) };
        tokio::time::timeout(Duration::from_millis(200), both).await.ok()
    })
    .await;
    drop(first);
    numsub(&server, &channel, "1").await;
    drop(second);
    numsub(&server, &channel, "0").await;
}

#[tokio::test]
async fn a_subscription_that_was_cut_is_made_again_and_everyone_woken() {
    let server = RedisServer::start(&[]);
    let process = Process::ready(&config(server.port())).await;
    let claim = claim();
    process.store.claim(&claim).await.unwrap();
    let mut watch = process.store.watch(&claim.id).await.unwrap();
    numsub(&server, &key_of(&claim.id), "1").await;
    // The first slow poll wakes once; later ones find nothing changed.
    woken(&mut *watch).await;
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    woken(&mut *watch).await;
    numsub(&server, &key_of(&claim.id), "1").await;
}

#[tokio::test]
async fn without_permission_to_subscribe_the_poll_wakes() {
    let server = RedisServer::start(&[]);
    server.command(&["ACL", "SETUSER", "deaf", "on", ">secret", "~once:*", "resetchannels", "+@all"]);
    let redis =
        Redis { username: Some("deaf".into()), password: Some("secret".to_owned().into()), ..backend(server.port()) };
    let (deaf, other) = (Process::ready(&config_of(redis)).await, Process::ready(&config(server.port())).await);
    let claim = claim();
    other.store.claim(&claim).await.unwrap();
    let mut watch = deaf.store.watch(&claim.id).await.unwrap();
    woken(&mut *watch).await;
    other.store.complete(&claim, &response(1), DAY).await.unwrap();
    woken(&mut *watch).await;
    replay(&*other.store, &claim).await;
}

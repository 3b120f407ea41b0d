//! Which connections are kept, which are used again, and which go.

use super::*;

#[tokio::test]
async fn connections_are_used_again() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let serve = async {
        let mut stream = peer.accept().await;
        for _ in 0..50 {
            read_request(&mut stream).await;
            stream.write_all(OK).await.unwrap();
        }
        stream
    };
    let ask = async {
        for n in 0..50 {
            let connection = pool.checkout().await.unwrap();
            assert_eq!(connection.is_reused(), n > 0);
            assert_eq!(text(connection.send(post("/", "x")).await.unwrap()).await, "ok");
        }
    };
    let (_stream, ()) = tokio::join!(serve, ask);
    assert!(!peer.has_another().await);
    assert_eq!(peer.metrics.upstream_sends.get(), 50);
}

#[tokio::test]
async fn a_connection_that_the_upstream_is_about_to_close_is_not_used_again() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let connection = pool.checkout().await.unwrap();
    let serve = async {
        let mut stream = peer.accept().await;
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=0\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
        stream
    };
    let (_stream, response) = tokio::join!(serve, connection.send(post("/", "")));
    assert_eq!(text(response.unwrap()).await, "ok");
    assert!(!pool.checkout().await.unwrap().is_reused());
}

#[tokio::test]
async fn connect_is_fresh_whatever_is_idle() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let _first = exchange(&peer, &pool).await;
    assert!(!pool.connect().await.unwrap().is_reused());
    peer.accept().await;
    assert!(pool.checkout().await.unwrap().is_reused());
}

#[tokio::test]
async fn most_recently_used_comes_first() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let (first, second) = (pool.connect().await.unwrap(), pool.connect().await.unwrap());
    let mut streams = [peer.accept().await, peer.accept().await];
    for (connection, stream) in [first, second].into_iter().zip(&mut streams) {
        let serve = async {
            read_request(stream).await;
            stream.write_all(OK).await.unwrap();
        };
        let (response, ()) = tokio::join!(connection.send(post("/", "")), serve);
        assert_eq!(text(response.unwrap()).await, "ok");
    }
    let connection = pool.checkout().await.unwrap();
    let serve = async {
        read_request(&mut streams[1]).await;
        streams[1].write_all(OK).await.unwrap();
    };
    let (response, ()) = tokio::join!(connection.send(post("/", "")), serve);
    assert_eq!(text(response.unwrap()).await, "ok");
}

#[tokio::test]
async fn hundred_requests_at_once_are_all_answered() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..100 {
        let pool = pool.clone();
        asking.spawn(async move {
            let response = send(&pool, post(&format!("/{n}"), "x")).await.unwrap();
            assert_eq!(text(response).await, format!("{n:03}"));
        });
    }
    let mut serving = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let mut stream = peer.accept().await;
        serving.spawn(async move {
            let request = String::from_utf8(read_request(&mut stream).await).unwrap();
            let n: u32 = request["POST /".len()..].split(' ').next().unwrap().parse().unwrap();
            stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{n:03}").as_bytes()).await.unwrap();
            stream
        });
    }
    let streams = serving.join_all().await;
    asking.join_all().await;
    assert_eq!(streams.len(), 100);
    for _ in 0..100 {
        assert!(pool.checkout().await.unwrap().is_reused());
    }
}

#[tokio::test]
async fn connection_that_the_upstream_wants_to_close_is_not_kept() {
    for answer in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ] {
        let peer = Peer::start().await;
        let pool = peer.pool();
        let (response, (mut stream, _)) = tokio::join!(send(&pool, post("/", "")), peer.answer_one(answer.as_bytes()));
        assert_eq!(text(response.unwrap()).await, "ok");
        closed_by_us(&mut stream).await;
        exchange(&peer, &pool).await;
    }
}

/// Hyper neither closes nor frees such a connection (hyper #4176); a request on it would be read as the body's rest.
#[tokio::test]
async fn connection_answered_before_the_upload_ended_is_closed() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let (parts, receiver) = tokio::sync::mpsc::channel(1);
    let request = http::Request::post("/").body(RequestBody::stream(sending::Channel(receiver))).unwrap();
    let serve = async {
        let mut stream = peer.accept().await;
        stream.read_exact(&mut [0; 10]).await.unwrap();
        stream.write_all(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 2\r\n\r\nno").await.unwrap();
        stream
    };
    let (response, mut stream) = tokio::join!(send(&pool, request), serve);
    let response = response.unwrap();
    assert_eq!(response.status(), 413);
    assert_eq!(text(response).await, "no");
    closed_by_us(&mut stream).await;
    parts.closed().await;
    exchange(&peer, &pool).await;
}

#[tokio::test]
async fn connection_closed_while_idle_is_passed_over() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    for by_reset in [false, true] {
        let stream = exchange(&peer, &pool).await;
        if by_reset {
            reset(stream);
        } else {
            drop(stream);
        }
        // Until the runtime has seen it.
        while pool.shared.idle.has_ready() {
            tokio::task::yield_now().await;
        }
        assert!(!pool.checkout().await.unwrap().is_reused());
        peer.accept().await;
    }
}

#[tokio::test]
async fn unused_connection_closes_after_the_idle_timeout() {
    let peer = Peer::start().await;
    let pool = peer.pool_with_idle_timeout(LONG - Duration::from_secs(1));
    // Twice, since the task that closes ends when nothing waits, and must come again.
    for _ in 0..2 {
        let mut stream = exchange(&peer, &pool).await;
        // From here the clock jumps to the next timer whenever nothing else can run.
        tokio::time::pause();
        let paused = tokio::time::Instant::now();
        closed_by_us(&mut stream).await;
        // The time before the pause is real.
        assert!(paused.elapsed() >= LONG / 4);
        tokio::time::resume();
    }
}

#[tokio::test]
async fn more_connections_than_are_kept_close_after_their_answer() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let mut streams = Vec::new();
    let mut bodies = Vec::new();
    for _ in 0..=crate::upstream::idle::MOST {
        let connection = pool.connect().await.unwrap();
        let (response, (stream, _)) = tokio::join!(connection.send(post("/", "")), peer.answer_one(OK));
        bodies.push(response.unwrap());
        streams.push(stream);
    }
    for response in bodies {
        assert_eq!(text(response).await, "ok");
    }
    closed_by_us(&mut streams.pop().unwrap()).await;
    for _ in streams {
        assert!(pool.checkout().await.unwrap().is_reused());
    }
}

#[tokio::test]
async fn expired_connection_is_not_used_even_if_nobody_closed_it() {
    let peer = Peer::start().await;
    let pool = peer.pool_with_idle_timeout(Duration::ZERO);
    let mut stream = exchange(&peer, &pool).await;
    assert!(!pool.checkout().await.unwrap().is_reused());
    closed_by_us(&mut stream).await;
}

#[tokio::test]
async fn dropped_pool_closes_its_connections() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let mut stream = exchange(&peer, &pool).await;
    drop(pool);
    closed_by_us(&mut stream).await;
}

#[tokio::test]
async fn dropped_connection_closes() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let mut stream = exchange(&peer, &pool).await;
    drop(pool.checkout().await.unwrap());
    closed_by_us(&mut stream).await;
}

#[tokio::test]
async fn pools_of_two_cores_share_no_connection() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let other = pool.for_another_core();
    let _stream = exchange(&peer, &pool).await;
    let connection = other.checkout().await.unwrap();
    assert!(!connection.is_reused());
    let (response, _) = tokio::join!(connection.send(post("/", "x")), peer.answer_one(OK));
    assert_eq!(text(response.unwrap()).await, "ok");
    assert_eq!(peer.metrics.upstream_sends.get(), 2);
}

#[tokio::test]
async fn a_connection_to_where_the_name_does_not_lead_any_more_is_not_used_again() {
    let peer = Peer::start().await;
    let pool = peer.pool();
    let leads_to = |address: &str| pool.shared.dialer.moves().learn("h", vec![address.parse().unwrap()]);
    leads_to("127.0.0.1");
    let mut first = exchange(&peer, &pool).await;
    let running = pool.checkout().await.unwrap();
    assert!(running.is_reused());
    // One that is idle, and one that comes back.
    let idle = async {
        let (response, (stream, _)) = tokio::join!(
            async { pool.connect().await.unwrap().send(post("/", "x")).await.unwrap() },
            peer.answer_one(OK)
        );
        assert_eq!(text(response).await, "ok");
        stream
    };
    let mut second = idle.await;
    leads_to("127.0.0.9");
    let serve = async {
        read_request(&mut first).await;
        first.write_all(OK).await.unwrap();
    };
    let (response, ()) = tokio::join!(running.send(post("/", "x")), serve);
    assert_eq!(text(response.unwrap()).await, "ok");
    assert!(!pool.checkout().await.unwrap().is_reused());
    drop(peer.accept().await);
    closed_by_us(&mut first).await;
    closed_by_us(&mut second).await;
    // A resolver that says nothing has moved nobody.
    pool.shared.dialer.moves().learn("h", Vec::new());
    let _third = exchange(&peer, &pool).await;
    assert!(pool.checkout().await.unwrap().is_reused());
}

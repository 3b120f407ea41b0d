//! HTTP/2 as an attacker speaks it: frames by hand, on a connection that ends closed.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn world() -> World {
    World::greeting(None, true, limits())
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Fields in HPACK, each as a literal that is not indexed.
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

fn get(path: &str) -> Vec<u8> {
    fields(&[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)])
}

/// The beginning of a connection, with one setting.
fn begin(setting: u16, value: u32) -> Vec<u8> {
    let settings = [&setting.to_be_bytes()[..], &value.to_be_bytes()].concat();
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &settings)].concat()
}

/// Writes these bytes again and again until the server closes; how often it took them.
async fn flood(world: &World, begin: &[u8], mut next: impl FnMut(u32) -> Vec<u8>) -> u32 {
    let client = world.connect().await;
    let (mut read, mut write) = client.0.into_split();
    // What the server says is taken, so that it never waits for its client.
    let reading = tokio::spawn(async move {
        let mut heard = Vec::new();
        let _ = read.read_to_end(&mut heard).await;
    });
    let _ = write.write_all(begin).await;
    let mut taken = 0;
    patiently(async {
        while write.write_all(&next(taken)).await.is_ok() {
            taken += 1;
            assert!(taken < 1_000_000, "it takes everything");
            tokio::task::yield_now().await;
        }
    })
    .await;
    patiently(reading).await.unwrap();
    taken
}

/// Waits until the server has no connection any more.
async fn closed(world: &World) {
    let closing = async {
        while world.metrics.listeners().connections.get() > 0 {
            tokio::task::yield_now().await;
        }
    };
    patiently(closing).await;
}

#[tokio::test]
async fn requests_taken_back_over_and_over_end_the_connection() {
    let world = world();
    let cancel = 8u32.to_be_bytes();
    flood(&world, &begin(3, 100), |number| {
        let stream = 2 * number + 1;
        [frame(HEADERS, END_STREAM | END_HEADERS, stream, &get("/wait")), frame(RESET, 0, stream, &cancel)].concat()
    })
    .await;
    closed(&world).await;
    assert_eq!(world.abused(), 1);
    // The service's work for it was bounded as well.
    assert!(world.served() <= 300, "{} were begun", world.served());
}

#[tokio::test]
async fn requests_that_begin_and_are_taken_back_end_the_connection_too() {
    let world = world();
    let client = world.connect().await;
    let (mut read, mut write) = client.0.into_split();
    let reading = tokio::spawn(async move {
        let mut heard = Vec::new();
        let _ = read.read_to_end(&mut heard).await;
    });
    write.write_all(&begin(3, 100)).await.unwrap();
    // Each has reached the service before it is taken back, so that only the count of these can tell.
    for number in 0..200u32 {
        let stream = 2 * number + 1;
        write.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, stream, &get("/wait"))).await.unwrap();
        let reached = async {
            while world.served() < number as usize + 1 {
                tokio::task::yield_now().await;
            }
        };
        patiently(reached).await;
        write.write_all(&frame(RESET, 0, stream, &8u32.to_be_bytes())).await.unwrap();
    }
    patiently(reading).await.unwrap();
    closed(&world).await;
    assert_eq!((world.served(), world.abused()), (200, 1));
}

#[tokio::test]
async fn a_head_that_never_ends_ends_the_connection() {
    let world = world();
    let piece = fields(&[("x", &"x".repeat(100))]).repeat(10);
    let start = [begin(3, 100), frame(HEADERS, END_STREAM, 1, &get("/"))].concat();
    let taken = flood(&world, &start, |_| frame(CONTINUATION, 0, 1, &piece)).await;
    closed(&world).await;
    assert!(taken < 10_000, "{taken} pieces were taken");
    assert_eq!((world.served(), world.abused()), (0, 1));
}

#[tokio::test]
async fn empty_pieces_of_a_head_and_of_a_body_end_the_connection() {
    let world = world();
    let start = [begin(3, 100), frame(HEADERS, END_STREAM, 1, &get("/"))].concat();
    flood(&world, &start, |_| frame(CONTINUATION, 0, 1, &[]).repeat(100)).await;
    closed(&world).await;
    let start = [begin(3, 100), frame(HEADERS, END_HEADERS, 1, &get("/wait"))].concat();
    flood(&world, &start, |_| frame(DATA, 0, 1, &[]).repeat(100)).await;
    closed(&world).await;
}

#[tokio::test]
async fn a_client_that_gives_no_room_for_its_answers_is_cut() {
    // Its pings do not help it.
    let world = world();
    let mut client = world.connect().await;
    let requests = (0..20u32).map(|number| frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &get("/big")));
    client.send([begin(4, 0), requests.collect::<Vec<_>>().concat()].concat()).await;
    let asked = async {
        while world.served() < 20 {
            tokio::task::yield_now().await;
        }
    };
    patiently(asked).await;
    for _ in 0..8 {
        pass(10 * SECOND).await;
        let _ = client.0.write_all(&frame(PING, 0, 0, &[0; 8])).await;
    }
    closed(&world).await;
    assert_eq!(world.abused(), 1);
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut() {
    let world = world();
    let mut client = world.connect().await;
    let window = frame(8, 0, 0, &0x7fff_0000u32.to_be_bytes());
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, &get("/long"));
    client.send([begin(4, 0x7fff_ffff), window, request].concat()).await;
    let asked = async {
        while world.served() < 1 {
            tokio::task::yield_now().await;
        }
    };
    patiently(asked).await;
    for _ in 0..10 {
        pass(61 * SECOND).await;
    }
    closed(&world).await;
}

#[tokio::test]
async fn fields_of_a_connection_are_refused() {
    for (name, value) in [
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("upgrade", "h2c"),
        ("keep-alive", "1"),
        ("te", "gzip"),
    ] {
        let world = world();
        let mut client = world.connect().await;
        let head = [get("/"), fields(&[(name, value)])].concat();
        client.send([begin(3, 100), frame(HEADERS, END_STREAM | END_HEADERS, 1, &head)].concat()).await;
        client.send(frame(HEADERS, END_STREAM | END_HEADERS, 3, &get("/core"))).await;
        let answered = async {
            while world.served() < 1 {
                tokio::task::yield_now().await;
            }
        };
        patiently(answered).await;
        // The second was served, so the first never will be.
        assert_eq!(world.served(), 1, "{name}");
    }
}

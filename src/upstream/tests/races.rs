//! Case B11: an upstream that closes idle connections just as requests are written, a thousand times.

use std::collections::HashMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Instant;

use super::*;

const REQUESTS: u32 = 1000;

/// The upstream closes after nothing to this; the client's next request comes after nothing to twice this.
const IDLE: Duration = Duration::from_micros(60);

/// Spread, the same in every run.
fn pause_before(n: u32) -> Duration {
    IDLE * 2 * (n.wrapping_mul(2_654_435_761) >> 16) / (1 << 16)
}

/// Answers on one connection at a time; a connection is closed when no request has come for some microseconds, every
/// other one by reset. Returns how often it read each request.
fn serve(listener: &TcpListener, stop: &mpsc::Receiver<()>) -> HashMap<String, u32> {
    let mut read = HashMap::new();
    let (mut connections, mut answers) = (0, 0);
    while let Ok((mut stream, _)) = listener.accept() {
        if stop.try_recv().is_ok() {
            break;
        }
        connections += 1;
        if connections % 2 == 0 {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        stream.set_nonblocking(true).unwrap();
        let mut wait = LONG;
        loop {
            let mut request = [0; 1024];
            let length = read_within(&mut stream, &mut request, wait);
            if length == 0 {
                break;
            }
            // Requests this small arrive whole.
            let text = std::str::from_utf8(&request[..length]).unwrap();
            assert!(is_whole(text.as_bytes()));
            *read.entry(text.split(' ').nth(1).unwrap().to_owned()).or_default() += 1;
            if stream.write_all(OK).is_err() {
                break;
            }
            answers += 1;
            wait = IDLE * (answers % 4) / 3;
        }
    }
    read
}

/// Spins, since the kernel's own timeouts are far coarser than the race. Returns 0 if nothing came.
fn read_within(stream: &mut TcpStream, buffer: &mut [u8], wait: Duration) -> usize {
    let until = Instant::now() + wait;
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < until => std::hint::spin_loop(),
            ended => return ended.unwrap_or(0),
        }
    }
}

#[tokio::test]
async fn stale_connections_lose_and_repeat_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = mpsc::channel();
    let peer = std::thread::spawn(move || serve(&listener, &stopped));
    let metrics = Metrics::new().route("r");
    let pool = Pool::new(&plain(address), LONG, LONG, &metrics).unwrap();

    let (mut answered, mut not_sent, mut doubtful) = (Vec::new(), Vec::new(), Vec::new());
    let mut reused = 0;
    for n in 0..REQUESTS {
        let id = format!("/{n}");
        let connection = pool.checkout().await.expect("the peer listens");
        reused += u32::from(connection.is_reused());
        match connection.send(post(&id, "x")).await {
            Ok(response) => {
                assert_eq!(text(response).await, "ok");
                answered.push(id);
            }
            Err(SendError::NotSent { .. }) => not_sent.push(id),
            Err(SendError::SpeaksTls { .. } | SendError::MayHaveRun { .. }) => doubtful.push(id),
        }
        let until = Instant::now() + pause_before(n);
        while Instant::now() < until {
            // Every other time the runtime stands still, as under load, and does not see the close come.
            if n % 2 == 0 {
                tokio::task::yield_now().await;
            }
            std::thread::yield_now();
        }
    }
    drop(pool);
    stop.send(()).unwrap();
    drop(TcpStream::connect(address).unwrap());
    let read = peer.join().unwrap();

    let times = |id: &String| read.get(id).copied().unwrap_or(0);
    assert!(answered.iter().all(|id| times(id) == 1), "an answered request was read once");
    assert!(not_sent.iter().all(|id| times(id) == 0), "what was not sent was not read");
    assert!(doubtful.iter().all(|id| times(id) <= 1), "nothing was sent twice");
    assert_eq!(answered.len() + not_sent.len() + doubtful.len(), REQUESTS as usize);
    assert_eq!(read.len(), answered.len() + doubtful.iter().filter(|id| times(id) == 1).count());
    assert_eq!(metrics.upstream_sends.get(), u64::from(REQUESTS));
    println!(
        "{} answered, {} not sent, {} in doubt, {reused} on used connections",
        answered.len(),
        not_sent.len(),
        doubtful.len()
    );
}

//! The way to a host: its addresses, and a TCP connection to whichever takes it first.
//!
//! Upstreams and stores go this way. A silent resolver costs those nothing that do not need it ([`names`]), and a silent
//! address a quarter of a second (RFC 8305, "happy eyeballs").

pub mod names;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long one address is tried alone before the next is tried beside it (RFC 8305 section 5).
const STAGGER: Duration = Duration::from_millis(250);

/// When the kernel gives a connection up.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long it may be silent before the peer is asked whether it is there.
    pub keepalive: Duration,
    /// How often it is asked then.
    pub interval: Duration,
    /// How long what was sent may stay without an acknowledgement. Only on Linux.
    pub unacknowledged: Duration,
}

/// An address took no connection.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {address}")]
pub struct Unreached {
    /// The one that was tried last.
    pub address: SocketAddr,
    /// What the system said.
    pub source: io::Error,
}

/// A connection to a host by name, to whichever of its addresses takes it first.
///
/// # Errors
/// The name has no address, or none of them takes a connection.
pub async fn tcp(host: &str, port: u16, patience: &Patience) -> io::Result<TcpStream> {
    let addresses = names::addresses(host, names::Asker::Settings).await?;
    let sockets = addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect();
    match race(sockets, patience).await {
        Some(connected) => connected.map_err(|unreached| {
            io::Error::new(unreached.source.kind(), format!("{}: {}", unreached.address, unreached.source))
        }),
        None => Err(io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"))),
    }
}

/// Tries each address in turn, the next as soon as one fails or has been silent for a moment; the first that stands wins,
/// and the others are given up. `None` without an address.
pub async fn race(addresses: Vec<SocketAddr>, patience: &Patience) -> Option<Result<TcpStream, Unreached>> {
    if let [only] = addresses[..] {
        return Some(connect(only, *patience).await);
    }
    let mut waiting = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut failed = None;
    attempts.spawn(connect(waiting.next()?, *patience));
    loop {
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(stream))) => return Some(Ok(stream)),
                Some(Ok(Err(error))) => failed = Some(error),
                // Attempts neither panic nor are cancelled while this set lives.
                Some(Err(_)) => {}
                None => return failed.map(Err),
            },
            () = sleep(STAGGER), if waiting.len() > 0 => {}
        }
        if let Some(address) = waiting.next() {
            attempts.spawn(connect(address, *patience));
        }
    }
}

async fn connect(address: SocketAddr, patience: Patience) -> Result<TcpStream, Unreached> {
    let connected = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let socket = socket2::SockRef::from(&stream);
        let keepalive = socket2::TcpKeepalive::new().with_time(patience.keepalive).with_interval(patience.interval);
        socket.set_tcp_keepalive(&keepalive)?;
        #[cfg(target_os = "linux")]
        socket.set_tcp_user_timeout(Some(patience.unacknowledged))?;
        Ok(stream)
    };
    connected.await.map_err(|source| Unreached { address, source })
}

/// Lets the two families alternate, beginning with the resolver's favourite, so that a broken one costs one stagger
/// only (RFC 8305 section 4).
fn alternate(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let Some(first) = addresses.first().copied() else { return addresses };
    let (mut favourite, mut other): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv4() == first.is_ipv4());
    favourite.reverse();
    other.reverse();
    let mut order = Vec::with_capacity(favourite.len() + other.len());
    while !(favourite.is_empty() && other.is_empty()) {
        order.extend(favourite.pop());
        order.extend(other.pop());
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        keepalive: Duration::from_secs(30),
        interval: Duration::from_secs(10),
        unacknowledged: Duration::from_secs(20),
    };

    fn addresses(text: &str) -> Vec<IpAddr> {
        text.split(' ').map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn families_alternate_from_the_resolvers_favourite() {
        assert_eq!(alternate(addresses("::1 ::2 ::3 1.1.1.1 2.2.2.2")), addresses("::1 1.1.1.1 ::2 2.2.2.2 ::3"));
        assert_eq!(alternate(addresses("1.1.1.1 ::1")), addresses("1.1.1.1 ::1"));
        assert_eq!(alternate(Vec::new()), Vec::<IpAddr>::new());
    }

    fn refusing() -> SocketAddr {
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
    }

    /// A listener whose queue is full: what connects to it now gets no answer. Kept alive by what is returned with it.
    fn silent() -> (SocketAddr, Vec<socket2::Socket>) {
        let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        listener.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut kept = vec![listener];
        for _ in 0..4 {
            let caller = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            caller.set_nonblocking(true).unwrap();
            let _ = caller.connect(&address);
            kept.push(caller);
        }
        (address.as_socket().unwrap(), kept)
    }

    #[tokio::test]
    async fn addresses_that_refuse_or_say_nothing_are_passed_over() {
        let listening = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listening.local_addr().unwrap();
        let (silent, _kept) = silent();
        for before in [vec![refusing()], vec![silent], vec![silent, refusing(), silent]] {
            let order = [before, vec![open]].concat();
            let stream = race(order, &PATIENCE).await.unwrap().unwrap();
            assert_eq!(stream.peer_addr().unwrap(), open);
        }
        let refusing = refusing();
        let error = race(vec![refusing, refusing], &PATIENCE).await.unwrap().unwrap_err();
        assert_eq!(error.address, refusing);
        assert!(race(Vec::new(), &PATIENCE).await.is_none());
    }
}

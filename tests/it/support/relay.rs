//! A TCP relay in front of a store's server, or of each of them, that can be slow, lose a reply, break off, or hang.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::eventually;
use super::upstream::Gate;
use super::wire::contains;

/// What becomes of one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It is swallowed and the connection broken off.
    Cut,
    /// It is swallowed, and so is all that follows on that connection.
    Silence,
    /// Half of it is passed on, and then the connection is broken off.
    Half,
    /// The command itself is held back until [`Relay::let_go`], and only then reaches the server; nobody gets its reply.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    Hold,
    Hang,
    Refuse,
}

struct State {
    delay: Duration,
    lose_next: Option<(Vec<u8>, Loss)>,
    lost: usize,
    let_go: Gate,
    /// How many more connections are let through.
    places: Option<usize>,
}

/// Relays have a thread of their own: a test that waits for a server must not hold up what other servers say to each other.
static RUNTIME: LazyLock<tokio::runtime::Handle> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    handle
});

/// The relay. Dropping it closes everything.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    /// Where the relays of each server listen, in the servers' order; the first is `address`.
    pub(crate) addresses: Vec<SocketAddr>,
    mode: watch::Sender<Mode>,
    state: Arc<Mutex<State>>,
    _tasks: tokio::task::JoinSet<()>,
}

impl Relay {
    /// Relays to `target`.
    pub(crate) fn before(target: SocketAddr) -> Relay {
        Relay::before_each([target])
    }

    /// Relays to several servers, which are slow, lose and hang as one.
    pub(crate) fn before_each(targets: impl IntoIterator<Item = SocketAddr>) -> Relay {
        let _entered = RUNTIME.enter();
        let state = Arc::new(Mutex::new(State {
            delay: Duration::ZERO,
            lose_next: None,
            lost: 0,
            let_go: Gate::new(),
            places: None,
        }));
        let mode = watch::Sender::new(Mode::Pass);
        let (mut addresses, mut tasks) = (Vec::new(), tokio::task::JoinSet::new());
        for target in targets {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            addresses.push(listener.local_addr().unwrap());
            tasks.spawn(accept(listener, target, mode.clone(), state.clone()));
        }
        Relay { address: addresses[0], addresses, mode, state, _tasks: tasks }
    }

    /// Holds each reply back this long.
    pub(crate) fn delay(&self, delay: Duration) {
        self.state.lock().unwrap().delay = delay;
    }

    /// Loses the reply to the next command that contains `marker`.
    pub(crate) fn lose_reply_to(&self, marker: &str, loss: Loss) {
        self.state.lock().unwrap().lose_next = Some((marker.as_bytes().to_vec(), loss));
    }

    /// Loses nothing that was not lost by now.
    pub(crate) fn lose_nothing(&self) {
        self.state.lock().unwrap().lose_next = None;
    }

    /// Delivers the command that was held back, and returns once the server has executed it.
    pub(crate) async fn let_go(&self) {
        self.state.lock().unwrap().let_go.open();
        eventually("the late command to be executed", async || (self.lost() > 0).then_some(())).await;
    }

    /// How many replies were lost.
    pub(crate) fn lost(&self) -> usize {
        self.state.lock().unwrap().lost
    }

    /// Passes commands on, and keeps their replies until it is mended.
    pub(crate) fn hold_replies(&self) {
        self.mode.send_replace(Mode::Hold);
    }

    /// Takes connections and commands, and passes nothing on.
    pub(crate) fn hang(&self) {
        self.mode.send_replace(Mode::Hang);
    }

    /// Breaks every connection off, and new ones at once.
    pub(crate) fn cut(&self) {
        self.mode.send_replace(Mode::Refuse);
    }

    /// Breaks every connection off, and lets no more than so many new ones through until it is mended: all others are
    /// closed at once.
    pub(crate) async fn admit(&self, places: usize) {
        self.cut();
        let none = async || (self.mode.receiver_count() == 0).then_some(());
        eventually("all connections to be broken off", none).await;
        self.state.lock().unwrap().places = Some(places);
        self.mode.send_replace(Mode::Pass);
    }

    /// Passes everything again.
    pub(crate) fn mend(&self) {
        self.state.lock().unwrap().places = None;
        self.mode.send_replace(Mode::Pass);
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, mode: watch::Sender<Mode>, state: Arc<Mutex<State>>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        match &mut state.lock().unwrap().places {
            Some(0) => continue,
            Some(places) => *places -= 1,
            None => {}
        }
        let (mode, state) = (mode.subscribe(), state.clone());
        connections.spawn(async move {
            let mut refused = mode.clone();
            tokio::select! {
                _ = refused.wait_for(|mode| *mode == Mode::Refuse) => {}
                () = relay(client, target, mode, &state) => {}
            }
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn relay(mut client: TcpStream, target: SocketAddr, mut mode: watch::Receiver<Mode>, state: &Mutex<State>) {
    if mode.wait_for(|mode| *mode == Mode::Pass).await.is_err() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (mut commands, mut replies) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let (mut losing, mut held) = (None, Vec::new());
    loop {
        // Both directions in one loop, so that a marked command and its reply are seen in order.
        let read = tokio::select! {
            n = client.read(&mut commands) => (true, n),
            n = server.read(&mut replies) => (false, n),
            mended = async { mode.wait_for(|mode| *mode == Mode::Pass).await.is_ok() }, if !held.is_empty() => {
                if !mended || client.write_all(&held).await.is_err() {
                    return;
                }
                held.clear();
                continue;
            }
        };
        let (from_client, Ok(n @ 1..)) = read else { return };
        if !from_client && (*mode.borrow() == Mode::Hold || !held.is_empty()) {
            // The commands go on meanwhile: the reply to an earlier one must not keep them back.
            held.extend_from_slice(&replies[..n]);
            continue;
        }
        let may_pass = |mode: &Mode| *mode == Mode::Pass || from_client && *mode == Mode::Hold;
        if mode.wait_for(may_pass).await.is_err() {
            return;
        }
        if from_client {
            losing = losing.or_else(|| loss_of_reply_to(&commands[..n], state));
            if losing == Some(Loss::Late) {
                let let_go = state.lock().unwrap().let_go.clone();
                let_go.passed().await;
            }
            if server.write_all(&commands[..n]).await.is_err() {
                return;
            }
            if losing == Some(Loss::Late) {
                // Whoever sent it may be gone; its reply says that Redis has executed it.
                let _ = server.read(&mut replies).await;
                state.lock().unwrap().lost += 1;
                return;
            }
            continue;
        }
        if let Some(loss) = losing {
            state.lock().unwrap().lost += 1;
            match loss {
                Loss::Cut | Loss::Late => return,
                Loss::Silence => std::future::pending().await,
                Loss::Half => {
                    let _ = client.write_all(&replies[..n / 2]).await;
                    return;
                }
            }
        }
        let delay = state.lock().unwrap().delay;
        tokio::time::sleep(delay).await;
        if client.write_all(&replies[..n]).await.is_err() {
            return;
        }
    }
}

fn loss_of_reply_to(command: &[u8], state: &Mutex<State>) -> Option<Loss> {
    let mut state = state.lock().unwrap();
    state.lose_next.take_if(|(marker, _)| contains(command, marker)).map(|(_, loss)| loss)
}

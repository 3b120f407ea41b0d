//! Names and their addresses. Each name is asked for once at a time, whoever waits for it, and the last answer stands in
//! for one that does not come.
//!
//! The system's resolver (`/etc/hosts`, `resolv.conf`, search domains and all) blocks a thread for as long as its servers are
//! silent. Asked for each connection, one dead name would take every thread that there is, and all other names with it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use super::alternate;
use crate::seldom::Seldom;

/// How long an answer may take before the last one stands in for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Names that clients chose may have so many look-ups under way; those of the settings have no such bound.
const MOST_ASKED: usize = 64;
/// Names that are remembered.
const MOST_KNOWN: usize = 1024;

/// Who wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The settings name the host.
    Settings,
    /// A request does.
    Client,
}

/// The addresses of a name, both families in turn; of an address only itself.
///
/// # Errors
/// The resolver does not know the name, or cannot be asked and never said anything of it.
pub async fn addresses(host: &str, asker: Asker) -> io::Result<Vec<IpAddr>> {
    static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(|host| Box::pin(ask_system(host))));
    match host.parse() {
        Ok(address) => Ok(vec![address]),
        Err(_) => NAMES.addresses(host, asker).await,
    }
}

async fn ask_system(host: String) -> io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((host, 0)).await?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found.map(|socket| socket.ip()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(alternate(addresses))
}

type Answer = Result<Vec<IpAddr>, Arc<io::Error>>;
/// `None` until the answer is there.
type Asked = watch::Receiver<Option<Answer>>;
type Asking = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

struct Names {
    ask: Box<dyn Fn(String) -> Asking + Send + Sync>,
    known: Arc<Mutex<HashMap<String, Name>>>,
    stale: Seldom<String>,
}

#[derive(Default)]
struct Name {
    /// What was said last.
    addresses: Option<Vec<IpAddr>>,
    /// The look-up that is under way.
    asked: Option<Asked>,
}

fn lock(known: &Mutex<HashMap<String, Name>>) -> MutexGuard<'_, HashMap<String, Name>> {
    // Each change is one step.
    known.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an answer is there or may still come.
fn is_alive(asked: &Asked) -> bool {
    asked.has_changed().is_ok() || asked.borrow().is_some()
}

impl Names {
    fn new(ask: impl Fn(String) -> Asking + Send + Sync + 'static) -> Names {
        Names { ask: Box::new(ask), known: Arc::default(), stale: Seldom::each_minute() }
    }

    async fn addresses(&self, host: &str, asker: Asker) -> io::Result<Vec<IpAddr>> {
        loop {
            let (mut asked, last) = self.ask(host, asker)?;
            let silence = async {
                match &last {
                    Some(_) => sleep(PATIENCE).await,
                    None => std::future::pending().await,
                }
            };
            let answer = tokio::select! {
                biased;
                answer = asked.wait_for(Option::is_some) => answer.ok().and_then(|answer| answer.clone()),
                () = silence => Some(Err(Arc::new(io::ErrorKind::TimedOut.into()))),
            };
            match (answer, last) {
                (Some(Ok(addresses)), _) => return Ok(addresses),
                (Some(Err(error)), Some(last)) => return Ok(self.stand_in(host, last, &error)),
                (Some(Err(error)), None) => return Err(io::Error::new(error.kind(), error.to_string())),
                // Given up with the runtime that it ran on. This one asks by itself.
                (None, _) => {}
            }
        }
    }

    /// The look-up that is under way, or a new one; and what was said last.
    fn ask(&self, host: &str, asker: Asker) -> io::Result<(Asked, Option<Vec<IpAddr>>)> {
        let mut known = lock(&self.known);
        if let Some(Name { asked: Some(asked), addresses }) = known.get(host)
            && is_alive(asked)
        {
            return Ok((asked.clone(), addresses.clone()));
        }
        let under_way = || known.values().filter(|name| name.asked.is_some()).count();
        if asker == Asker::Client && under_way() >= MOST_ASKED {
            return Err(io::Error::other("too many names are being looked up"));
        }
        if known.len() >= MOST_KNOWN {
            known.retain(|_, name| name.asked.is_some());
        }
        let (sender, asked) = watch::channel(None);
        let name = known.entry(host.to_owned()).or_default();
        name.asked = Some(asked.clone());
        let last = name.addresses.clone();
        drop(known);
        let (asking, known, host) = ((self.ask)(host.to_owned()), self.known.clone(), host.to_owned());
        // A task of its own: who asked first may give up, and others wait as well.
        tokio::spawn(async move {
            let answer = asking.await.map_err(Arc::new);
            if let Some(name) = lock(&known).get_mut(&host) {
                name.asked = None;
                if let Ok(addresses) = &answer {
                    name.addresses = Some(addresses.clone());
                }
            }
            let _ = sender.send(Some(answer));
        });
        Ok((asked, last))
    }

    fn stand_in(&self, host: &str, last: Vec<IpAddr>, why: &io::Error) -> Vec<IpAddr> {
        if let Some(left_out) = self.stale.count(host.to_owned()) {
            tracing::warn!(host, error = %why, left_out, "a name is used with the addresses that it had last");
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// A resolver that says what `said` says of a name; `None` is silence. Counts what it is asked.
    fn names(
        said: impl Fn(&str) -> Option<io::Result<Vec<IpAddr>>> + Send + Sync + 'static,
    ) -> (Arc<Names>, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::default());
        let counted = asked.clone();
        let ask = move |host: String| -> Asking {
            counted.fetch_add(1, Ordering::Relaxed);
            match said(&host) {
                Some(answer) => Box::pin(async move { answer }),
                None => Box::pin(std::future::pending()),
            }
        };
        (Arc::new(Names::new(ask)), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_name_is_asked_for_once_and_costs_the_others_nothing() {
        let (names, asked) = names(|host| (host != "silent").then(|| Ok(vec![HERE])));
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..1000 {
            let names = names.clone();
            waiting.spawn(async move { names.addresses("silent", Asker::Settings).await.map(drop) });
        }
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(names.addresses("healthy", Asker::Settings).await.unwrap(), [HERE]);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        assert!(waiting.try_join_next().is_none(), "nothing is made up");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_answer_stands_in_for_one_that_does_not_come() {
        let turns = AtomicUsize::default();
        let (names, asked) = names(move |_| match turns.fetch_add(1, Ordering::Relaxed) {
            0 => Some(Ok(vec![HERE])),
            1 => Some(Err(io::Error::other("SERVFAIL"))),
            _ => None,
        });
        for _ in 0..3 {
            assert_eq!(names.addresses("h", Asker::Settings).await.unwrap(), [HERE]);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 3, "it is asked anew for each connection");
    }

    #[tokio::test]
    async fn an_unknown_name_is_an_error_and_asked_for_again() {
        let (names, asked) = names(|_| Some(Err(io::Error::other("no such name"))));
        for _ in 0..2 {
            assert!(names.addresses("h", Asker::Settings).await.is_err());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_clients_choose_are_bounded_and_those_of_the_settings_are_not() {
        let (names, _) = names(|_| None);
        for number in 0..MOST_ASKED {
            names.ask(&format!("c{number}"), Asker::Client).unwrap();
        }
        assert!(names.ask("one-more", Asker::Client).is_err());
        let ours = names.addresses("ours", Asker::Settings);
        assert!(tokio::time::timeout(Duration::from_secs(5), ours).await.is_err(), "it waits for its answer");
    }
}

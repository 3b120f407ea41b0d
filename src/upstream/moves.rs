//! Whether the name of an upstream leads elsewhere by now.
//!
//! A name is looked up for each new connection, and under steady traffic there is none. So it is asked for again from time
//! to time, beside the requests, and a connection to an address that it no longer has takes no further request. The
//! system's resolver does not say for how long an answer holds; a setting does.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::config;
use crate::reach::names::{self, Asker};

/// What the name of an upstream, or of the proxy before it, leads to.
#[derive(Debug)]
pub(super) struct Moves {
    /// `None` where there is no name.
    host: Option<String>,
    asker: Asker,
    every: Duration,
    begun: Instant,
    /// When it was asked for last, in milliseconds from `begun`.
    asked: AtomicU64,
    /// What was said last; nothing until it was asked for again once.
    addresses: ArcSwapOption<Vec<IpAddr>>,
}

impl Moves {
    pub(super) fn new(upstream: &config::Upstream) -> Arc<Moves> {
        let host = match (&upstream.socket, &upstream.proxy) {
            (Some(_), _) => None,
            (None, Some(proxy)) => Some(proxy.host.clone()),
            (None, None) => Some(upstream.host.clone()),
        };
        Arc::new(Moves {
            host: host.filter(|host| !host.is_empty() && host.parse::<IpAddr>().is_err()),
            asker: if upstream.egress.is_some() { Asker::Client } else { Asker::Settings },
            every: upstream.dns_refresh.0,
            begun: Instant::now(),
            asked: AtomicU64::default(),
            addresses: ArcSwapOption::empty(),
        })
    }

    /// Has the name asked for again, if it is time. Waits for nothing.
    pub(super) fn look(self: &Arc<Self>) {
        let Some(host) = &self.host else { return };
        let (now, asked) = (self.begun.elapsed(), self.asked.load(Ordering::Relaxed));
        if now.saturating_sub(Duration::from_millis(asked)) < self.every {
            return;
        }
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let is_first = self.asked.compare_exchange(asked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let Some(runtime) = Handle::try_current().ok().filter(|_| is_first) else { return };
        let (this, host) = (Arc::clone(self), host.clone());
        runtime.spawn(async move {
            // What cannot be asked has not moved.
            if let Ok(addresses) = names::addresses(&host, this.asker).await {
                this.learn(&host, addresses);
            }
        });
    }

    /// Takes what the name leads to now.
    pub(super) fn learn(&self, host: &str, mut addresses: Vec<IpAddr>) {
        addresses.sort_unstable();
        let before = self.addresses.swap(Some(Arc::new(addresses.clone())));
        if before.is_some_and(|before| *before != addresses) {
            tracing::info!(host, ?addresses, "the upstream's name leads elsewhere");
        }
    }

    /// Whether a connection to this address leads where the name does not lead any more.
    pub(super) fn left(&self, address: Option<IpAddr>) -> bool {
        let (Some(address), Some(addresses)) = (address, &*self.addresses.load()) else { return false };
        !addresses.is_empty() && !addresses.contains(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_name_is_asked_for_again_when_it_is_time_and_an_address_never() {
        let upstream = |host: &str| config::Upstream { host: host.to_owned(), ..config::Upstream::default() };
        let (named, address) = (Moves::new(&upstream("localhost")), Moves::new(&upstream("127.0.0.1")));
        let elsewhere = Some("192.0.2.1".parse().unwrap());
        for passed in [10, 10, 9] {
            tokio::time::advance(Duration::from_secs(passed)).await;
            named.look();
            assert_eq!(named.asked.load(Ordering::Relaxed), 0);
            assert!(!named.left(elsewhere), "nobody has asked yet");
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        address.look();
        named.look();
        named.look();
        // The look-up runs on a thread of its own.
        while !named.left(elsewhere) {
            tokio::task::yield_now().await;
        }
        assert_eq!(named.asked.load(Ordering::Relaxed), 30_000);
        assert!(!named.left(Some(std::net::Ipv4Addr::LOCALHOST.into())) && !named.left(None));
        assert!(!address.left(elsewhere));
    }
}

//! The world of a scenario: upstream, store, proxies and client, each a file. None of it knows a scenario.
//!
//! Waits are for events with a deadline ([`eventually`]), never for a time to pass; whatever was started is ended by
//! `Drop`, so that a failing test leaves no process behind.

use std::time::Duration;

pub(crate) mod client;
#[cfg(feature = "otel")]
pub(crate) mod collector;
pub(crate) mod dice;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod relay;
pub(crate) mod secured;
pub(crate) mod tls;
pub(crate) mod topologies;
pub(crate) mod upstream;
pub(crate) mod wire;
pub(crate) mod world;

pub(crate) use client::{Answer, Connection, Pending, Request};
pub(crate) use upstream::{Gate, Script, Step, Upstream, reply};
pub(crate) use world::{Store, World};

/// How long anything may take before a scenario gives up: long enough for a loaded machine, short enough to notice.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Asks again and again until the answer is `Some`; panics with `what` when that does not come within [`DEADLINE`].
pub(crate) async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + DEADLINE;
    loop {
        if let Some(found) = ask().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "this did not come: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Lets time pass that belongs to the scenario itself: a lease that must run out, a caller that comes later.
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Milliseconds, short enough for a table.
pub(crate) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Ends a scenario that hangs, with its name instead of silence.
pub(crate) async fn within_deadline(name: &str, scenario: impl Future<Output = ()>) {
    let limit = Duration::from_secs(120);
    assert!(tokio::time::timeout(limit, scenario).await.is_ok(), "{name} hangs");
}

/// Writes one test per store: `scenario::memory`, `scenario::disk`, `scenario::redis`, `scenario::postgres`.
macro_rules! on_each_store {
    ($($(#[$doc:meta])* async fn $name:ident($store:ident) $body:block)*) => {
        on_stores! { [memory disk redis postgres] $($(#[$doc])* async fn $name($store) $body)* }
    };
}

/// The same for the stores that outlive the proxy.
macro_rules! on_lasting_stores {
    ($($(#[$doc:meta])* async fn $name:ident($store:ident) $body:block)*) => {
        on_stores! { [disk redis postgres] $($(#[$doc])* async fn $name($store) $body)* }
    };
}

/// The same for the stores that proxies share: Redis, Postgres, and Redis with Postgres as its second line.
macro_rules! on_shared_stores {
    ($($(#[$doc:meta])* async fn $name:ident($store:ident) $body:block)*) => {
        on_stores! { [redis postgres second_line] $($(#[$doc])* async fn $name($store) $body)* }
    };
}

/// The same for the stores that are named: `[redis postgres]`.
macro_rules! on_stores {
    ([$($kind:ident)*]) => {};
    ([$($kind:ident)*] $(#[$doc:meta])* async fn $name:ident($store:ident) $body:block $($rest:tt)*) => {
        $(#[$doc])*
        mod $name {
            use super::*;
            async fn scenario($store: $crate::support::Store) $body
            on_stores! { @tests $name $($kind)* }
        }
        on_stores! { [$($kind)*] $($rest)* }
    };
    (@tests $name:ident $($kind:ident)*) => {
        $(
            #[tokio::test]
            async fn $kind() {
                let store = $crate::support::Store::$kind();
                let name = concat!(stringify!($name), " on ", stringify!($kind));
                Box::pin($crate::support::within_deadline(name, scenario(store))).await;
            }
        )*
    };
}

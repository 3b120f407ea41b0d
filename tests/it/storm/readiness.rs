//! When the proxies themselves said that the store does not answer. A machine that is busy enough makes a store slow that
//! nobody has struck, and goes on being busy after a blow was healed: what cannot be written then has its excuse.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::log::Log;
use crate::history::Span;
use crate::support::ms;
use crate::support::proxy::try_admin;

/// How long a probe is waited for: a proxy that is away says nothing, and that it is away is known.
const PATIENCE: Duration = ms(500);

/// What `/readyz` says when the store is not there; that it refuses, or was not tried yet, is none of it.
const AWAY: [&str; 4] = ["did not answer in time", "cannot be reached", "does not serve", "cannot be found"];

/// Asks all proxies again and again, and takes down when one of them was without its store, until it is dropped.
pub(super) async fn watch(log: Log, proxies: usize) {
    loop {
        let from = log.now();
        sleep(ms(50)).await;
        for n in 0..proxies {
            let asked = timeout(PATIENCE, try_admin(log.proxy(n).admin, "GET", "/readyz", None)).await;
            let Ok(Some(answer)) = asked else { continue };
            let text = answer.text();
            if answer.status == 503 && AWAY.iter().any(|away| text.contains(away)) {
                log.note_without_store(Span { from, until: log.now() });
            }
        }
    }
}

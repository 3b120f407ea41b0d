//! What a store is told of the command line's upstream, so that a later start with another one can say so.
//!
//! The route `default` has its upstream in the scope: under another one, earlier keys are not found, and a repeat runs
//! again. Nobody sees that by the records, of which the store has hashes. So one record of the store's own names the
//! upstream that it was used with last; it is read and written at start, beside the requests, by the same operations that
//! every store has.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep;

use super::{Store, StoreError, preflight};
use crate::record::{Claim, ClaimReply, Record, RecordId, Response, State};

/// No route of the settings can have this name: theirs are in lower case.
const ROUTE: &str = "UPSTREAM";
const HASH: [u8; 16] = *b"route \"default\".";
/// Longer than records are kept.
const KEPT: Duration = Duration::from_secs(3650 * 24 * 3600);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Says if the store was last used with another upstream, once it can be reached, and notes this one.
pub async fn note_upstream(store: Arc<dyn Store>, upstream: String) {
    while store.ready().is_err() {
        sleep(BETWEEN_LOOKS).await;
    }
    match last_upstream(&*store).await {
        Ok(Some((_, last))) if last == upstream => return,
        Ok(None) => {}
        Ok(Some((record, last))) => {
            tracing::warn!(
                earlier = last,
                now = upstream,
                "the records of this store were made with another --upstream: its keys do not count for this one, and a \
                 request that was executed there is executed again here; give each upstream a --store of its own, unless you \
                 mean it"
            );
            let id = id();
            if let Err(error) = store.forget(&id, record.token, true).await {
                return tracing::debug!(%error, "the upstream was not noted in the store");
            }
        }
        Err(error) => return tracing::debug!(%error, "the store does not say which upstream it was used with"),
    }
    if let Err(error) = note(&*store, &upstream).await {
        tracing::debug!(%error, "the upstream was not noted in the store");
    }
}

/// What the store was used with last, if that was noted.
async fn last_upstream(store: &dyn Store) -> Result<Option<(Record, String)>, StoreError> {
    let Some(record) = store.get(&id()).await? else { return Ok(None) };
    let noted = match &record.state {
        State::Completed { response, .. } => response.body().map(|body| String::from_utf8_lossy(body).into_owned()),
        _ => None,
    };
    Ok(Some((record, noted.unwrap_or_default())))
}

async fn note(store: &dyn Store, upstream: &str) -> Result<(), StoreError> {
    let claim = Claim { id: id(), ..preflight::claim() };
    if matches!(store.claim(&claim).await?, ClaimReply::Granted { .. }) {
        let body = Bytes::copy_from_slice(upstream.as_bytes());
        let response = Response::new(200, std::iter::empty(), std::iter::empty(), Some(body));
        store.complete(&claim, &response, KEPT).await?;
    }
    Ok(())
}

fn id() -> RecordId {
    RecordId::new(ROUTE.into(), HASH)
}

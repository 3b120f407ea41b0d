//! Names that operators type: record ids, tokens, and the cursors of lists.
//!
//! The input is the text.

use std::pin::pin;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};

use onceproxy::config::{self, Sources};
use onceproxy::metrics::Metrics;
use onceproxy::record::{RecordId, Token};
use onceproxy::store::{self, Query, Store, StoreErrorKind};

/// Runs one input.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(id) = RecordId::from_str(text) {
        assert_eq!(id.to_string(), text, "a record has one name");
        assert!(!id.route().is_empty() && id.hex().to_string().len() == 32);
        assert_eq!(RecordId::new(id.route().into(), *id.hash()), id);
    }
    if let Ok(token) = Token::from_str(text) {
        assert_eq!(Token::from_str(&token.to_string()).ok(), Some(token));
        assert_eq!(Token::from_bytes(*token.as_bytes()), token);
    }
    let query = Query { limit: 10, cursor: Some(text.to_owned()), ..Query::default() };
    match at_once(MEMORY.list(&query)) {
        Ok(page) => assert!(page.records.is_empty() && page.cursor.is_none(), "the store is empty"),
        Err(error) => assert_eq!(error.kind, StoreErrorKind::BadQuery, "{error}"),
    }
}

static MEMORY: LazyLock<Arc<dyn Store>> = LazyLock::new(|| {
    let text = "[store]\nurl = \"memory:\"\n[[route]]\nname = \"r\"\nupstream = \"http://u.example\"\n";
    let config = config::load(&Sources::text(text)).expect("these settings hold").config;
    store::open(&config.store, &Metrics::new()).expect("memory can always be had").store
});

/// The memory store never waits.
fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store waited"),
    }
}

//! The stored form of records: any bytes are read or refused, and what was read is written and read the same.
//!
//! The input is taken for stored bytes, and also for the members of a record, which is written and read back.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use onceproxy::record::{
    Credentials, Details, Fingerprint, Imprint, Parts, Reason, Record, Response, State, Timestamp, Token,
};
use onceproxy::store::codec::{decode, encode};

/// Runs one input.
pub fn run(input: &[u8]) {
    if let Ok(record) = decode(Bytes::copy_from_slice(input)) {
        // Bytes that do not count (a reason where there is none to give) may be lost, but only once.
        let written = encode(&record);
        let again = decode(written.clone().into());
        assert_eq!(again.as_ref(), Ok(&record), "what was read is not read again");
        assert_eq!(encode(&record), written);
        walk(&record);
    }
    let mut source = Source(input);
    let record = record(&mut source, true);
    let written = encode(&record);
    assert_eq!(decode(written.clone().into()).as_ref(), Ok(&record), "what was written is not read");
    // Cut off anywhere, or with one more byte, it is no record.
    let cut = source.number() as usize % written.len();
    assert!(decode(Bytes::copy_from_slice(&written[..cut])).is_err(), "cut at {cut}");
    assert!(decode([written.as_slice(), b"\0"].concat().into()).is_err(), "a byte too many");
}

/// What a store does with what it has read.
fn walk(record: &Record) {
    let response = match &record.state {
        State::Claimed { .. } => None,
        State::Unknown { response, .. } => response.as_ref(),
        State::Completed { response, .. } => Some(response),
    };
    if let Some(response) = response {
        let fields = || response.headers().chain(response.trailers());
        let bytes: usize = fields().map(|(name, value)| 8 + name.len() + value.len()).sum();
        assert_eq!(bytes + 8, response.fields().len(), "the fields do not fill their section");
        let rewritten =
            Response::new(response.status(), response.headers(), response.trailers(), response.body().cloned());
        assert_eq!(&rewritten, response);
    }
    if let Some(prior) = &record.prior {
        assert!(prior.prior.is_none(), "a prior record is nested");
        walk(prior);
    }
}

/// Bytes to make things of; zeros when they are used up.
struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn number(&mut self) -> u64 {
        self.take(8).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Zero stands for "never" in stored bytes, and is no moment that a store's clock shows.
    fn moment(&mut self) -> Timestamp {
        Timestamp(self.number().max(1))
    }

    fn text(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.take(length)
    }
}

fn record(source: &mut Source<'_>, may_have_prior: bool) -> Record {
    let flags = source.byte();
    let mut digest = [0; 32];
    source.take(4).iter().zip(&mut digest).for_each(|(byte, place)| *place = *byte);
    let prior = may_have_prior && flags & 1 != 0;
    Record {
        token: Token::from_bytes([source.byte(); 16]),
        imprint: Imprint { fingerprint: Fingerprint { policy: [source.byte(); 4], digest }, details: details(source) },
        quoted: flags & 2 != 0,
        attempts: u32::from(source.byte()),
        claimed_at: source.moment(),
        abandon_at: source.moment(),
        unknown_retention: (flags & 4 != 0).then(|| Duration::from_millis(source.number().max(1))),
        state: state(source, flags),
        prior: prior.then(|| Box::new(record(source, false))),
    }
}

fn details(source: &mut Source<'_>) -> Option<Arc<Details>> {
    let kind = source.byte();
    let parts = Parts::new(std::array::from_fn(|_| [source.byte(); 16]));
    let credentials = (kind & 2 != 0).then(|| {
        let headers = std::array::from_fn(|_| NonZeroU64::new(source.number()));
        Credentials::new(headers, (0..kind >> 4).map(|_| source.number()).collect())
    });
    (kind & 1 != 0).then(|| Arc::new(Details { parts, credentials }))
}

fn state(source: &mut Source<'_>, flags: u8) -> State {
    match flags >> 6 {
        0 => State::Claimed { lease_until: source.moment() },
        1 => State::Unknown {
            since: source.moment(),
            reason: Reason::ALL[usize::from(source.byte()) % Reason::ALL.len()],
            expires_at: (flags & 8 != 0).then(|| source.moment()),
            response: (flags & 16 != 0).then(|| response(source, flags)),
        },
        _ => State::Completed {
            completed_at: source.moment(),
            expires_at: source.moment(),
            response: response(source, flags),
        },
    }
}

fn response(source: &mut Source<'_>, flags: u8) -> Response {
    let status = u16::from(source.byte()) + 100;
    let mut section = || -> Vec<(&[u8], &[u8])> {
        let count = source.byte() % 8;
        (0..count).map(|_| (source.text(), source.text())).collect()
    };
    let (headers, trailers) = (section(), section());
    let body = (flags & 32 != 0).then(|| Bytes::copy_from_slice(source.text()));
    let response = Response::new(status, headers.iter().copied(), trailers.iter().copied(), body);
    assert_eq!(response.headers().collect::<Vec<_>>(), headers);
    assert_eq!(response.trailers().collect::<Vec<_>>(), trailers);
    response
}

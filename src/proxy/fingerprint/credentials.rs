//! The credentials that come with a request, as short hashes: for routes on which only the first caller gets the answer.
//!
//! What is in the scope is not looked at: another one there has another record.

use std::num::NonZeroU64;

use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;

use super::super::key::transcript::Transcript;
use super::short;
use crate::config::{Route, ScopePart};
use crate::record::{Credentials, RecordId};

/// The fields that may carry a credential.
const FIELDS: [HeaderName; Credentials::HEADERS] =
    [AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("api-key")];
/// Cookies with shorter values are no secrets.
const SHORTEST_SECRET: usize = 16;

/// What is compared on one route.
#[derive(Clone, Debug)]
pub struct Compared {
    fields: [bool; Credentials::HEADERS],
    cookies: bool,
}

impl Compared {
    /// What the settings ask for; `None` if callers are not compared.
    pub fn of(route: &Route) -> Option<Compared> {
        route.compares_credentials().then(|| {
            let mut compared = Compared { fields: [true; Credentials::HEADERS], cookies: true };
            for part in &route.scope {
                compared.leave_out(part);
            }
            compared
        })
    }

    fn leave_out(&mut self, part: &ScopePart) {
        match part {
            ScopePart::Header(name) if *name == COOKIE => self.cookies = false,
            ScopePart::Header(name) => {
                for (known, is_compared) in FIELDS.iter().zip(&mut self.fields) {
                    *is_compared &= known != name;
                }
            }
            ScopePart::Cookie(_) => self.cookies = false,
            ScopePart::Query(_)
            | ScopePart::Host
            | ScopePart::Path
            | ScopePart::ClientCert
            | ScopePart::Constant(_) => {}
        }
    }

    /// The hashes of what came with this request.
    pub fn credentials(&self, head: &Parts, id: &RecordId) -> Credentials {
        let headers = std::array::from_fn(|field| {
            let name = &FIELDS[field];
            (self.fields[field] && head.headers.contains_key(name)).then(|| of_field(head, name, id))
        });
        let cookies = if self.cookies { cookies(head, id) } else { Vec::new() };
        Credentials::new(headers, cookies)
    }
}

/// Equal lines count once: some proxies double them.
fn of_field(head: &Parts, name: &HeaderName, id: &RecordId) -> NonZeroU64 {
    let mut transcript = salted(id);
    let lines: Vec<_> = head.headers.get_all(name).iter().collect();
    for (at, line) in lines.iter().enumerate() {
        if !lines[..at].contains(line) {
            transcript.part(line.as_bytes());
        }
    }
    NonZeroU64::new(finish(transcript)).unwrap_or(NonZeroU64::MAX)
}

/// In HTTP/2 each cookie may have a line of its own.
fn cookies(head: &Parts, id: &RecordId) -> Vec<u64> {
    let lines = head.headers.get_all(COOKIE).iter();
    let pairs = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    pairs.filter_map(|pair| of_cookie(pair.trim_ascii(), id)).collect()
}

fn of_cookie(pair: &[u8], id: &RecordId) -> Option<u64> {
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (&pair[..equals], &pair[equals + 1..]);
    (value.len() >= SHORTEST_SECRET).then(|| {
        let mut transcript = salted(id);
        transcript.part(name);
        transcript.part(value);
        finish(transcript)
    })
}

/// Salted with the record's name, so that equal credentials of two records have hashes that differ.
fn salted(id: &RecordId) -> Transcript {
    let mut transcript = Transcript::new();
    transcript.raw(id.hash());
    transcript
}

fn finish(transcript: Transcript) -> u64 {
    u64::from_be_bytes(short(&transcript.finish()))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const ALL: Compared = Compared { fields: [true; Credentials::HEADERS], cookies: true };

    fn id(hash: u8) -> RecordId {
        RecordId::new("r".into(), [hash; 16])
    }

    fn of(compared: &Compared, id: &RecordId, fields: &[(&str, &str)]) -> Credentials {
        let request = fields.iter().fold(Request::builder(), |request, (name, value)| request.header(*name, *value));
        compared.credentials(&request.body(()).unwrap().into_parts().0, id)
    }

    #[test]
    fn cookies_with_long_values_are_secrets_and_others_are_not() {
        let secret = "0123456789abcdef";
        let cookies = |text: &str| of(&ALL, &id(1), &[("cookie", text)]).cookies().to_vec();
        let known = cookies(&format!("sid={secret}"));
        assert_eq!(known.len(), 1);
        for same in [format!("a=1;sid={secret}"), format!(" sid={secret} ; b"), format!("sid={secret}; sid={secret}")] {
            assert_eq!(cookies(&same), known, "{same}");
        }
        for other in
            [format!("SID={secret}"), format!("sid=\"{secret}\""), format!("sid={secret}x"), format!("s=id{secret}")]
        {
            assert!(cookies(&other).len() == 1 && cookies(&other) != known, "{other}");
        }
        for none in ["sid=0123456789abcde", secret, "", ";;=", "=; a"] {
            assert!(cookies(none).is_empty(), "{none}");
        }
        // In HTTP/2 each may have a line of its own.
        let lines = of(&ALL, &id(1), &[("cookie", &format!("a={secret}")), ("cookie", &format!("sid={secret}"))]);
        assert_eq!(lines, of(&ALL, &id(1), &[("cookie", &format!("sid={secret}; a={secret}"))]));
    }

    #[test]
    fn equal_credentials_of_two_records_cannot_be_linked() {
        let fields = [("authorization", "Bearer a"), ("cookie", "sid=0123456789abcdef")];
        let (one, other) = (of(&ALL, &id(1), &fields), of(&ALL, &id(2), &fields));
        assert!(one.headers[0] != other.headers[0] && one.cookies() != other.cookies());
        assert_eq!(one.headers[1..], [None, None]);
    }

    #[test]
    fn a_doubled_line_counts_once_and_a_second_value_does_not() {
        let lines = |values: &[&str]| {
            let fields: Vec<_> = values.iter().map(|value| ("x-api-key", *value)).collect();
            of(&ALL, &id(1), &fields).headers[1]
        };
        assert_eq!(lines(&["a", "a"]), lines(&["a"]));
        for other in [&["a", "b"][..], &["b", "a"], &["ab"], &[""], &[]] {
            assert_ne!(lines(other), lines(&["a"]), "{other:?}");
        }
    }

    #[test]
    fn what_is_in_the_scope_is_not_looked_at() {
        let fields = [("authorization", "a"), ("x-api-key", "b"), ("api-key", "c"), ("cookie", "sid=0123456789abcdef")];
        let mut compared = ALL;
        compared.leave_out(&ScopePart::Header(HeaderName::from_static("x-api-key")));
        compared.leave_out(&ScopePart::Header(HeaderName::from_static("x-other")));
        compared.leave_out(&ScopePart::ClientCert);
        let seen = of(&compared, &id(1), &fields);
        assert_eq!(seen.headers.map(|hash| hash.is_some()), [true, false, true]);
        assert_eq!(seen.cookies().len(), 1);
        compared.leave_out(&ScopePart::Header(COOKIE));
        assert!(of(&compared, &id(1), &fields).cookies().is_empty());
    }
}

//! Requests and settings at random: a replay is given only where it is owed. What "the same" means is said here once
//! more, in plain comparisons instead of digests.

use http::Request;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::record::{Claim, ClaimReply, Fate, OnUnknown, RecordId, Response, Slot, Taken, Timestamp, Token};

/// A request, as its caller would describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sent {
    method: &'static str,
    path: &'static str,
    query: Option<&'static str>,
    host: &'static str,
    amz_target: Option<&'static str>,
    content_type: Option<&'static str>,
    tenant: Option<&'static str>,
    body: &'static str,
}

fn sent() -> impl Strategy<Value = Sent> {
    let query =
        select(vec![None, None, Some(""), Some("n=1"), Some("n=2"), Some("a=1&n=1"), Some("a=1"), Some("n=1&a=1")]);
    let host = select(vec!["a.test", "a.test", "A.test:80", "b.test"]);
    let maybe = || select(vec![None, None, None, Some("A"), Some("B")]);
    let kind = select(vec![Some("application/json"), Some("application/json"), None]);
    let body = select(vec![r#"{"a":1,"b":2}"#, r#"{"b":2, "a":1}"#, r#"{"a":1}"#, "no JSON", ""]);
    (
        select(vec!["POST", "POST", "PUT"]),
        select(vec!["/pay", "/pay", "/refund"]),
        query,
        host,
        maybe(),
        kind,
        maybe(),
        body,
    )
        .prop_map(|(method, path, query, host, amz_target, content_type, tenant, body)| Sent {
            method,
            path,
            query,
            host,
            amz_target,
            content_type,
            tenant,
            body,
        })
}

/// Mostly one that differs in little, so that the same is met as often as another.
fn pair() -> impl Strategy<Value = (Sent, Sent)> {
    (sent(), sent(), any::<u8>()).prop_map(|(first, other, changed)| {
        let mut second = first.clone();
        let changes: [&dyn Fn(&mut Sent); 8] = [
            &|sent| sent.method = other.method,
            &|sent| sent.path = other.path,
            &|sent| sent.query = other.query,
            &|sent| sent.host = other.host,
            &|sent| sent.amz_target = other.amz_target,
            &|sent| sent.content_type = other.content_type,
            &|sent| sent.tenant = other.tenant,
            &|sent| sent.body = other.body,
        ];
        // One in two changes one part, one in four two parts, the rest nothing.
        let wanted = usize::from(changed >> 6);
        for number in 0..wanted.min(2) {
            changes[usize::from(changed >> (3 * number)) % changes.len()](&mut second);
        }
        (first, second)
    })
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    body: BodyMode,
    headers: Vec<HeaderName>,
    ignore_query: Vec<String>,
    host: bool,
}

fn settings() -> impl Strategy<Value = Settings> {
    let headers = vec![OPERATION.to_vec(), Vec::new(), vec![HeaderName::from_static("x-tenant")]];
    let ignore_query = vec![Vec::new(), vec!["n".to_owned()]];
    let bodies = vec![BodyMode::Bytes, BodyMode::Json, BodyMode::Ignore];
    (select(bodies), select(headers), select(ignore_query), any::<bool>())
        .prop_map(|(body, headers, ignore_query, host)| Settings { body, headers, ignore_query, host })
}

impl Sent {
    fn head(&self) -> Parts {
        let query = self.query.map(|query| format!("?{query}")).unwrap_or_default();
        let mut request =
            Request::builder().method(self.method).uri(format!("{}{query}", self.path)).header("host", self.host);
        for (name, value) in
            [("x-amz-target", self.amz_target), ("content-type", self.content_type), ("x-tenant", self.tenant)]
        {
            request = value.into_iter().fold(request, |request, value| request.header(name, value));
        }
        request.body(()).unwrap().into_parts().0
    }

    fn imprint(&self, settings: &Settings) -> record::Imprint {
        let Settings { body, headers, ignore_query, host } = settings.clone();
        let policy = Policy::new(&config::Fingerprint { body, headers, ignore_query, ignore: Vec::new() }, host);
        let print = policy
            .print(&self.head(), BodyAsRead::Whole(self.body.as_bytes(), Some(self.body.as_bytes())), false)
            .unwrap();
        let details = Some(std::sync::Arc::new(record::Details { parts: print.parts, credentials: None }));
        record::Imprint { fingerprint: print.fingerprint, details }
    }

    fn host(&self) -> &'static str {
        if self.host == "A.test:80" { "a.test" } else { self.host }
    }

    fn is_equal_as_it_came(&self, other: &Sent) -> bool {
        // A header that only settings name is in no part.
        Sent { host: self.host(), tenant: None, ..self.clone() }
            == Sent { host: other.host(), tenant: None, ..other.clone() }
    }

    fn is_equal_under(&self, settings: &Settings, other: &Sent) -> bool {
        let query = |sent: &Sent| match (settings.ignore_query.is_empty(), sent.query) {
            (true, query) => query,
            (false, None | Some("n=1" | "n=2")) => None,
            (false, Some("a=1&n=1" | "n=1&a=1")) => Some("a=1"),
            (false, query) => query,
        };
        let header = |sent: &Sent| match settings.headers.as_slice() {
            [] => None,
            [_] => sent.tenant,
            _ => sent.amz_target,
        };
        let body = |sent: &Sent| match settings.body {
            BodyMode::Ignore => "",
            BodyMode::Json if sent.body == r#"{"b":2, "a":1}"# => r#"{"a":1,"b":2}"#,
            _ => sent.body,
        };
        let seen = |sent: &Sent| {
            let host = if settings.host { sent.host() } else { "" };
            (sent.method, sent.path, query(sent), host, header(sent), body(sent))
        };
        seen(self) == seen(other)
    }
}

fn claim(imprint: record::Imprint) -> Claim {
    let minute = std::time::Duration::from_secs(60);
    Claim {
        id: RecordId::new("r".into(), [0; 16]),
        token: Token::new(),
        imprint,
        quoted: false,
        lease: minute,
        abandon_after: minute,
        on_unknown: OnUnknown::Resend,
        unknown_retention: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_is_given_only_to_what_is_equal_as_it_came_or_under_one_policy(
        (first, second) in pair(), before in settings(), after in settings(), changes in any::<bool>(),
    ) {
        let after = if changes { after } else { before.clone() };
        let now = Timestamp(1_000_000);
        let slot = &mut Slot::new(None, false);
        let owner = claim(first.imprint(&before));
        record::claim(slot, &owner, now);
        let response = Response::new(201, [], [], None);
        record::complete(slot, &owner, response, std::time::Duration::from_secs(60), now);
        let told = record::claim(slot, &claim(second.imprint(&after)), now);
        let owed = match before == after {
            true => first.is_equal_under(&before, &second),
            false => first.is_equal_as_it_came(&second),
        };
        match told {
            ClaimReply::Taken(Taken::Completed(replay)) => {
                prop_assert!(owed, "{first:?} and {second:?} under {before:?} and {after:?}");
                prop_assert_eq!(replay.other_policy, before != after);
            }
            ClaimReply::Taken(Taken::Reused(reused)) => {
                prop_assert!(!owed, "{first:?} and {second:?} under {before:?} and {after:?}");
                prop_assert_eq!((reused.fate, reused.original_status), (Fate::Answered, Some(201)));
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

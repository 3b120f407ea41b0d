//! What was hashed last on this core of requests' heads.
//!
//! Request after request goes to the same place with the same kind of body. Comparing costs far less than hashing again.

use std::cell::RefCell;

use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Method};

use super::super::key::transcript::Transcript;
use super::Policy;
use super::target::path_and_query;

/// Longer texts are hashed each time, so that a core remembers little.
const LONGEST: usize = 512;

/// Where a request goes.
#[derive(Clone)]
pub(super) struct Address {
    /// Digest of method, path and query as they came.
    pub(super) target: [u8; 16],
    /// Digest of the host.
    pub(super) host: [u8; 16],
    /// The fingerprint so far: what counts of the head under the policy.
    pub(super) begun: Transcript,
}

/// All that an address is made of.
struct Sent {
    policy: [u8; 4],
    tls: bool,
    method: Method,
    target: String,
    host: HeaderValue,
}

impl Sent {
    fn is(&self, policy: &Policy, head: &Parts, tls: bool, host: &HeaderValue) -> bool {
        self.target == path_and_query(head)
            && self.method == head.method
            && self.host == *host
            && self.tls == tls
            && self.policy == policy.id
    }
}

thread_local! {
    static ADDRESS: RefCell<Option<(Sent, Address)>> = const { RefCell::new(None) };
    static CONTENT: RefCell<Option<(Vec<u8>, [u8; 16])>> = const { RefCell::new(None) };
}

/// Where this request goes, hashed now or the last time. Only for one that has none of the policy's header fields.
pub(super) fn address(policy: &Policy, head: &Parts, tls: bool) -> Address {
    let target = path_and_query(head);
    // A target that names a host itself is rare.
    let host = head.headers.get(HOST).filter(|_| head.uri.authority().is_none());
    let Some(host) = host.filter(|host| host.len() + target.len() <= LONGEST) else {
        return policy.address(head, tls);
    };
    ADDRESS.with_borrow_mut(|last| match last {
        Some((sent, address)) if sent.is(policy, head, tls, host) => address.clone(),
        _ => {
            let address = policy.address(head, tls);
            let (method, target) = (head.method.clone(), target.to_owned());
            // A copy: the field that came shares the read buffer of its connection.
            let host = HeaderValue::from_bytes(host.as_bytes()).expect("it is a field's value already");
            let sent = Sent { policy: policy.id, tls, method, target, host };
            last.insert((sent, address)).1.clone()
        }
    })
}

/// The digest of the content type in `value`, as `make` makes it, or made it the last time.
pub(super) fn content(value: &[u8], make: impl FnOnce() -> [u8; 16]) -> [u8; 16] {
    if value.len() > LONGEST {
        return make();
    }
    CONTENT.with_borrow_mut(|last| match last {
        Some((remembered, digest)) if remembered == value => *digest,
        _ => last.insert((value.to_vec(), make())).1,
    })
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::config::{self, BodyMode};

    fn head(method: &str, target: &str, host: &str) -> Parts {
        Request::builder().method(method).uri(target).header(HOST, host).body(()).unwrap().into_parts().0
    }

    fn policy(host: bool) -> Policy {
        let (headers, ignore_query, ignore) = Default::default();
        Policy::new(&config::Fingerprint { body: BodyMode::Bytes, headers, ignore_query, ignore }, host)
    }

    /// Whether the second is told from the first, which was hashed just before.
    fn differ(first: (&Policy, &Parts, bool), second: (&Policy, &Parts, bool)) -> bool {
        let of = |(policy, head, tls): (&Policy, &Parts, bool)| {
            let seen = address(policy, head, tls);
            let fresh = policy.address(head, tls);
            assert_eq!((seen.target, seen.host), (fresh.target, fresh.host));
            let (seen_begun, fresh_begun) = (seen.begun.finish(), fresh.begun.finish());
            assert_eq!(seen_begun, fresh_begun);
            (seen.target, seen.host, seen_begun)
        };
        let (one, other) = (of(first), of(second));
        assert_eq!(of(second), other, "remembered");
        one != other
    }

    #[test]
    fn what_is_remembered_is_what_would_be_hashed() {
        let (sees_host, other) = (policy(true), policy(false));
        let one = head("POST", "/a?b", "h");
        let first = (&sees_host, &one, false);
        assert!(!differ(first, first));
        for (method, target, host) in [("PUT", "/a?b", "h"), ("POST", "/a?c", "h"), ("POST", "/a?b", "i")] {
            assert!(differ(first, (&sees_host, &head(method, target, host), false)), "{method} {target} {host}");
        }
        assert!(differ(first, (&other, &one, false)), "another policy");
        let with_port = head("POST", "/a?b", "h:80");
        assert!(differ((&sees_host, &with_port, false), (&sees_host, &with_port, true)), "80 is not the port of TLS");
        // Without a Host field, and too long to be remembered.
        let long = head("POST", &format!("/{}", "x".repeat(LONGEST)), "h");
        assert!(differ(first, (&sees_host, &long, false)));
        assert!(differ(first, (&sees_host, &head("POST", "http://h/a?c", "h"), false)));
    }

    #[test]
    fn a_content_type_is_hashed_once_in_a_row() {
        let of = |value: &str, made: u8| content(value.as_bytes(), || [made; 16])[0];
        assert_eq!((of("text/plain", 1), of("text/plain", 2)), (1, 1));
        assert_eq!((of("text/html", 3), of("text/plain", 4)), (3, 4));
        let long = "x".repeat(LONGEST + 1);
        assert_eq!((of(&long, 5), of(&long, 6)), (5, 6), "too long to remember");
    }
}

//! The imprint: what a record remembers of the request that made it, to tell later ones from it.
//!
//! Two questions are asked of it, always in this order: does the same caller ask, and is it the same request? There is
//! one comparison, [`Imprint::compare`]; the Redis scripts have it in Lua. How an imprint is made is the proxy's affair.

use std::num::NonZeroU64;
use std::sync::Arc;

/// What a request was, in 36 bytes, under the settings of the time: two requests that were read under the same settings
/// are the same if these are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Format version and settings under which the digest was made. Digests of different policies cannot be compared.
    pub policy: [u8; 4],
    /// SHA-256 over what counts of the request.
    pub digest: [u8; 32],
}

impl Fingerprint {
    /// Policy and digest, one after the other.
    pub const SIZE: usize = 36;

    /// The fingerprint as it is stored.
    pub fn to_bytes(&self) -> [u8; Fingerprint::SIZE] {
        let mut bytes = [0; Fingerprint::SIZE];
        bytes[..4].copy_from_slice(&self.policy);
        bytes[4..].copy_from_slice(&self.digest);
        bytes
    }

    /// The fingerprint that was stored so.
    pub fn from_bytes(bytes: &[u8]) -> Option<Fingerprint> {
        let (policy, digest) = bytes.split_first_chunk::<4>()?;
        Some(Fingerprint { policy: *policy, digest: digest.try_into().ok()? })
    }
}

/// What a record remembers of its first request, and what a later one shows to be compared with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imprint {
    /// What the request was under its settings.
    pub fingerprint: Fingerprint,
    /// What it was as it came. `None` in records of format version 1, which do not say.
    pub details: Option<Arc<Details>>,
}

/// What a request was as it came, whatever the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// What was sent.
    pub parts: Parts,
    /// Who sent it; `None` where the route does not compare callers.
    pub credentials: Option<Credentials>,
}

/// Short digests of a request's parts as they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts([[u8; 16]; RequestPart::ALL.len()]);

/// A part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestPart {
    /// Method, path and query.
    Target,
    /// The host, in lower case and without the scheme's own port.
    Host,
    /// The header fields that choose an operation.
    Operation,
    /// The header fields that say what the body is.
    Content,
    /// The body.
    Body,
}

impl RequestPart {
    /// Every part, in the order in which their digests are stored.
    pub const ALL: [RequestPart; 5] =
        [RequestPart::Target, RequestPart::Host, RequestPart::Operation, RequestPart::Content, RequestPart::Body];
}

impl Parts {
    /// Bytes of all digests.
    pub const SIZE: usize = 16 * RequestPart::ALL.len();
    /// In place of the digest of header fields when there are none.
    pub const NONE: [u8; 16] = [0; 16];
    /// In place of the digest of a body that nobody has read. Never recorded, so it is equal to none that is.
    pub const UNREAD: [u8; 16] = [0xff; 16];

    /// The digests in the order of [`RequestPart::ALL`].
    pub fn new(digests: [[u8; 16]; RequestPart::ALL.len()]) -> Parts {
        Parts(digests)
    }

    /// The digests as they are stored.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    /// The digests that were stored so.
    pub fn from_bytes(bytes: &[u8; Parts::SIZE]) -> Parts {
        let mut digests = [[0; 16]; RequestPart::ALL.len()];
        digests.as_flattened_mut().copy_from_slice(bytes);
        Parts(digests)
    }
}

/// Short hashes of the credentials that came with a request. They are salted with the record's name, so that equal ones of
/// two records cannot be linked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Of each header field that may carry one; `None` where it was absent, or is compared as part of the scope.
    pub headers: [Option<NonZeroU64>; Credentials::HEADERS],
    cookies: Box<[u64]>,
}

impl Credentials {
    /// How many header fields are looked at.
    pub const HEADERS: usize = 3;
    /// As many cookies are kept, those with the smallest hashes: which ones these are is chance, but the same for both
    /// sides of a comparison.
    pub const MOST_COOKIES: usize = 64;

    /// The credentials of these hashes. A cookie that came twice counts once.
    pub fn new(headers: [Option<NonZeroU64>; Credentials::HEADERS], mut cookies: Vec<u64>) -> Credentials {
        cookies.sort_unstable();
        cookies.dedup();
        cookies.truncate(Credentials::MOST_COOKIES);
        Credentials { headers, cookies: cookies.into() }
    }

    /// The hashes of the cookies, smallest first.
    pub fn cookies(&self) -> &[u64] {
        &self.cookies
    }

    /// Whether `asking` may come from the caller that had these: the header fields are equal, and of the cookies that the
    /// first one had at least one is there. The others change with every answer of load balancers and frameworks.
    fn admit(&self, asking: &Credentials) -> bool {
        let shared = |cookie: &u64| asking.cookies.binary_search(cookie).is_ok();
        self.headers == asking.headers && (self.cookies.is_empty() || self.cookies.iter().any(shared))
    }
}

/// How a request is to the first one of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// It is the same.
    Same {
        /// The settings changed between the two, which are equal as they came.
        other_policy: bool,
    },
    /// It came with other credentials, or the record does not say with which the first one came.
    OtherCaller,
    /// It is another one, or nobody can say that it is the same.
    Differs(Differences),
}

/// In what a request differs from the first one of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differences {
    /// Whether both were read under the same settings. Then their digests differ, and a part may differ that does not
    /// count; else a difference in any part is one.
    pub same_policy: bool,
    /// Whether each part, in the order of [`RequestPart::ALL`], came otherwise; `None` where the record does not say.
    pub parts: Option<[bool; RequestPart::ALL.len()]>,
}

impl Differences {
    /// Whether this part is known to have come otherwise.
    pub fn has(&self, part: RequestPart) -> bool {
        self.parts.is_some_and(|parts| parts[part as usize])
    }
}

impl From<Fingerprint> for Imprint {
    /// An imprint that says nothing else.
    fn from(fingerprint: Fingerprint) -> Imprint {
        Imprint { fingerprint, details: None }
    }
}

impl Imprint {
    /// How a request that asks is to this one, which was the first.
    ///
    /// Callers come first, so that a stranger learns nothing of the request. What cannot be compared is a difference: that
    /// is refused, while a wrong "the same" would answer one request with the response to another.
    pub fn compare(&self, asking: &Imprint) -> Likeness {
        if !self.admits(asking) {
            return Likeness::OtherCaller;
        }
        let same_policy = self.fingerprint.policy == asking.fingerprint.policy;
        let parts = self.parts().zip(asking.parts());
        let same = match parts {
            _ if same_policy => self.fingerprint.digest == asking.fingerprint.digest,
            Some((first, asking)) => first == asking,
            None => false,
        };
        if same {
            return Likeness::Same { other_policy: !same_policy };
        }
        let parts = parts.map(|(first, asking)| std::array::from_fn(|part| first.0[part] != asking.0[part]));
        Likeness::Differs(Differences { same_policy, parts })
    }

    /// Whether whoever asks may have made this imprint, as far as that is to be looked at.
    fn admits(&self, asking: &Imprint) -> bool {
        let Some(shown) = asking.credentials() else { return true };
        self.credentials().is_some_and(|first| first.admit(shown))
    }

    fn parts(&self) -> Option<&Parts> {
        self.details.as_ref().map(|details| &details.parts)
    }

    fn credentials(&self) -> Option<&Credentials> {
        self.details.as_ref()?.credentials.as_ref()
    }
}

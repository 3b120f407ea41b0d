//! What an upstream of HTTP/1 says before its answer, and in which minor version: read from the bytes, of which hyper takes
//! the same and says nothing, unless a map is made for it with each request.

use std::mem::MaybeUninit;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version};

/// Who is told of interim answers (RFC 9110 section 15.2) to one request.
pub struct OnInterim(Box<Tell>);

type Tell = dyn Fn(StatusCode, Version, &HeaderMap) + Send + Sync;

impl OnInterim {
    /// This one, who is told the status, the version in which the upstream speaks, and the fields.
    pub fn new(tell: impl Fn(StatusCode, Version, &HeaderMap) + Send + Sync + 'static) -> OnInterim {
        OnInterim(Box::new(tell))
    }

    pub(super) fn tell(&self, status: StatusCode, version: Version, fields: &HeaderMap) {
        (self.0)(status, version, fields);
    }
}

impl std::fmt::Debug for OnInterim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnInterim")
    }
}

/// How each head begins, up to the digit of its minor version.
const VERSION: &[u8] = b"HTTP/1.";
/// What follows 101 is another protocol.
const LEAVES_HTTP: u16 = 101;
/// Interim answers that are longer, or have more fields, are passed over.
const MOST_BYTES: usize = 16 * 1024;
const MOST_FIELDS: usize = 64;

/// What has come of the heads before an answer, and of its own.
#[derive(Debug, Default)]
pub(super) enum Heads {
    /// Nothing is waited for, or the answer itself has begun.
    #[default]
    Over,
    /// So much of the beginning of a head.
    Begun(usize),
    /// An interim answer, as far as it has come.
    Interim(Vec<u8>),
}

impl Heads {
    /// An answer is waited for.
    pub(super) fn awaited() -> Heads {
        Heads::Begun(0)
    }

    /// Follows the bytes that come next. A minor version that is newer than 1 is written as 1 (RFC 9110 section 2.5): hyper
    /// knows none. `tell` gets interim answers.
    pub(super) fn follow(&mut self, bytes: &mut [u8], mut tell: impl FnMut(StatusCode, &HeaderMap)) {
        // As nearly all answers begin.
        if let (Heads::Begun(0), Some((b"HTTP/1.1 ", [class, ..]))) = (&*self, bytes.split_first_chunk())
            && *class != b'1'
        {
            *self = Heads::Over;
            return;
        }
        let mut at = 0;
        while at < bytes.len() {
            match self {
                Heads::Over => return,
                Heads::Begun(seen) => {
                    let byte = &mut bytes[at];
                    at += 1;
                    let fits = match *seen {
                        7 => {
                            if matches!(*byte, b'2'..=b'9') {
                                *byte = b'1';
                            }
                            byte.is_ascii_digit()
                        }
                        8 => *byte == b' ',
                        9 => *byte == b'1',
                        prefix => VERSION.get(prefix) == Some(byte),
                    };
                    *self = match (fits, *seen) {
                        (false, _) => Heads::Over,
                        // Only its class matters here.
                        (true, 9) => Heads::Interim(b"HTTP/1.1 1".to_vec()),
                        (true, seen) => Heads::Begun(seen + 1),
                    };
                }
                Heads::Interim(head) => {
                    head.push(bytes[at]);
                    at += 1;
                    if head.ends_with(b"\r\n\r\n") || head.ends_with(b"\n\n") {
                        *self = match interim(head, &mut tell) {
                            Some(status) if status.as_u16() != LEAVES_HTTP => Heads::Begun(0),
                            Some(_) | None => Heads::Over,
                        };
                    } else if head.len() >= MOST_BYTES {
                        *self = Heads::Over;
                    }
                }
            }
        }
    }
}

/// Reads the head of an interim answer, and tells of it; but not of those that belong to this hop: `100 Continue`, for which
/// the proxy has not asked, and `101`, which is the last word in HTTP.
fn interim(head: &[u8], tell: &mut impl FnMut(StatusCode, &HeaderMap)) -> Option<StatusCode> {
    let mut lines = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut response, head, &mut lines);
    if !parsed.is_ok_and(|parsed| parsed.is_complete()) {
        return None;
    }
    let status = StatusCode::from_u16(response.code?).ok()?;
    if status.as_u16() > LEAVES_HTTP {
        let fields = response.headers.iter().filter_map(|line| {
            let name = HeaderName::from_bytes(line.name.as_bytes()).ok()?;
            Some((name, HeaderValue::from_bytes(line.value).ok()?))
        });
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(name, value);
        }
        tell(status, &map);
    }
    Some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told, and the bytes as they go on, if they come in pieces of this size.
    fn followed(text: &str, size: usize) -> (Vec<(u16, usize)>, String) {
        let (mut heads, mut told) = (Heads::awaited(), Vec::new());
        let mut bytes = text.as_bytes().to_vec();
        for piece in bytes.chunks_mut(size) {
            heads.follow(piece, |status, fields| told.push((status.as_u16(), fields.len())));
        }
        (told, String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn interim_answers_are_told_and_versions_lowered_however_the_bytes_come() {
        let answer = "HTTP/1.9 200 OK\r\nA: HTTP/1.9 103\r\n\r\nHTTP/1.9 103 X\r\n\r\n";
        let lowered = answer.replacen("1.9", "1.1", 1);
        for (before, told) in [
            ("", vec![]),
            ("HTTP/1.1 100 Continue\r\n\r\n", vec![]),
            ("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nLink: </b>\r\n\r\n", vec![(103, 2)]),
            ("HTTP/1.0 102 Processing\n\nHTTP/1.1 103\r\nA: b\r\n\r\n", vec![(102, 0), (103, 1)]),
        ] {
            for size in 1..=before.len() + answer.len() {
                let seen = followed(&format!("{before}{answer}"), size);
                assert_eq!(seen, (told.clone(), format!("{before}{lowered}")), "{before:?} in pieces of {size}");
            }
        }
        let newer = followed("HTTP/1.2 103 X\r\n\r\nHTTP/1.3 201 OK\r\n\r\n", 7);
        assert_eq!(newer, (vec![(103, 0)], "HTTP/1.1 103 X\r\n\r\nHTTP/1.1 201 OK\r\n\r\n".into()));
    }

    #[test]
    fn what_is_no_head_or_leaves_http_is_left_alone() {
        let long = format!("HTTP/1.1 103 X\r\nA: {}\r\n\r\nHTTP/1.2 200 OK\r\n\r\n", "a".repeat(MOST_BYTES));
        for text in
            ["HTTP/2.0 103 X\r\n\r\n", "HTTP/1.x 103 X\r\n\r\n", "HTTP/1.1 101 X\r\n\r\nHTTP/1.2 103 X\r\n\r\n", &long]
        {
            assert_eq!(followed(text, 10), (vec![], text.to_owned()));
        }
    }
}

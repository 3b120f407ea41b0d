//! Bodies without their content codings (RFC 9110 section 8.4), for whoever reads what is in them. What goes on, and what is
//! recorded, is never touched.
//!
//! No step of the way has more than the limit, so a small body that unfolds into a large one costs no more than a large one.

pub(super) mod coding;

use std::borrow::Cow;

use http::header::{CONTENT_ENCODING, HeaderMap};

use self::coding::{Coding, Malformed, Step};
use crate::fields::list;

/// Why a body cannot be had without its codings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDecoded {
    /// It has a coding that the proxy does not read, or more of them than anybody would use.
    #[error("the body has a Content-Encoding that the proxy does not read")]
    Unknown,
    /// It is not what its coding says, or ends before its end.
    #[error("the body is not what its Content-Encoding says")]
    Damaged,
    /// It is longer than the limit.
    #[error("the decoded body is longer than {limit} bytes")]
    TooLong {
        /// In bytes.
        limit: usize,
    },
}

/// So many codings at most: each may unfold to the limit.
const MOST_CODINGS: usize = 4;

/// The codings of a body in the order in which they come off; `None` if one of them is not known, or they are too many.
pub(super) fn codings(fields: &HeaderMap) -> Option<Vec<Coding>> {
    let named = list(fields, &CONTENT_ENCODING).filter(|name| !name.eq_ignore_ascii_case(b"identity"));
    let mut codings = named.map(Coding::named).collect::<Option<Vec<_>>>()?;
    // The last one that was put on comes off first.
    codings.reverse();
    (codings.len() <= MOST_CODINGS).then_some(codings)
}

/// The body without the codings that `Content-Encoding` names, and not longer than `limit`; as it is if it has none.
pub fn decode<'a>(fields: &HeaderMap, body: &'a [u8], limit: usize) -> Result<Cow<'a, [u8]>, NotDecoded> {
    let mut body = Cow::Borrowed(body);
    for coding in codings(fields).ok_or(NotDecoded::Unknown)? {
        body = Cow::Owned(without(coding, &body, limit)?);
    }
    if body.len() > limit { Err(NotDecoded::TooLong { limit }) } else { Ok(body) }
}

fn without(coding: Coding, body: &[u8], limit: usize) -> Result<Vec<u8>, NotDecoded> {
    let mut stream = coding.open(body);
    let (mut decoded, mut filled) = (Vec::new(), 0);
    loop {
        if filled == decoded.len() {
            let next = decoded.len().saturating_mul(2).max(1024).min(limit.saturating_add(1));
            decoded.resize(next, 0);
        }
        match stream.next(&mut decoded[filled..]) {
            Ok(Step::Read { given, .. }) => filled += given,
            Ok(Step::Ended) => break,
            Err(Malformed) => return Err(NotDecoded::Damaged),
        }
        if filled > limit {
            return Err(NotDecoded::TooLong { limit });
        }
    }
    decoded.truncate(filled);
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use http::HeaderValue;

    use super::*;

    const TEXT: &[u8] = b"{\"errors\":[{\"message\":\"slow down, slow down, slow down\"}]}";
    /// TEXT as the libraries of brotli and zstd write it.
    const BROTLI: &[u8] = b"\x1b\x39\x00\xf8\x9d\x07\xb6\xad\x23\x7d\x41\x2c\x16\x2e\x5b\xf3\xb5\xc8\xde\xdd\xd6\x62\x9b\x4b\x9d\xae\xbe\x12\x79\x83\x0d\x38\x11\x09\x28\x4f\x06\xbd\x03\x28\x01\x18\x96\x90\x20\x16\x17\xfd\x78\xb8\xe8\x06";
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x00\x58\x6d\x01\x00\x64\x02\x7b\x22\x65\x72\x72\x6f\x72\x73\x22\x3a\x5b\x7b\x22\x6d\x65\x73\x73\x61\x67\x65\x22\x3a\x22\x73\x6c\x6f\x77\x20\x64\x6f\x77\x6e\x2c\x20\x22\x7d\x5d\x7d\x01\x00\x32\x5d\x9e";

    fn fields(codings: &str) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_str(codings).unwrap())])
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn raw(text: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn every_coding_comes_off() {
        let twice = [gzip(TEXT), gzip(TEXT)].concat();
        for (codings, body) in [
            ("", TEXT.to_vec()),
            ("identity", TEXT.to_vec()),
            ("gzip", gzip(TEXT)),
            ("X-GZip", gzip(TEXT)),
            ("deflate", zlib(TEXT)),
            ("deflate", raw(TEXT)),
            ("br", BROTLI.to_vec()),
            ("zstd", ZSTD.to_vec()),
            ("identity, gzip ,deflate", zlib(&gzip(TEXT))),
            (
                "br, zstd, gzip",
                gzip(&{
                    // Not compressed again: one raw block.
                    let mut frame = b"\x28\xb5\x2f\xfd\x20".to_vec();
                    frame.push(u8::try_from(BROTLI.len()).unwrap());
                    frame.extend(&u32::try_from(BROTLI.len() << 3 | 1).unwrap().to_le_bytes()[..3]);
                    frame.extend(BROTLI);
                    frame
                }),
            ),
        ] {
            // What lies between may be a little longer.
            let between = if codings.contains(',') { 100 } else { 0 };
            assert_eq!(decode(&fields(codings), &body, TEXT.len() + between).as_deref(), Ok(TEXT), "{codings}");
            let limit = TEXT.len() - 1;
            assert_eq!(decode(&fields(codings), &body, limit), Err(NotDecoded::TooLong { limit }), "{codings}");
        }
        assert_eq!(decode(&fields("gzip"), &twice, 1000).as_deref(), Ok(&[TEXT, TEXT].concat()[..]));
        let frames = [ZSTD, ZSTD].concat();
        assert_eq!(decode(&fields("zstd"), &frames, 1000).as_deref(), Ok(&[TEXT, TEXT].concat()[..]));
        assert!(matches!(decode(&HeaderMap::new(), TEXT, 1000), Ok(Cow::Borrowed(_))));
    }

    #[test]
    fn what_is_cut_off_goes_on_or_is_something_else_is_damaged() {
        for (codings, body) in [
            ("gzip", gzip(TEXT)),
            ("deflate", zlib(TEXT)),
            ("deflate", raw(TEXT)),
            ("br", BROTLI.to_vec()),
            ("zstd", ZSTD.to_vec()),
        ] {
            for length in 0..body.len() {
                let cut = decode(&fields(codings), &body[..length], 1000);
                assert_eq!(cut, Err(NotDecoded::Damaged), "{length} of {} bytes of {codings}", body.len());
            }
            assert_eq!(decode(&fields(codings), TEXT, 1000), Err(NotDecoded::Damaged), "{codings}");
            let longer = [&body[..], b"garbage"].concat();
            assert_eq!(decode(&fields(codings), &longer, 1000), Err(NotDecoded::Damaged), "{codings} and garbage");
        }
        for codings in ["compress", "gzip;q=1", "gzip, gzip, gzip, gzip, gzip"] {
            assert_eq!(decode(&fields(codings), TEXT, 1000), Err(NotDecoded::Unknown), "{codings}");
        }
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let bomb = gzip(&vec![b' '; 10 << 20]);
        assert!(bomb.len() < 16 << 10);
        for (codings, body) in [("gzip", bomb), ("deflate", zlib(&vec![b' '; 10 << 20]))] {
            assert_eq!(decode(&fields(codings), &body, 1 << 20), Err(NotDecoded::TooLong { limit: 1 << 20 }));
        }
    }
}

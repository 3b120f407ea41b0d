//! What is taken off, what is refused, and what it may cost.

use std::io::Write;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use http::HeaderValue;
use http::header::CONTENT_ENCODING;
use prometheus_client::metrics::gauge::Gauge;
use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::*;

const MAX: usize = 64 << 10;
/// A stream of brotli, and what is in it.
const BROTLI: (&[u8], &[u8]) = (b"\x8f\x02\x80hello\n\x03", b"hello\n");

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

fn bare(text: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    compress_to_vec(text, CompressionLevel::Fastest)
}

/// What is inside, `None` if it cannot be decoded; or the word of the refusal.
fn read(coding: &str, body: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_str(coding).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let gauge = Gauge::default();
    let budget = Budget::shown_by(&gauge, 4 * MAX);
    let decoded = runtime.block_on(decode(&headers, body, MAX, &budget));
    let read = decoded.map(|decoded| decoded.of(body).map(<[u8]>::to_vec)).map_err(|problem| problem.kind().word());
    assert_eq!(gauge.get(), 0, "all that was held was given back");
    read
}

#[test]
fn each_coding_is_taken_off() {
    let text = b"{\"amount\":10}".repeat(1000);
    for (coding, body) in [
        ("gzip", gzip(&text)),
        ("X-GZip", gzip(&text)),
        ("deflate", zlib(&text)),
        ("deflate", bare(&text)),
        ("zstd", zstd(&text)),
        ("identity, gzip", gzip(&text)),
        ("gzip, zstd", zstd(&gzip(&text))),
        ("deflate,,gzip, ", gzip(&zlib(&text))),
        ("gzip", [gzip(&text[..500]), gzip(b""), gzip(&text[500..])].concat()),
        ("zstd", [zstd(&text[..500]), b"\x50\x2a\x4d\x18\x02\0\0\0xx".to_vec(), zstd(&text[500..])].concat()),
        ("identity", text.clone()),
        ("", text.clone()),
    ] {
        assert_eq!(read(coding, &body), Ok(Some(text.clone())), "{coding}");
    }
    assert_eq!(read("br", BROTLI.0), Ok(Some(BROTLI.1.to_vec())));
    assert_eq!(read("gzip", b""), Ok(Some(Vec::new())), "a body without a byte is empty, whatever its head says");
}

#[test]
fn what_is_not_what_it_says_cannot_be_decoded() {
    let text = b"{\"amount\":10}".repeat(100);
    for (coding, whole) in [
        ("gzip", gzip(&text)),
        ("deflate", zlib(&text)),
        ("deflate", bare(&text)),
        ("zstd", zstd(&text)),
        ("br", BROTLI.0.to_vec()),
    ] {
        for cut in 1..whole.len() {
            assert_eq!(read(coding, &whole[..cut]), Ok(None), "{coding} cut at {cut}");
        }
        assert_eq!(read(coding, &[&whole[..], b"garbage"].concat()), Ok(None), "{coding} with something behind it");
        assert_eq!(read(coding, b"plain text"), Ok(None), "{coding}");
    }
    for unknown in ["compress", "aws-chunked", "gzip, sdch", "gzip;q=1", "gzip, gzip, gzip, gzip, gzip"] {
        assert_eq!(read(unknown, &gzip(&text)), Ok(None), "{unknown}");
    }
    let pieces = gzip(b"").repeat(2000);
    assert_eq!(read("gzip", &pieces), Ok(None), "pieces without end cost work without end");
}

#[test]
fn a_bomb_is_refused_at_the_limit() {
    let zeros = vec![0; 32 << 20];
    for (coding, bomb) in
        [("gzip", gzip(&zeros)), ("deflate", zlib(&zeros)), ("zstd", zstd(&zeros)), ("gzip, gzip", gzip(&gzip(&zeros)))]
    {
        assert_eq!(read(coding, &bomb), Err("body-too-large"), "{coding}");
    }
    assert_eq!(read("gzip", &gzip(&zeros[..MAX])), Ok(Some(zeros[..MAX].to_vec())));
    assert_eq!(read("gzip", &gzip(&zeros[..MAX + 1])), Err("body-too-large"));
}

#[tokio::test]
async fn held_bytes_count() {
    let headers = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
    let refused = decode(&headers, &gzip(&vec![0; MAX]), MAX, &Budget::new(MAX / 2)).await.unwrap_err();
    assert_eq!(refused.kind().word(), "overloaded");
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(which in 0usize..4, body in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..400, with in any::<u8>()) {
        let coding = ["gzip", "deflate", "br", "zstd"][which];
        let _ = read(coding, &body);
        let text = b"{\"amount\":10}".repeat(20);
        let mut damaged = [gzip(&text), zlib(&text), BROTLI.0.to_vec(), zstd(&text)][which].clone();
        let at = at % damaged.len();
        damaged[at] ^= with;
        let _ = read(coding, &damaged);
    }
}

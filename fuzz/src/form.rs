//! The `form` fingerprint: decoded pairs count, how they are written and the order of different names do not.
//!
//! The input is a body. It is taken apart here as well, in the plainest way, and written down again in others.

use std::sync::LazyLock;

use onceproxy::proxy::fingerprint::Policy;

use super::request::{digest, head_of, policy};

static FORM: LazyLock<Policy> = LazyLock::new(|| policy("fingerprint.body = \"form\""));

type Pair = (Vec<u8>, Option<Vec<u8>>);

/// Runs one input.
pub fn run(body: &[u8]) {
    let head = head_of(b"application/x-www-form-urlencoded").expect("a plain type");
    let of = |body: &[u8]| digest(&FORM, &head, body).expect("a form has no fault");
    let own = of(body);
    let empty_pair = of(&[body, b"&"].concat());
    let Some(pairs) = read(body) else {
        assert_ne!(own, empty_pair, "a broken form counts byte by byte");
        return;
    };
    assert_eq!(own, empty_pair, "an empty pair is no pair");
    assert_eq!(own, of(&write(&pairs, true)));
    assert_eq!(own, of(&write(&pairs, false)));
    let mut sorted = pairs.clone();
    sorted.sort_by(|(a, _), (b, _)| b.cmp(a));
    assert_eq!(own, of(&write(&sorted, true)), "the order of different names counts");

    // The document, as far as it counts: names in order, each with its values in theirs.
    let canonical = |pairs: &[Pair]| {
        let mut pairs = pairs.to_vec();
        pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
        pairs
    };
    let counts = canonical(&pairs);
    for at in 0..pairs.len().min(8) {
        let mut changed = pairs.clone();
        match &mut changed[at].1 {
            Some(value) if at % 2 == 0 => value.push(b'x'),
            Some(_) => changed[at].1 = None,
            None => changed[at].1 = Some(Vec::new()),
        }
        assert_ne!(own, of(&write(&changed, false)), "a changed value does not count");
        let mut swapped = pairs.clone();
        swapped.swap(0, at);
        assert_eq!(own == of(&write(&swapped, true)), counts == canonical(&swapped));
    }
}

/// `None` where an escape is broken.
fn read(body: &[u8]) -> Option<Vec<Pair>> {
    let pieces = body.split(|byte| *byte == b'&').filter(|piece| !piece.is_empty());
    let pairs = pieces.map(|piece| {
        let mut halves = piece.splitn(2, |byte| *byte == b'=');
        let (name, value) = (decode(halves.next()?)?, halves.next().map(decode));
        Some((name, if let Some(value) = value { Some(value?) } else { None }))
    });
    pairs.collect()
}

pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'%' => {
                let digits = text.get(at + 1..at + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
                out.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                at += 2;
            }
            b'+' => out.push(b' '),
            byte => out.push(byte),
        }
        at += 1;
    }
    Some(out)
}

fn write(pairs: &[Pair], all: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in pairs {
        encode(&mut out, name, all);
        if let Some(value) = value {
            out.push(b'=');
            encode(&mut out, value, all);
        }
        out.push(b'&');
    }
    out
}

fn encode(out: &mut Vec<u8>, text: &[u8], all: bool) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in text {
        match byte {
            byte if byte.is_ascii_alphanumeric() && !all => out.push(*byte),
            b' ' if !all => out.push(b'+'),
            byte => out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]),
        }
    }
}

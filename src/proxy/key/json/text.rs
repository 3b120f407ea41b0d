//! What a JSON string means, read from its text without a copy.
//!
//! The meaning is bytes: UTF-8, where a surrogate without its partner becomes the three bytes that UTF-8 leaves unused
//! for it. So `"\ud83d\ude00"` and `"😀"` are one string, and two different lone surrogates are two.

use std::cmp::Ordering;

/// The inside of a JSON string, well formed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a>(&'a [u8]);

/// A piece of what a string means.
pub(crate) enum Chunk<'a> {
    /// It stands in the text as it is.
    Plain(&'a [u8]),
    /// It was written with a backslash.
    Escaped([u8; 4], usize),
}

impl<'a> Text<'a> {
    /// `inside` is what stands between the quotation marks of a string that was checked.
    pub(super) fn new(inside: &'a [u8]) -> Text<'a> {
        Text(inside)
    }

    /// The meaning, piece by piece.
    pub(crate) fn chunks(self) -> impl Iterator<Item = Chunk<'a>> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (chunk, length) = match rest {
                [] => return None,
                [b'\\', ..] => {
                    let (bytes, count, length) = escape(rest);
                    (Chunk::Escaped(bytes, count), length)
                }
                _ => {
                    let length = rest.iter().position(|byte| *byte == b'\\').unwrap_or(rest.len());
                    (Chunk::Plain(&rest[..length]), length)
                }
            };
            rest = &rest[length..];
            Some(chunk)
        })
    }

    /// The meaning, byte by byte, looking no further than it is asked.
    fn bytes(self) -> impl Iterator<Item = u8> {
        let mut rest = self.0;
        let mut escaped = [0; 4].into_iter().take(0);
        std::iter::from_fn(move || {
            if let Some(byte) = escaped.next() {
                return Some(byte);
            }
            let (byte, length) = match rest {
                [] => return None,
                [b'\\', ..] => {
                    let (bytes, count, length) = escape(rest);
                    escaped = bytes.into_iter().take(count);
                    (escaped.next()?, length)
                }
                [byte, ..] => (*byte, 1),
            };
            rest = &rest[length..];
            Some(byte)
        })
    }

    /// The order of two strings, by the bytes of their meaning.
    ///
    /// Looks no further than the first difference. Sorting compares one name with many others; were it read to its end
    /// each time, a body with one long name and many short ones would cost the square of its length.
    pub(super) fn compare(self, other: Text<'_>) -> Ordering {
        let mut both = self.0.iter().zip(other.0);
        match both.position(|(a, b)| a != b || *a == b'\\') {
            Some(at) => Text(&self.0[at..]).bytes().cmp(Text(&other.0[at..]).bytes()),
            None => self.0.len().cmp(&other.0.len()),
        }
    }

    /// Whether the string means this text.
    pub(crate) fn means(self, text: &str) -> bool {
        self.bytes().eq(text.bytes())
    }

    /// The meaning in one piece, or `None` if it is longer than `max_length` bytes.
    pub(crate) fn to_bytes(self, max_length: usize) -> Option<Vec<u8>> {
        let bytes: Vec<u8> = self.bytes().take(max_length.saturating_add(1)).collect();
        (bytes.len() <= max_length).then_some(bytes)
    }
}

/// What the escape at the beginning of `text` means: bytes, how many of them, and the escape's length in the text.
fn escape(text: &[u8]) -> ([u8; 4], usize, usize) {
    let byte = match text.get(1) {
        Some(b'u') => return unicode(text),
        Some(b'b') => 0x08,
        Some(b'f') => 0x0C,
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        other => other.copied().unwrap_or(b'\\'),
    };
    ([byte, 0, 0, 0], 1, text.len().min(2))
}

/// A `\uXXXX`, or a pair of them that is one character.
fn unicode(text: &[u8]) -> ([u8; 4], usize, usize) {
    let unit = hex(&text[2..6]);
    let low = match text.get(6..12) {
        Some([b'\\', b'u', digits @ ..]) => hex(digits),
        _ => 0,
    };
    let (code, length) = match (unit, low) {
        (0xD800..0xDC00, 0xDC00..0xE000) => (0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00), 12),
        _ => (unit, 6),
    };
    let (bytes, count) = encode(code);
    (bytes, count, length)
}

fn hex(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |value, digit| value << 4 | char::from(*digit).to_digit(16).unwrap_or(0))
}

fn encode(code: u32) -> ([u8; 4], usize) {
    let mut bytes = [0; 4];
    if let Some(character) = char::from_u32(code) {
        let length = character.encode_utf8(&mut bytes).len();
        return (bytes, length);
    }
    // A lone surrogate, in the three bytes that UTF-8's pattern would give it.
    let six_bits = |shift: u32| 0x80 | (code >> shift & 0x3F) as u8;
    ([0xE0 | (code >> 12) as u8, six_bits(6), six_bits(0), 0], 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(inside: &str) -> Vec<u8> {
        let text = Text::new(inside.as_bytes());
        let bytes: Vec<u8> = text.bytes().collect();
        let chunks = text.chunks().flat_map(|chunk| match chunk {
            Chunk::Plain(plain) => plain.to_vec(),
            Chunk::Escaped(escaped, length) => escaped[..length].to_vec(),
        });
        assert_eq!(chunks.collect::<Vec<u8>>(), bytes, "{inside}");
        bytes
    }

    #[test]
    fn escapes_mean_what_they_stand_for() {
        assert_eq!(bytes(r#"a\\\"\/\b\f\n\r\tz"#), b"a\\\"/\x08\x0C\n\r\tz");
        assert_eq!(bytes(r"\u0041\u00e9\u20AC"), "Aé€".as_bytes());
        assert_eq!(bytes(r"\ud83d\ude00!"), "😀!".as_bytes());
    }

    #[test]
    fn lone_surrogates_stay_apart_from_each_other_and_from_all_text() {
        let lone: Vec<Vec<u8>> =
            [r"\ud83d", r"\ude00", r"\ude00\ud83d", r"\ud83dx", r"\ud83d\n", r"\ufffd"].map(bytes).into();
        for (at, one) in lone.iter().enumerate() {
            assert!(lone[..at].iter().all(|other| other != one), "{one:?}");
            assert_eq!(std::str::from_utf8(one).is_ok(), at == 5);
        }
    }

    #[test]
    fn a_surrogate_that_has_no_partner_becomes_three_bytes() {
        assert_eq!(bytes(r"\ud83d"), [0xED, 0xA0, 0xBD]);
        assert_eq!(bytes(r"\udfff"), [0xED, 0xBF, 0xBF]);
        assert_eq!(bytes(r"\ude00\ude00"), [0xED, 0xB8, 0x80, 0xED, 0xB8, 0x80]);
        assert_eq!(bytes(r"\ud83d\ud83d\ude00"), [&[0xED, 0xA0, 0xBD], "😀".as_bytes()].concat());
    }

    #[test]
    fn names_are_ordered_by_meaning_however_they_are_written() {
        let texts = ["", "a", r"\u0061", r"a\u0062", "ab", r"\n", "é", r"\u00e9", "b", r"a\tb", "a\u{7f}"];
        for a in texts {
            for b in texts {
                let order = Text::new(a.as_bytes()).compare(Text::new(b.as_bytes()));
                assert_eq!(order, bytes(a).cmp(&bytes(b)), "{a} {b}");
                assert_eq!(Text::new(a.as_bytes()).means(b), bytes(a) == b.as_bytes(), "{a} {b}");
            }
        }
    }
}

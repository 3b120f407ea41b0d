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
                [b'\\', b'u', ..] => unicode(rest),
                [b'\\', letter, ..] => (Chunk::Escaped([meaning(*letter), 0, 0, 0], 1), 2),
                _ => {
                    let length = rest.iter().position(|byte| *byte == b'\\').unwrap_or(rest.len());
                    (Chunk::Plain(&rest[..length]), length)
                }
            };
            rest = &rest[length..];
            Some(chunk)
        })
    }

    fn bytes(self) -> impl Iterator<Item = u8> {
        self.chunks().flat_map(|chunk| {
            let (plain, escaped, length) = match chunk {
                Chunk::Plain(plain) => (plain, [0; 4], 0),
                Chunk::Escaped(bytes, length) => ([].as_slice(), bytes, length),
            };
            plain.iter().copied().chain(escaped.into_iter().take(length))
        })
    }

    /// The order of two strings, by the bytes of their meaning.
    pub(super) fn compare(self, other: Text<'_>) -> Ordering {
        match self.0.contains(&b'\\') || other.0.contains(&b'\\') {
            true => self.bytes().cmp(other.bytes()),
            false => self.0.cmp(other.0),
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

fn meaning(letter: u8) -> u8 {
    match letter {
        b'b' => 0x08,
        b'f' => 0x0C,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        other => other,
    }
}

/// A `\uXXXX`, or a pair of them that is one character; and the length of it in the text.
fn unicode<'a>(text: &[u8]) -> (Chunk<'a>, usize) {
    let unit = hex(&text[2..6]);
    let low = match text.get(6..12) {
        Some([b'\\', b'u', digits @ ..]) => hex(digits),
        _ => 0,
    };
    if (0xD800..0xDC00).contains(&unit) && (0xDC00..0xE000).contains(&low) {
        return (encode(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)), 12);
    }
    (encode(unit), 6)
}

fn hex(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |value, digit| value << 4 | char::from(*digit).to_digit(16).unwrap_or(0))
}

fn encode<'a>(code: u32) -> Chunk<'a> {
    let mut bytes = [0; 4];
    let length = match char::from_u32(code) {
        Some(character) => character.encode_utf8(&mut bytes).len(),
        None => {
            // A lone surrogate, in the bytes that UTF-8's pattern would give it.
            let six_bits = |shift: u32| 0x80 | (code >> shift & 0x3F) as u8;
            bytes = [0xE0 | (code >> 12) as u8, six_bits(6), six_bits(0), 0];
            3
        }
    };
    Chunk::Escaped(bytes, length)
}

//! Pairs of a query or a form: `name=value&…`, percent-decoded, `+` being a space.
//!
//! Decoding is an iterator over bytes, so that names can be compared and values hashed without being copied.

/// A text as it came, and what it means when decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Encoded<'a>(pub(crate) &'a [u8]);

impl<'a> Encoded<'a> {
    /// The decoded bytes. A `%` that two hex digits do not follow stands for itself; see [`Encoded::is_sound`].
    pub(crate) fn decoded(self) -> impl Iterator<Item = u8> + 'a {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (byte, after) = match rest {
                [b'%', high, low, after @ ..] => match (hex(*high), hex(*low)) {
                    (Some(high), Some(low)) => (high << 4 | low, after),
                    _ => (b'%', &rest[1..]),
                },
                [b'+', after @ ..] => (b' ', after),
                [byte, after @ ..] => (*byte, after),
                [] => return None,
            };
            rest = after;
            Some(byte)
        })
    }

    /// Whether every `%` is followed by two hex digits.
    pub(crate) fn is_sound(self) -> bool {
        let mut escapes = self.0.iter().enumerate().filter(|(_, byte)| **byte == b'%');
        escapes
            .all(|(at, _)| matches!(self.0.get(at + 1..at + 3), Some([h, l]) if hex(*h).is_some() && hex(*l).is_some()))
    }

    /// Whether it means this text.
    pub(crate) fn means(self, text: &str) -> bool {
        self.decoded().eq(text.bytes())
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// One `name=value`, or a lone `name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair<'a> {
    /// Where it begins in the text.
    pub(crate) at: usize,
    /// What stands before the first `=`.
    pub(crate) name: Encoded<'a>,
    /// What stands behind it; `None` without a `=`.
    pub(crate) value: Option<Encoded<'a>>,
}

/// The pairs of a text, in their order; empty ones (`&&`) are left out.
pub(crate) fn pairs(text: &[u8]) -> impl Iterator<Item = Pair<'_>> {
    let mut next = 0;
    let pieces = text.split(|byte| *byte == b'&').map(move |piece| {
        let at = next;
        next += piece.len() + 1;
        (at, piece)
    });
    pieces.filter(|(_, piece)| !piece.is_empty()).map(|(at, piece)| match piece.iter().position(|byte| *byte == b'=') {
        Some(equals) => Pair { at, name: Encoded(&piece[..equals]), value: Some(Encoded(&piece[equals + 1..])) },
        None => Pair { at, name: Encoded(piece), value: None },
    })
}

/// The values of one parameter of a query, in their order; a lone name has an empty value.
pub(crate) fn parameter<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = Encoded<'a>> {
    values(query.as_bytes(), name)
}

/// The same of a form.
pub(crate) fn values<'a>(text: &'a [u8], name: &'a str) -> impl Iterator<Item = Encoded<'a>> {
    pairs(text).filter(move |pair| pair.name.means(name)).map(|pair| pair.value.unwrap_or(Encoded(b"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_plus_are_decoded_and_broken_escapes_are_told() {
        for (text, decoded, sound) in [
            ("a+b%20c", "a b c", true),
            ("%41%2b%2B", "A++", true),
            ("%", "%", false),
            ("%4", "%4", false),
            ("%4g%41", "%4gA", false),
            ("%%41", "%A", false),
            ("", "", true),
        ] {
            let encoded = Encoded(text.as_bytes());
            assert_eq!(encoded.decoded().collect::<Vec<u8>>(), decoded.as_bytes(), "{text}");
            assert_eq!(encoded.is_sound(), sound, "{text}");
        }
    }

    #[test]
    fn a_parameter_is_found_by_its_decoded_name_as_often_as_it_stands_there() {
        let values = |query: &'static str| -> Vec<&[u8]> { parameter(query, "op id").map(|value| value.0).collect() };
        assert_eq!(values("x=1&op%20id=a=b&&op+id&op=3"), [b"a=b".as_slice(), b""]);
        assert!(values("opid=1").is_empty());
        assert!(values("").is_empty());
    }
}

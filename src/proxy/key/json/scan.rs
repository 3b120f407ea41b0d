//! The words of JSON: where a string, a number or a literal ends, and whether it is well formed.
//!
//! Functions named `past_` expect text that was read before; the others check it. `Err` is where it goes wrong.

/// The position behind the closing quotation mark of a string whose inside begins at `at`, on text known to be JSON.
pub(super) fn past_string(text: &[u8], mut at: usize) -> usize {
    loop {
        match text[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The position behind a number or literal, on text known to be JSON.
pub(super) fn past_scalar(text: &[u8], at: usize) -> usize {
    let length =
        text[at..].iter().position(|byte| !matches!(byte, b'0'..=b'9' | b'a'..=b'z' | b'E' | b'+' | b'-' | b'.'));
    length.map_or(text.len(), |length| at + length)
}

/// The position behind white space.
pub(super) fn space(text: &[u8], at: usize) -> usize {
    let length = text[at..].iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
    length.map_or(text.len(), |length| at + length)
}

/// Checks the inside of a string; returns the position behind its closing quotation mark.
pub(super) fn string(text: &[u8], mut at: usize) -> Result<usize, usize> {
    loop {
        match text.get(at) {
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => at = escape(text, at)?,
            Some(0x20..) => at += 1,
            Some(_) | None => return Err(at),
        }
    }
}

fn escape(text: &[u8], at: usize) -> Result<usize, usize> {
    match text.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') if text.get(at + 2..at + 6).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) => Ok(at + 6),
        _ => Err(at),
    }
}

/// Checks a number: `-`, digits without a leading zero, fraction, exponent.
pub(super) fn number(text: &[u8], start: usize) -> Result<usize, usize> {
    let mut at = start + usize::from(text.get(start) == Some(&b'-'));
    at = if text.get(at) == Some(&b'0') { at + 1 } else { digits(text, at)? };
    if text.get(at) == Some(&b'.') {
        at = digits(text, at + 1)?;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        at += 1 + usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        at = digits(text, at)?;
    }
    Ok(at)
}

fn digits(text: &[u8], at: usize) -> Result<usize, usize> {
    match text[at.min(text.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count() {
        0 => Err(at),
        count => Ok(at + count),
    }
}

/// Checks a literal.
pub(super) fn word(text: &[u8], at: usize) -> Result<usize, usize> {
    let words: [&[u8]; 3] = [b"true", b"false", b"null"];
    words.iter().find(|word| text[at..].starts_with(word)).map(|word| at + word.len()).ok_or(at)
}

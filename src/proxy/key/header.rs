//! The value of a key's header field: a quoted structured-field string, or a bare key.

use sfv::{BareItem, Item, Parser};

use super::{Key, Malformed};

/// Reads the value of the one line of a key's field. `"k-1"` and `k-1` are the same key.
pub(super) fn parse(field: &[u8], max_length: usize) -> Result<Key, Malformed> {
    // The white space around a field's value is no part of it (RFC 9110 section 5.5).
    let field = field.trim_ascii();
    if field.first() == Some(&b'"') { quoted(field, max_length) } else { bare(field, max_length) }
}

/// RFC 9651 section 3.3.3; parameters are ignored, as the Idempotency-Key draft defines none.
fn quoted(field: &[u8], max_length: usize) -> Result<Key, Malformed> {
    let item: Item = Parser::new(field).parse().map_err(Malformed::Quoted)?;
    let BareItem::String(text) = item.bare_item else {
        // A value that begins with a quotation mark is a string or does not parse.
        return Err(Malformed::Bare);
    };
    let text: String = text.into();
    Key::new(text.into_bytes(), true, max_length)
}

fn bare(field: &[u8], max_length: usize) -> Result<Key, Malformed> {
    if !field.iter().all(|byte| is_bare(*byte)) {
        return Err(Malformed::Bare);
    }
    if field.len() > max_length {
        return Err(Malformed::TooLong(max_length));
    }
    Key::new(field.to_vec(), false, max_length)
}

/// Whether a byte may stand in a bare key: visible ASCII but `"` (a broken string) and `,` (a list).
pub(super) fn is_bare(byte: u8) -> bool {
    byte.is_ascii_graphic() && byte != b'"' && byte != b','
}

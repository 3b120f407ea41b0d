//! How values of header fields are read where more than one part of the program reads them (RFC 9110 section 5.6).
//!
//! What belongs to one field alone stands with whoever reads that field.

use http::{HeaderMap, HeaderName};

/// The entries of a comma-separated list over all lines of a field, without the empty ones.
pub fn list<'a>(fields: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    fields.get_all(name).into_iter().flat_map(|line| entries(line.as_bytes()))
}

/// The entries of a comma-separated list in one line, without the empty ones.
pub fn entries(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty())
}

/// The media type that a `Content-Type` names, without its parameters (RFC 9110 section 8.3.1).
pub fn essence(content_type: &[u8]) -> &[u8] {
    content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::TE;

    use super::*;

    #[test]
    fn a_list_goes_over_all_lines_and_leaves_out_what_is_empty() {
        let mut fields = HeaderMap::from_iter([(TE, HeaderValue::from_static(" a ,, b;q=1,"))]);
        fields.append(TE, HeaderValue::from_static(""));
        fields.append(TE, HeaderValue::from_static("c"));
        assert_eq!(list(&fields, &TE).collect::<Vec<_>>(), [&b"a"[..], b"b;q=1", b"c"]);
        assert_eq!(list(&HeaderMap::new(), &TE).count(), 0);
    }

    #[test]
    fn a_media_type_is_read_without_its_parameters() {
        for value in ["text/plain", " text/plain ", "text/plain;charset=utf-8", "text/plain ; a=\"b;c\""] {
            assert_eq!(essence(value.as_bytes()), b"text/plain", "{value}");
        }
        assert_eq!(essence(b""), b"");
        assert_eq!(essence(b";text/plain"), b"");
    }
}

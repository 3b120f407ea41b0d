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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(field: &str) -> Result<String, Malformed> {
        parse(field.as_bytes(), 255).map(|key| String::from_utf8(key.value().to_vec()).unwrap())
    }

    #[test]
    fn good_keys_are_decoded() {
        for (field, key) in [
            ("k-1", "k-1"),
            ("\"k-1\"", "k-1"),
            ("  k-1\t", "k-1"),
            ("\t\"k-1\" ", "k-1"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (r"back\slash", r"back\slash"),
            ("\"with spaces, and commas\"", "with spaces, and commas"),
            ("\"k-1\";v=1;w", "k-1"),
            ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            ("!#$%&'()*+-./:;<=>?@[]^_`{|}~", "!#$%&'()*+-./:;<=>?@[]^_`{|}~"),
        ] {
            assert_eq!(value(field).unwrap(), key, "{field}");
        }
    }

    #[test]
    fn bad_keys_are_told_what_is_wrong() {
        for (field, words) in [
            ("", "empty"),
            ("   ", "empty"),
            ("\"\"", "empty"),
            ("\"\";v=1", "empty"),
            ("k-1, k-1", "comma"),
            ("k-1,", "comma"),
            ("k\"1", "quotation mark"),
            ("k-1\"", "quotation mark"),
            ("two words", "visible ASCII"),
            ("k\u{e9}", "visible ASCII"),
            ("k\u{7f}", "visible ASCII"),
            ("\"k-1", "not a string"),
            ("\"k-1\" \"k-1\"", "not a string"),
            ("\"k-1\", \"k-1\"", "not a string"),
            (r#""k\x""#, "not a string"),
            (r#""k\""#, "not a string"),
            ("\"k\u{e9}\"", "not a string"),
            ("\"k-1\";V=1", "not a string"),
        ] {
            let wrong = value(field).expect_err(field).to_string();
            assert!(wrong.contains(words), "{field}: {wrong}");
        }
    }

    #[test]
    fn the_length_limit_counts_decoded_bytes() {
        let escaped = "\\\\".repeat(255);
        assert_eq!(value(&format!("\"{escaped}\"")).unwrap().len(), 255);
        assert_eq!(value(&"k".repeat(255)).unwrap().len(), 255);
        for long in
            ["k".repeat(256), "k".repeat(65_536), format!("\"{escaped}k\""), format!("\"{}\"", "k".repeat(8_192))]
        {
            assert!(matches!(value(&long), Err(Malformed::TooLong(255))));
        }
    }

    #[test]
    fn the_working_groups_vectors_hold() {
        let vectors =
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/structured-fields/strings.json"));
        let vectors: Vec<(String, Vec<String>, Option<String>)> = serde_json::from_str(vectors).unwrap();
        assert!(vectors.len() > 260);
        for (name, lines, decoded) in vectors.iter().filter(|(_, lines, _)| lines.len() == 1) {
            match (parse(lines[0].as_bytes(), 255), decoded) {
                (Ok(key), Some(decoded)) => assert_eq!(key.value(), decoded.as_bytes(), "{name}"),
                (Err(Malformed::Quoted(_)), None) => {}
                // Two rules of ours beyond the RFC.
                (Err(Malformed::Empty), Some(decoded)) => assert!(decoded.is_empty(), "{name}"),
                (Err(Malformed::TooLong(_)), Some(decoded)) => assert!(decoded.len() > 255, "{name}"),
                (other, _) => panic!("{name}: {other:?}"),
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(field in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = parse(&field, 20);
        }

        #[test]
        fn a_key_survives_being_written_quoted(text in "[ -~]{1,60}") {
            let key = Key::new(text.clone().into_bytes(), true, 255).unwrap();
            let again = parse(key.to_header_value(true).as_bytes(), 255).unwrap();
            prop_assert_eq!(&again, &key);
            // Bare where it can be, quoted where it must be: never another key.
            let bare = parse(key.to_header_value(false).as_bytes(), 255).unwrap();
            prop_assert_eq!(bare.value(), text.as_bytes());
        }
    }
}

//! The `json` fingerprint: what is JSON is what `serde_json` takes for it, and only meaning counts.
//!
//! The input is a body. Where it is JSON, it is written down again in other ways, whose fingerprint must be the same,
//! and with one value changed, which must be seen.

use std::sync::LazyLock;

use onceproxy::proxy::fingerprint::Policy;
use serde::de::IgnoredAny;

use super::request::{digest, head, policy};
use super::tree::{Style, Tree};

static PLAIN: LazyLock<Policy> = LazyLock::new(|| policy("fingerprint.body = \"json\""));
static IGNORING: LazyLock<Policy> = LazyLock::new(|| {
    policy("fingerprint.body = \"json\"\nfingerprint.ignore = [\"/sent_at\", \"/data/attempt\", \"/list/1\"]")
});

const STYLES: [Style; 4] = [
    Style { is_reversed: false, space: "", is_escaped: false },
    Style { is_reversed: true, space: "", is_escaped: false },
    Style { is_reversed: false, space: " \r\n\t", is_escaped: true },
    Style { is_reversed: true, space: "\n", is_escaped: true },
];

/// Deeper bodies are beyond `serde_json`.
const DEPTH: usize = 100;

/// Runs one input.
pub fn run(body: &[u8]) {
    let head = head();
    let own = digest(&PLAIN, &head, body);
    let _ = digest(&IGNORING, &head, body);
    assert_eq!(own, digest(&PLAIN, &head, body), "not the same twice");
    if body.iter().filter(|byte| matches!(byte, b'[' | b'{')).count() > DEPTH {
        return;
    }
    // White space behind a JSON text does not count; behind anything else it does.
    let with_space = digest(&PLAIN, &head, &[body, b" "].concat());
    // JSON is UTF-8 (RFC 8259 section 8.1), also where nobody looks into a string.
    // Behind a byte order mark, which the product skips.
    let behind = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body);
    let text = std::str::from_utf8(behind).ok().filter(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    let is_json = text.is_some();
    match &own {
        Ok(_) => assert_eq!(own == with_space, is_json, "serde_json says {is_json}"),
        Err(fault) => assert!(is_json && fault.contains("twice"), "{fault}"),
    }
    let Some(tree) = text.and_then(Tree::read) else { return };
    assert_eq!(own.is_err(), tree.has_duplicates(), "{own:?}");
    if own.is_ok() {
        rewrite(&tree, own);
        ignore(tree);
    }
}

fn rewrite(tree: &Tree, own: Result<[u8; 32], String>) {
    let head = head();
    for style in STYLES {
        assert_eq!(digest(&PLAIN, &head, tree.write(style).as_bytes()), own, "{}", tree.write(style));
    }
    // One value at a time; of large documents some.
    let count = tree.count();
    for number in (0..count).step_by(count.div_ceil(16)) {
        let mut changed = tree.clone();
        changed.change(&mut number.clone());
        let text = changed.write(STYLES[number % STYLES.len()]);
        assert_ne!(digest(&PLAIN, &head, text.as_bytes()), own, "{text} is another document");
    }
}

/// What is ignored does not count, whatever it is.
fn ignore(tree: Tree) {
    let head = head();
    let mut blank = tree.clone();
    let list = |tree: &mut Tree| match tree {
        Tree::Array(elements) => elements.get_mut(1).into_iter().for_each(blanken),
        Tree::Object(members) => members.iter_mut().filter(|(name, _)| name == "1").for_each(|(_, v)| blanken(v)),
        _ => {}
    };
    if let Tree::Object(members) = &mut blank {
        for (name, value) in members {
            match (name.as_str(), value) {
                ("sent_at", value) => blanken(value),
                ("data", Tree::Object(inner)) => {
                    inner.iter_mut().filter(|(name, _)| name == "attempt").for_each(|(_, value)| blanken(value));
                }
                ("list", value) => list(value),
                _ => {}
            }
        }
    }
    let [one, other] = [tree, blank].map(|tree| digest(&IGNORING, &head, tree.write(STYLES[0]).as_bytes()));
    assert_eq!(one, other, "what is ignored counts");
}

fn blanken(value: &mut Tree) {
    *value = Tree::Object(vec![("blank".to_owned(), Tree::Word("null".to_owned()))]);
}

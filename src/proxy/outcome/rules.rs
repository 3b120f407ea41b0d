//! Applies a route's rules on the bodies of answers (`[[route.when]]`): for upstreams that tell the outcome there.
//!
//! A body that is not JSON, or that two readers could read differently, matches no rule: the status decides then.

use super::Head;
use crate::config::rules::{Literal, Test};
use crate::config::{Route, Verdict};
use crate::proxy::body::decode;
use crate::proxy::key::json::{Document, Kind, Node};

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// What the first rule says that matches.
pub(super) fn verdict(route: &Route, head: &Head, body: &[u8]) -> Option<Verdict> {
    let mut about = route.when.iter().filter(|rule| rule.is_about(head.status.as_u16())).peekable();
    // Bodies of other answers are not even decoded.
    about.peek()?;
    let body = decode(&head.fields, body, route.max_response_body).ok()?;
    let mut document = Document::read(body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&body)).ok()?;
    // Finds members that stand twice.
    document.sort().ok()?;
    about.find(|rule| matches(&document, &rule.pointer, &rule.test)).map(|rule| rule.then)
}

fn matches(document: &Document<'_>, pointer: &str, test: &Test) -> bool {
    let found = document.find(pointer).ok().flatten();
    match test {
        Test::Exists(exists) => found.is_some() == *exists,
        Test::Empty => found.is_some_and(|node| is_empty(document, node)),
        Test::Is(values) => found.is_some_and(|node| values.iter().any(|value| is(document, node, value))),
    }
}

fn is_empty(document: &Document<'_>, node: Node) -> bool {
    match document.kind(node) {
        Kind::Object => document.members(node).is_empty(),
        Kind::Array => document.first_element(node).is_err(),
        _ => false,
    }
}

/// Whether a value is this one: of the same type, and a number in the same words.
fn is(document: &Document<'_>, node: Node, value: &Literal) -> bool {
    match (document.kind(node), value) {
        (Kind::String(found), Literal::Text(text)) => found.means(text),
        (Kind::Number(found), Literal::Number(number)) => found == number.as_bytes(),
        (Kind::Word(found), Literal::Truth(truth)) => found == if *truth { &b"true"[..] } else { b"false" },
        (Kind::Word(found), Literal::Null) => found == b"null",
        _ => false,
    }
}

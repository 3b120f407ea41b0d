//! JSON pointers (RFC 6901) into a document. Their syntax was checked when the settings were read.

use std::borrow::Cow;

use super::{Document, JsonFault, Kind, Node};

/// The names and indices along a pointer, unescaped. The empty pointer, the whole document, has none.
pub(crate) fn tokens(pointer: &str) -> impl Iterator<Item = Cow<'_, str>> {
    pointer.split('/').skip(1).map(|token| match token.contains('~') {
        // In this order: `~01` means `~1`, not `/`.
        true => Cow::Owned(token.replace("~1", "/").replace("~0", "~")),
        false => Cow::Borrowed(token),
    })
}

/// A token as an index into an array: digits without a leading zero.
pub(crate) fn index(token: &str) -> Option<usize> {
    let canonical = token == "0" || (!token.starts_with('0') && token.bytes().all(|byte| byte.is_ascii_digit()));
    if canonical { token.parse().ok() } else { None }
}

impl Document<'_> {
    /// The value a pointer leads to. A member on its way that stands twice is a fault: readers differ in which one counts.
    pub(crate) fn find(&self, pointer: &str) -> Result<Option<Node>, JsonFault> {
        let mut node = self.root();
        for token in tokens(pointer) {
            let step = match self.kind(node) {
                Kind::Object => self.member(node, &token)?,
                Kind::Array => index(&token).and_then(|index| self.nth(node, index)),
                _ => None,
            };
            match step {
                Some(inner) => node = inner,
                None => return Ok(None),
            }
        }
        Ok(Some(node))
    }

    fn member(&self, object: Node, name: &str) -> Result<Option<Node>, JsonFault> {
        let mut found = self.members(object).iter().filter(|member| self.name(member).means(name));
        let first = found.next();
        match found.next() {
            Some(second) => Err(JsonFault::DuplicateMember { at: second.name as usize }),
            None => Ok(first.map(|member| member.value())),
        }
    }

    fn nth(&self, array: Node, index: usize) -> Option<Node> {
        let mut element = self.first_element(array).ok()?;
        for _ in 0..index {
            element = self.next_element(self.past(element)).ok()?;
        }
        Some(element)
    }
}

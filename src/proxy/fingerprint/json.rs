//! The canonical form of a JSON body: member order and white space do not count, everything else does.
//!
//! Our own and not RFC 8785, which turns numbers into doubles: there 9007199254740993 and …992 are the same amount of
//! money. Here the text of a number counts, so `1.0` and `1` differ. Strings are compared decoded.

use super::super::key::JsonFault;
use super::super::key::json::{Chunk, Document, Kind, Member, Node, Text, index, tokens};
use super::super::key::transcript::Transcript;
use super::tag;

/// Ends strings and numbers: a byte that neither UTF-8 nor a lone surrogate's encoding has.
const END: u8 = 0xFF;

/// Bytes gathered before they are hashed.
const BUFFER: usize = 4096;

/// Members that do not count: a tree of the names along their pointers.
#[derive(Clone, Debug, Default)]
pub(super) struct Ignored {
    /// The value that the names so far lead to does not count.
    whole: bool,
    inner: Vec<(String, Ignored)>,
}

impl Ignored {
    pub(super) fn new(pointers: &[String]) -> Ignored {
        let mut root = Ignored::default();
        for pointer in pointers {
            let leaf = tokens(pointer).fold(&mut root, |node, token| node.child(&token));
            leaf.whole = true;
        }
        root
    }

    fn child(&mut self, token: &str) -> &mut Ignored {
        let at = match self.inner.iter().position(|(name, _)| name == token) {
            Some(at) => at,
            None => {
                self.inner.push((token.to_owned(), Ignored::default()));
                self.inner.len() - 1
            }
        };
        &mut self.inner[at].1
    }

    fn member(&self, name: Text<'_>) -> Option<&Ignored> {
        self.inner.iter().find(|(token, _)| name.means(token)).map(|(_, inner)| inner)
    }

    fn element(&self, at: usize) -> Option<&Ignored> {
        self.inner.iter().find(|(token, _)| index(token) == Some(at)).map(|(_, inner)| inner)
    }
}

/// Adds a body in its canonical form; says no, adding nothing, if it is not JSON.
pub(super) fn add(transcript: &mut Transcript, body: &[u8], ignored: &Ignored) -> Result<bool, JsonFault> {
    let mut document = match Document::read(body) {
        Ok(document) => document,
        Err(JsonFault::NotJson { .. }) => return Ok(false),
        Err(fault) => return Err(fault),
    };
    document.sort()?;
    transcript.tag(tag::JSON);
    let mut writer = Writer { transcript, document: &document, buffer: Vec::with_capacity(BUFFER) };
    if !ignored.whole {
        writer.value(document.root(), Some(ignored));
    }
    writer.flush();
    Ok(true)
}

struct Writer<'a> {
    transcript: &'a mut Transcript,
    document: &'a Document<'a>,
    buffer: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn put(&mut self, bytes: &[u8]) {
        if self.buffer.len() + bytes.len() > BUFFER {
            self.flush();
        }
        if bytes.len() > BUFFER {
            self.transcript.raw(bytes);
        } else {
            self.buffer.extend_from_slice(bytes);
        }
    }

    fn flush(&mut self) {
        self.transcript.raw(&self.buffer);
        self.buffer.clear();
    }

    /// Writes a value and returns the place behind it. Recursive: the reader limits how deep a body nests.
    fn value(&mut self, node: Node, ignored: Option<&Ignored>) -> Node {
        match self.document.kind(node) {
            Kind::Object => return self.object(node, ignored),
            Kind::Array => return self.array(node, ignored),
            Kind::String(text) => self.string(text),
            Kind::Number(text) => {
                self.put(b"#");
                self.put(text);
                self.put(&[END]);
            }
            Kind::Word(word) => self.put(&word[..1]),
        }
        self.document.past(node)
    }

    fn object(&mut self, node: Node, ignored: Option<&Ignored>) -> Node {
        let document = self.document;
        self.put(b"{");
        for member in document.members(node) {
            self.member(member, ignored);
        }
        self.put(b"}");
        document.past_object(node)
    }

    fn member(&mut self, member: &Member, ignored: Option<&Ignored>) {
        let name = self.document.name(member);
        let inner = ignored.and_then(|ignored| ignored.member(name));
        if inner.is_none_or(|inner| !inner.whole) {
            self.string(name);
            self.value(member.value(), inner);
        }
    }

    fn array(&mut self, node: Node, ignored: Option<&Ignored>) -> Node {
        self.put(b"[");
        let mut next = self.document.first_element(node);
        let mut count = 0;
        let end = loop {
            let element = match next {
                Ok(element) => element,
                Err(end) => break end,
            };
            let inner = ignored.and_then(|ignored| ignored.element(count));
            let past = match inner {
                Some(Ignored { whole: true, .. }) => self.document.past(element),
                _ => self.value(element, inner),
            };
            next = self.document.next_element(past);
            count += 1;
        };
        self.put(b"]");
        end
    }

    fn string(&mut self, text: Text<'a>) {
        self.put(b"\"");
        for chunk in text.chunks() {
            match chunk {
                Chunk::Plain(bytes) => self.put(bytes),
                Chunk::Escaped(bytes, length) => self.put(&bytes[..length]),
            }
        }
        self.put(&[END]);
    }
}

#[cfg(test)]
mod tests;

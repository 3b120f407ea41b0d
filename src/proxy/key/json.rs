//! A JSON reader (RFC 8259) that keeps what a tree of values loses: the text of numbers and members that stand twice.
//!
//! It notes where the members of each object are and builds no values, so a hostile body costs time and memory in
//! proportion to its length. Key sources look members up here; the `json` fingerprint writes its canonical form from
//! the same notes.

mod pointer;
mod read;
mod scan;
mod text;

use std::cmp::Ordering;

pub(crate) use pointer::{index, tokens};
pub(crate) use text::{Chunk, Text};

/// How deep objects and arrays may nest. Far beyond honest bodies, and shallow enough to be walked recursively.
pub(crate) const MAX_DEPTH: usize = 512;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Why a body cannot be read as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonFault {
    /// It is something else.
    #[error("the body is not JSON: unexpected input at byte {at}")]
    NotJson {
        /// Where reading stopped.
        at: usize,
    },
    /// It might be JSON, but nests deeper than the proxy reads.
    #[error("the JSON body nests deeper than {MAX_DEPTH} levels at byte {at}")]
    TooDeep {
        /// Where the level too many begins.
        at: usize,
    },
    /// An object names a member twice, and readers differ in which one they take.
    #[error("the JSON body names a member of one object twice, the second time at byte {at}")]
    DuplicateMember {
        /// Where the second name begins.
        at: usize,
    },
    /// Positions in it do not fit the reader's notes.
    #[error("the body is larger than 4 GiB and cannot be read as JSON")]
    TooLarge,
}

/// A text that is JSON, and where its objects and their members are.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    text: &'a [u8],
    root: Node,
    objects: Vec<Object>,
    members: Vec<Member>,
}

/// A value: where it begins, and how many objects began before it (which is its number if it is one).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    at: u32,
    object: u32,
}

/// One object. Objects are numbered in the order in which they begin.
#[derive(Clone, Copy, Debug, Default)]
struct Object {
    /// Its members stand together in the list of all members, from here …
    first: u32,
    /// … this many.
    count: u32,
    /// The position behind its closing brace, and the number of the next object that begins there or later.
    end: Node,
}

/// One member of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    name: u32,
    name_end: u32,
    value: Node,
}

/// What a value is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind<'a> {
    /// `{…}`, to be asked for its members.
    Object,
    /// `[…]`, to be walked from [`Document::first_element`].
    Array,
    /// A string.
    String(Text<'a>),
    /// A number, as it was written.
    Number(&'a [u8]),
    /// `true`, `false` or `null`.
    Word(&'a [u8]),
}

impl<'a> Document<'a> {
    /// Reads a whole text, behind the byte order mark that some programs write (RFC 8259 section 8.1 lets readers skip
    /// it). Whether members stand twice is not looked at.
    pub(crate) fn read(text: &'a [u8]) -> Result<Document<'a>, JsonFault> {
        read::read(text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text))
    }

    /// The outermost value.
    pub(crate) fn root(&self) -> Node {
        self.root
    }

    /// What stands at a place.
    pub(crate) fn kind(&self, node: Node) -> Kind<'a> {
        let at = node.at as usize;
        match self.text[at] {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String(Text::new(&self.text[at + 1..scan::past_string(self.text, at + 1) - 1])),
            b't' | b'f' | b'n' => Kind::Word(&self.text[at..scan::past_scalar(self.text, at)]),
            _ => Kind::Number(&self.text[at..scan::past_scalar(self.text, at)]),
        }
    }

    /// The members of an object, in the order of the text or, after [`Document::sort`], of their names.
    pub(crate) fn members(&self, object: Node) -> &[Member] {
        let Object { first, count, .. } = self.objects[object.object as usize];
        &self.members[first as usize..(first + count) as usize]
    }

    /// A member's name.
    pub(crate) fn name(&self, member: &Member) -> Text<'a> {
        name(self.text, member)
    }

    /// The position behind a value.
    pub(crate) fn past(&self, node: Node) -> Node {
        let (mut at, mut object, mut depth) = (node.at as usize, node.object, 0usize);
        loop {
            match self.text[at] {
                b'{' => {
                    let end = self.objects[object as usize].end;
                    (at, object) = (end.at as usize, end.object);
                }
                b'"' => at = scan::past_string(self.text, at + 1),
                b'[' => (at, depth) = (at + 1, depth + 1),
                b']' => (at, depth) = (at + 1, depth - 1),
                b',' | b' ' | b'\t' | b'\r' | b'\n' => at += 1,
                _ => at = scan::past_scalar(self.text, at),
            }
            if depth == 0 {
                return Node { at: at as u32, object };
            }
        }
    }

    /// The position behind an object.
    pub(crate) fn past_object(&self, object: Node) -> Node {
        self.objects[object.object as usize].end
    }

    /// The first element of an array, or the position behind an empty one.
    pub(crate) fn first_element(&self, array: Node) -> Result<Node, Node> {
        self.element(Node { at: array.at + 1, ..array })
    }

    /// The element after one that ends here, or the position behind the array.
    pub(crate) fn next_element(&self, end: Node) -> Result<Node, Node> {
        self.element(end)
    }

    fn element(&self, from: Node) -> Result<Node, Node> {
        let mut at = from.at as usize;
        while matches!(self.text[at], b',' | b' ' | b'\t' | b'\r' | b'\n') {
            at += 1;
        }
        let node = Node { at: at as u32, ..from };
        if self.text[at] == b']' { Err(Node { at: node.at + 1, ..node }) } else { Ok(node) }
    }

    /// Puts the members of every object in the order of their decoded names; finds those that stand twice.
    pub(crate) fn sort(&mut self) -> Result<(), JsonFault> {
        let text = self.text;
        for object in &self.objects {
            let members = &mut self.members[object.first as usize..(object.first + object.count) as usize];
            members.sort_unstable_by(|a, b| compare(text, a, b));
            for pair in members.windows(2) {
                if compare(text, &pair[0], &pair[1]) == Ordering::Equal {
                    return Err(JsonFault::DuplicateMember { at: pair[0].name.max(pair[1].name) as usize });
                }
            }
        }
        Ok(())
    }
}

impl Member {
    /// The member's value.
    pub(crate) fn value(&self) -> Node {
        self.value
    }
}

fn name<'a>(text: &'a [u8], member: &Member) -> Text<'a> {
    Text::new(&text[member.name as usize..member.name_end as usize])
}

fn compare(text: &[u8], a: &Member, b: &Member) -> Ordering {
    name(text, a).compare(name(text, b))
}

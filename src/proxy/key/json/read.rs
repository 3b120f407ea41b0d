//! Reads a text from its first byte to its last, without recursion, and notes its objects and members.

use super::{Document, JsonFault, MAX_DEPTH, Member, Node, Object, scan};

/// Reads a whole text.
pub(super) fn read(text: &[u8]) -> Result<Document<'_>, JsonFault> {
    if u32::try_from(text.len()).is_err() {
        return Err(JsonFault::TooLarge);
    }
    if let Err(error) = std::str::from_utf8(text) {
        return Err(JsonFault::NotJson { at: error.valid_up_to() });
    }
    let mut reader =
        Reader { text, at: 0, open: Vec::new(), pending: Vec::new(), objects: Vec::new(), members: Vec::new() };
    let root = Node { at: offset(scan::space(text, 0)), object: 0 };
    reader.run()?;
    Ok(Document { text, root, objects: reader.objects, members: reader.members })
}

/// An array or object that was opened and not closed yet.
enum Open {
    Array,
    /// Its number, and where its members begin among the pending ones.
    Object(u32, usize),
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    open: Vec<Open>,
    /// Members of open objects, the innermost last. They move to `members` when their object closes, so that the
    /// members of each object stand together.
    pending: Vec<Member>,
    objects: Vec<Object>,
    members: Vec<Member>,
}

/// What comes next.
enum Next {
    Value,
    /// A value has just ended.
    Follower,
    Done,
}

/// Positions fit: [`read`] refuses longer texts.
fn offset(at: usize) -> u32 {
    at as u32
}

impl Reader<'_> {
    fn run(&mut self) -> Result<(), JsonFault> {
        let mut next = Next::Value;
        loop {
            self.at = scan::space(self.text, self.at);
            next = match next {
                Next::Value => self.value()?,
                Next::Follower => self.follower()?,
                Next::Done => return Ok(()),
            };
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn fault<T>(&self) -> Result<T, JsonFault> {
        Err(JsonFault::NotJson { at: self.at })
    }

    /// Takes a whole scalar, or the beginning of an array or object.
    fn value(&mut self) -> Result<Next, JsonFault> {
        let end = match self.peek() {
            Some(b'{') => return self.begin_object(),
            Some(b'[') => return self.begin_array(),
            Some(b'"') => scan::string(self.text, self.at + 1),
            Some(b'-' | b'0'..=b'9') => scan::number(self.text, self.at),
            Some(_) => scan::word(self.text, self.at),
            None => Err(self.at),
        };
        self.at = end.map_err(|at| JsonFault::NotJson { at })?;
        Ok(Next::Follower)
    }

    fn begin(&mut self, open: Open) -> Result<(), JsonFault> {
        if self.open.len() == MAX_DEPTH {
            return Err(JsonFault::TooDeep { at: self.at });
        }
        self.open.push(open);
        self.at = scan::space(self.text, self.at + 1);
        Ok(())
    }

    fn begin_array(&mut self) -> Result<Next, JsonFault> {
        self.begin(Open::Array)?;
        if self.peek() == Some(b']') { self.follower() } else { Ok(Next::Value) }
    }

    fn begin_object(&mut self) -> Result<Next, JsonFault> {
        self.begin(Open::Object(offset(self.objects.len()), self.pending.len()))?;
        self.objects.push(Object::default());
        if self.peek() == Some(b'}') { self.follower() } else { self.member() }
    }

    /// Takes a member's name and colon.
    fn member(&mut self) -> Result<Next, JsonFault> {
        if self.peek() != Some(b'"') {
            return self.fault();
        }
        let name = self.at + 1;
        let end = scan::string(self.text, name).map_err(|at| JsonFault::NotJson { at })?;
        self.at = scan::space(self.text, end);
        if self.peek() != Some(b':') {
            return self.fault();
        }
        self.at = scan::space(self.text, self.at + 1);
        let value = Node { at: offset(self.at), object: offset(self.objects.len()) };
        self.pending.push(Member { name: offset(name), name_end: offset(end - 1), value });
        Ok(Next::Value)
    }

    /// Takes what stands behind a value: a comma, a closing bracket, or the end of the text.
    fn follower(&mut self) -> Result<Next, JsonFault> {
        match (self.open.last(), self.peek()) {
            (None, None) => Ok(Next::Done),
            (Some(_), Some(b',')) => self.comma(),
            (Some(Open::Array), Some(b']')) => {
                self.open.pop();
                self.at += 1;
                Ok(Next::Follower)
            }
            (Some(&Open::Object(number, first)), Some(b'}')) => {
                self.open.pop();
                self.at += 1;
                self.close_object(number, first);
                Ok(Next::Follower)
            }
            _ => self.fault(),
        }
    }

    fn comma(&mut self) -> Result<Next, JsonFault> {
        self.at = scan::space(self.text, self.at + 1);
        if matches!(self.open.last(), Some(Open::Object(..))) { self.member() } else { Ok(Next::Value) }
    }

    fn close_object(&mut self, number: u32, first_pending: usize) {
        let first = self.members.len();
        self.members.extend(self.pending.drain(first_pending..));
        self.objects[number as usize] = Object {
            first: offset(first),
            count: offset(self.members.len() - first),
            end: Node { at: offset(self.at), object: offset(self.objects.len()) },
        };
    }
}

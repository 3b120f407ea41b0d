//! A span that has ended: what is told of one piece of work.

use std::borrow::Cow;
use std::time::SystemTime;

use super::Context;

/// What a span says besides its name and times.
pub type Attribute = (&'static str, Value);

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Words.
    Text(Cow<'static, str>),
    /// A whole number.
    Number(i64),
}

impl From<&'static str> for Value {
    fn from(text: &'static str) -> Value {
        Value::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(Cow::Owned(text))
    }
}

impl From<u16> for Value {
    fn from(number: u16) -> Value {
        Value::Number(number.into())
    }
}

/// Which side of which call a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request that came in.
    Server,
    /// A request that went out.
    Client,
    /// Work of this process.
    Internal,
}

/// One piece of work of one request.
#[derive(Clone, Debug)]
pub struct Span {
    /// What kind of work it was: few different ones.
    pub name: Cow<'static, str>,
    /// Its place in the trace.
    pub context: Context,
    /// The span above it, and whether that is another process's.
    pub parent: Option<(Context, bool)>,
    /// Which side it is.
    pub kind: Kind,
    /// When it began.
    pub began: SystemTime,
    /// When it ended; never before it began.
    pub ended: SystemTime,
    /// What else there is to say. Never keys, credentials, queries or bodies.
    pub attributes: Vec<Attribute>,
    /// A span of another trace that it has to do with.
    pub link: Option<Context>,
    /// Whether it failed.
    pub failed: bool,
}

impl Span {
    /// One that says nothing yet, and ended when it began.
    pub fn new(name: impl Into<Cow<'static, str>>, context: Context, kind: Kind, began: SystemTime) -> Span {
        Span {
            name: name.into(),
            context,
            parent: None,
            kind,
            began,
            ended: began,
            attributes: Vec::new(),
            link: None,
            failed: false,
        }
    }

    /// Says something.
    pub fn say(&mut self, name: &'static str, value: impl Into<Value>) {
        self.attributes.push((name, value.into()));
    }
}

//! JSON texts as trees, read and written in the plainest way: what the product's reader is held against.
//!
//! It keeps the text of numbers, as the product does. It reads only what `serde_json` has accepted, so it checks nothing.

/// A value. Strings are decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tree {
    Word(String),
    Number(String),
    Text(String),
    Array(Vec<Tree>),
    Object(Vec<(String, Tree)>),
}

/// How a tree is written down.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Members in their own order or in the opposite one.
    pub is_reversed: bool,
    /// Stands at each place that takes white space.
    pub space: &'static str,
    /// Every character as `\uXXXX`.
    pub is_escaped: bool,
}

impl Tree {
    /// The tree of a text that is JSON; `None` if one of its strings is no text (half of a surrogate pair).
    pub fn read(text: &str) -> Option<Tree> {
        Reader { text, at: 0 }.value()
    }

    /// Whether an object names a member twice.
    pub fn has_duplicates(&self) -> bool {
        match self {
            Tree::Object(members) => {
                let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
                names.sort_unstable();
                let is_double = names.windows(2).any(|pair| pair[0] == pair[1]);
                is_double || members.iter().any(|(_, value)| value.has_duplicates())
            }
            Tree::Array(elements) => elements.iter().any(Tree::has_duplicates),
            _ => false,
        }
    }

    /// How many values there are.
    pub fn count(&self) -> usize {
        1 + match self {
            Tree::Array(elements) => elements.iter().map(Tree::count).sum(),
            Tree::Object(members) => members.iter().map(|(_, value)| value.count()).sum(),
            _ => 0usize,
        }
    }

    /// Makes the value with this number (outer ones first) another one.
    pub fn change(&mut self, number: &mut usize) {
        if *number == 0 {
            match self {
                Tree::Word(word) => *word = if word == "null" { "true" } else { "null" }.to_owned(),
                Tree::Number(text) => *text = if text == "7" { "8" } else { "7" }.to_owned(),
                Tree::Text(text) => text.push('x'),
                Tree::Array(elements) => elements.push(Tree::Word("null".to_owned())),
                Tree::Object(members) => {
                    let name = members.iter().map(|(name, _)| name.as_str()).collect::<String>() + "x";
                    members.push((name, Tree::Number("1".to_owned())));
                }
            }
        }
        let Some(left) = number.checked_sub(1) else {
            *number = usize::MAX;
            return;
        };
        *number = left;
        let inner: Box<dyn Iterator<Item = &mut Tree>> = match self {
            Tree::Array(elements) => Box::new(elements.iter_mut()),
            Tree::Object(members) => Box::new(members.iter_mut().map(|(_, value)| value)),
            _ => return,
        };
        for tree in inner {
            if *number == usize::MAX {
                return;
            }
            tree.change(number);
        }
    }

    /// The tree as a text.
    pub fn write(&self, style: Style) -> String {
        let mut text = style.space.to_owned();
        self.put(&mut text, style);
        text + style.space
    }

    fn put(&self, out: &mut String, style: Style) {
        let space = style.space;
        match self {
            Tree::Word(text) | Tree::Number(text) => out.push_str(text),
            Tree::Text(text) => put_text(out, text, style),
            Tree::Array(elements) => {
                out.push('[');
                for (at, element) in elements.iter().enumerate() {
                    out.push_str(if at > 0 { "," } else { "" });
                    out.push_str(space);
                    element.put(out, style);
                    out.push_str(space);
                }
                out.push(']');
            }
            Tree::Object(members) => {
                let ordered: Vec<&(String, Tree)> =
                    if style.is_reversed { members.iter().rev().collect() } else { members.iter().collect() };
                out.push('{');
                for (at, (name, value)) in ordered.into_iter().enumerate() {
                    out.push_str(if at > 0 { "," } else { "" });
                    out.push_str(space);
                    put_text(out, name, style);
                    out.push_str(space);
                    out.push(':');
                    out.push_str(space);
                    value.put(out, style);
                    out.push_str(space);
                }
                out.push('}');
            }
        }
    }
}

fn put_text(out: &mut String, text: &str, style: Style) {
    if !style.is_escaped {
        out.push_str(&serde_json::to_string(text).expect("a text is JSON"));
        return;
    }
    out.push('"');
    for unit in text.encode_utf16() {
        out.push_str(&format!("\\u{unit:04X}"));
    }
    out.push('"');
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&mut self) -> u8 {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| b" \t\r\n,:".contains(byte)).count();
        self.text.as_bytes()[self.at]
    }

    fn take(&mut self, length: usize) -> &'a str {
        let taken = &self.text[self.at..self.at + length];
        self.at += length;
        taken
    }

    fn value(&mut self) -> Option<Tree> {
        Some(match self.peek() {
            b'"' => Tree::Text(self.string()?),
            b'[' => {
                self.at += 1;
                let mut elements = Vec::new();
                while self.peek() != b']' {
                    elements.push(self.value()?);
                }
                self.at += 1;
                Tree::Array(elements)
            }
            b'{' => {
                self.at += 1;
                let mut members = Vec::new();
                while self.peek() != b'}' {
                    members.push((self.string()?, self.value()?));
                }
                self.at += 1;
                Tree::Object(members)
            }
            first => {
                let rest = &self.text.as_bytes()[self.at..];
                let length =
                    rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte)).count();
                let text = self.take(length).to_owned();
                if first.is_ascii_alphabetic() { Tree::Word(text) } else { Tree::Number(text) }
            }
        })
    }

    fn string(&mut self) -> Option<String> {
        let rest = &self.text.as_bytes()[self.at..];
        let mut length = 1;
        while rest[length] != b'"' {
            length += if rest[length] == b'\\' { 2 } else { 1 };
        }
        serde_json::from_str(self.take(length + 1)).ok()
    }
}

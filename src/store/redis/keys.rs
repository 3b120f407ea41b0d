//! The names of keys: prefix, then the shard in literal braces, which make it the hash tag of a cluster.

use crate::record::{RecordId, Token};

/// How many shards the records are spread over: one for each first byte of the hash.
pub(super) const SHARDS: u16 = 256;

/// Makes the names under one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: String,
}

impl Keys {
    /// Names under this prefix.
    pub(super) fn new(prefix: &str) -> Keys {
        Keys { prefix: prefix.to_owned() }
    }

    /// The record; also the channel on which its changes are published.
    pub(super) fn record(&self, id: &RecordId) -> String {
        self.of_record(id, ":r:", None)
    }

    /// Put together by hand: this is done for every operation, and formatting is several times dearer.
    fn of_record(&self, id: &RecordId, kind: &str, token: Option<Token>) -> String {
        let mut key = String::with_capacity(self.prefix.len() + 80);
        key.push_str(&self.prefix);
        key.push_str(":{");
        push_hex(&mut key, &id.hash()[..1]);
        key.push('}');
        key.push_str(kind);
        push_hex(&mut key, id.hash());
        if let Some(token) = token {
            key.push(':');
            push_hex(&mut key, token.as_bytes());
        }
        key
    }

    /// The index of open records in the shard of this record.
    pub(super) fn open(&self, id: &RecordId) -> String {
        self.open_of(u16::from(id.hash()[0]))
    }

    /// The index of open records of a shard.
    pub(super) fn open_of(&self, shard: u16) -> String {
        let mut key = String::with_capacity(self.prefix.len() + 16);
        key.push_str(&self.prefix);
        key.push_str(":{");
        push_hex(&mut key, &[shard.to_be_bytes()[1]]);
        key.push_str("}:open");
        key
    }

    /// What stops this token from being granted again.
    pub(super) fn tombstone(&self, id: &RecordId, token: Token) -> String {
        self.of_record(id, ":t:", Some(token))
    }

    /// The keys of an operation that names no token.
    pub(super) fn of(&self, id: &RecordId) -> Vec<String> {
        vec![self.record(id), self.open(id)]
    }

    /// The keys of an operation of this token.
    pub(super) fn with_token(&self, id: &RecordId, token: Token) -> Vec<String> {
        vec![self.record(id), self.open(id), self.tombstone(id, token)]
    }

    /// Names the process that sweeps.
    pub(super) fn sweeper(&self) -> String {
        format!("{}:sweep", self.prefix)
    }

    /// What the last sweep counted.
    pub(super) fn counts(&self) -> String {
        format!("{}:counts", self.prefix)
    }
}

/// The name of a record as a member of the index.
pub(super) fn member(id: &RecordId) -> String {
    let mut member = String::with_capacity(id.route().len() + 33);
    member.push_str(id.route());
    member.push(':');
    push_hex(&mut member, id.hash());
    member
}

/// Adds at most 16 bytes.
fn push_hex(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; 32];
    for (pair, byte) in text.chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    out.push_str(std::str::from_utf8(&text[..bytes.len() * 2]).expect("hex digits are ASCII"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puts_all_keys_of_a_record_into_one_slot() {
        let id: RecordId = "pay:3fa90000000000000000000000000001".parse().unwrap();
        let token = Token::from_bytes([0xab; 16]);
        let keys = Keys::new("once").with_token(&id, token);
        assert_eq!(
            keys,
            [
                "once:{3f}:r:3fa90000000000000000000000000001",
                "once:{3f}:open",
                "once:{3f}:t:3fa90000000000000000000000000001:abababababababababababababababab",
            ]
        );
        assert_eq!(member(&id), id.to_string());
    }
}

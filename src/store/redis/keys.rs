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
        format!("{}:{{{:02x}}}:r:{}", self.prefix, id.hash()[0], id.hex())
    }

    /// The index of open records in the shard of this record.
    pub(super) fn open(&self, id: &RecordId) -> String {
        self.open_of(u16::from(id.hash()[0]))
    }

    /// The index of open records of a shard.
    pub(super) fn open_of(&self, shard: u16) -> String {
        format!("{}:{{{shard:02x}}}:open", self.prefix)
    }

    /// What stops this token from being granted again.
    pub(super) fn tombstone(&self, id: &RecordId, token: Token) -> String {
        let token = u128::from_be_bytes(*token.as_bytes());
        format!("{}:{{{:02x}}}:t:{}:{token:032x}", self.prefix, id.hash()[0], id.hex())
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
    }
}

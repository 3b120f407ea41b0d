//! The names of keys: prefix, then the shard in literal braces, which make it the hash tag of a cluster.

use uuid::fmt::Simple;

use crate::record::{RecordId, Token};

/// How many shards the records are spread over: one for each first byte of the hash.
pub(super) const SHARDS: u16 = 256;

/// The cluster slot of each shard: CRC16 (XMODEM) of the two hex digits in braces, modulo 16384.
pub(super) const SLOTS: [u16; SHARDS as usize] = slots();

const fn slots() -> [u16; SHARDS as usize] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut slots = [0; SHARDS as usize];
    let mut shard = 0;
    while shard < slots.len() {
        let crc = crc16(crc16(0, DIGITS[shard >> 4]), DIGITS[shard & 15]);
        slots[shard] = crc % 16384;
        shard += 1;
    }
    slots
}

const fn crc16(before: u16, byte: u8) -> u16 {
    let mut crc = before ^ ((byte as u16) << 8);
    let mut bit = 0;
    while bit < 8 {
        crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        bit += 1;
    }
    crc
}

/// The shard of a key, from its hash tag; `None` if it has none.
pub(super) fn shard_of(key: &[u8]) -> Option<u8> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let tag = key.get(open + 1..open + 3)?;
    u8::from_str_radix(std::str::from_utf8(tag).ok()?, 16).ok()
}

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
        let mut key = String::new();
        self.push_record(&mut key, id.hex().encode_lower(&mut [0; Simple::LENGTH]), ":r:");
        key
    }

    /// The index of open records of a shard.
    pub(super) fn open_of(&self, shard: u8) -> String {
        let mut key = String::new();
        self.push_shard(&mut key, &format!("{shard:02x}"));
        key.push_str(":open");
        key
    }

    /// What an operation on a record names, and what it names of an attempt if it is one of a token's: the record, the
    /// index of its shard, and the tombstone that stops the token from being granted again.
    pub(super) fn names(&self, id: &RecordId, token: Option<Token>) -> Names {
        let mut text = String::with_capacity(3 * self.prefix.len() + id.route().len() + 192);
        let (mut of_id, mut of_token) = ([0; Simple::LENGTH], [0; Simple::LENGTH]);
        let hex = id.hex().encode_lower(&mut of_id);
        self.push_record(&mut text, hex, ":r:");
        let record = text.len();
        self.push_shard(&mut text, &hex[..2]);
        text.push_str(":open");
        let open = text.len();
        if let Some(token) = token {
            self.push_record(&mut text, hex, ":t:");
            text.push(':');
            text.push_str(token.hex().encode_lower(&mut of_token));
        }
        let tombstone = text.len();
        text.push_str(id.route());
        text.push(':');
        text.push_str(hex);
        Names { text, ends: [record, open, tombstone], keys: if token.is_some() { 3 } else { 2 } }
    }

    fn push_record(&self, key: &mut String, hash: &str, kind: &str) {
        self.push_shard(key, &hash[..2]);
        key.push_str(kind);
        key.push_str(hash);
    }

    fn push_shard(&self, key: &mut String, shard: &str) {
        key.push_str(&self.prefix);
        key.push_str(":{");
        key.push_str(shard);
        key.push('}');
    }

    /// Names the process that sweeps: all shards, or those of one server of a cluster, of which this is the first.
    pub(super) fn sweeper(&self, first: Option<u8>) -> String {
        self.upkeep(first, "sweep")
    }

    /// What the last sweep counted.
    pub(super) fn counts(&self, first: Option<u8>) -> String {
        self.upkeep(first, "counts")
    }

    fn upkeep(&self, first: Option<u8>, what: &str) -> String {
        match first {
            None => format!("{}:{what}", self.prefix),
            Some(shard) => format!("{}:{{{shard:02x}}}:{what}", self.prefix),
        }
    }
}

/// The names in one operation, in one piece of memory and put together by hand: they are made for every one, and
/// formatting is several times dearer.
pub(super) struct Names {
    /// The keys and then the member, one behind the other.
    text: String,
    /// Where each key ends.
    ends: [usize; 3],
    keys: usize,
}

impl Names {
    /// A single key, without a member.
    pub(super) fn of_key(key: String) -> Names {
        Names { ends: [key.len(); 3], text: key, keys: 1 }
    }

    /// How many keys there are.
    pub(super) fn count(&self) -> usize {
        self.keys
    }

    /// The keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        (0..self.keys).map(|at| &self.text[at.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[at]])
    }

    /// The record as a member of the index; empty if there is none.
    pub(super) fn member(&self) -> &str {
        &self.text[self.ends[2]..]
    }

    /// How many bytes all names have.
    pub(super) fn len(&self) -> usize {
        self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_slots_of_the_shards() {
        // As CLUSTER KEYSLOT says.
        assert_eq!((SLOTS[0x00], SLOTS[0x3f], SLOTS[0xff]), (13254, 7334, 11756));
        assert_eq!(b"123456789".iter().fold(0, |crc, byte| crc16(crc, *byte)), 0x31c3);
    }

    #[test]
    fn reads_the_shard_of_a_key() {
        let keys = Keys::new("a:b");
        let id: RecordId = "pay:3fa90000000000000000000000000001".parse().unwrap();
        for key in [keys.record(&id), keys.open_of(0x3f), keys.sweeper(Some(0x3f))] {
            assert_eq!(shard_of(key.as_bytes()), Some(0x3f), "{key}");
        }
        assert_eq!(shard_of(keys.sweeper(None).as_bytes()), None);
    }

    #[test]
    fn puts_all_keys_of_a_record_into_one_slot() {
        let id: RecordId = "pay:3fa90000000000000000000000000001".parse().unwrap();
        let token = Token::from_bytes([0xab; 16]);
        let names = Keys::new("once").names(&id, Some(token));
        assert_eq!(
            names.keys().collect::<Vec<_>>(),
            [
                "once:{3f}:r:3fa90000000000000000000000000001",
                "once:{3f}:open",
                "once:{3f}:t:3fa90000000000000000000000000001:abababababababababababababababab",
            ]
        );
        assert_eq!(names.member(), id.to_string());
        let without = Keys::new("once").names(&id, None);
        assert!(without.keys().eq(names.keys().take(2)));
        assert_eq!(without.member(), names.member());
    }
}

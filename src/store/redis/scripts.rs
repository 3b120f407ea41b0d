//! The Lua scripts: put together from their parts once, and called by their hash.
//!
//! Each operation is one script. `clock.lua`, `head.lua` and `record.lua` come first in all of them, and what nearly
//! every claim, completion and renewal is stands before `record.lua`; what a script leaves to the caller is in the
//! comment at its head. All but the claim may run on a server that is full (`allow-oom`): a claim that is refused loses
//! nothing, a completion that is refused loses an answer.

use redis::Cmd;

use super::keys::Names;
use super::wish::Wish;
use super::{INLINE_BODY, SMALL};
use crate::record::{Fingerprint, Imprint, TOMBSTONE_TTL, Token};
use crate::store::codec::block;

const CLOCK: &str = include_str!("clock.lua");

/// One script and its hash.
pub(super) struct Script {
    text: String,
    hash: String,
}

impl Script {
    fn new(text: &str) -> Script {
        let hash = redis::Script::new(text).get_hash().to_owned();
        Script { text: text.to_owned(), hash }
    }
}

/// All scripts of the store.
pub(super) struct Scripts {
    pub(super) claim: Script,
    pub(super) look: Script,
    pub(super) renew: Script,
    pub(super) complete: Script,
    /// As `complete`, but refused by a full server, for bodies that it should not be made to take.
    pub(super) complete_if_room: Script,
    pub(super) release: Script,
    pub(super) doubt: Script,
    pub(super) doubt_if_room: Script,
    pub(super) resolve: Script,
    pub(super) resolve_if_room: Script,
    pub(super) forget: Script,
    pub(super) lapse: Script,
    pub(super) sweeper: Script,
}

impl Scripts {
    /// The scripts as production runs them. With sharded channels a change is told to the servers of its shard alone;
    /// otherwise a cluster tells all its nodes.
    pub(super) fn new(sharded_channels: bool) -> Scripts {
        Scripts::with(CLOCK, if sharded_channels { "SPUBLISH" } else { "PUBLISH" })
    }

    /// The scripts with another text where the clock is read: tests move the time that way.
    #[cfg(test)]
    pub(super) fn with_clock(clock: &str) -> Scripts {
        Scripts::with(clock, "PUBLISH")
    }

    fn with(clock: &str, publish: &str) -> Scripts {
        const ALLOW_OOM: &str = "#!lua flags=allow-oom\n";
        const HEAD: &str = include_str!("head.lua");
        const ASKING: &str = "local fingerprint, details = ARGV[2]:sub(1, 36), ARGV[2]:sub(37)\n";
        const ATTEMPT: &str = include_str!("attempt.lua");
        const RECORD: &str = include_str!("record.lua");
        const FOUND: &str = include_str!("found.lua");
        let ttl = TOMBSTONE_TTL.as_millis();
        let constants = format!("local TOMBSTONE_TTL, INLINE_BODY, SMALL = {ttl}, {INLINE_BODY}, {SMALL}\n");
        let begin = [&constants, clock].concat();
        let script = |parts: &[&str]| Script::new(&parts.concat().replace("'PUBLISH'", &format!("'{publish}'")));
        let strict = |parts: &[&str]| script(&[&[&begin, HEAD, RECORD], parts].concat());
        let allowed = |parts: &[&str]| script(&[&[ALLOW_OOM, &begin, HEAD, RECORD], parts].concat());
        let complete = [&begin, HEAD, include_str!("owned.lua"), ATTEMPT, RECORD, FOUND, include_str!("complete.lua")];
        let doubt = [ATTEMPT, include_str!("doubt.lua")];
        let resolve = [include_str!("resolve.lua")];
        Scripts {
            claim: script(&[&begin, include_str!("fresh.lua"), ATTEMPT, RECORD, FOUND, include_str!("claim.lua")]),
            look: allowed(&[ASKING, FOUND, include_str!("look.lua")]),
            renew: script(&[
                ALLOW_OOM,
                &begin,
                HEAD,
                include_str!("alive.lua"),
                ATTEMPT,
                RECORD,
                include_str!("renew.lua"),
            ]),
            complete: script(&[&[ALLOW_OOM], &complete[..]].concat()),
            complete_if_room: script(&complete),
            release: allowed(&[ATTEMPT, include_str!("release.lua")]),
            doubt: allowed(&doubt),
            doubt_if_room: strict(&doubt),
            resolve: allowed(&resolve),
            resolve_if_room: strict(&resolve),
            forget: allowed(&[include_str!("forget.lua")]),
            lapse: allowed(&[include_str!("lapse.lua")]),
            sweeper: script(&[ALLOW_OOM, clock, include_str!("sweeper.lua")]),
        }
    }
}

/// One call of a script, which can be made more than once. It is the command that is sent, from the start: what it says is
/// not gathered before.
pub(super) struct Call<'a> {
    script: &'a Script,
    command: Cmd,
}

/// Room for the arguments of nearly every call: a record that is wished for without a response.
const ROOM: usize = 128;

impl<'a> Call<'a> {
    /// A call on these keys. Its first argument is the member of the index, if there is one.
    pub(super) fn new(script: &'a Script, names: &Names) -> Call<'a> {
        Call::with_room(script, names, ROOM)
    }

    /// The same, for arguments of this size.
    fn with_room(script: &'a Script, names: &Names, room: usize) -> Call<'a> {
        const NAME: &str = "EVALSHA";
        let size = NAME.len() + script.hash.len() + 1 + names.len() + room;
        let mut command = Cmd::with_capacity(4 + names.count() + 4, size);
        command.arg(NAME).arg(&script.hash).arg(names.count());
        for key in names.keys() {
            command.arg(key);
        }
        if !names.member().is_empty() {
            command.arg(names.member());
        }
        Call { script, command }
    }

    /// A call that wishes for a record.
    pub(super) fn wishing(script: &'a Script, names: &Names, wish: &Wish<'_>) -> Call<'a> {
        Call::with_room(script, names, wish.len()).wish(wish)
    }

    /// Adds an argument.
    pub(super) fn arg(mut self, arg: &[u8]) -> Call<'a> {
        self.command.arg(arg);
        self
    }

    /// Adds a number.
    pub(super) fn number(mut self, arg: impl Into<u64>) -> Call<'a> {
        self.command.arg(arg.into());
        self
    }

    /// Adds a record that is wished for.
    pub(super) fn wish(mut self, wish: &Wish<'_>) -> Call<'a> {
        self.command.arg(wish);
        self
    }

    /// Adds a token.
    pub(super) fn token(mut self, token: Token) -> Call<'a> {
        self.command.arg(&token.as_bytes()[..]);
        self
    }

    /// Adds an imprint in its stored form: policy, digest, then the block of its details.
    pub(super) fn imprint(mut self, imprint: &Imprint) -> Call<'a> {
        let Imprint { fingerprint, details } = imprint;
        let mut bytes = Vec::with_capacity(Fingerprint::SIZE + block::len(details.as_deref()));
        bytes.extend(fingerprint.to_bytes());
        block::put(&mut bytes, details.as_deref());
        self.command.arg(&bytes[..]);
        self
    }

    /// The command that names the script by its hash.
    pub(super) fn by_hash(&self) -> &Cmd {
        &self.command
    }

    /// The command that carries the script, for a server that does not know it (any more). Sent with the same keys, so
    /// it reaches the same server; `SCRIPT LOAD` might not.
    pub(super) fn by_text(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script.text);
        for arg in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }
}

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
use crate::record::{Fingerprint, TOMBSTONE_TTL, Token};

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
            look: allowed(&["local fingerprint = ARGV[2]\n", FOUND, include_str!("look.lua")]),
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

/// One call of a script, which can be made more than once.
pub(super) struct Call<'a> {
    script: &'a Script,
    names: Names,
    args: Vec<Arg<'a>>,
}

enum Arg<'a> {
    Borrowed(&'a [u8]),
    Wish(Wish<'a>),
    Fingerprint([u8; 36]),
    Token(Token),
    Number(u64),
}

impl<'a> Call<'a> {
    /// A call on these keys. Its first argument is the member of the index, if there is one.
    pub(super) fn new(script: &'a Script, names: Names) -> Call<'a> {
        Call { script, names, args: Vec::with_capacity(4) }
    }

    /// Adds an argument.
    pub(super) fn arg(mut self, arg: &'a [u8]) -> Call<'a> {
        self.args.push(Arg::Borrowed(arg));
        self
    }

    /// Adds a number.
    pub(super) fn number(mut self, arg: impl Into<u64>) -> Call<'a> {
        self.args.push(Arg::Number(arg.into()));
        self
    }

    /// Adds a record that is wished for.
    pub(super) fn wish(mut self, wish: Wish<'a>) -> Call<'a> {
        self.args.push(Arg::Wish(wish));
        self
    }

    /// Adds a token.
    pub(super) fn token(mut self, token: Token) -> Call<'a> {
        self.args.push(Arg::Token(token));
        self
    }

    /// Adds a fingerprint in its stored form: policy, then digest.
    pub(super) fn fingerprint(mut self, fingerprint: &Fingerprint) -> Call<'a> {
        let mut bytes = [0; 36];
        bytes[..4].copy_from_slice(&fingerprint.policy);
        bytes[4..].copy_from_slice(&fingerprint.digest);
        self.args.push(Arg::Fingerprint(bytes));
        self
    }

    /// The command that names the script by its hash.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", &self.script.hash)
    }

    /// The command that carries the script, for a server that does not know it (any more). Sent with the same keys, so
    /// it reaches the same server; `SCRIPT LOAD` might not.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", &self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        // The longest number has 20 digits.
        let size = |arg: &Arg<'_>| match arg {
            Arg::Borrowed(bytes) => bytes.len(),
            Arg::Wish(wish) => wish.len(),
            Arg::Fingerprint(bytes) => bytes.len(),
            Arg::Token(token) => token.as_bytes().len(),
            Arg::Number(_) => 20,
        };
        let names = &self.names;
        let data = name.len() + script.len() + 20 + names.len() + self.args.iter().map(size).sum::<usize>();
        let mut command = Cmd::with_capacity(4 + names.count() + self.args.len(), data);
        command.arg(name).arg(script).arg(names.count());
        for key in names.keys() {
            command.arg(key);
        }
        if !names.member().is_empty() {
            command.arg(names.member());
        }
        for arg in &self.args {
            match arg {
                Arg::Borrowed(bytes) => command.arg(bytes),
                Arg::Wish(wish) => command.arg(wish),
                Arg::Fingerprint(bytes) => command.arg(&bytes[..]),
                Arg::Token(token) => command.arg(&token.as_bytes()[..]),
                Arg::Number(number) => command.arg(number),
            };
        }
        command
    }
}

//! Records on Redis, shared by many proxies: on one server, on a master that sentinels name, or on a cluster.
//!
//! Every operation is one script and one round trip; the scripts say in Lua what `record.rs` says in Rust, and a
//! property test holds the two against each other. Each core has two connections, one for claims and one for bodies, so
//! that a large replay does not hold up a claim. What the server survives is its own affair; see `docs/stores.md`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::Value;

use self::ask::{Limits, Question, ask, ask_twice};
use self::failure::NoAnswer;
use self::health::Watched;
use self::keys::Keys;
use self::lane::{Lane, WaitingLanes};
use self::replies::{Answered, Completed, Recorded, claimed, looked};
use self::scripts::{Call, Script, Scripts};
use self::subscriber::Subscriptions;
use self::topology::Topology;
use self::wish::Wish;
use super::kept::Renewals;
use super::report::Report;
use super::{Answer, BackEnd, NotReady, OpenError, Page, Query, Store, StoreError, StoreErrorKind, Watch, codec};
use crate::config::store::{Backend, StoreConfig};
use crate::metrics::Metrics;
use crate::record::{
    Claim, ClaimReply, CompleteReply, DoubtReply, Finding, ForgetReply, Imprint, LookReply, OnUnknown, Reason, Record,
    RecordId, ReleaseReply, RenewReply, Replay, ResolveReply, Response, Taken, Timestamp, Token, lapse,
};

mod acknowledge;
mod ask;
#[cfg(test)]
pub(super) mod differential;
mod directory;
mod facts;
mod failure;
mod health;
mod keys;
mod lane;
mod link;
mod list;
mod replies;
mod scripts;
mod server;
mod subscriber;
mod sweep;
mod tls;
mod together;
mod topology;
mod wish;

/// In the index the claimed stand at this plus the end of their lease, the unknown at the moment they became so. Both
/// stay below 2^53, where a score is exact. Named so in `record.lua` too.
const CLAIMS_FROM: u64 = 1_000_000_000_000_000;
/// Bodies up to this size come along with the claim's reply.
const INLINE_BODY: usize = 64 * 1024;
/// Records below this size are read at once; of others the head first, since Lua takes its time for every byte.
const SMALL: usize = 2048;
/// What even a full server is made to take: little more than a record needs without a body.
const ALWAYS_KEPT: usize = 4096;
/// The least that a server can be set to take in one piece (`proto-max-bulk-len`).
const LEAST_BULK: usize = 1024 * 1024;
/// Lua counts in doubles: spans are cut to what stays exact when added to a clock.
const LONGEST_SPAN: u64 = 1 << 51;
/// How often a claim is repeated that found a completed record and then found it gone.
const VANISHED_AT_MOST: u32 = 3;

/// Opens the store. Connections are opened when they are first used.
pub(super) fn open(config: &StoreConfig, metrics: &Arc<Metrics>, renewals: &Renewals) -> Result<BackEnd, OpenError> {
    let Backend::Redis(server) = &config.backend else {
        return Err(OpenError::new("store.url does not name a Redis server"));
    };
    let watched = Watched {
        allow_eviction: config.allow_eviction,
        acknowledged: server.acknowledged,
        patience: config.timeout,
        in_doubt: Arc::default(),
    };
    let topology = Topology::new(server, config.timeout, watched.clone(), renewals)?;
    let shared = Arc::new(Shared {
        keys: Keys::new(&config.prefix),
        scripts: Scripts::new(topology.is_cluster()),
        topology,
        timeout: config.timeout,
        watched,
        subscriptions: Subscriptions::new(),
        metrics: Arc::clone(metrics),
    });
    let store = Arc::new(RedisStore::new(Arc::clone(&shared)));
    Ok(BackEnd { store, background: Box::pin(background(shared)) })
}

/// What all handles of the process share.
struct Shared {
    keys: Keys,
    scripts: Scripts,
    topology: Topology,
    timeout: Duration,
    watched: Watched,
    subscriptions: Subscriptions,
    metrics: Arc<Metrics>,
}

async fn background(shared: Arc<Shared>) {
    let lane = Lane::new(&shared.topology);
    tokio::join!(
        topology::keep(&shared.topology),
        health::watch_servers(&shared, &lane),
        sweep::sweep_for_ever(&shared, &lane),
        subscriber::listen(&shared),
        subscriber::poll(&shared, &lane),
    );
}

struct RedisStore {
    shared: Arc<Shared>,
    claims: Lane,
    bodies: Lane,
    waiting: Option<WaitingLanes>,
}

impl RedisStore {
    fn new(shared: Arc<Shared>) -> RedisStore {
        let lane = || Lane::new(&shared.topology);
        let waiting = shared.watched.acknowledged.map(|_| WaitingLanes::new(&shared.topology));
        RedisStore { claims: lane(), bodies: lane(), waiting, shared }
    }

    fn limits(&self) -> Limits {
        Limits::new(self.shared.timeout)
    }

    fn attempt<'a>(&self, script: &'a Script, claim: &Claim, wish: &Wish<'_>) -> Call<'a> {
        Call::wishing(script, &self.shared.keys.names(&claim.id, Some(claim.token)), wish)
    }

    fn ask<'a>(
        &self,
        lane: &'a Lane,
        id: &RecordId,
        call: Call<'a>,
        limits: Limits,
    ) -> impl Future<Output = Result<Value, NoAnswer>> + Send + use<'a> {
        let route = lane.to_shard(id.hash()[0]);
        async move { ask(route, &Question::Script(call), limits).await }
    }

    async fn ask_to_claim(&self, claim: &Claim, limits: Limits) -> Result<Told<ClaimReply>, StoreError> {
        let mut call = self.attempt(&self.shared.scripts.claim, claim, &Wish::claimed(claim));
        if claim.on_unknown == OnUnknown::Resend {
            call = call.number(1_u8);
        }
        let (lane, _under_way) = match &self.waiting {
            None => (&self.claims, None),
            Some(waiting) => {
                let (lane, under_way) = waiting.pick();
                (lane, Some(under_way))
            }
        };
        let (answer, repeated) = ask_twice(lane.to_shard(claim.id.hash()[0]), &Question::Claim(call), limits).await?;
        let told = self.told(&claim.id, claimed(answer, &claim.imprint)?)?;
        if repeated && !matches!(told, Told::Reply(ClaimReply::Granted { .. })) {
            Box::pin(self.bury(claim)).await?;
        }
        Ok(told)
    }

    /// After a claim that was repeated and not granted: its first message may still come, when whoever holds the key now
    /// has let go of it, and would be granted to nobody.
    async fn bury(&self, claim: &Claim) -> Result<(), StoreError> {
        let buried = self.release(claim).await;
        buried.map(drop).map_err(|error| StoreError { may_have_run: true, ..error })
    }

    async fn claim(&self, claim: &Claim) -> Result<ClaimReply, StoreError> {
        let limits = self.limits();
        match self.ask_to_claim(claim, limits).await? {
            Told::Reply(reply) => Ok(reply),
            // Boxed, as all that is rare on the way of an operation: it would make the future of each larger.
            Told::Head(head, now) => Box::pin(self.claim_large(claim, head, now, limits)).await,
        }
    }

    /// Goes on after a claim that has found a large record.
    async fn claim_large(
        &self,
        claim: &Claim,
        mut head: Vec<u8>,
        mut now: Timestamp,
        limits: Limits,
    ) -> Result<ClaimReply, StoreError> {
        for tries in 1.. {
            if let Some(replay) = self.fetch(&claim.id, &claim.imprint, &head, now, limits).await? {
                return Ok(Taken::Completed(replay).into());
            }
            if tries == VANISHED_AT_MOST {
                break;
            }
            (head, now) = match self.ask_to_claim(claim, limits).await? {
                Told::Reply(reply) => return Ok(reply),
                Told::Head(head, now) => (head, now),
            };
        }
        Err(vanishing())
    }

    async fn look(&self, id: &RecordId, asking: &Imprint) -> Result<LookReply, StoreError> {
        let limits = self.limits();
        for _ in 0..VANISHED_AT_MOST {
            let names = self.shared.keys.names(id, None);
            let call = Call::new(&self.shared.scripts.look, &names).imprint(asking);
            let answer = looked(self.ask(&self.claims, id, call, limits).await?, asking)?;
            match self.told(id, answer)? {
                Told::Reply(reply) => return Ok(reply),
                Told::Head(head, now) => {
                    if let Some(replay) = Box::pin(self.fetch(id, asking, &head, now, limits)).await? {
                        return Ok(Taken::Completed(replay).into());
                    }
                }
            }
        }
        Err(vanishing())
    }

    /// What a script's answer comes to, as far as it can be told without another trip.
    fn told<R: From<Taken>>(&self, id: &RecordId, answer: Answered<R>) -> Result<Told<R>, StoreError> {
        match answer {
            Answered::Decided { reply, lapsed } => {
                self.count_stale(id, lapsed);
                Ok(Told::Reply(reply))
            }
            Answered::Completed(Completed::Whole(replay)) => Ok(Told::Reply(Taken::Completed(replay).into())),
            Answered::Completed(Completed::Head { head, now }) => Ok(Told::Head(head, now)),
        }
    }

    /// The replay of a large record of which a script has found the head, by a second trip. `None` if another record, or
    /// none, is there now.
    async fn fetch(
        &self,
        id: &RecordId,
        asking: &Imprint,
        head: &[u8],
        now: Timestamp,
        limits: Limits,
    ) -> Result<Option<Replay>, StoreError> {
        let mut commands = redis::pipe();
        commands.cmd("GET").arg(self.shared.keys.record(id));
        let question = Question::Commands(commands);
        match one(ask(self.bodies.to_shard(id.hash()[0]), &question, limits).await?)? {
            Value::BulkString(value) if value.starts_with(head) => {
                let record = codec::decode(Bytes::from(value)).map_err(replies::unreadable)?;
                replies::replay(record, asking, now).map(Some)
            }
            _ => Ok(None),
        }
    }

    async fn complete(
        &self,
        claim: &Claim,
        response: &Response,
        retention: Duration,
    ) -> Result<CompleteReply, StoreError> {
        let limits = self.limits();
        match self.ask_to_complete(claim, response, retention, limits).await? {
            Told::Reply(reply) => Ok(reply),
            Told::Head(head, now) => Box::pin(self.complete_large(claim, response, retention, head, now, limits)).await,
        }
    }

    /// Goes on after a completion that has found a large record: most likely its own, of which the answer was lost.
    async fn complete_large(
        &self,
        claim: &Claim,
        response: &Response,
        retention: Duration,
        mut head: Vec<u8>,
        mut now: Timestamp,
        limits: Limits,
    ) -> Result<CompleteReply, StoreError> {
        for tries in 1.. {
            if let Some(replay) = self.fetch(&claim.id, &claim.imprint, &head, now, limits).await? {
                return Ok(CompleteReply::Already(replay));
            }
            if tries == VANISHED_AT_MOST {
                break;
            }
            (head, now) = match self.ask_to_complete(claim, response, retention, limits).await? {
                Told::Reply(reply) => return Ok(reply),
                Told::Head(head, now) => (head, now),
            };
        }
        Err(vanishing())
    }

    async fn ask_to_complete(
        &self,
        claim: &Claim,
        response: &Response,
        retention: Duration,
        limits: Limits,
    ) -> Result<Told<CompleteReply>, StoreError> {
        let scripts = [&self.shared.scripts.complete_if_room, &self.shared.scripts.complete];
        let call = |script, whole| self.attempt(script, claim, &Wish::completed(claim, response, retention, whole));
        let (answer, kept) = self.write(&claim.id, scripts, Some(response), limits, call).await?;
        match Recorded::read(answer, &claim.imprint)? {
            Recorded::Decided(CompleteReply::Stored) if !kept => {
                Ok(Told::Reply(CompleteReply::WithoutBody { rewritten: false }))
            }
            Recorded::Decided(CompleteReply::Rewritten) if !kept => {
                Ok(Told::Reply(CompleteReply::WithoutBody { rewritten: true }))
            }
            Recorded::Decided(reply) => Ok(Told::Reply(reply)),
            Recorded::Already(Completed::Whole(replay)) => Ok(Told::Reply(CompleteReply::Already(replay))),
            Recorded::Already(Completed::Head { head, now }) => Ok(Told::Head(head, now)),
        }
    }

    /// Writes a response, without its body where the server is too full for it or does not take it. Says whether the
    /// body was kept.
    async fn write<'a, F>(
        &self,
        id: &RecordId,
        [if_room, always]: [&'a Script; 2],
        response: Option<&Response>,
        limits: Limits,
        call: F,
    ) -> Result<(Value, bool), StoreError>
    where
        F: Fn(&'a Script, bool) -> Call<'a> + Send,
    {
        let body = response.and_then(Response::body).map_or(0, Bytes::len);
        if body <= ALWAYS_KEPT {
            return Ok((self.ask(&self.bodies, id, call(always, true), limits).await?, true));
        }
        Box::pin(self.write_large(id, [if_room, always], response, limits, call)).await
    }

    async fn write_large<'a, F>(
        &self,
        id: &RecordId,
        [if_room, always]: [&'a Script; 2],
        response: Option<&Response>,
        limits: Limits,
        call: F,
    ) -> Result<(Value, bool), StoreError>
    where
        F: Fn(&'a Script, bool) -> Call<'a> + Send,
    {
        let body = response.and_then(Response::body).map_or(0, Bytes::len);
        let size = codec::HEAD + response.map_or(0, |response| response.fields().len()) + body;
        // A server that does not take it may cut the connection before its reason can be read.
        let patience = if size >= LEAST_BULK { limits.until_cut(2) } else { limits };
        match self.ask(&self.bodies, id, call(if_room, true), patience).await {
            Ok(answer) => Ok((answer, true)),
            Err(no) if no.is_full || no.is_too_large || (size >= LEAST_BULK && no.cuts > 1) => {
                tracing::warn!(bytes = body, error = %no.error, "a response is recorded without its body");
                Ok((self.ask(&self.bodies, id, call(always, false), limits).await?, false))
            }
            Err(no) => Err(no.error),
        }
    }

    async fn doubt(
        &self,
        claim: &Claim,
        reason: Reason,
        response: Option<&Response>,
    ) -> Result<DoubtReply, StoreError> {
        let scripts = [&self.shared.scripts.doubt_if_room, &self.shared.scripts.doubt];
        let call = |script, whole| self.attempt(script, claim, &Wish::unknown(claim, reason, response, whole));
        let (answer, _) = self.write(&claim.id, scripts, response, self.limits(), call).await?;
        replies::doubted(answer)
    }

    async fn resolve(
        &self,
        id: &RecordId,
        token: Token,
        finding: &Finding,
        force: bool,
    ) -> Result<ResolveReply, StoreError> {
        let executed = match finding {
            Finding::Executed { response, retention } => Some((response, *retention)),
            Finding::NotExecuted => None,
        };
        let scripts = [&self.shared.scripts.resolve_if_room, &self.shared.scripts.resolve];
        let call = |script, whole| {
            let call = Call::new(script, &self.shared.keys.names(id, Some(token))).token(token).number(u8::from(force));
            match executed {
                Some((response, retention)) => call.wish(&Wish::found(response, retention, whole)),
                None => call,
            }
        };
        let (answer, _) = self.write(id, scripts, executed.map(|(response, _)| response), self.limits(), call).await?;
        replies::resolved(answer)
    }

    async fn forget(&self, id: &RecordId, token: Token, force: bool) -> Result<ForgetReply, StoreError> {
        let call = Call::new(&self.shared.scripts.forget, &self.shared.keys.names(id, Some(token)))
            .token(token)
            .number(u8::from(force));
        replies::forgotten(self.ask(&self.claims, id, call, self.limits()).await?)
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        let mut commands = redis::pipe();
        commands.cmd("TIME").cmd("GET").arg(self.shared.keys.record(id));
        let question = Question::Commands(commands);
        let answer = ask(self.bodies.to_shard(id.hash()[0]), &question, self.limits()).await?;
        let Value::Array(answers) = answer else { return Err(odd_answer()) };
        let mut answers = answers.into_iter();
        let now = answers.next().and_then(|time| list::time_of(&time)).ok_or_else(odd_answer)?;
        let value = match answers.next() {
            Some(Value::Nil) => return Ok(None),
            Some(Value::BulkString(value)) => value,
            Some(Value::ServerError(error)) => {
                return Err(replies::unreadable(codec::Unreadable::Damaged("it is not a string"))
                    .because(redis::RedisError::from(error)));
            }
            _ => return Err(odd_answer()),
        };
        let mut record = codec::decode(Bytes::from(value)).map_err(replies::unreadable)?;
        if record.expires_at().is_some_and(|at| at <= now) {
            return Ok(None);
        }
        lapse(&mut record, now);
        Ok(Some(record))
    }

    fn count_stale(&self, id: &RecordId, lapsed: bool) {
        if lapsed {
            self.shared.metrics.stale_claim(id.route());
        }
    }
}

/// What a script has told of a record.
enum Told<T> {
    Reply(T),
    /// The head of a completed one that is too large to come with it, and the server's time.
    Head(Vec<u8>, Timestamp),
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).min(LONGEST_SPAN)
}

fn one(answer: Value) -> Result<Value, StoreError> {
    match answer {
        Value::Array(mut answers) => answers.pop().ok_or_else(odd_answer),
        _ => Err(odd_answer()),
    }
}

fn odd_answer() -> StoreError {
    StoreError::without_effect(StoreErrorKind::Broken, "Redis answered with something that is not understood")
}

fn vanishing() -> StoreError {
    StoreError::may_have_run(StoreErrorKind::Unreachable, "the record was gone each time its body was fetched")
}

impl Store for RedisStore {
    fn for_core(&self) -> Arc<dyn Store> {
        Arc::new(RedisStore::new(Arc::clone(&self.shared)))
    }

    fn claim<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ClaimReply> {
        Box::pin(self.claim(claim))
    }

    fn look<'a>(&'a self, id: &'a RecordId, asking: &'a Imprint) -> Answer<'a, LookReply> {
        Box::pin(self.look(id, asking))
    }

    fn renew<'a>(&'a self, claim: &'a Claim) -> Answer<'a, RenewReply> {
        Box::pin(async {
            let call = self.attempt(&self.shared.scripts.renew, claim, &Wish::claimed(claim));
            replies::renewed(self.ask(&self.claims, &claim.id, call, self.limits()).await?)
        })
    }

    fn complete<'a>(
        &'a self,
        claim: &'a Claim,
        response: &'a Response,
        retention: Duration,
    ) -> Answer<'a, CompleteReply> {
        Box::pin(self.complete(claim, response, retention))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, ReleaseReply> {
        Box::pin(async {
            let call = self.attempt(&self.shared.scripts.release, claim, &Wish::claimed(claim));
            replies::released(self.ask(&self.claims, &claim.id, call, self.limits()).await?)
        })
    }

    fn doubt<'a>(&'a self, claim: &'a Claim, reason: Reason, response: Option<&'a Response>) -> Answer<'a, DoubtReply> {
        Box::pin(self.doubt(claim, reason, response))
    }

    fn resolve<'a>(
        &'a self,
        id: &'a RecordId,
        token: Token,
        finding: &'a Finding,
        force: bool,
    ) -> Answer<'a, ResolveReply> {
        Box::pin(self.resolve(id, token, finding, force))
    }

    fn forget<'a>(&'a self, id: &'a RecordId, token: Token, force: bool) -> Answer<'a, ForgetReply> {
        Box::pin(async move { self.forget(id, token, force).await })
    }

    fn get<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Option<Record>> {
        Box::pin(self.get(id))
    }

    fn list<'a>(&'a self, query: &'a Query) -> Answer<'a, Page> {
        Box::pin(list::list(&self.shared, &self.bodies, query))
    }

    fn watch<'a>(&'a self, id: &'a RecordId) -> Answer<'a, Box<dyn Watch>> {
        Box::pin(async { Ok(Subscriptions::watch(&self.shared, id, self.shared.timeout / 2).await) })
    }

    fn inspect(&self) -> Answer<'_, Report> {
        Box::pin(async { Box::pin(health::inspect(&self.shared, &self.claims, self.limits())).await })
    }

    fn ready(&self) -> Result<(), NotReady> {
        self.shared.topology.ready()
    }
}

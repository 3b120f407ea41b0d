//! Asking a server: one question, repeated within its deadline when the answer was lost.
//!
//! Every question may be asked twice: scripts recognise the token of the attempt, the rest only reads. What an error
//! says about the question is told by `failure`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::time::{Instant, sleep};

use super::acknowledge::{self, Unacknowledged};
use super::failure::{Failure, NoAnswer, Turn};
use super::health::{self, Standing};
use super::keys::shard_of;
use super::lane::{Held, Links, Route};
use super::link::{Connection, Link};
use super::scripts::Call;
use crate::config::store::Place;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// So many redirections are followed at once; after that the cluster is given time to make up its mind.
const REDIRECTIONS_AT_ONCE: u32 = 4;

/// A question.
pub(super) enum Question<'a> {
    /// One script; the answer is its reply.
    Script(Call<'a>),
    /// The same, which only a server that never forgets may run, and whose grant counts when it is acknowledged as the
    /// settings want it.
    Claim(Call<'a>),
    /// Commands that only read, or may be repeated; the answer is the array of their replies, errors among them.
    Commands(Pipeline),
}

/// How long a question may take, and what is worth waiting for.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    start: Instant,
    timeout: Duration,
    patient: bool,
    cuts: u32,
}

impl Limits {
    /// From now on this long.
    pub(super) fn new(timeout: Duration) -> Limits {
        Limits { start: Instant::now(), timeout, patient: true, cuts: u32::MAX }
    }

    /// The same, in which a server that refuses connections is an error at once. So it always is with a server of which
    /// that is known.
    pub(super) fn impatient(self) -> Limits {
        Limits { patient: false, ..self }
    }

    /// The same, given up when this many connections were cut by the question.
    pub(super) fn until_cut(self, cuts: u32) -> Limits {
        Limits { cuts, ..self }
    }

    fn of_this_try(self) -> Limits {
        Limits { timeout: self.end_of_try() - self.start, patient: false, ..self }
    }

    fn deadline(&self) -> Instant {
        self.start + self.timeout
    }

    // Up to half-time a try may wait until half-time, so that there is time for another.
    fn end_of_try(&self) -> Instant {
        let half = self.start + self.timeout / 2;
        if Instant::now() < half { half } else { self.deadline() }
    }
}

/// Asks until there is an answer, the deadline comes or the answer can only be the same again. A failure that says
/// something about the server is remembered there.
pub(super) async fn ask(route: Route<'_>, question: &Question<'_>, limits: Limits) -> Result<Value, NoAnswer> {
    ask_twice(route, question, limits).await.map(|(answer, _)| answer)
}

/// The same, and whether an earlier message with the question may have been executed, or may still be.
pub(super) async fn ask_twice(
    route: Route<'_>,
    question: &Question<'_>,
    limits: Limits,
) -> Result<(Value, bool), NoAnswer> {
    let mut carrier = Carrier::default();
    match try_once(route, None, question, &limits, &mut carrier).await {
        Ok(answer) => Ok((answer, false)),
        // Boxed, as all that is rare on the way of an operation: it would make the future of each larger.
        Err(failure) => Box::pin(ask_on(route, question, limits, carrier, failure)).await,
    }
}

/// Goes on asking after a first failure.
async fn ask_on<'a>(
    route: Route<'a>,
    question: &Question<'_>,
    limits: Limits,
    mut carrier: Carrier<'a>,
    mut failure: Failure,
) -> Result<(Value, bool), NoAnswer> {
    let (mut may_have_run, mut cuts, mut redirections, mut pause) = (false, 0, 0, FIRST_PAUSE);
    let (mut earlier, mut patient) = (None, None);
    loop {
        let Carrier { link, was_reachable, connection } = &carrier;
        let server = link.as_ref().map(|link| &**link.server());
        // Given up, because a reply that comes too late would find nobody, and a dead socket would never tell. A caller
        // that is dropped while it waits does not come by here: that says nothing about the connection.
        if let Some((link, connection)) = link.as_ref().zip(connection.as_ref())
            && failure.spoils_connection()
        {
            link.discard(connection);
        }
        let patient = *patient.get_or_insert(limits.patient && was_reachable.unwrap_or(true));
        let was_sent = connection.is_some();
        may_have_run |= was_sent && failure.may_have_run();
        cuts += u32::from(was_sent && matches!(failure, Failure::Unreachable(_)));
        let left = limits.deadline().saturating_duration_since(Instant::now());
        let turn = failure.turn(route, server);
        let is_hopeless = match turn {
            Turn::Again | Turn::Elsewhere(_) => false,
            Turn::AgainIfPatient => !was_sent && !patient,
            Turn::Never => true,
        };
        if left <= pause || is_hopeless || cuts >= limits.cuts {
            // A last try that the deadline cut short says less than the one before it.
            let telling = earlier.filter(|_| matches!(failure, Failure::TimedOut)).unwrap_or(failure);
            let no_answer = telling.into_no_answer(may_have_run, cuts, server);
            if let Some(server) = server {
                server.condition.failed(&no_answer.error);
            }
            return Err(no_answer);
        }
        // What was lost on the way is asked again at once, on a new connection, and so is what belongs elsewhere; a
        // server that is not up is given time.
        let mut asked_by = None;
        let at_once = match turn {
            Turn::Elsewhere(asking) => {
                asked_by = asking;
                redirections += 1;
                redirections <= REDIRECTIONS_AT_ONCE
            }
            _ => was_sent && !matches!(failure, Failure::Busy(_) | Failure::Demoted(_)) && cuts <= 1,
        };
        if !at_once {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        earlier = Some(failure);
        carrier = Carrier::default();
        failure = match try_once(route, asked_by.as_ref(), question, &limits, &mut carrier).await {
            Ok(answer) => return Ok((answer, may_have_run)),
            Err(failure) => failure,
        };
    }
}

/// One try, within its part of the time.
async fn try_once<'a>(
    route: Route<'a>,
    asking: Option<&Place>,
    question: &Question<'_>,
    limits: &Limits,
    carrier: &mut Carrier<'a>,
) -> Result<Value, Failure> {
    let answering = pin!(once(route, asking, question, limits, carrier));
    route.alarms().bound(limits.end_of_try(), answering).await.unwrap_or(Err(Failure::TimedOut))
}

/// What a question went by, as far as it got.
#[derive(Default)]
struct Carrier<'a> {
    link: Option<Held<'a>>,
    was_reachable: Option<bool>,
    // There as soon as the question may be on its way.
    connection: Option<Connection>,
}

/// One try, at the place of `asking` if another server sent it there for this once.
async fn once<'a>(
    route: Route<'a>,
    asking: Option<&Place>,
    question: &Question<'_>,
    limits: &Limits,
    carrier: &mut Carrier<'a>,
) -> Result<Value, Failure> {
    let is_asking = asking.is_some();
    let held = match route {
        Route::Fixed(link) => Held::Lent(link),
        Route::Shard(links, shard) => Held::Own(Box::pin(link_of(links, shard, asking)).await?),
    };
    let link = &**carrier.link.insert(held);
    carrier.was_reachable = Some(link.server().condition.is_reachable());
    if let Question::Claim(_) = question
        && !is_fit(link)?
    {
        // Where servers change, another may be there at the next try.
        let limits = if let Route::Fixed(_) = route { *limits } else { limits.of_this_try() };
        Box::pin(health::check(link, limits)).await.map_err(Failure::Unchecked)?;
        fits(&link.server().condition.standing())?;
    }
    let connection = match link.open() {
        Some(connection) => connection,
        None => Box::pin(link.connection()).await.map_err(Failure::of_connecting)?,
    };
    let connection = carrier.connection.insert(connection);
    match question {
        Question::Commands(commands) => Box::pin(read(route, connection, is_asking, commands, *limits)).await,
        Question::Claim(call) if let Some(wanted) = link.server().condition.acknowledged() => {
            Box::pin(acknowledge::claim(connection.clone(), is_asking, call, wanted)).await.map_err(|no| match no {
                Unacknowledged::Failed(error) => Failure::of_asking(error),
                Unacknowledged::Unwaited(error) => Failure::of_waiting(error),
                Unacknowledged::TooFew(said) => Failure::TooFew(said),
            })
        }
        Question::Script(call) | Question::Claim(call) => {
            let reply = match is_asking {
                // Straight to the driver: its future is large enough.
                false => connection.commands.send_packed_command(call.by_hash()).await.and_then(Value::extract_error),
                true => Box::pin(send_asking(connection, call.by_hash())).await,
            };
            match reply {
                Err(e) if is_unknown_script(&e) => Box::pin(run_by_text(connection, is_asking, call)).await,
                reply => reply,
            }
            .map_err(Failure::of_asking)
        }
    }
}

async fn link_of(links: &Links, shard: u8, asking: Option<&Place>) -> Result<Arc<Link>, Failure> {
    match asking.and_then(|place| links.directory().server_at(place)) {
        Some(server) => Ok(links.to(&server)),
        None => links.to_shard(shard).await.map_err(Failure::Lost),
    }
}

/// Refuses a claim on a server that might forget it. False if the server must be looked at first: nobody has yet, or it was
/// a replica then and may have been promoted.
fn is_fit(link: &Link) -> Result<bool, Failure> {
    let standing = link.server().condition.standing();
    if matches!(**standing, Standing::Unchecked | Standing::Replica) {
        return Ok(false);
    }
    fits(&standing).map(|()| true)
}

fn fits(standing: &Standing) -> Result<(), Failure> {
    match standing {
        Standing::Unfit(reason) => Err(Failure::Unfit(reason.clone())),
        Standing::Replica => Err(Failure::Demoted(None)),
        Standing::Unchecked | Standing::Fit | Standing::Short(_) => Ok(()),
    }
}

/// Runs a script that the server does not know by its hash.
async fn run_by_text(connection: &mut Connection, is_asking: bool, call: &Call<'_>) -> Result<Value, RedisError> {
    send(connection, is_asking, &call.by_text()).await
}

/// Whether the server does not know the script (any more) by its hash.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Sends one command; with the word that makes a server serve a slot which is on its way to it, if it was asked for so.
pub(super) async fn send(connection: &mut Connection, is_asking: bool, command: &Cmd) -> Result<Value, RedisError> {
    if !is_asking {
        return connection.commands.send_packed_command(command).await.and_then(Value::extract_error);
    }
    Box::pin(send_asking(connection, command)).await
}

async fn send_asking(connection: &mut Connection, command: &Cmd) -> Result<Value, RedisError> {
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command.clone());
    let answers = connection.commands.send_packed_commands(&both, 1, 1).await?;
    answers.into_iter().next().unwrap_or(Value::Nil).extract_error()
}

/// Asks commands that only read.
async fn read(
    route: Route<'_>,
    connection: &mut Connection,
    is_asking: bool,
    commands: &Pipeline,
    limits: Limits,
) -> Result<Value, Failure> {
    match route {
        Route::Fixed(_) => {
            let answers = connection.commands.send_packed_commands(commands, 0, commands.len()).await;
            answers.map(Value::Array).map_err(Failure::of_asking)
        }
        Route::Shard(links, _) => run_each(links, connection, is_asking, commands, limits).await,
    }
}

/// Runs commands on the shards of one server. Those that it sends elsewhere are asked there, one by one.
async fn run_each(
    links: &Links,
    connection: &mut Connection,
    is_asking: bool,
    commands: &Pipeline,
    limits: Limits,
) -> Result<Value, Failure> {
    if let (true, [command]) = (is_asking, &commands.cmd_iter().collect::<Vec<_>>()[..]) {
        return send(connection, true, command)
            .await
            .map(|answer| Value::Array(vec![answer]))
            .map_err(Failure::of_asking);
    }
    let sent = connection.commands.send_packed_commands(commands, 0, commands.len());
    let mut answers = sent.await.map_err(Failure::of_asking)?;
    if commands.len() == 1 {
        let moves =
            |failure: &Failure| matches!(failure, Failure::Elsewhere(_) | Failure::Busy(_) | Failure::Demoted(_));
        if let Some(Value::ServerError(error)) = answers.first()
            && let failure = Failure::of_asking(RedisError::from(error.clone()))
            && moves(&failure)
        {
            return Err(failure);
        }
        return Ok(Value::Array(answers));
    }
    for (command, answer) in commands.cmd_iter().zip(&mut answers) {
        let Value::ServerError(error) = &*answer else { continue };
        let failure = Failure::of_asking(RedisError::from(error.clone()));
        if !matches!(failure, Failure::Elsewhere(_) | Failure::Busy(_) | Failure::Demoted(_)) {
            continue;
        }
        let Some(shard) = shard_of_command(command) else { return Err(failure) };
        let mut alone = redis::pipe();
        alone.add_command(command.clone());
        let question = Question::Commands(alone);
        match Box::pin(ask(Route::Shard(links, shard), &question, limits)).await {
            Ok(Value::Array(mut found)) => *answer = found.pop().unwrap_or(Value::Nil),
            Ok(_) => {}
            Err(no) => return Err(Failure::Unchecked(no.error)),
        }
    }
    Ok(Value::Array(answers))
}

/// The shard of a command's key, which all commands here name first.
fn shard_of_command(command: &Cmd) -> Option<u8> {
    match command.args_iter().nth(1)? {
        redis::Arg::Simple(key) => shard_of(key),
        _ => None,
    }
}

//! Asking the server: one question, repeated within its deadline when the answer was lost.
//!
//! Every question may be asked twice: scripts recognise the token of the attempt, the rest only reads. What an error
//! says about the question (certainly not run, perhaps run) is decided here and nowhere else.

use std::sync::OnceLock;
use std::time::Duration;

use redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::time::{Instant, sleep, timeout_at};

use super::link::{Connection, Link};
use super::scripts::Call;
use crate::store::{StoreError, StoreErrorKind};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A question.
pub(super) enum Question<'a> {
    /// One script; the answer is its reply.
    Script(Call<'a>),
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
    /// From now on this long. Without patience a server that refuses connections is an error at once.
    pub(super) fn new(timeout: Duration, patient: bool) -> Limits {
        Limits { start: Instant::now(), timeout, patient, cuts: u32::MAX }
    }

    /// The same, given up when this many connections were cut by the question.
    pub(super) fn until_cut(self, cuts: u32) -> Limits {
        Limits { cuts, ..self }
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

/// No answer: why, and what the question itself may have to do with it.
pub(super) struct NoAnswer {
    pub(super) error: StoreError,
    /// How many connections broke after they had carried the question.
    pub(super) cuts: u32,
    /// The server said that it has no memory left.
    pub(super) is_full: bool,
    /// The server said that a part of the question is larger than it takes.
    pub(super) is_too_large: bool,
}

impl From<NoAnswer> for StoreError {
    fn from(no: NoAnswer) -> StoreError {
        no.error
    }
}

/// Asks until there is an answer, the deadline comes or the answer can only be the same again.
pub(super) async fn ask(link: &Link, question: &Question<'_>, limits: Limits) -> Result<Value, NoAnswer> {
    let (mut may_have_run, mut cuts, mut pause) = (false, 0, FIRST_PAUSE);
    let mut earlier = None;
    loop {
        let carrier = OnceLock::new();
        let failure = match timeout_at(limits.end_of_try(), once(link, question, &carrier)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::TimedOut,
        };
        // Given up, because a reply that comes too late would find nobody, and a dead socket would never tell. A caller
        // that is dropped while it waits does not come by here: that says nothing about the connection.
        if let Some(connection) = carrier.get().filter(|_| failure.spoils_connection()) {
            link.discard(connection);
        }
        let was_sent = carrier.get().is_some();
        may_have_run |= was_sent && failure.may_have_run();
        cuts += u32::from(was_sent && matches!(failure, Failure::Unreachable(_)));
        let left = limits.deadline().saturating_duration_since(Instant::now());
        let is_hopeless = match failure {
            Failure::TimedOut | Failure::Busy(_) => false,
            Failure::Unreachable(_) => !was_sent && !limits.patient,
            Failure::Refused(_) | Failure::Unreadable(_) | Failure::Failed(_) => true,
        };
        if left <= pause || is_hopeless || cuts >= limits.cuts {
            // A last try that the deadline cut short says less than the one before it.
            let telling = earlier.filter(|_| matches!(failure, Failure::TimedOut)).unwrap_or(failure);
            return Err(telling.into_no_answer(may_have_run, cuts, link));
        }
        // What was lost on the way is asked again at once, on a new connection; a server that is not up is given time.
        if !was_sent || matches!(failure, Failure::Busy(_)) || cuts > 1 {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        earlier = Some(failure);
    }
}

/// What an error in the answer to one of several commands means.
pub(super) fn error_of(link: &Link, error: RedisError) -> StoreError {
    Failure::of_asking(error).into_no_answer(false, 0, link).error
}

/// One try. `carrier` is set to the connection as soon as the question may be on its way.
async fn once(link: &Link, question: &Question<'_>, carrier: &OnceLock<Connection>) -> Result<Value, Failure> {
    let mut connection = link.connection().await.map_err(Failure::of_connecting)?;
    // Nobody else sets it.
    let _ = carrier.set(connection.clone());
    let answer = match question {
        Question::Script(call) => run(&mut connection, call).await,
        Question::Commands(commands) => {
            connection.commands.send_packed_commands(commands, 0, commands.len()).await.map(Value::Array)
        }
    };
    answer.map_err(Failure::of_asking)
}

async fn run(connection: &mut Connection, call: &Call<'_>) -> Result<Value, RedisError> {
    let reply = connection.commands.send_packed_command(&call.by_hash()).await.and_then(Value::extract_error);
    match reply {
        Err(e) if e.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            connection.commands.send_packed_command(&call.by_text()).await.and_then(Value::extract_error)
        }
        reply => reply,
    }
}

/// One try that got no answer.
enum Failure {
    TimedOut,
    /// No connection, or it broke.
    Unreachable(RedisError),
    /// The server is there but does not serve now: it loads its data, or runs somebody's endless script.
    Busy(RedisError),
    /// The server answered that it will not.
    Refused(RedisError),
    /// What is stored is not a record that this version reads.
    Unreadable(RedisError),
    /// A script failed half-way: not a state of the server but a fault of this program.
    Failed(RedisError),
}

impl Failure {
    fn of_connecting(error: RedisError) -> Failure {
        match Failure::of_asking(error) {
            // Whatever a login is answered with, no script ran.
            Failure::Failed(error) | Failure::Unreadable(error)
                if error.to_string().contains("max number of clients") =>
            {
                Failure::Unreachable(error)
            }
            Failure::Failed(error) | Failure::Unreadable(error) => Failure::Refused(error),
            failure => failure,
        }
    }

    fn of_asking(error: RedisError) -> Failure {
        match error.kind() {
            ErrorKind::Io => Failure::Unreachable(error),
            ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => {
                Failure::Refused(error)
            }
            _ => match error.code() {
                Some("LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN") => Failure::Busy(error),
                Some(
                    "OOM" | "READONLY" | "NOPERM" | "NOAUTH" | "WRONGPASS" | "MISCONF" | "NOREPLICAS" | "MOVED" | "ASK"
                    | "CROSSSLOT" | "DENIED" | "NOPROTO",
                ) => Failure::Refused(error),
                Some("UNREADABLE" | "WRONGTYPE") => Failure::Unreadable(error),
                _ if is_too_large(&error) => Failure::Refused(error),
                _ => Failure::Failed(error),
            },
        }
    }

    fn may_have_run(&self) -> bool {
        matches!(self, Failure::TimedOut | Failure::Unreachable(_) | Failure::Failed(_))
    }

    fn spoils_connection(&self) -> bool {
        match self {
            Failure::TimedOut | Failure::Unreachable(_) => true,
            // A master that was demoted keeps its connections; the name may lead to another server by now.
            Failure::Refused(error) | Failure::Busy(error) => {
                matches!(error.code(), Some("READONLY" | "MASTERDOWN" | "NOAUTH")) || is_too_large(error)
            }
            Failure::Unreadable(_) | Failure::Failed(_) => false,
        }
    }

    fn into_no_answer(self, may_have_run: bool, cuts: u32, link: &Link) -> NoAnswer {
        let address = link.endpoint().address();
        let (kind, said) = match &self {
            Failure::TimedOut => (StoreErrorKind::TimedOut, format!("Redis at {address} did not answer in time")),
            Failure::Unreachable(_) => (StoreErrorKind::Unreachable, format!("Redis at {address} cannot be reached")),
            Failure::Busy(_) => (StoreErrorKind::Unreachable, format!("Redis at {address} does not serve yet")),
            Failure::Refused(_) => (StoreErrorKind::Refused, format!("Redis at {address} refuses")),
            Failure::Unreadable(_) => (StoreErrorKind::Unreadable, "the stored value is not a readable record".into()),
            Failure::Failed(_) => (StoreErrorKind::Broken, format!("a script failed on Redis at {address}")),
        };
        let (message, source) = match self {
            Failure::TimedOut => (said, None),
            Failure::Unreachable(e)
            | Failure::Busy(e)
            | Failure::Refused(e)
            | Failure::Unreadable(e)
            | Failure::Failed(e) => (format!("{said}: {e}"), Some(e)),
        };
        let is_full = source.as_ref().is_some_and(|e| e.code() == Some("OOM"));
        let is_too_large = source.as_ref().is_some_and(is_too_large);
        let mut error = StoreError::new(kind, may_have_run, message);
        if let Some(source) = source {
            error = error.because(source);
        }
        NoAnswer { error, cuts, is_full, is_too_large }
    }
}

fn is_too_large(error: &RedisError) -> bool {
    error.detail().is_some_and(|said| said.contains("invalid bulk length") || said.contains("exceeds maximum allowed"))
}

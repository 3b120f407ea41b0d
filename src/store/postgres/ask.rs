//! Asking the server: one statement, repeated within its deadline when the answer was lost.
//!
//! Every statement may be run twice: the rules recognise the token of the attempt, and a write names the revision that it
//! found. What an error says about the statement (certainly not run, perhaps run) is decided here and nowhere else.

use std::error::Error as _;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::types::Type;
use tokio_postgres::{Error, Row};

use super::link::{Connection, Link, Unconnected};
use super::statements::{ECHO, Param};
use crate::record::Token;
use crate::store::{StoreError, StoreErrorKind};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How long an operation may take, what is worth waiting for, and whether a statement of it may have run.
pub(super) struct Limits {
    start: Instant,
    timeout: Duration,
    patient: bool,
    may_have_run: AtomicBool,
}

impl Limits {
    /// From now on this long.
    pub(super) fn new(timeout: Duration) -> Limits {
        Limits { start: Instant::now(), timeout, patient: true, may_have_run: AtomicBool::new(false) }
    }

    /// The same limits for which a server that refuses connections is an error at once.
    pub(super) fn impatient(self) -> Limits {
        Limits { patient: false, ..self }
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

/// Asks until there is an answer, the deadline comes or the answer can only be the same again.
pub(super) async fn ask(
    link: &Link,
    statement: &str,
    params: &[Param<'_>],
    limits: &Limits,
) -> Result<Vec<Row>, StoreError> {
    let (mut pause, mut earlier) = (FIRST_PAUSE, None);
    loop {
        let carrier = OnceLock::new();
        let answered = {
            let this_try = pin!(once(link, statement, params, &carrier));
            link.alarms().bound(limits.end_of_try(), this_try).await
        };
        let failure = match answered {
            Some(Ok(rows)) => return Ok(rows),
            Some(Err(failure)) => failure,
            None => Failure::TimedOut,
        };
        // Given up, because a reply that comes too late would find nobody, and a dead socket would never tell.
        if let Some(connection) = carrier.get().filter(|_| failure.spoils_connection()) {
            link.discard(connection);
        }
        let was_sent = carrier.get().is_some();
        if was_sent && failure.may_have_run() {
            // For all that follows: the operation's next statement may fail unsent, and a lost claim is a claim all the same.
            limits.may_have_run.store(true, Ordering::Relaxed);
        }
        let left = limits.deadline().saturating_duration_since(Instant::now());
        let is_hopeless = match failure {
            Failure::TimedOut | Failure::Busy(_) => false,
            Failure::Unreachable(_) => !was_sent && !limits.patient,
            Failure::Refused(_) | Failure::Failed(_) => true,
        };
        if left <= pause || is_hopeless {
            // A last try that the deadline cut short says less than the one before it.
            let telling = earlier.filter(|_| matches!(failure, Failure::TimedOut)).unwrap_or(failure);
            return Err(telling.into_error(limits.may_have_run.load(Ordering::Relaxed), link));
        }
        // What was lost on the way is asked again at once, on a new connection; a server that is not up is given time.
        if !was_sent || matches!(failure, Failure::Busy(_)) || earlier.is_some() {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        earlier = Some(failure);
    }
}

/// One try. `carrier` is set to the connection as soon as the statement may be on its way.
async fn once(
    link: &Link,
    statement: &str,
    params: &[Param<'_>],
    carrier: &OnceLock<Connection>,
) -> Result<Vec<Row>, Failure> {
    let connection = link.connection().await.map_err(|why| Failure::of_connecting(&why))?;
    // Nobody else sets it.
    let _ = carrier.set(connection.clone());
    if !statement.contains(ECHO) {
        return connection.client.query_typed(statement, params).await.map_err(|e| Failure::of(e.into()));
    }
    let number = i64::from_be_bytes(*Token::new().as_bytes().first_chunk().expect("a token has sixteen bytes"));
    let mut params = params.to_vec();
    params.push((&number, Type::INT8));
    let rows = connection.client.query_typed(statement, &params).await.map_err(|e| Failure::of(e.into()))?;
    let is_ours = |row: &Row| row.try_get("echo").is_ok_and(|echo: i64| echo == number);
    if rows.is_empty() || !rows.iter().all(is_ours) {
        return Err(Failure::Unreachable("the connection gave the answer to another question".into()));
    }
    Ok(rows)
}

/// What the driver or the network said.
type Said = Box<dyn std::error::Error + Send + Sync>;

/// One try that got no answer.
enum Failure {
    TimedOut,
    /// No connection, or it broke.
    Unreachable(Said),
    /// The server is there and did nothing: it starts, has no connection left, waited for a lock, met another
    /// transaction.
    Busy(Said),
    /// The server answered that it will not.
    Refused(Said),
    /// Not a state that a server is set to: its storage fails, or this program does.
    Failed(Said),
}

impl Failure {
    fn of_connecting(why: &Unconnected) -> Failure {
        match why {
            Unconnected::Io(error) => Failure::Unreachable(error.to_string().into()),
            Unconnected::Driver(error) => match sqlstate(error) {
                // The driver refuses by itself: no password although one is needed, no TLS on the server's side.
                None if error.is_closed() || is_io(error) => Failure::Unreachable(text(error).into()),
                None => Failure::Refused(text(error).into()),
                Some(state) => Failure::by_state(&state, text(error).into()),
            },
        }
    }

    fn of(error: Box<Error>) -> Failure {
        match sqlstate(&error) {
            None if error.is_closed() || is_io(&error) => Failure::Unreachable(text(&error).into()),
            None => Failure::Failed(error),
            Some(state) => Failure::by_state(&state, text(&error).into()),
        }
    }

    /// By the SQLSTATE, whose first two characters are its class.
    fn by_state(state: &str, said: Said) -> Failure {
        match state {
            // The server stops, or a person ended the session: also at a commit, which may have taken place.
            "57P01" | "57P02" | "57P05" => Failure::Unreachable(said),
            "57P03" | "53300" | "40001" | "40P01" | "55P03" | "57014" => Failure::Busy(said),
            "08P01" => Failure::Refused(said),
            _ => match &state[..2.min(state.len())] {
                "08" => Failure::Unreachable(said),
                // No rights, no such role, database, schema or table; read-only; a resource is used up.
                "25" | "28" | "42" | "3D" | "3F" | "53" | "54" | "57" | "0A" => Failure::Refused(said),
                _ => Failure::Failed(said),
            },
        }
    }

    fn may_have_run(&self) -> bool {
        // Whatever else is answered with an error was rolled back.
        matches!(self, Failure::TimedOut | Failure::Unreachable(_))
    }

    fn spoils_connection(&self) -> bool {
        // A primary that was demoted, or a role whose rights were changed, may keep its connections.
        matches!(self, Failure::TimedOut | Failure::Unreachable(_) | Failure::Refused(_))
    }

    fn into_error(self, may_have_run: bool, link: &Link) -> StoreError {
        let address = link.endpoint().address();
        let (kind, said) = match &self {
            Failure::TimedOut => (StoreErrorKind::TimedOut, format!("Postgres at {address} did not answer in time")),
            Failure::Unreachable(_) => {
                (StoreErrorKind::Unreachable, format!("Postgres at {address} cannot be reached"))
            }
            Failure::Busy(_) => (StoreErrorKind::Unreachable, format!("Postgres at {address} does not serve now")),
            Failure::Refused(_) => (StoreErrorKind::Refused, format!("Postgres at {address} refuses")),
            Failure::Failed(_) => (StoreErrorKind::Broken, format!("a statement failed on Postgres at {address}")),
        };
        match self {
            Failure::TimedOut => StoreError::new(kind, may_have_run, said),
            Failure::Unreachable(e) | Failure::Busy(e) | Failure::Refused(e) | Failure::Failed(e) => {
                StoreError::new(kind, may_have_run, format!("{said}: {e}")).because(e)
            }
        }
    }
}

fn sqlstate(error: &Error) -> Option<String> {
    error.code().map(|code| code.code().to_owned())
}

fn is_io(error: &Error) -> bool {
    let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
    let io = causes.find_map(|cause| cause.downcast_ref::<std::io::Error>());
    // rustls reports a certificate that is not trusted as an error of the stream.
    io.is_some_and(|io| io.kind() != std::io::ErrorKind::InvalidData)
}

/// The error with what the server said, which the driver's own words leave out.
pub(super) fn text(error: &Error) -> String {
    match error.as_db_error() {
        Some(said) => {
            let hint = match said.code().code() {
                "42P01" | "3F000" | "42703" => "; has `onceproxy store init` been run?",
                _ => "",
            };
            format!("{} ({}){hint}", said.message(), said.code().code())
        }
        None => match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

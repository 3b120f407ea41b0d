//! What an error says: whether the question was certainly not run, whether another try is worth it, and whether it goes
//! elsewhere. Decided here and nowhere else; `ask` does what is decided.

use redis::{ErrorKind, RedisError};

use super::directory::Lost;
use super::lane::Route;
use super::server::Server;
use crate::config::store::Place;
use crate::store::{StoreError, StoreErrorKind};

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

/// What an error in the answer to one of several commands means.
pub(super) fn error_of(server: &Server, error: RedisError) -> StoreError {
    Failure::of_asking(error).into_no_answer(false, 0, Some(server)).error
}

/// What is to be done after a failure.
pub(super) enum Turn {
    /// It may go better the next time.
    Again,
    /// The same, unless it is known that the server is away.
    AgainIfPatient,
    /// Another server has the key: for good, or here for the next try alone.
    Elsewhere(Option<Place>),
    /// It can only go the same way again.
    Never,
}

/// One try that got no answer.
pub(super) enum Failure {
    TimedOut,
    /// No connection, or it broke.
    Unreachable(RedisError),
    /// Nobody says where the server is.
    Lost(Lost),
    /// The server is there but does not serve now: it loads its data, or runs somebody's endless script.
    Busy(RedisError),
    /// The server is a replica (by now).
    Demoted(Option<RedisError>),
    /// Another server of the cluster has the key.
    Elsewhere(RedisError),
    /// The server answered that it will not.
    Refused(RedisError),
    /// The server must not be given claims.
    Unfit(String),
    /// The server could not be looked at.
    Unchecked(StoreError),
    /// Too few replicas have the claim.
    TooFew(String),
    /// The claim was granted, but the server refuses to wait for its replicas.
    Unwaited(RedisError),
    /// What is stored is not a record that this version reads.
    Unreadable(RedisError),
    /// A script failed half-way: not a state of the server but a fault of this program.
    Failed(RedisError),
}

impl Failure {
    /// An error while a connection was made.
    pub(super) fn of_connecting(error: RedisError) -> Failure {
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

    /// An error instead of an answer.
    pub(super) fn of_asking(error: RedisError) -> Failure {
        match error.kind() {
            ErrorKind::Io => Failure::Unreachable(error),
            ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig | ErrorKind::RESP3NotSupported => {
                Failure::Refused(error)
            }
            _ => match error.code() {
                Some("LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN") => Failure::Busy(error),
                // A master that was demoted throws out whoever waits for its replicas.
                Some("READONLY" | "UNBLOCKED") => Failure::Demoted(Some(error)),
                Some("MOVED" | "ASK") => Failure::Elsewhere(error),
                Some(
                    "OOM" | "NOPERM" | "NOAUTH" | "WRONGPASS" | "MISCONF" | "NOREPLICAS" | "CROSSSLOT" | "DENIED"
                    | "NOPROTO",
                ) => Failure::Refused(error),
                Some("UNREADABLE" | "WRONGTYPE") => Failure::Unreadable(error),
                _ if is_too_large(&error) => Failure::Refused(error),
                _ => Failure::Failed(error),
            },
        }
    }

    /// An error instead of the acknowledgement of a claim that was granted.
    pub(super) fn of_waiting(error: RedisError) -> Failure {
        match Failure::of_asking(error) {
            // Whatever was refused, it was not the claim.
            Failure::Refused(error) | Failure::Failed(error) => Failure::Unwaited(error),
            failure => failure,
        }
    }

    /// Whether the question may have been executed all the same.
    pub(super) fn may_have_run(&self) -> bool {
        match self {
            Failure::TimedOut | Failure::Unreachable(_) | Failure::Failed(_) => true,
            Failure::TooFew(_) | Failure::Unwaited(_) => true,
            Failure::Demoted(Some(error)) => error.code() == Some("UNBLOCKED"),
            Failure::Unchecked(error) => error.may_have_run,
            _ => false,
        }
    }

    /// Whether the connection is of no use any more.
    pub(super) fn spoils_connection(&self) -> bool {
        match self {
            Failure::TimedOut | Failure::Unreachable(_) => true,
            // A master that was demoted keeps its connections; the name may lead to another server by now.
            Failure::Demoted(_) => true,
            Failure::Refused(error) | Failure::Busy(error) => {
                matches!(error.code(), Some("MASTERDOWN" | "NOAUTH")) || is_too_large(error)
            }
            _ => false,
        }
    }

    /// What follows. Where servers change, whoever knows about them is told what was seen.
    pub(super) fn turn(&self, route: Route<'_>, server: Option<&Server>) -> Turn {
        let Route::Shard(links, shard) = route else {
            return match self {
                Failure::TimedOut | Failure::Busy(_) => Turn::Again,
                Failure::Unreachable(_) | Failure::Lost(_) => Turn::AgainIfPatient,
                _ => Turn::Never,
            };
        };
        let directory = links.directory();
        match self {
            Failure::Elsewhere(error) => {
                let Some(place) = redirection(error, server) else { return Turn::Never };
                if error.code() == Some("ASK") {
                    return Turn::Elsewhere(Some(place));
                }
                directory.moved(shard, &place);
                Turn::Elsewhere(None)
            }
            Failure::Busy(error) if error.code() == Some("TRYAGAIN") => Turn::Again,
            Failure::Demoted(_) => {
                // It keeps its connections, and would answer what only reads from data that lag behind.
                if let Some(server) = server {
                    server.renounce_connections();
                }
                directory.doubt();
                Turn::Again
            }
            Failure::TimedOut | Failure::Busy(_) => {
                directory.doubt();
                Turn::Again
            }
            Failure::Unreachable(_) | Failure::Lost(_) => {
                directory.doubt();
                Turn::AgainIfPatient
            }
            Failure::Unchecked(error) if is_outage(error) => {
                directory.doubt();
                Turn::AgainIfPatient
            }
            _ => Turn::Never,
        }
    }

    /// The failure in the words of the contract.
    pub(super) fn into_no_answer(self, may_have_run: bool, cuts: u32, server: Option<&Server>) -> NoAnswer {
        let redis = server.map_or_else(|| "Redis".to_owned(), |server| format!("Redis at {}", server.address()));
        let (kind, said) = match &self {
            Failure::TimedOut => (StoreErrorKind::TimedOut, format!("{redis} did not answer in time")),
            Failure::Unreachable(_) => (StoreErrorKind::Unreachable, format!("{redis} cannot be reached")),
            Failure::Lost(_) => (StoreErrorKind::Unreachable, "Redis cannot be found".into()),
            Failure::Busy(_) => (StoreErrorKind::Unreachable, format!("{redis} does not serve yet")),
            Failure::Demoted(_) => (StoreErrorKind::Refused, format!("{redis} is a replica, and refuses")),
            Failure::Elsewhere(_) => (StoreErrorKind::Refused, format!("{redis} is a node of a cluster, and refuses")),
            Failure::Refused(_) => (StoreErrorKind::Refused, format!("{redis} refuses")),
            Failure::Unfit(reason) => (StoreErrorKind::Refused, reason.clone()),
            Failure::Unchecked(error) => (error.kind, error.message.clone()),
            Failure::TooFew(said) => (StoreErrorKind::Refused, format!("{redis}: {said}")),
            Failure::Unwaited(_) => (
                StoreErrorKind::Refused,
                format!(
                    "{redis} takes claims, but will not say how many replicas have them (store.wait_replicas needs +wait)"
                ),
            ),
            Failure::Unreadable(_) => (StoreErrorKind::Unreadable, "the stored value is not a readable record".into()),
            Failure::Failed(_) => (StoreErrorKind::Broken, format!("a script failed on {redis}")),
        };
        let (message, source) = match self {
            Failure::TimedOut | Failure::Unfit(_) | Failure::TooFew(_) | Failure::Demoted(None) => (said, None),
            Failure::Unchecked(error) => {
                let error = StoreError { may_have_run: may_have_run || error.may_have_run, ..error };
                return NoAnswer { error, cuts, is_full: false, is_too_large: false };
            }
            Failure::Lost(lost) => (format!("{said}: {lost}"), None),
            Failure::Unreachable(e)
            | Failure::Busy(e)
            | Failure::Demoted(Some(e))
            | Failure::Elsewhere(e)
            | Failure::Refused(e)
            | Failure::Unwaited(e)
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

fn is_outage(error: &StoreError) -> bool {
    matches!(error.kind, StoreErrorKind::Unreachable | StoreErrorKind::TimedOut)
}

/// Where a server sends a client. One that does not know its own name means the host that was asked.
fn redirection(error: &RedisError, server: Option<&Server>) -> Option<Place> {
    let (address, _) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = match host.trim_matches(['[', ']']) {
        "" => server?.place()?.host.clone(),
        host => host.to_owned(),
    };
    Some(Place { host, port: port.parse().ok()? })
}

fn is_too_large(error: &RedisError) -> bool {
    error.detail().is_some_and(|said| said.contains("invalid bulk length") || said.contains("exceeds maximum allowed"))
}

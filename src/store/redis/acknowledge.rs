//! Claims that count only when replicas have them: `WAIT` behind the claims of one connection.
//!
//! `WAIT` holds up everything that follows on its connection, and answers for everything before it. So claims have
//! connections of their own for this, and one `WAIT` at a time is under way on each: what is claimed meanwhile is sent
//! at once, and the next `WAIT` answers for all of it. A claim on an idle connection and its `WAIT` go out together, in one
//! round trip. A claim that was not granted waits for nobody.

use std::borrow::Cow;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use redis::{Cmd, ErrorKind, RedisError, Value};
use tokio::sync::Notify;

use super::ask::{is_unknown_script, send};
use super::link::Connection;
use super::replies;
use super::scripts::Call;
use crate::config::store::Acknowledged;

/// Why a grant does not count.
pub(super) enum Unacknowledged {
    /// What the server said to the claim, or that the connection broke.
    Failed(RedisError),
    /// The claim was granted; this is what became of the `WAIT` behind it.
    Unwaited(RedisError),
    /// How many have it.
    TooFew(String),
}

/// The claims of one connection. They are numbered in the order in which they were sent.
#[derive(Default)]
pub(super) struct Group {
    state: Mutex<State>,
    answered: Notify,
}

#[derive(Default)]
struct State {
    sent: u64,
    is_waiting: bool,
    /// Up to which claim enough have acknowledged.
    acknowledged: u64,
    /// Up to which claim an answer came, whatever it was.
    answered: u64,
    last: Option<Result<String, RedisError>>,
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this claim was answered for.
    async fn outcome(&self, claim: u64) -> Result<(), Unacknowledged> {
        loop {
            let answered = self.answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            {
                let state = self.lock();
                // What is acknowledged later holds for all that was written before it.
                if state.acknowledged >= claim {
                    return Ok(());
                }
                if state.answered >= claim {
                    return Err(match &state.last {
                        Some(Err(error)) => Unacknowledged::Unwaited(error.clone()),
                        Some(Ok(said)) => Unacknowledged::TooFew(said.clone()),
                        None => Unacknowledged::TooFew("nobody answered".into()),
                    });
                }
            }
            answered.await;
        }
    }
}

/// Claims, and waits for the acknowledgement of a grant.
pub(super) async fn claim(
    mut connection: Connection,
    is_asking: bool,
    call: &Call<'_>,
    wanted: Acknowledged,
) -> Result<Value, Unacknowledged> {
    let mut command = Cow::Borrowed(call.by_hash());
    loop {
        let group = Arc::clone(connection.group());
        let waiting = connection.clone();
        let mut reply = Box::pin(send(&mut connection, is_asking, &command));
        let first = poll_once(reply.as_mut()).await;
        // On its way: whatever is sent from here on comes behind it.
        let number = join(waiting, wanted);
        let answer = match first {
            Some(answer) => answer,
            None => reply.as_mut().await,
        };
        drop(reply);
        match answer {
            Err(error) if is_unknown_script(&error) => command = Cow::Owned(call.by_text()),
            Err(error) => return Err(Unacknowledged::Failed(error)),
            Ok(answer) if replies::is_grant(&answer) => {
                group.outcome(number).await?;
                return Ok(answer);
            }
            Ok(answer) => return Ok(answer),
        }
    }
}

/// Numbers a claim that was sent, and sends a `WAIT` behind it unless one is under way.
fn join(connection: Connection, wanted: Acknowledged) -> u64 {
    let group = Arc::clone(connection.group());
    let (number, begins) = {
        let mut state = group.lock();
        state.sent += 1;
        (state.sent, !std::mem::replace(&mut state.is_waiting, true))
    };
    if begins {
        let mut waits = Box::pin(wait_for_all(connection, group, wanted));
        // Its first poll sends, so that both are in one packet. A claim that is dropped must not take it along.
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        if waits.as_mut().poll(&mut context).is_pending() {
            tokio::spawn(waits);
        }
    }
    number
}

/// Sends one `WAIT` after the other for as long as there are claims that none has answered for.
async fn wait_for_all(mut connection: Connection, group: Arc<Group>, wanted: Acknowledged) {
    let command = wait_command(wanted);
    loop {
        let covered = group.lock().sent;
        let answer = connection.commands.send_packed_command(&command).await.and_then(Value::extract_error);
        let answer = answer.and_then(|answer| read(&answer, wanted));
        let mut state = group.lock();
        state.answered = covered;
        match answer {
            Ok(None) => state.acknowledged = covered,
            Ok(Some(said)) => state.last = Some(Ok(said)),
            Err(error) => state.last = Some(Err(error)),
        }
        let is_over = state.sent == covered;
        if is_over {
            state.is_waiting = false;
        }
        drop(state);
        group.answered.notify_waiters();
        if is_over {
            return;
        }
    }
}

fn wait_command(wanted: Acknowledged) -> Cmd {
    let milliseconds = u64::try_from(wanted.timeout.as_millis()).unwrap_or(u64::MAX);
    let mut command = if wanted.on_disk {
        let mut command = redis::cmd("WAITAOF");
        command.arg(1);
        command
    } else {
        redis::cmd("WAIT")
    };
    command.arg(wanted.replicas).arg(milliseconds);
    command
}

/// `None` if it is enough, else how much there is.
fn read(answer: &Value, wanted: Acknowledged) -> Result<Option<String>, RedisError> {
    let (local, replicas) = match answer {
        Value::Int(replicas) if !wanted.on_disk => (1, *replicas),
        Value::Array(parts) if wanted.on_disk => match parts[..] {
            [Value::Int(local), Value::Int(replicas)] => (local, replicas),
            _ => return Err(odd()),
        },
        _ => return Err(odd()),
    };
    if local >= 1 && replicas >= i64::from(wanted.replicas) {
        return Ok(None);
    }
    let (enough, timeout) = (wanted.replicas, wanted.timeout);
    let what = if wanted.on_disk { "have the claim on disk" } else { "have the claim" };
    let local = if local < 1 { ", and it has not written it itself" } else { "" };
    Ok(Some(format!("{replicas} replicas {what} after {timeout:?}, and {enough} are wanted{local}")))
}

fn odd() -> RedisError {
    (ErrorKind::UnexpectedReturnType, "the answer to WAIT is not understood").into()
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        Poll::Ready(match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

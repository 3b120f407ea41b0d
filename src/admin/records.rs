//! The calls about records: list, show, resolve, forget. Each reads its arguments, asks the store once, and says what
//! the record is now; a change is written to the log with who, what and why.

use std::fmt;
use std::str::FromStr;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use axum::response::IntoResponse;
use http::StatusCode;
use http::header::CACHE_CONTROL;
use serde::Deserialize;
use serde_json::{Value, json};

use super::problem::Problem;
use super::wire::{self, Resolution};
use super::{AdminState, FALLBACK_RETENTION, Peer};
use crate::record::{ForgetReply, Record, RecordId, ResolveReply, State as RecordState, Token};
use crate::store::{self, OpenState, StoreError, StoreErrorKind};

const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1000;

/// What becomes of a record that nobody can read: never a second execution, and never better by asking again.
const UNREADABLE: &str = "Asking again does not help. If a newer version wrote the record, that version reads it; if it \
                          is damaged, it has to be restored, or removed from the store itself by someone who knows what \
                          happened. Until then its key is refused.";

/// The query of `GET /records`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    state: Option<String>,
    route: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// The query of `DELETE /records/{id}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForgetQuery {
    token: Option<String>,
    force: Option<String>,
    note: Option<String>,
}

/// `GET /records`: open records, a page at a time.
pub(super) async fn list(
    State(state): State<AdminState>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<impl IntoResponse, Problem> {
    let query = query.map_err(|rejection| bad_query(&rejection))?.0.check().map_err(Problem::invalid)?;
    let page = state.store.list(&query).await.map_err(|error| unanswered("list", None, &error))?;
    let records: Vec<Value> = page.records.iter().map(|(id, record)| wire::record(id, record).into()).collect();
    Ok(fresh(json!({"records": records, "cursor": page.cursor})))
}

/// `GET /records/{id}`: one record, whatever its state.
pub(super) async fn show(
    State(state): State<AdminState>,
    id: Result<Path<String>, PathRejection>,
) -> Result<impl IntoResponse, Problem> {
    let id = parse_id(id)?;
    let record = current(&state, &id).await?;
    Ok(fresh(wire::record(&id, &record).into()))
}

/// `POST /records/{id}/resolve`: ends an unknown record by what an operator found out.
pub(super) async fn resolve(
    State(state): State<AdminState>,
    peer: Option<Extension<Peer>>,
    id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<impl IntoResponse, Problem> {
    let id = parse_id(id)?;
    let resolution = Resolution::parse(&body.map_err(|rejection| bad_body(&rejection))?).map_err(Problem::invalid)?;
    let settings = state.settings.load_full();
    let kept = settings.keep_headers.get(id.route()).map_or(&[][..], Vec::as_slice);
    resolution.check_kept(kept).map_err(Problem::invalid)?;
    let finding = resolution.finding(settings.retention.get(id.route()).copied().unwrap_or(FALLBACK_RETENTION));
    let reply = state
        .store
        .resolve(&id, resolution.token, &finding, resolution.force)
        .await
        .map_err(|error| unanswered("resolve", Some(&id), &error))?;
    match reply {
        ResolveReply::Resolved => {
            let (outcome, now) = if resolution.executed.is_some() {
                ("resolve: executed", "completed")
            } else {
                ("resolve: not-executed", "absent")
            };
            let change = Change { what: outcome, id: &id, token: resolution.token, force: resolution.force };
            change.log(&Who::of(&state, peer), resolution.note.as_deref());
            Ok(fresh(json!({"id": id.to_string(), "state": now})))
        }
        ResolveReply::Absent => Err(Problem::no_record(&id)),
        ResolveReply::MayBeRunning => Err(Problem::may_be_running(&id, &current(&state, &id).await?)),
        ResolveReply::Conflict => {
            let record = current(&state, &id).await?;
            Err(Problem::conflict(&id, &record, resolve_conflict(&record, resolution.token)))
        }
    }
}

/// `DELETE /records/{id}`: removes a completed record, or with force an open one.
pub(super) async fn forget(
    State(state): State<AdminState>,
    peer: Option<Extension<Peer>>,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<ForgetQuery>, QueryRejection>,
) -> Result<impl IntoResponse, Problem> {
    let id = parse_id(id)?;
    let (token, force, note) = query.map_err(|rejection| bad_query(&rejection))?.0.check().map_err(Problem::invalid)?;
    let reply = state.store.forget(&id, token, force).await.map_err(|error| unanswered("forget", Some(&id), &error))?;
    match reply {
        ForgetReply::Forgotten => {
            Change { what: "forget", id: &id, token, force }.log(&Who::of(&state, peer), note.as_deref());
            Ok(fresh(json!({"id": id.to_string(), "state": "absent"})))
        }
        ForgetReply::Absent => Err(Problem::no_record(&id)),
        ForgetReply::Conflict => {
            let record = current(&state, &id).await?;
            Err(Problem::conflict(&id, &record, forget_conflict(&record, token)))
        }
    }
}

impl ListQuery {
    fn check(self) -> Result<store::Query, String> {
        let state = match self.state.as_deref() {
            None | Some("") => None,
            Some("claimed") => Some(OpenState::Claimed),
            Some("unknown") => Some(OpenState::Unknown),
            Some(other) => {
                return Err(format!(
                    "state={other:?} cannot be listed: open records are claimed or unknown. Completed ones are found by \
                     their id."
                ));
            }
        };
        let limit = match self.limit.as_deref() {
            None | Some("") => DEFAULT_LIMIT,
            Some(text) => usize::from_str(text)
                .ok()
                .filter(|limit| (1..=MAX_LIMIT).contains(limit))
                .ok_or_else(|| format!("limit must be a number from 1 to {MAX_LIMIT}, not {text:?}."))?,
        };
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        Ok(store::Query { state, route: given(self.route), limit, cursor: given(self.cursor) })
    }
}

impl ForgetQuery {
    fn check(self) -> Result<(Token, bool, Option<String>), String> {
        let token = self.token.ok_or("Give the record's token as ?token=TOKEN, as the record shows it.")?;
        let force = match self.force.as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => return Err(format!("force must be true or false, not {other:?}.")),
        };
        Ok((wire::parse_token(&token)?, force, self.note.map(wire::check_note).transpose()?))
    }
}

fn resolve_conflict(record: &Record, token: Token) -> String {
    if record.token != token {
        return other_token(record);
    }
    match record.state {
        RecordState::Claimed { lease_until } => format!(
            "The record is not unknown: its attempt is alive until {} and renews its lease. Wait for it, or for unknown.",
            wire::time(lease_until)
        ),
        RecordState::Completed { .. } => "The record is completed already, and does not change any more.".to_owned(),
        RecordState::Unknown { .. } => "The record was not unknown a moment ago. Look again.".to_owned(),
    }
}

fn forget_conflict(record: &Record, token: Token) -> String {
    if record.token != token {
        return other_token(record);
    }
    format!(
        "The record is {}, not completed: forgetting it lets the key run again although the first run may have happened. \
         Resolve it, or say force=true.",
        record.state.as_str()
    )
}

fn other_token(record: &Record) -> String {
    format!(
        "The record belongs to another attempt by now: its token is {}. Look at it before you decide.",
        record.token
    )
}

async fn current(state: &AdminState, id: &RecordId) -> Result<Record, Problem> {
    let record = state.store.get(id).await.map_err(|error| unanswered("get", Some(id), &error))?;
    record.ok_or_else(|| Problem::no_record(id))
}

fn parse_id(path: Result<Path<String>, PathRejection>) -> Result<RecordId, Problem> {
    let Path(text) = path.map_err(|rejection| Problem::invalid(format!("{}.", rejection.body_text())))?;
    text.parse().map_err(|error| Problem::invalid(format!("{text:?} is {error}.")))
}

fn bad_query(rejection: &QueryRejection) -> Problem {
    Problem::invalid(format!("{}.", rejection.body_text()))
}

fn bad_body(rejection: &BytesRejection) -> Problem {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return Problem::too_large();
    }
    Problem::invalid(format!("The body did not arrive whole: {}.", rejection.body_text()))
}

/// Logs a store failure, once, and makes the answer of it. A call that asked for nonsense is no such failure.
fn unanswered(operation: &'static str, id: Option<&RecordId>, error: &StoreError) -> Problem {
    if error.kind == StoreErrorKind::BadQuery {
        return Problem::invalid(format!("{}.", error.message));
    }
    let source = error.source.as_deref().map(tracing::field::display);
    let record = id.map(tracing::field::display);
    tracing::warn!(operation, record, error = %error, source, "admin call not answered by the store");
    let what_now = match (operation, error.may_have_run) {
        (_, _) if error.kind == StoreErrorKind::Unreadable => UNREADABLE,
        ("resolve" | "forget", true) => "The change may have been made all the same: look at the record first.",
        ("resolve" | "forget", false) => "Nothing was changed.",
        _ => "Ask again.",
    };
    Problem::store_unavailable(format!("{error}. {what_now}"))
}

/// Answers JSON that no cache keeps.
fn fresh(body: Value) -> impl IntoResponse {
    ([(CACHE_CONTROL, "no-store")], Json(body))
}

/// Who made a change, for the log: an address, and whether it had to show the token.
struct Who {
    peer: Option<Peer>,
    token: bool,
}

impl Who {
    fn of(state: &AdminState, peer: Option<Extension<Peer>>) -> Who {
        Who { peer: peer.map(|Extension(peer)| peer), token: state.settings.load().token.is_some() }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(Peer(address)) => address.fmt(f)?,
            None => f.write_str("in-process")?,
        }
        f.write_str(if self.token { " with the token" } else { " without a token" })
    }
}

/// A change that an operator made.
struct Change<'a> {
    what: &'static str,
    id: &'a RecordId,
    token: Token,
    force: bool,
}

impl Change<'_> {
    fn log(&self, who: &Who, note: Option<&str>) {
        let note = note.unwrap_or("none given");
        tracing::info!(%who, what = self.what, record = %self.id, token = %self.token, force = self.force, note,
            "record changed by an operator");
    }
}

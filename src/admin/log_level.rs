//! The log's level, shown and changed while the process runs: more detail for the minutes in which it is wanted.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde_json::{Value, json};

use super::AdminState;
use super::problem::Problem;
use crate::config::LogLevel;
use crate::telemetry::LevelHandle;

/// The level as it is.
pub(super) async fn show(State(state): State<AdminState>) -> Result<Json<Value>, Problem> {
    Ok(level(handle(&state)?))
}

/// Sets the level that the body names. It stays until the next call, or until the settings name another one.
pub(super) async fn set(State(state): State<AdminState>, body: Bytes) -> Result<Json<Value>, Problem> {
    let handle = handle(&state)?;
    let wanted = parse(&body).ok_or_else(|| {
        let words = LogLevel::ALL.map(LogLevel::as_str).join(", ");
        Problem::invalid(format!("Right would be {{\"level\": \"debug\"}}, with one of {words}."))
    })?;
    let before = handle.level();
    handle.set_level(wanted);
    tracing::warn!(before = before.as_str(), now = wanted.as_str(), "log level changed by an operator");
    Ok(level(handle))
}

fn handle(state: &AdminState) -> Result<&LevelHandle, Problem> {
    state.level.as_ref().ok_or_else(|| Problem::not_found("This process has no log of its own."))
}

fn level(handle: &LevelHandle) -> Json<Value> {
    Json(json!({"level": handle.level().as_str()}))
}

fn parse(body: &[u8]) -> Option<LogLevel> {
    let Value::Object(members) = serde_json::from_slice(body).ok()? else { return None };
    let word = members.get("level").filter(|_| members.len() == 1)?.as_str()?;
    LogLevel::ALL.into_iter().find(|level| level.as_str() == word)
}

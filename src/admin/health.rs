//! Alive, ready, metrics and settings: what probes and scrapers read. Nothing here asks the store anything; readiness
//! is what the store last saw of itself, so a probe is answered at once.

use axum::extract::State;
use axum::response::IntoResponse;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use super::AdminState;
use super::problem::Problem;
use crate::store::NotReady;

const PLAIN: &str = "text/plain; charset=utf-8";

/// 200 while the process answers at all, the loop of each core turns, and its store is not broken until a restart. A store
/// that is away is no reason to restart the process.
pub(super) async fn livez(State(state): State<AdminState>) -> Result<impl IntoResponse, Problem> {
    if let Some(silent) = state.pulses.stalled(state.liveness_stall) {
        return Err(Problem::broken(format!("a core has not answered anybody for {} s", silent.as_secs())));
    }
    match state.store.ready() {
        Err(NotReady::UntilRestart(reason)) => Err(Problem::broken(format!("store: {reason}"))),
        Ok(()) | Err(NotReady::ForNow(_)) => Ok(text(PLAIN, "alive\n".to_owned())),
    }
}

/// 200 while the process takes traffic and its store keeps the promise; else 503 with the reason.
pub(super) async fn readyz(State(state): State<AdminState>) -> Result<impl IntoResponse, Problem> {
    ready(&state).map_err(Problem::not_ready)?;
    Ok(text(PLAIN, "ready\n".to_owned()))
}

fn ready(state: &AdminState) -> Result<(), String> {
    if !state.ready.is_set() {
        return Err("the proxy is starting or draining".to_owned());
    }
    state.store.ready().map_err(|reason| format!("store: {reason}"))?;
    state.tried.ready().map_err(|reason| format!("store: {reason}"))?;
    state.ways.ready().map_err(|reason| format!("store: {reason}"))
}

/// The exposition in OpenMetrics text format. Readiness is shown as it is at this moment.
pub(super) async fn metrics(State(state): State<AdminState>) -> impl IntoResponse {
    state.metrics.set_ready(ready(&state).is_ok());
    let (exposition, content_type) = state.metrics.expose();
    text(content_type, exposition)
}

/// The effective settings as TOML, secrets masked.
pub(super) async fn config(State(state): State<AdminState>) -> impl IntoResponse {
    text("application/toml", state.settings.load().effective.to_string())
}

fn text(content_type: &'static str, body: String) -> impl IntoResponse {
    ([(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-store")], body)
}

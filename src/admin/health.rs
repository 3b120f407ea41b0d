//! Alive, ready, metrics and settings: what probes and scrapers read. Nothing here asks the store anything; readiness
//! is what the store last saw of itself, so a probe is answered at once.

use axum::extract::State;
use axum::response::IntoResponse;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};

use super::AdminState;
use super::problem::Problem;

const PLAIN: &str = "text/plain; charset=utf-8";

/// 200 while the process answers at all. A store that is away is no reason to restart the process.
pub(super) async fn livez() -> impl IntoResponse {
    text(PLAIN, "alive\n".to_owned())
}

/// 200 while the process takes traffic and its store keeps the promise; else 503 with the reason.
pub(super) async fn readyz(State(state): State<AdminState>) -> Result<impl IntoResponse, Problem> {
    if !state.ready.is_set() {
        return Err(Problem::not_ready("the proxy is starting or draining"));
    }
    state.store.ready().map_err(|reason| Problem::not_ready(format!("store: {reason}")))?;
    Ok(text(PLAIN, "ready\n".to_owned()))
}

/// The exposition in OpenMetrics text format.
pub(super) async fn metrics(State(state): State<AdminState>) -> impl IntoResponse {
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

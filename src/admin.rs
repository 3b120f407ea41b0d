//! The operator's listener: is it alive, is it ready, what does it count, how is it set, and which records are open.
//!
//! Separate from [`crate::server`], because nothing here touches a client's request, and because what changes a record
//! is guarded differently. It knows the store's contract and none of the proxy's steps.
//!
//! | call | answer |
//! | --- | --- |
//! | `GET /livez` | 200 while the process answers at all; 503 when only a restart would help |
//! | `GET /readyz` | 200, or 503 with the reason while starting, without a store, or draining |
//! | `GET /metrics` | OpenMetrics text |
//! | `GET /config` | the effective settings, secrets masked |
//! | `GET /log-level`, `PUT /log-level` | the least severe level that is logged, and another one from now on |
//! | `GET /records?state=&route=&limit=&cursor=` | open records |
//! | `GET /records/{id}` | one record, completed ones too |
//! | `POST /records/{id}/resolve` | ends an unknown record by what a person found out |
//! | `DELETE /records/{id}?token=&force=&note=` | removes a record, so that its key may run again |

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::error_handling::HandleErrorLayer;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use axum::{BoxError, Router, middleware};
use http::HeaderName;
use secrecy::SecretString;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::timeout::TimeoutLayer;

use crate::metrics::Metrics;
use crate::pulse::Pulses;
use crate::shutdown::Ready;
use crate::store::Store;
use crate::store::preflight::Standing;
use crate::store::ways::Ways;
use crate::telemetry::LevelHandle;

mod guard;
mod health;
mod listen;
mod log_level;
mod problem;
mod records;
#[cfg(test)]
mod tests;
mod wire;

pub use listen::serve;
use problem::Problem;

/// Calls about records and settings that run at a time; further ones get 503. Health and metrics are not among them.
const CALLS_AT_A_TIME: usize = 64;
/// How long a call about records may take, its body included: far more than `store.timeout`.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest body of a call. An operator's response in base64 has to fit.
const MAX_BODY: usize = 8 * 1024 * 1024;
/// How long a resolved record of a route that is no longer in the settings is kept.
const FALLBACK_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// What the calls need. Cloning shares everything.
#[derive(Clone)]
pub struct AdminState {
    /// The records.
    pub store: Arc<dyn Store>,
    /// Whether the store works, by trying.
    pub tried: Standing,
    /// Whether every core can record what it executes.
    pub ways: Ways,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// On while the process takes traffic: `/readyz` is this, what the store says of itself, and what trying it
    /// showed.
    pub ready: Ready,
    /// What changes with a reload.
    pub settings: Arc<ArcSwap<Settings>>,
    /// Whether the cores' loops turn.
    pub pulses: Pulses,
    /// For how long one of them may stand still before `/livez` says so.
    pub liveness_stall: Duration,
    /// The level of the process's log; `None` if this process has none of its own, and then it cannot be asked for.
    pub level: Option<LevelHandle>,
    /// Whether the listener is bound to loopback. Anywhere else nothing is answered without a token.
    pub loopback: bool,
}

/// What of the settings the calls go by, in its present state.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The effective settings as TOML, secrets masked already.
    pub effective: Arc<str>,
    /// The bearer token of all calls but `/livez`, `/readyz` and `/metrics`.
    pub token: Option<SecretString>,
    /// The retention of each route by name, for records that an operator completes.
    pub retention: HashMap<String, Duration>,
    /// The fields of each route by name that are recorded because it lists them (`keep_headers`).
    pub keep_headers: HashMap<String, Vec<HeaderName>>,
}

/// Who called: the peer's address. The accept loop adds it to each request.
#[derive(Clone, Copy, Debug)]
struct Peer(SocketAddr);

/// Builds the service. [`serve`] runs it; tests may call it without a socket.
pub fn router(state: AdminState) -> Router {
    let health = Router::new()
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .method_not_allowed_fallback(method_not_allowed);
    let guarded = Router::new()
        .route("/config", get(health::config))
        .route("/log-level", get(log_level::show).put(log_level::set))
        .route("/records", get(records::list))
        .route("/records/{id}", get(records::show).delete(records::forget))
        .route("/records/{id}/resolve", post(records::resolve))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(
            ServiceBuilder::new()
                .layer(middleware::from_fn_with_state(state.clone(), guard::check))
                .layer(HandleErrorLayer::new(overrun))
                .layer(LoadShedLayer::new())
                .layer(GlobalConcurrencyLimitLayer::new(CALLS_AT_A_TIME))
                .layer(TimeoutLayer::new(CALL_TIMEOUT))
                .layer(DefaultBodyLimit::max(MAX_BODY)),
        );
    health.merge(guarded).with_state(state)
}

async fn not_found(uri: http::Uri) -> Problem {
    Problem::not_found(format!(
        "There is no {}; the calls are /livez, /readyz, /metrics, /config, /log-level, /records, /records/ID and /records/ID/resolve.",
        uri.path()
    ))
}

async fn method_not_allowed() -> Problem {
    Problem::method_not_allowed()
}

/// Turns what the layers raise into an answer.
async fn overrun(error: BoxError) -> Problem {
    if error.is::<tower::load_shed::error::Overloaded>() { Problem::overloaded() } else { Problem::timed_out() }
}

//! The demonstration's upstream: a stand-in for a payment service that counts what it executes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// How long the slow call takes: longer than the proxy's timeout in the demonstration.
pub(super) const SLOW: Duration = Duration::from_millis(2500);
/// How long an ordinary call takes.
const QUICK: Duration = Duration::from_millis(100);

/// The running upstream. Clones count together.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    address: SocketAddr,
    executions: Arc<AtomicUsize>,
}

impl Upstream {
    /// Starts it on a free port. It ends with the runtime.
    pub(super) async fn start() -> Result<Upstream> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let upstream = Upstream { address: listener.local_addr()?, executions: Arc::default() };
        let routes = Router::new()
            .route("/charges", post(|State(this): State<Upstream>, body| this.charge(body, QUICK)))
            .route("/slow-charges", post(|State(this): State<Upstream>, body| this.charge(body, SLOW)))
            .route("/executions", get(|State(this): State<Upstream>| async move { format!("{}\n", this.executions()) }))
            .with_state(upstream.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(upstream)
    }

    /// Counts first, as a service does whose charge goes through whether or not its answer arrives.
    async fn charge(self, Json(order): Json<Value>, takes: Duration) -> (StatusCode, Json<Value>) {
        let number = self.executions.fetch_add(1, Ordering::SeqCst) + 1;
        tokio::time::sleep(takes).await;
        (StatusCode::CREATED, Json(json!({"charge": format!("ch_{number}"), "amount": order["amount"]})))
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// How many calls it has executed.
    pub(super) fn executions(&self) -> usize {
        self.executions.load(Ordering::SeqCst)
    }
}

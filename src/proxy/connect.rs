//! `CONNECT`: tunnels to the hosts that `egress.tunnels` lists (RFC 9110 section 9.3.6).
//!
//! What runs in a tunnel is hidden from this proxy, so nothing in it is protected. Each is counted as such, and has a line
//! in the log; a client that should be protected sends `http://HOST/PATH` instead.

use std::future::ready;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, request};
use hyper::upgrade::OnUpgrade;

use super::body::{Body, Held};
use super::error::{Kind, Problem};
use super::headers::{self, CacheStatus};
use super::pass::Passage;
use super::respond::Answer;
use super::tunnel::{self, Bounds};
use crate::config::Hosts;
use crate::metrics::RequestResult;
use crate::upstream::open_tunnel;

/// Until the connection must stand.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens the tunnel that a `CONNECT` asks for, and has it run on as a task; or says why not. What the client has sent
/// behind its head is the first that goes through.
pub async fn connect(
    head: &mut request::Parts,
    tunnels: &Hosts,
    passage: Passage<'_, Held>,
) -> Result<Answer, Problem> {
    let Some((client, (host, port))) = head.extensions.remove::<OnUpgrade>().zip(place(head)) else {
        return Err(refused("The request names no host and port."));
    };
    if !tunnels.permit(&host, port) {
        let what = format!("{host}:{port} is no place to which this proxy opens tunnels (CONNECT).");
        return Err(refused(&what));
    }
    let upstream = open_tunnel(&host, port, tunnels, CONNECT_TIMEOUT).await.map_err(|error| {
        tracing::warn!(host, port, error = &error as &dyn std::error::Error, "tunnel not opened");
        Problem::new(Kind::UpstreamUnreachable, format!("No tunnel was opened: {}.", error.outline()))
    })?;
    let Passage { peer, held, idle, shared, .. } = passage;
    let client_ip = peer.ip.map(tracing::field::display);
    tracing::info!(host, port, client = client_ip, "tunnel opened: what runs in it is not protected");
    let bounds = Bounds { idle, cut_off: shared.cut_off.clone(), counted: shared.tasks.enter(), held };
    tunnel::run(client, ready(Ok(upstream)), bounds, move |carried| {
        let (sent, received) = (carried.from_client, carried.from_upstream);
        tracing::info!(host, port, sent, received, seconds = carried.during.as_secs_f64(), "tunnel closed");
    });
    let mut response = Response::new(Body::full(Bytes::new()));
    headers::add_cache_status(response.headers_mut(), &CacheStatus::Bypass("unprotected"));
    Ok(Answer::new(response, RequestResult::Unprotected))
}

/// The host, in lower case and without brackets, and the port.
fn place(head: &request::Parts) -> Option<(String, u16)> {
    let authority = head.uri.authority()?;
    let host = authority.host().trim_start_matches('[').trim_end_matches([']', '.']);
    Some((host.to_ascii_lowercase(), authority.port_u16()?))
}

fn refused(what: &str) -> Problem {
    let right = "Send http://HOST/PATH, which this proxy can protect, or list the place in the setting egress.tunnels.";
    Problem::new(Kind::EgressRefused, format!("{what} Nothing was forwarded. {right}"))
}

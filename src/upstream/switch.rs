//! The connection behind a `101`: no longer HTTP, and no longer the pool's.

use std::io;

use http::Response;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::body::ResponseBody;

/// Takes over the connection of a response with status 101: what the upstream sent behind it is read first.
///
/// Dropping the future, or what it returns, closes the connection.
///
/// # Errors
/// If the connection broke before it was handed over, or the response is another one.
pub async fn switched(mut response: Response<ResponseBody>) -> io::Result<impl AsyncRead + AsyncWrite + Unpin> {
    // The response holds the task that hands the connection over; it must not go before.
    let upgraded = hyper::upgrade::on(&mut response).await.map_err(io::Error::other)?;
    drop(response);
    Ok(TokioIo::new(upgraded))
}

//! One message to the collector: OTLP over HTTP/1.1, on a connection of its own, with TLS or without.
//!
//! Not reqwest: with TLS it takes the system's certificates for every client of the process, and where there are none it
//! fails even for those that speak plain HTTP. Not the pool towards upstreams: that counts, and belongs to routes.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The most that is read of a collector's answer.
const ANSWER: usize = 64 << 10;

/// Why nothing could ever be sent.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system has no certificates to trust.
    #[error("the system has no root certificates, which an https collector needs")]
    NoRoots,
    /// The host cannot be the name in a certificate.
    #[error("the collector's host cannot be the name in a certificate")]
    Name(#[from] rustls::pki_types::InvalidDnsNameError),
    /// The TLS library does not support what is asked of it.
    #[error("cannot set up TLS to the collector")]
    Tls(#[from] rustls::Error),
}

/// Why a message was not taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// No connection, or it broke.
    #[error("no connection: {0}")]
    Io(#[from] io::Error),
    /// What came is not HTTP, or ended early.
    #[error("no answer: {0}")]
    Http(#[from] hyper::Error),
    /// No answer in time.
    #[error("no answer in time")]
    Silent,
    /// An answer that is not success.
    #[error("answered {0}")]
    Status(StatusCode),
}

/// Where messages go.
pub(super) struct Collector {
    host: String,
    port: u16,
    authority: HeaderValue,
    path: Uri,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

impl Collector {
    /// The collector at this URL, which has a host.
    pub(super) fn new(endpoint: &Uri) -> Result<Collector, StartError> {
        let secured = endpoint.scheme_str() == Some("https");
        let host = endpoint.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let tls = if secured { Some((connector()?, ServerName::try_from(host.clone())?)) } else { None };
        let authority = endpoint.authority().map_or("", |authority| authority.as_str());
        let path = format!("{}/v1/traces", endpoint.path().trim_end_matches('/'));
        Ok(Collector {
            port: endpoint.port_u16().unwrap_or(if secured { 443 } else { 80 }),
            authority: HeaderValue::from_str(authority).expect("an authority is visible ASCII"),
            path: path.parse().expect("a URL's path with more behind it is a path"),
            host,
            tls,
        })
    }

    /// Sends a message, and returns the answer's body if it was taken.
    pub(super) async fn post(&self, message: Bytes) -> Result<Bytes, Failure> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => self.exchange(stream, message).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await?;
                self.exchange(stream, message).await
            }
        }
    }

    async fn exchange<S>(&self, stream: S, message: Bytes) -> Result<Bytes, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut request = Request::new(Full::new(message));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.path.clone();
        let fields = request.headers_mut();
        fields.insert(HOST, self.authority.clone());
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        fields.insert(USER_AGENT, HeaderValue::from_static(concat!("onceproxy/", env!("CARGO_PKG_VERSION"))));
        fields.insert(CONNECTION, HeaderValue::from_static("close"));
        let answered = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            // A body that is too long, or breaks off, takes nothing back from the status.
            let body = Limited::new(response.into_body(), ANSWER).collect().await;
            let body = body.map(|body| body.to_bytes()).unwrap_or_default();
            if status.is_success() { Ok(body) } else { Err(Failure::Status(status)) }
        };
        // Dropped with the exchange, the connection leaves nothing behind.
        let mut connection = std::pin::pin!(connection);
        let mut answered = std::pin::pin!(answered);
        tokio::select! {
            answer = &mut answered => answer,
            ended = &mut connection => {
                ended?;
                answered.await
            }
        }
    }
}

fn connector() -> Result<TlsConnector, StartError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(StartError::NoRoots);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

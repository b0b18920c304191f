//! Serving one connection after its handshake.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use horchestra_runtime::Tasks;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::interval;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::Service;

use super::listener::Listening;
use super::peer::Connection;
use crate::settings::Settings;

/// What a request that is not a gRPC call is answered where the API is not to be had.
const NOT_HERE: &str = "This address serves the sessions of nodes. The API is served at another address.\n";

/// The same where it is, for clients that come as nodes do.
const NOT_LIKE_THIS: &str = "A connection that offers only h2 (ALPN) in its TLS handshake is taken for a node's. \
    To reach the API at this address, offer http/1.1 as well, or nothing.\n";

/// Receive windows, so that a burst of reports is not throttled by the first round trips. They are promises, not
/// memory: what comes in is taken from the transport at once.
pub const STREAM_WINDOW: u32 = 1 << 20;
pub const CONNECTION_WINDOW: u32 = 2 << 20;
const HEADERS_LIMIT: u32 = 16 << 10;

/// Runs what hyper spawns for a connection in the tracked set of the process.
#[derive(Clone)]
struct Spawn(Tasks);

impl<F> hyper::rt::Executor<F> for Spawn
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        self.0.spawn("stream", future.map(drop));
    }
}

/// What a request over HTTP/2 that is not a gRPC call is answered.
pub fn misdirection(api_is_here: bool) -> &'static str {
    if api_is_here { NOT_LIKE_THIS } else { NOT_HERE }
}

/// Serves gRPC over HTTP/2, a number of calls at a time, until the peer leaves, the connection is cut or idle,
/// or `stop`. Everything else is answered with `otherwise`.
///
/// What is returned holds the connection in one place: an `async fn` would keep room for everything that it was
/// given besides, which is a kilobyte and a half for each node.
pub fn http2<IO, S>(
    io: IO,
    connection: Connection,
    grpc: S,
    otherwise: &'static str,
    listening: &Listening,
    stop: &CancellationToken,
) -> impl Future<Output = ()> + Send + use<IO, S>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    let settings = Arc::clone(&listening.settings);
    let in_use = Arc::clone(&connection.in_use);
    let cut = connection.cut.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        let mut grpc = grpc.clone();
        let connection = connection.clone();
        async move {
            if !is_grpc(request.headers().get(header::CONTENT_TYPE)) {
                return Ok::<_, Infallible>(misdirected(otherwise));
            }
            request.extensions_mut().insert(connection);
            grpc.call(request).await
        }
    });
    let serving = hyper::server::conn::http2::Builder::new(Spawn(listening.tasks.clone()))
        .timer(TokioTimer::new())
        .keep_alive_interval(settings.ping_every)
        .keep_alive_timeout(settings.ping_timeout)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(listening.streams)
        .max_header_list_size(HEADERS_LIMIT)
        .serve_connection(TokioIo::new(io), service);
    let mut serving = Box::pin(serving);
    let (half_idle, stop) = (settings.idle_timeout / 2, stop.clone());
    async move {
        let mut look = interval(half_idle);
        look.tick().await;
        let mut idle_looks = 0;
        let mut leaving = false;
        loop {
            tokio::select! {
                result = &mut serving => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "a connection broke");
                    }
                    return;
                }
                () = cut.cancelled() => return,
                () = stop.cancelled(), if !leaving => {
                    leaving = true;
                    serving.as_mut().graceful_shutdown();
                }
                _ = look.tick(), if !leaving => {
                    // The service and `in_use` here; every call holds one more.
                    idle_looks = if Arc::strong_count(&in_use) <= 2 { idle_looks + 1 } else { 0 };
                    if idle_looks >= 2 {
                        leaving = true;
                        serving.as_mut().graceful_shutdown();
                    }
                }
            }
        }
    }
}

/// Answers whatever is asked over HTTP/1 with where it is not, and closes.
pub async fn http1_refusal<IO>(io: IO, settings: &Settings)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|_: Request<Incoming>| async { Ok::<_, Infallible>(misdirected(NOT_HERE)) });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.handshake_timeout)
        .keep_alive(false)
        .serve_connection(TokioIo::new(io), service);
    let _ = tokio::time::timeout(settings.idle_timeout, serving).await;
}

fn is_grpc(content_type: Option<&HeaderValue>) -> bool {
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

fn misdirected(text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(Bytes::from_static(text.as_bytes()))));
    *response.status_mut() = StatusCode::MISDIRECTED_REQUEST;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

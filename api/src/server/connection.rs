//! One connection: handshake, protocol, requests, end.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use horchestra_runtime::PeerChain;
use horchestra_runtime::tls::Trust;
use http::Request;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::accept::Limits;
use super::activity::{Activity, Held};
use crate::app::App;
use crate::http::respond::Answer;
use http_body_util::BodyExt;

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Where it is, behind a proxy that may say so.
    pub address: SocketAddr,
    /// The certificate that the handshake verified.
    pub chain: Option<PeerChain>,
}

/// Spawns the tasks of HTTP/2 streams into the tracked set.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> Executor<F> for Tracked
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}

/// The two ends that a server can make to a connection.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    /// Finish what runs, take nothing new.
    pub drain: CancellationToken,
    /// Drop everything.
    pub kill: CancellationToken,
}

/// What hyper's two connection types have in common.
trait Graceful: Future<Output = hyper::Result<()>> {
    fn close(self: Pin<&mut Self>);
}

impl<I, S> Graceful for http1::Connection<I, S>
where
    http1::Connection<I, S>: Future<Output = hyper::Result<()>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = crate::http::respond::Body> + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S> Graceful for http2::Connection<I, S, Tracked>
where
    http2::Connection<I, S, Tracked>: Future<Output = hyper::Result<()>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin + 'static,
    S: hyper::service::HttpService<Incoming, ResBody = crate::http::respond::Body> + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    Tracked: hyper::rt::bounds::Http2ServerConnExec<S::Future, crate::http::respond::Body>,
{
    fn close(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Serves a connection whose handshake is done, until its end.
pub(super) async fn serve<T>(
    app: Arc<App>,
    stream: TlsStream<T>,
    address: SocketAddr,
    limits: Limits,
    mut trust: Trust,
    ends: Ends,
    tasks: TaskTracker,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (_, session) = stream.get_ref();
    let chain = PeerChain::of(session);
    let h2 = session.alpn_protocol() == Some(b"h2");
    let peer = Arc::new(Peer { address, chain });
    let activity = Activity::new();
    let identity = app.identify(&peer);

    let verified = Arc::clone(&peer);
    let service = {
        let activity = Arc::clone(&activity);
        service_fn(move |request: Request<Incoming>| {
            let running = activity.enter();
            let app = Arc::clone(&app);
            let peer = Arc::clone(&peer);
            let identity = identity.clone();
            async move {
                let answer: Answer = Box::pin(app.answer(&peer, identity, request)).await;
                Ok::<_, std::convert::Infallible>(answer.map(|body| Held::new(body, running).boxed_unsync()))
            }
        })
    };
    let io = TokioIo::new(stream);
    let serving = async {
        if h2 {
            let mut builder = http2::Builder::new(Tracked(tasks));
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(limits.streams)
                .max_header_list_size(limits.head_bytes)
                .keep_alive_interval(Duration::from_secs(30))
                .keep_alive_timeout(Duration::from_secs(20));
            drive(builder.serve_connection(io, service), &activity, limits, &ends).await;
        } else {
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(limits.head)
                .max_buf_size(limits.head_bytes as usize)
                .max_headers(100);
            drive(builder.serve_connection(io, service), &activity, limits, &ends).await;
        }
    };
    tokio::select! {
        () = serving => {}
        // Dropping the connection ends what runs on it: requests, watches, logs.
        () = trust.lost(verified.chain.as_ref()) => {
            tracing::info!(peer = %address, "cut: the client's certificate is not believed any more");
        }
    }
}

async fn drive<C: Graceful>(connection: C, activity: &Activity, limits: Limits, ends: &Ends) {
    tokio::pin!(connection);
    let mut closing = false;
    let mut look = tokio::time::interval(limits.idle / 8);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = ends.kill.cancelled() => return,
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection ended");
                }
                return;
            }
            () = ends.drain.cancelled(), if !closing => {
                closing = true;
                connection.as_mut().close();
            }
            _ = look.tick() => {
                let idle = activity.idle();
                if !closing && idle >= limits.idle {
                    closing = true;
                    connection.as_mut().close();
                } else if closing && idle >= limits.idle * 2 {
                    // HTTP/2 waits for an answer to its goodbye, and nobody is there to give one.
                    return;
                }
            }
        }
    }
}

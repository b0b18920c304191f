//! The gRPC service that API replicas call to read a log from a node.
//!
//! Only processes of the control plane may; whether the person behind the request may read that log has been
//! judged where the request came in. A gateway answers for its own sessions and never forwards, so an outdated
//! session row cannot make requests go round. What ends a log early is told: by the node's own message as the
//! last response, by the code `Unavailable` when the session ends or the reader is too slow.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt};
use horchestra_proto::relay::v1::log_request::Source as Asked;
use horchestra_proto::relay::v1::relay_server::{Relay, RelayServer};
use horchestra_proto::relay::v1::{LogRequest, LogResponse};
use horchestra_store::store::SessionGrant;
use horchestra_trace::{Incoming, Role, attribute};
use tonic::{Request, Response, Status};
use uuid::Uuid;

use crate::gate::Gate;
use crate::logs::{End, LogReader, OpenError, Read, Source};
use crate::transport::peer::Peer;

/// The service over a gateway.
pub struct LogRelay {
    gate: Arc<Gate>,
}

impl LogRelay {
    pub fn server(gate: Arc<Gate>) -> RelayServer<LogRelay> {
        RelayServer::new(LogRelay { gate })
    }
}

#[tonic::async_trait]
impl Relay for LogRelay {
    type LogStream = LogStream;

    async fn log(&self, request: Request<LogRequest>) -> Result<Response<LogStream>, Status> {
        let peer = Peer::controller(&request)
            .inspect_err(|refusal| tracing::warn!(%refusal, "a log was refused"))?;
        let header = |name| request.metadata().get(name).and_then(|value| value.to_str().ok());
        let incoming = header("traceparent").and_then(|parent| Incoming::read(parent, header("tracestate")));
        let span =
            horchestra_trace::request("horchestra.relay.v1.Relay/Log", Role::Server, incoming.as_ref());
        let asked = request.into_inner();
        span.set(|| [attribute("rpc.system", "grpc"), attribute("horchestra.node", asked.node.clone())]);
        let source = source(&asked)?;
        if !self.gate.term.in_force() {
            return Err(Status::unavailable("this gateway cannot vouch for its sessions now"));
        }
        let session =
            self.gate.sessions.get(&asked.node).ok_or_else(|| Status::not_found("not held here"))?;
        if !is_session(&session.grant, &asked) {
            return Err(Status::aborted("another session of that node is held here"));
        }
        tracing::info!(node = %asked.node, caller = %asked.caller, audit_id = %asked.audit_id,
            follow = asked.follow, through = %peer.name, "a log is read");
        let opening = self.gate.open_log(&session, source, asked.follow, asked.tail_lines);
        let reader = span.around(opening).await.map_err(|error| {
            span.fail(|| error.to_string().into());
            match error {
                OpenError::Full => Status::resource_exhausted(error.to_string()),
                OpenError::NotTaken => Status::unavailable(error.to_string()),
            }
        })?;
        Ok(Response::new(LogStream { reader, ended: false, _peer: peer }))
    }
}

fn source(asked: &LogRequest) -> Result<Source, Status> {
    match &asked.source {
        // Agents make the name of a unit of it, so it has to be a uid in its one spelling.
        Some(Asked::AppUid(text)) => Uuid::try_parse(text)
            .ok()
            .filter(|uid| uid.as_hyphenated().to_string() == *text)
            .map(Source::Application)
            .ok_or_else(|| Status::invalid_argument("app_uid is not a uid")),
        Some(Asked::NodeUnit(true)) => Ok(Source::NodeUnit),
        Some(Asked::NodeUnit(false)) | None => Err(Status::invalid_argument("no log is named")),
    }
}

fn is_session(grant: &SessionGrant, asked: &LogRequest) -> bool {
    grant.epoch == asked.session_epoch
        && Uuid::try_parse(&asked.session_id).is_ok_and(|session| session == grant.session)
}

/// What a caller is streamed.
pub struct LogStream {
    reader: LogReader,
    ended: bool,
    /// Keeps the connection from looking idle.
    _peer: Peer,
}

impl Stream for LogStream {
    type Item = Result<LogResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let read = match self.reader.poll_next_unpin(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(read) => read,
        };
        match read {
            Some(Read::Piece(piece)) => Poll::Ready(Some(Ok(LogResponse {
                data: piece.data,
                dropped_chunks: piece.dropped,
                ..LogResponse::default()
            }))),
            None => {
                self.ended = true;
                Poll::Ready(None)
            }
            Some(Read::End(end, dropped)) => {
                self.ended = true;
                let last = LogResponse { dropped_chunks: dropped, ..LogResponse::default() };
                Poll::Ready(match end {
                    End::Eof if dropped == 0 => None,
                    End::Eof => Some(Ok(last)),
                    End::NodeError(error) => Some(Ok(LogResponse { error, ..last })),
                    End::Disconnected => Some(Err(Status::unavailable("the node has disconnected"))),
                    End::Stalled => Some(Err(Status::unavailable("the log was read too slowly"))),
                })
            }
        }
    }
}

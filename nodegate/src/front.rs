//! The gRPC service that nodes call.
//!
//! What is generated for it encodes messages that own all that they say. A desired state shares most of what it says
//! with those of other nodes, so the one method there is is served here, with a codec of its own.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use horchestra_proto::MAX_MESSAGE_BYTES;
use horchestra_proto::node::v1::NodeMessage;
use http::{Request as HttpRequest, Response as HttpResponse};
use hyper::body::Incoming;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Request, Response, Status, Streaming};
use tower::{Service, service_fn};

use crate::gate::Gate;
use crate::session::open::open;
use crate::session::outbound::Downstream;
use crate::session::outgoing::Wire;
use crate::transport::peer::Peer;

/// The method of a node's session.
const SESSION: &str = "/horchestra.node.v1.NodeService/Session";

/// The service over a gateway.
#[derive(Clone)]
pub struct Front {
    gate: Arc<Gate>,
}

impl Front {
    pub fn server(gate: Arc<Gate>) -> Front {
        Front { gate }
    }
}

async fn session(
    gate: Arc<Gate>,
    request: Request<Streaming<NodeMessage>>,
) -> Result<Response<Downstream>, Status> {
    let peer = Peer::node(&request).inspect_err(|refusal| {
        gate.metrics.sessions_refused.inc();
        tracing::warn!(%refusal, "a session was refused");
    })?;
    open(&gate, peer, request.into_inner()).await.map(Response::new)
}

impl Service<HttpRequest<Incoming>> for Front {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<HttpResponse<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequest<Incoming>) -> Self::Future {
        let gate = Arc::clone(&self.gate);
        Box::pin(async move {
            if request.uri().path() != SESSION {
                return Ok(Status::unimplemented("nodes have one method to call, Session").into_http());
            }
            let method = service_fn(move |request| session(Arc::clone(&gate), request));
            let mut grpc = Grpc::new(Wire).apply_max_message_size_config(Some(MAX_MESSAGE_BYTES), None);
            Ok(grpc.streaming(method, request).await)
        })
    }
}

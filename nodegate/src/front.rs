//! The gRPC service that nodes call.

use std::sync::Arc;

use horchestra_proto::MAX_MESSAGE_BYTES;
use horchestra_proto::node::v1::NodeMessage;
use horchestra_proto::node::v1::node_service_server::{NodeService, NodeServiceServer};
use tonic::{Request, Response, Status, Streaming};

use crate::gate::Gate;
use crate::session::open::open;
use crate::session::outbound::Downstream;
use crate::transport::peer::Peer;

/// The service over a gateway.
pub struct Front {
    gate: Arc<Gate>,
}

impl Front {
    /// As a server that takes what agents may send.
    pub fn server(gate: Arc<Gate>) -> NodeServiceServer<Front> {
        NodeServiceServer::new(Front { gate }).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

#[tonic::async_trait]
impl NodeService for Front {
    type SessionStream = Downstream;

    async fn session(
        &self,
        request: Request<Streaming<NodeMessage>>,
    ) -> Result<Response<Downstream>, Status> {
        let peer = Peer::node(&request).inspect_err(|refusal| {
            self.gate.metrics.sessions_refused.inc();
            tracing::warn!(%refusal, "a session was refused");
        })?;
        open(&self.gate, peer, request.into_inner()).await.map(Response::new)
    }
}

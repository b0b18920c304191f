//! Wire messages of the node stream and of the log relay.
//!
//! The node stream ([`node::v1`], [`netd::v1`]) is spoken by agents that are
//! deployed and cannot be changed together with this product: names and field
//! numbers are fixed, and the tests here hold them against bytes written by hand.
//! The relay ([`relay::v1`]) is internal to the control plane.
//!
//! All `bytes` fields are [`bytes::Bytes`], so that one encoded object can be
//! shared by the messages to many nodes.

#![allow(missing_docs)]

use std::fmt;

/// What nodes program into their datapath.
pub mod netd {
    #[allow(clippy::all, unused_qualifications)]
    pub mod v1 {
        tonic::include_proto!("horchestra.netd.v1");
    }
}

/// The stream between a node and its gateway.
pub mod node {
    #[allow(clippy::all, unused_qualifications)]
    pub mod v1 {
        tonic::include_proto!("horchestra.node.v1");
    }
}

/// Reading a log through the gateway that holds a node's session.
pub mod relay {
    #[allow(clippy::all, unused_qualifications)]
    pub mod v1 {
        tonic::include_proto!("horchestra.relay.v1");
    }
}

/// Largest message that either end of the node stream receives, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;

/// Largest piece of a log in one [`node::v1::LogChunk`], in bytes.
pub const LOG_CHUNK_BYTES: usize = 8192;

impl fmt::Debug for node::v1::DesiredState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DesiredState")
            .field("applications", &self.applications.len())
            .field("persistent_volumes", &self.persistent_volumes.len())
            .field("secrets", &self.secrets.len())
            .field("secret_stores", &self.secret_stores.len())
            .field("workload_tokens", &self.workload_tokens.len())
            .field("workload_networks", &self.workload_networks)
            .field("routes", &self.routes.len())
            .field("services", &self.services.len())
            .finish()
    }
}

impl fmt::Debug for node::v1::WorkloadToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkloadToken")
            .field("workload", &self.workload)
            .field("audience", &self.audience)
            .finish_non_exhaustive()
    }
}

/// Wraps a body into the message that carries it upstream.
impl From<node::v1::node_message::Body> for node::v1::NodeMessage {
    fn from(body: node::v1::node_message::Body) -> Self {
        Self { body: Some(body) }
    }
}

/// Wraps a body into the message that carries it downstream.
impl From<node::v1::controller_message::Body> for node::v1::ControllerMessage {
    fn from(body: node::v1::controller_message::Body) -> Self {
        Self { body: Some(body) }
    }
}

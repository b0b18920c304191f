//! Who calls.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use horchestra_auth::identity::{CONTROLLERS, Credential, Identity, NODES, valid_since};
use horchestra_runtime::PeerChain;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// The connection that a call came over; an extension of every request.
#[derive(Clone, Debug)]
pub struct Connection {
    pub address: SocketAddr,
    /// `None`: the client showed no certificate.
    pub chain: Option<PeerChain>,
    /// Cuts the connection off.
    pub cut: CancellationToken,
    /// A call that holds a clone of this keeps the connection from being idle.
    pub in_use: Arc<()>,
}

/// A caller whose certificate was verified.
#[derive(Clone, Debug)]
pub struct Peer {
    pub name: String,
    /// SHA-256 of the certificate, lower-case hex.
    pub fingerprint: String,
    /// Since when the certificate is valid, as far as it can be read.
    pub valid_since: Option<jiff::Timestamp>,
    pub not_after: SystemTime,
    pub connection: Connection,
}

impl Peer {
    /// The node that makes this call.
    pub fn node<T>(request: &tonic::Request<T>) -> Result<Peer, Status> {
        Peer::member(request, NODES)
    }

    /// The process of the control plane that makes this call.
    pub fn controller<T>(request: &tonic::Request<T>) -> Result<Peer, Status> {
        Peer::member(request, CONTROLLERS)
    }

    fn member<T>(request: &tonic::Request<T>, group: &str) -> Result<Peer, Status> {
        let connection = request
            .extensions()
            .get::<Connection>()
            .ok_or_else(|| Status::unauthenticated("the connection is not known"))?;
        let chain = connection
            .chain
            .as_ref()
            .ok_or_else(|| Status::unauthenticated("a client certificate is required"))?;
        let identity = Identity::from_verified(chain.leaf())
            .map_err(|error| Status::unauthenticated(error.to_string()))?
            .ok_or_else(unnamed)?;
        if group == NODES && !is_node_name(&identity.name) {
            return Err(unnamed());
        }
        if !identity.in_group(group) {
            return Err(Status::permission_denied(format!(
                "{:?} is not a member of {group:?}",
                identity.name
            )));
        }
        let now = jiff::Timestamp::now();
        if !identity.valid_at(now) {
            return Err(Status::unauthenticated("the client certificate has expired"));
        }
        let Credential::Certificate { fingerprint, not_after } = &identity.credential else {
            return Err(Status::unauthenticated("a client certificate is required"));
        };
        Ok(Peer {
            fingerprint: fingerprint.clone(),
            valid_since: valid_since(chain.leaf()),
            not_after: SystemTime::from(*not_after),
            name: identity.name,
            connection: connection.clone(),
        })
    }
}

fn unnamed() -> Status {
    Status::unauthenticated("the common name of the client certificate is not the name of a node")
}

/// Lower-case alphanumeric parts with inner hyphens, joined by dots; at most 253 characters.
fn is_node_name(name: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|part| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(alphanumeric)
                && bytes.last().is_some_and(alphanumeric)
                && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names() {
        for (name, good) in [
            ("n1", true),
            ("10.0.0.2", true),
            ("n1.rack.example", true),
            (&"a".repeat(100), true),
            (&"a".repeat(254), false),
            ("N1", false),
            ("n1/x", false),
            ("../n1", false),
            ("n1.", false),
            (".n1", false),
            ("-n1", false),
            ("n1-", false),
            ("n 1", false),
            ("", false),
        ] {
            assert_eq!(is_node_name(name), good, "{name:?}");
        }
    }
}

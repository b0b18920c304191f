//! The certificate that the other end of a TLS connection proved to hold.

use std::sync::Arc;

use rustls::CommonState;
use rustls_pki_types::CertificateDer;

/// A verified chain, leaf first, never empty.
///
/// It can only be taken from a connection, and only from one whose handshake is complete. Connections here
/// are made with the configurations of [`crate::tls`], which abort the handshake for a certificate that does
/// not verify; a connection without client verification configured asks for no certificate and has none.
/// So whoever holds this value holds a proven leaf; the intermediates are as the peer sent them. Clones share it: the
/// calls of a connection each have one.
#[derive(Clone, Debug)]
pub struct PeerChain(Arc<[CertificateDer<'static>]>);

impl PeerChain {
    /// `None`: the handshake is not complete, or the peer showed no certificate.
    pub fn of(connection: &CommonState) -> Option<PeerChain> {
        if connection.is_handshaking() {
            return None;
        }
        connection
            .peer_certificates()
            .filter(|chain| !chain.is_empty())
            .map(|chain| PeerChain(chain.iter().cloned().map(CertificateDer::into_owned).collect()))
    }

    /// The peer's own certificate.
    pub fn leaf(&self) -> &CertificateDer<'static> {
        &self.0[0]
    }

    /// Everything that the peer sent, leaf first.
    pub fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.0
    }
}

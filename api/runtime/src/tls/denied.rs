//! Certificates that are not believed any more though their authority is.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Says which certificates those are.
type Denies = Box<dyn Fn(&CertificateDer<'_>) -> bool + Send + Sync>;

/// What is denied now; nothing to begin with.
#[derive(Clone, Default)]
pub(super) struct Denied(Arc<ArcSwapOption<Denies>>);

impl Denied {
    pub fn set(&self, denies: Denies) {
        self.0.store(Some(Arc::new(denies)));
    }

    fn denies(&self, leaf: &CertificateDer<'_>) -> bool {
        self.0.load().as_ref().is_some_and(|denies| denies(leaf))
    }
}

/// Verifies as another verifier does, and refuses what is denied.
pub(super) struct Wary {
    inner: Arc<dyn ClientCertVerifier>,
    denied: Denied,
}

impl Wary {
    pub fn over(inner: Arc<dyn ClientCertVerifier>, denied: &Denied) -> Arc<dyn ClientCertVerifier> {
        Arc::new(Wary { inner, denied: denied.clone() })
    }
}

impl fmt::Debug for Wary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wary").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for Wary {
    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(leaf, intermediates, now)?;
        if self.denied.denies(leaf) {
            return Err(Error::InvalidCertificate(CertificateError::Revoked));
        }
        Ok(verified)
    }

    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, leaf, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, leaf, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

//! Certificates that an operator has taken back before their time.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::identity::fingerprint;

/// Which those are. By name it takes back every certificate that began to be valid until a moment, so one that
/// is issued to the same name afterwards is good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenyList {
    names: HashMap<String, Timestamp>,
    fingerprints: HashSet<String>,
}

impl DenyList {
    pub fn deny_name(&mut self, name: &str, begun_until: Timestamp) {
        let until = self.names.entry(name.to_owned()).or_insert(begun_until);
        *until = begun_until.max(*until);
    }

    /// By SHA-256, in lower-case hexadecimal.
    pub fn deny_fingerprint(&mut self, fingerprint: &str) {
        self.fingerprints.insert(fingerprint.to_owned());
    }

    /// Whether a certificate that was verified is nevertheless not to be believed.
    pub fn denies(&self, leaf: &CertificateDer<'_>) -> bool {
        (!self.fingerprints.is_empty() && self.fingerprints.contains(&fingerprint(leaf)))
            || (!self.names.is_empty() && self.denies_name_of(leaf))
    }

    fn denies_name_of(&self, leaf: &CertificateDer<'_>) -> bool {
        // What cannot be read is nobody's, and was not verified either.
        let Ok((_, certificate)) = X509Certificate::from_der(leaf) else { return false };
        let begins = certificate.validity().not_before.timestamp();
        let mut names = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        names.any(|name| self.names.get(name).is_some_and(|until| begins <= until.as_second()))
    }
}

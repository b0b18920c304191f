//! Reading PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{KeyPairFiles, TlsError};

/// The contents of several files at one time; equal when nothing changed.
#[derive(PartialEq, Eq)]
pub(super) struct Contents {
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Contents {
    pub(super) fn read(paths: &[&PathBuf]) -> Result<Contents, TlsError> {
        let files = paths
            .iter()
            .map(|path| match std::fs::read(path) {
                Ok(bytes) => Ok(((*path).clone(), bytes)),
                Err(source) => Err(TlsError::Read { path: (*path).clone(), source }),
            })
            .collect::<Result<_, _>>()?;
        Ok(Contents { files })
    }

    fn get(&self, path: &Path) -> &[u8] {
        self.files.iter().find(|(found, _)| found == path).map_or(&[], |(_, bytes)| bytes)
    }

    pub(super) fn key_pair(
        &self,
        files: &KeyPairFiles,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let key = PrivateKeyDer::from_pem_slice(self.get(&files.key)).map_err(|source| TlsError::Pem {
            path: files.key.clone(),
            what: "key",
            source: Some(source),
        })?;
        Ok((self.certificates(&files.certificate)?, key))
    }

    pub(super) fn roots(&self, path: &Path) -> Result<Arc<RootCertStore>, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(path)? {
            roots.add(certificate).map_err(|source| TlsError::Authority { path: path.to_owned(), source })?;
        }
        Ok(Arc::new(roots))
    }

    pub(super) fn certificates(&self, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let refuse = |source| TlsError::Pem { path: path.to_owned(), what: "certificate", source };
        let certificates = CertificateDer::pem_slice_iter(self.get(path))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| refuse(Some(source)))?;
        if certificates.is_empty() { Err(refuse(None)) } else { Ok(certificates) }
    }
}

/// When the first of these certificates expires; `None` when none of them can be read.
pub(super) fn first_end(certificates: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let end = |der: &CertificateDer<'_>| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
    };
    certificates.iter().filter_map(end).min()
}

//! The folder of certificates of a stack on one machine.

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::authority::{is_node_name, with_loopback};
use super::files::{private_folder, read, write_file};
use super::{Authority, HostName, Issued, Kubeconfig, Lifetime, PkiError};
use crate::identity::MASTERS;

/// A process of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    Api,
    Workers,
    Nodegate,
}

impl Process {
    pub const ALL: [Process; 3] = [Process::Api, Process::Workers, Process::Nodegate];

    /// The common name of its certificate.
    pub const fn name(self) -> &'static str {
        match self {
            Process::Api => "horchestra-api",
            Process::Workers => "horchestra-workers",
            Process::Nodegate => "horchestra-nodegate",
        }
    }
}

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// One folder: `ca`, `server`, `admin`, `horchestra-api`, `horchestra-workers`, `horchestra-nodegate` and
/// `node-<name>`, each a `.crt` (0644) and a `.key` (0600).
///
/// Whatever is there and good is kept: making it again changes nothing. A certificate is made anew (with a new
/// key) when it is missing or unreadable, does not fit its key, comes from another authority, is over two
/// thirds of its life or not valid yet, or lacks a name that is wanted now. The authority itself is only ever made, never
/// replaced: that would lock everybody out who holds a certificate of it.
#[derive(Debug)]
pub struct LocalPki {
    folder: PathBuf,
    authority: Authority,
}

impl LocalPki {
    /// Opens the folder and brings it up to date. `hosts` are what clients call the servers by, besides the
    /// loopback's names.
    pub fn ensure(folder: &Path, hosts: &[HostName]) -> Result<LocalPki, PkiError> {
        private_folder(folder)?;
        let pki = LocalPki { folder: folder.to_owned(), authority: authority(folder)? };
        let names = with_loopback(hosts);
        pki.keep("server", &names, || pki.authority.server(hosts, Lifetime::SERVER))?;
        pki.keep("admin", &[], || pki.authority.client("admin", MASTERS, Lifetime::ADMIN))?;
        for process in Process::ALL {
            pki.keep(process.name(), &names, || {
                pki.authority.controller(process.name(), hosts, Lifetime::CONTROLLER)
            })?;
        }
        Ok(pki)
    }

    /// Opens a folder whose authority is there.
    pub fn open(folder: &Path) -> Result<LocalPki, PkiError> {
        let certificate = folder.join("ca.crt");
        if fs::symlink_metadata(&certificate).is_err() {
            return Err(PkiError::NoAuthority { folder: folder.to_owned() });
        }
        private_folder(folder)?;
        Ok(LocalPki { folder: folder.to_owned(), authority: authority(folder)? })
    }

    /// Writes a certificate and its key in place of those in `files`.
    pub fn replace(&self, files: &PairFiles, issued: &Issued) -> Result<[PathBuf; 2], PkiError> {
        // The key first: a reader that sees the old certificate with the new key refuses the pair and looks again.
        write_file(&files.key, issued.key.as_bytes(), 0o600)?;
        write_file(&files.certificate, issued.certificate.as_bytes(), 0o644)?;
        Ok([files.certificate.clone(), files.key.clone()])
    }

    /// The authority's certificate.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The authority's key.
    pub fn authority_key(&self) -> PathBuf {
        self.folder.join("ca.key")
    }

    /// Signs whatever else is wanted.
    pub fn signer(&self) -> &Authority {
        &self.authority
    }

    /// What the listeners for clients and nodes show.
    pub fn serving(&self) -> PairFiles {
        self.files("server")
    }

    /// CN=admin in `system:masters`.
    pub fn admin(&self) -> PairFiles {
        self.files("admin")
    }

    /// What a process shows and proves to the other processes.
    pub fn controller(&self, process: Process) -> PairFiles {
        self.files(process.name())
    }

    /// The certificate of a node's agent; made when it is not there.
    pub fn node(&self, node: &str) -> Result<PairFiles, PkiError> {
        if !is_node_name(node) {
            return Err(PkiError::Name { name: node.to_owned(), of: "node" });
        }
        self.keep(&format!("node-{node}"), &[], || self.authority.node(node, Lifetime::CLIENT))
    }

    /// A kubeconfig for the holder of `pair`, as `user`.
    pub fn kubeconfig(&self, server: &str, user: &str, pair: &PairFiles) -> Result<String, PkiError> {
        let text = |path: &Path| {
            read(path)?.ok_or_else(|| PkiError::File {
                doing: "read",
                path: path.to_owned(),
                source: std::io::ErrorKind::NotFound.into(),
            })
        };
        let client = Issued { certificate: text(&pair.certificate)?, key: text(&pair.key)? };
        let authority = &self.authority.pem().certificate;
        Ok(Kubeconfig { server, cluster: Kubeconfig::CLUSTER, authority, user, client: &client }.yaml())
    }

    fn files(&self, name: &str) -> PairFiles {
        PairFiles {
            certificate: self.folder.join(format!("{name}.crt")),
            key: self.folder.join(format!("{name}.key")),
        }
    }

    fn keep(
        &self,
        name: &str,
        hosts: &[HostName],
        issue: impl FnOnce() -> Result<Issued, PkiError>,
    ) -> Result<PairFiles, PkiError> {
        let files = self.files(name);
        let good = match (read(&files.certificate)?, read(&files.key)?) {
            (Some(certificate), Some(key)) => self.good(&certificate, &key, hosts),
            _ => false,
        };
        if !good {
            self.replace(&files, &issue()?)?;
        }
        Ok(files)
    }

    /// Whether this pair can go on serving.
    fn good(&self, certificate: &str, key: &str, hosts: &[HostName]) -> bool {
        let (Ok(certificate), Ok(key)) = (
            CertificateDer::from_pem_slice(certificate.as_bytes()),
            PrivateKeyDer::from_pem_slice(key.as_bytes()),
        ) else {
            return false;
        };
        let Ok(key) = rcgen::KeyPair::try_from(&key) else { return false };
        let (Ok((_, certificate)), Ok((_, authority))) = (
            X509Certificate::from_der(&certificate),
            X509Certificate::from_der(self.authority.certificate()),
        ) else {
            return false;
        };
        let validity = certificate.validity();
        let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
        let fresh = (from..until - (until - from) / 3).contains(&Timestamp::now().as_second());
        let fits = certificate.public_key().raw == rcgen::PublicKeyData::subject_public_key_info(&key);
        let ours = certificate.verify_signature(Some(authority.public_key())).is_ok();
        fresh && fits && ours && hosts.iter().all(|host| names(&certificate, host))
    }
}

/// Whether the certificate is for this host.
fn names(certificate: &X509Certificate<'_>, host: &HostName) -> bool {
    let Ok(Some(alternatives)) = certificate.subject_alternative_name() else { return false };
    alternatives.value.general_names.iter().any(|name| match (name, host) {
        (GeneralName::DNSName(name), HostName::Dns(wanted)) => name == wanted,
        (GeneralName::IPAddress(bytes), HostName::Ip(std::net::IpAddr::V4(wanted))) => {
            *bytes == wanted.octets()
        }
        (GeneralName::IPAddress(bytes), HostName::Ip(std::net::IpAddr::V6(wanted))) => {
            *bytes == wanted.octets()
        }
        _ => false,
    })
}

fn authority(folder: &Path) -> Result<Authority, PkiError> {
    let (certificate_path, key_path) = (folder.join("ca.crt"), folder.join("ca.key"));
    match (read(&certificate_path)?, read(&key_path)?) {
        (Some(certificate), Some(key)) => {
            let authority = Authority::new(certificate, key, &certificate_path, &key_path)?;
            let now = Timestamp::now();
            if authority.expired_at(now) {
                return Err(PkiError::ExpiredAuthority { path: certificate_path });
            }
            if !authority.begun_at(now) {
                let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
                return Err(PkiError::FutureAuthority { path: certificate_path, now });
            }
            Ok(authority)
        }
        (None, None) => {
            let authority = Authority::generate()?;
            write_file(&key_path, authority.pem().key.as_bytes(), 0o600)?;
            write_file(&certificate_path, authority.pem().certificate.as_bytes(), 0o644)?;
            Ok(authority)
        }
        (Some(_), None) => Err(PkiError::HalfAnAuthority { found: certificate_path }),
        (None, Some(_)) => Err(PkiError::HalfAnAuthority { found: key_path }),
    }
}

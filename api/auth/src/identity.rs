//! Who a request comes from.
//!
//! Either the agent or operator behind a client certificate, or the workload behind a token of its own.
//!
//! The common name of the verified leaf certificate is the caller's name and every organization is a group, in
//! their order and letter for letter; nothing else in the certificate counts. Every identified caller is
//! also in `system:authenticated`.
//!
//! Some names mean something that no certificate can prove: they are given to workloads by their tokens, to
//! loops and gateways by the process they run in. A certificate that bears one is refused, since the change
//! log and the rules could not tell it from the real holder; a group of that sort is left out. A subject that
//! reads differently to different readers (two common names, a text in an exotic encoding, control
//! characters) is refused too.

use std::fmt::Write as _;

use jiff::Timestamp;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

use crate::tokens::{Kubernetes, Verified};

/// Members may do everything, except to pass for a controller.
pub const MASTERS: &str = "system:masters";
/// Node agents.
pub const NODES: &str = "system:nodes";
/// The processes of the control plane among themselves.
pub const CONTROLLERS: &str = "system:controllers";
/// Every workload that shows its own token.
pub const WORKLOADS: &str = "system:workloads";
/// Everybody who is anybody.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Nobody; reserved so that no certificate confuses a reader.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";

/// Beginnings of names that are given by other means than certificates.
const RESERVED_NAMES: [&str; 5] =
    ["system:workload:", "system:serviceaccount:", "system:loop:", "system:node:", "system:gateway:"];

/// An authenticated caller: the name and the groups that grants and rules are judged by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: String,
    /// As the credential lists them, then [`AUTHENTICATED`].
    pub groups: Vec<String>,
    pub credential: Credential,
}

/// What proved an identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    Certificate {
        /// SHA-256 of the certificate's DER, 64 lower-case hexadecimal digits.
        fingerprint: String,
        not_after: Timestamp,
    },
    /// A token of a workload.
    Token {
        /// Id of the key that signed it.
        key: String,
        /// Uid of the Application.
        uid: String,
        not_after: Timestamp,
    },
}

impl Credential {
    /// From here on it proves nothing.
    pub fn not_after(&self) -> Timestamp {
        match self {
            Credential::Certificate { not_after, .. } | Credential::Token { not_after, .. } => *not_after,
        }
    }
}

/// Why a verified certificate is nobody.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("the client certificate cannot be parsed")]
    Unreadable {
        #[source]
        source: x509_parser::nom::Err<x509_parser::error::X509Error>,
    },
    #[error("the {attribute} of the client certificate is not a plain text")]
    Text { attribute: &'static str },
    #[error("the client certificate has more than one common name")]
    Ambiguous,
    #[error("the name {name:?} is reserved: it cannot be claimed with a certificate")]
    Reserved { name: String },
}

impl Identity {
    /// Reads the identity from the leaf of a chain **that has been verified** against the client
    /// authorities. `None`: the subject has no common name, which is the same as no certificate.
    pub fn from_verified(leaf: &CertificateDer<'_>) -> Result<Option<Identity>, IdentityError> {
        let (_, certificate) =
            X509Certificate::from_der(leaf).map_err(|source| IdentityError::Unreadable { source })?;
        let subject = certificate.subject();
        let mut names = subject.iter_common_name();
        let name = names.next().map(|name| text(name, "common name")).transpose()?.unwrap_or_default();
        if names.next().is_some() {
            return Err(IdentityError::Ambiguous);
        }
        if name.is_empty() {
            return Ok(None);
        }
        if RESERVED_NAMES.iter().any(|reserved| name.starts_with(reserved)) {
            return Err(IdentityError::Reserved { name: name.to_owned() });
        }
        let mut groups = Vec::new();
        for organization in subject.iter_organization() {
            let group = text(organization, "organization")?;
            if grantable(group) && !groups.iter().any(|known| known == group) {
                groups.push(group.to_owned());
            }
        }
        groups.push(AUTHENTICATED.to_owned());
        let not_after = certificate.validity().not_after.timestamp();
        let credential = Credential::Certificate {
            fingerprint: fingerprint(leaf),
            not_after: Timestamp::from_second(not_after).unwrap_or(Timestamp::MAX),
        };
        Ok(Some(Identity { name: name.to_owned(), groups, credential }))
    }

    /// The workload that a verified token names, `system:workload:<namespace>:<application>` in [`WORKLOADS`].
    /// `None`: it names nobody.
    pub fn of_workload(token: &Verified) -> Option<Identity> {
        let Kubernetes { namespace, serviceaccount } = &token.claims.kubernetes;
        if namespace.is_empty() || serviceaccount.name.is_empty() {
            return None;
        }
        Some(Identity {
            name: format!("system:workload:{namespace}:{}", serviceaccount.name),
            groups: vec![WORKLOADS.to_owned(), AUTHENTICATED.to_owned()],
            credential: Credential::Token {
                key: token.key.clone(),
                uid: serviceaccount.uid.clone(),
                not_after: token.not_after,
            },
        })
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The node that this caller is the agent of.
    pub fn node(&self) -> Option<&str> {
        self.in_group(NODES).then_some(self.name.as_str())
    }

    /// Whether the credential still holds at `now`. Connections outlive the certificates they were opened
    /// with, so whoever serves a request on an open connection asks again.
    pub fn valid_at(&self, now: Timestamp) -> bool {
        now <= self.credential.not_after()
    }
}

/// Since when a certificate is valid; `None`: it cannot be read.
pub fn valid_since(certificate: &CertificateDer<'_>) -> Option<Timestamp> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Timestamp::from_second(certificate.validity().not_before.timestamp()).ok()
}

/// SHA-256 of a certificate, in lower-case hexadecimal.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    Sha256::digest(certificate).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Whether a certificate may put its holder into this group.
fn grantable(group: &str) -> bool {
    !(group.is_empty()
        || matches!(group, WORKLOADS | AUTHENTICATED | UNAUTHENTICATED | "system:serviceaccounts")
        || group.starts_with("system:serviceaccounts:"))
}

fn text<'a>(value: &'a AttributeTypeAndValue<'_>, attribute: &'static str) -> Result<&'a str, IdentityError> {
    value
        .as_str()
        .ok()
        .filter(|text| !text.chars().any(char::is_control))
        .ok_or(IdentityError::Text { attribute })
}

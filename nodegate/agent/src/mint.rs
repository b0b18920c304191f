//! Certificates for nodes that exist only in a test or in a simulated fleet.
//!
//! Whoever holds the key of the authority can be any node. That is why only fleets
//! and tests use this: a real agent is handed its certificate.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use crate::identity::{Identity, IdentityError};

/// Group that makes a client a node.
const NODE_GROUP: &str = "system:nodes";

/// Why no certificate can be made.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The authority's certificate or key is unusable, or signing failed.
    #[error("cannot sign node certificates")]
    Sign(#[from] rcgen::Error),
    /// What was made cannot be used.
    #[error("the minted certificate is unusable")]
    Identity(#[from] IdentityError),
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Minted {
    /// Leaf only.
    pub chain: String,
    /// PKCS #8.
    pub key: String,
}

/// Signs client certificates with the key of an authority.
pub struct NodeIssuer {
    issuer: Issuer<'static, KeyPair>,
    server_ca: String,
}

impl NodeIssuer {
    /// Takes the authority for clients (certificate and key) and the authorities
    /// that servers are verified against, all in PEM.
    pub fn from_pem(ca: &str, key: &str, server_ca: &str) -> Result<Self, MintError> {
        let issuer = Issuer::from_ca_cert_pem(ca, KeyPair::from_pem(key)?)?;
        Ok(Self { issuer, server_ca: server_ca.to_owned() })
    }

    /// A certificate with these values of CN and O.
    pub fn mint(&self, name: &str, groups: &[&str]) -> Result<Minted, MintError> {
        let key = KeyPair::generate()?;
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, name);
        for group in groups {
            subject.push(DnType::OrganizationName, *group);
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = subject;
        // Of today: nodes that are older than a new control plane are held by it.
        let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
        let whole = |part: i8| u8::try_from(part).unwrap_or(1);
        params.not_before = date_time_ymd(today.year().into(), whole(today.month()), whole(today.day()));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Minted { chain: certificate.pem(), key: key.serialize_pem() })
    }

    /// The identity of a node of that name.
    pub fn node(&self, name: &str) -> Result<Identity, MintError> {
        let minted = self.mint(name, &[NODE_GROUP])?;
        Ok(Identity::from_pem(minted.chain.as_bytes(), minted.key.as_bytes(), self.server_ca.as_bytes())?)
    }
}

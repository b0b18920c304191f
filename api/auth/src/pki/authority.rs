use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, EcPrivateKeyRfc5915Der};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, SigningKey as _, SubjectPublicKeyInfo,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use super::files::read;
use super::{CertificateRequest, PkiError, subject};
use crate::identity::{CONTROLLERS, NODES};

const HOUR: i64 = 3600;
const DAY: u64 = 24 * 3600;

/// How long certificates live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime(Duration);

impl Lifetime {
    pub const AUTHORITY: Lifetime = Lifetime(Duration::from_secs(3650 * DAY));
    pub const SERVER: Lifetime = Lifetime(Duration::from_secs(365 * DAY));
    pub const ADMIN: Lifetime = Lifetime(Duration::from_secs(365 * DAY));
    pub const CONTROLLER: Lifetime = Lifetime(Duration::from_secs(365 * DAY));
    pub const CLIENT: Lifetime = Lifetime(Duration::from_secs(90 * DAY));

    /// Refuses zero.
    pub fn of(duration: Duration) -> Result<Lifetime, PkiError> {
        if duration.as_secs() == 0 { Err(PkiError::NoLifetime) } else { Ok(Lifetime(duration)) }
    }

    pub fn duration(self) -> Duration {
        self.0
    }

    fn seconds(self) -> i64 {
        i64::try_from(self.0.as_secs()).unwrap_or(i64::MAX)
    }
}

/// What a server is called by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostName {
    Dns(String),
    Ip(IpAddr),
}

impl HostName {
    pub fn parse(text: &str) -> Result<HostName, PkiError> {
        if let Ok(address) = text.parse() {
            return Ok(HostName::Ip(address));
        }
        if is_node_name(text) {
            Ok(HostName::Dns(text.to_owned()))
        } else {
            Err(PkiError::Name { name: text.to_owned(), of: "server" })
        }
    }

    fn text(&self) -> String {
        match self {
            HostName::Dns(name) => name.clone(),
            HostName::Ip(address) => address.to_string(),
        }
    }
}

/// Whether a node can have this name: lower-case letters, digits, `-` and `.`, each label beginning and ending with
/// a letter or digit, at most 253 characters.
pub fn is_node_name(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        })
}

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for Issued {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// Someone who signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: Issued,
    not_before: i64,
    not_after: i64,
}

impl Authority {
    /// A new one, signed by itself.
    pub fn generate() -> Result<Authority, PkiError> {
        let (key, key_pem) = new_key()?;
        let mut params = params("horchestra-ca", None, Lifetime::AUTHORITY, i64::MAX)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params
            .self_signed(&key)
            .map_err(|source| PkiError::Sign { name: "horchestra-ca".to_owned(), source })?;
        Authority::new(certificate.pem(), key_pem, Path::new("ca.crt"), Path::new("ca.key"))
    }

    /// From PEM, with a check that the two belong together. The paths are only for messages. Of several
    /// certificates the first is the authority's.
    pub(super) fn new(
        certificate_pem: String,
        key_pem: String,
        certificate_path: &Path,
        key_path: &Path,
    ) -> Result<Authority, PkiError> {
        let unusable =
            |path: &Path, form, source| PkiError::Material { what: path.display().to_string(), form, source };
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|source| unusable(certificate_path, "certificate", Some(source.into())))?;
        let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
            .map_err(|source| unusable(key_path, "key", Some(source.into())))?;
        let key = KeyPair::try_from(&key).map_err(|source| unusable(key_path, "key", Some(source.into())))?;
        let (_, parsed) = X509Certificate::from_der(&certificate)
            .map_err(|source| unusable(certificate_path, "certificate", Some(source.into())))?;
        if !parsed.is_ca() {
            return Err(unusable(certificate_path, "certificate of an authority", None));
        }
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(PkiError::WrongKey {
                certificate: certificate_path.to_owned(),
                key: key_path.to_owned(),
            });
        }
        let (not_before, not_after) =
            (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|source| unusable(certificate_path, "certificate", Some(source.into())))?;
        let pem = Issued { certificate: certificate_pem, key: key_pem };
        Ok(Authority { issuer, certificate, pem, not_before, not_after })
    }

    /// From PEM files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Authority, PkiError> {
        let text = |path: &Path| {
            read(path)?.ok_or_else(|| PkiError::File {
                doing: "read",
                path: path.to_owned(),
                source: std::io::ErrorKind::NotFound.into(),
            })
        };
        Authority::new(text(certificate)?, text(key)?, certificate, key)
    }

    /// From PEM texts.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Authority, PkiError> {
        Authority::new(
            certificate.to_owned(),
            key.to_owned(),
            Path::new("the authority's certificate"),
            Path::new("the authority's key"),
        )
    }

    /// Its certificate and key.
    pub fn pem(&self) -> &Issued {
        &self.pem
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// When it ends.
    pub fn not_after(&self) -> Timestamp {
        Timestamp::from_second(self.not_after).unwrap_or(Timestamp::MAX)
    }

    /// Whether its time has begun at `now`.
    pub fn begun_at(&self, now: Timestamp) -> bool {
        now.as_second() >= self.not_before
    }

    /// Whether it is past its end at `now`.
    pub fn expired_at(&self, now: Timestamp) -> bool {
        now.as_second() > self.not_after
    }

    /// What a server shows. `hosts` come first among its names, the loopback's names follow; the first host
    /// is its common name.
    pub fn server(&self, hosts: &[HostName], lifetime: Lifetime) -> Result<Issued, PkiError> {
        let names = with_loopback(hosts);
        let common = hosts.first().map_or_else(|| "localhost".to_owned(), HostName::text);
        let mut params = params(&common, None, lifetime, self.not_after)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = alternative_names(&names)?;
        self.issue(params, &common)
    }

    /// What a person or a program proves itself with. `group` becomes its group; empty = none.
    pub fn client(&self, name: &str, group: &str, lifetime: Lifetime) -> Result<Issued, PkiError> {
        if name.is_empty() {
            return Err(PkiError::Name { name: name.to_owned(), of: "client" });
        }
        self.issue(client_params(name, group, lifetime, self.not_after)?, name)
    }

    /// As [`Authority::client`], for somebody who is in several groups.
    pub fn member(&self, name: &str, groups: &[String], lifetime: Lifetime) -> Result<Issued, PkiError> {
        if let Some(odd) = groups.iter().find(|group| group.is_empty() || group.chars().any(char::is_control))
        {
            return Err(PkiError::Name { name: odd.clone(), of: "group" });
        }
        let issued = self.client(name, groups.first().map_or("", String::as_str), lifetime)?;
        if groups.len() < 2 {
            return Ok(issued);
        }
        let failed =
            || PkiError::Sign { name: name.to_owned(), source: rcgen::Error::CouldNotParseCertificate };
        let made = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).map_err(|_| failed())?;
        let signed = subject::replace(&made, name, groups, |bytes| self.issuer.key().sign(bytes).ok());
        let certificate = pem_block("CERTIFICATE", &signed.ok_or_else(failed)?);
        Ok(Issued { certificate, key: issued.key })
    }

    /// The certificate that a node asks for: PEM, the leaf alone. From the request come the name and the key, and
    /// nothing else; the group is that of nodes.
    pub fn sign(&self, request: &CertificateRequest, lifetime: Lifetime) -> Result<String, PkiError> {
        let name = &request.common_name;
        if !is_node_name(name) {
            return Err(PkiError::Name { name: name.clone(), of: "node" });
        }
        let failed = |source| PkiError::Sign { name: name.clone(), source };
        let key = SubjectPublicKeyInfo::from_der(&request.public_key).map_err(failed)?;
        let mut params = client_params(name, NODES, lifetime, self.not_after)?;
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(&key, &self.issuer).map_err(failed)?.pem())
    }

    /// What the agent of `node` proves itself with.
    pub fn node(&self, node: &str, lifetime: Lifetime) -> Result<Issued, PkiError> {
        if !is_node_name(node) {
            return Err(PkiError::Name { name: node.to_owned(), of: "node" });
        }
        self.client(node, NODES, lifetime)
    }

    /// What a process of the control plane shows and proves to the others: it calls them and is called.
    pub fn controller(&self, name: &str, hosts: &[HostName], lifetime: Lifetime) -> Result<Issued, PkiError> {
        let mut params = params(name, Some(CONTROLLERS), lifetime, self.not_after)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = alternative_names(&with_loopback(hosts))?;
        self.issue(params, name)
    }

    fn issue(&self, mut params: CertificateParams, name: &str) -> Result<Issued, PkiError> {
        let (key, key_pem) = new_key()?;
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|source| PkiError::Sign { name: name.to_owned(), source })?;
        Ok(Issued { certificate: certificate.pem(), key: key_pem })
    }
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("pem", &self.pem).finish_non_exhaustive()
    }
}

/// The hosts, then those of the loopback's names that are not among them.
pub(super) fn with_loopback(hosts: &[HostName]) -> Vec<HostName> {
    let mut names = hosts.to_vec();
    let loopback = [
        HostName::Dns("localhost".to_owned()),
        HostName::Ip(IpAddr::from([127, 0, 0, 1])),
        HostName::Ip(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1])),
    ];
    for name in loopback {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn alternative_names(hosts: &[HostName]) -> Result<Vec<SanType>, PkiError> {
    hosts
        .iter()
        .map(|host| match host {
            HostName::Ip(address) => Ok(SanType::IpAddress(*address)),
            HostName::Dns(name) => name
                .as_str()
                .try_into()
                .map(SanType::DnsName)
                .map_err(|source| PkiError::Sign { name: name.clone(), source }),
        })
        .collect()
}

/// What all certificates have in common. None outlives `end` (seconds), the end of its authority.
fn params(
    common_name: &str,
    organization: Option<&str>,
    lifetime: Lifetime,
    end: i64,
) -> Result<CertificateParams, PkiError> {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        subject.push(DnType::OrganizationName, organization);
    }
    let mut serial = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut serial).map_err(|_| PkiError::Random)?;
    let now = Timestamp::now().as_second();
    let moment = |second: i64| OffsetDateTime::from_unix_timestamp(second).map_err(|_| PkiError::NoLifetime);
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = moment(now - HOUR)?;
    params.not_after = moment(now.saturating_add(lifetime.seconds()).min(end))?;
    params.is_ca = IsCa::ExplicitNoCa;
    Ok(params)
}

/// A client's certificate; an empty group is none.
fn client_params(
    name: &str,
    group: &str,
    lifetime: Lifetime,
    end: i64,
) -> Result<CertificateParams, PkiError> {
    let mut params = params(name, Some(group).filter(|group| !group.is_empty()), lifetime, end)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

/// A key, and its SEC1 PEM.
fn new_key() -> Result<(KeyPair, String), PkiError> {
    let pem = sec1_pem()?;
    let key =
        KeyPair::from_pem(&pem).map_err(|source| PkiError::Sign { name: "a new key".to_owned(), source })?;
    Ok((key, pem.to_string()))
}

/// A request for a certificate, and the key that it is about.
pub struct NewRequest {
    /// PKCS #10 in PEM: a common name and nothing else.
    pub request: String,
    /// SEC1 PEM.
    pub key: Zeroizing<String>,
}

impl NewRequest {
    /// One for this name, with a new key.
    pub fn generate(common_name: &str) -> Result<NewRequest, PkiError> {
        let failed = |source| PkiError::Sign { name: common_name.to_owned(), source };
        let pem = sec1_pem()?;
        let key = KeyPair::from_pem(&pem).map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let request = params.serialize_request(&key).and_then(|request| request.pem()).map_err(failed)?;
        Ok(NewRequest { request, key: pem })
    }
}

/// A new ECDSA key on P-256, in SEC1 PEM.
pub(crate) fn sec1_pem() -> Result<Zeroizing<String>, PkiError> {
    let generated = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).map_err(|_| PkiError::Random)?;
    let der: EcPrivateKeyRfc5915Der<'_> = generated.private_key().as_der().map_err(|_| PkiError::Random)?;
    Ok(Zeroizing::new(pem_block("EC PRIVATE KEY", der.as_ref())))
}

/// A block of PEM, with lines of 64 characters.
pub fn pem_block(label: &str, der: &[u8]) -> String {
    let encoded = Zeroizing::new(STANDARD.encode(der));
    // Never grown: what a growing text leaves behind would not be wiped.
    let mut pem = String::with_capacity(encoded.len() + encoded.len() / 64 + 2 * label.len() + 40);
    for part in ["-----BEGIN ", label, "-----\n"] {
        pem.push_str(part);
    }
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, tail) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = tail;
    }
    for part in ["-----END ", label, "-----\n"] {
        pem.push_str(part);
    }
    pem
}

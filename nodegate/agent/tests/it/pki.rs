use horchestra_agent::mint::NodeIssuer;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A throw-away authority with a certificate for a server on the loopback.
pub struct Pki {
    pub ca: String,
    pub ca_key: String,
    pub server: String,
    pub server_key: String,
}

impl Pki {
    pub fn new() -> Self {
        let ca_key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca = params.self_signed(&ca_key).expect("an authority").pem();
        let ca_key = ca_key.serialize_pem();

        let issuer = KeyPair::from_pem(&ca_key).expect("the key");
        let issuer = Issuer::from_ca_cert_pem(&ca, issuer).expect("the issuer");
        let server_key = KeyPair::generate().expect("a key");
        let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = CertificateParams::new(names).expect("names");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let server = params.signed_by(&server_key, &issuer).expect("a certificate").pem();
        Self { ca, ca_key, server, server_key: server_key.serialize_pem() }
    }

    pub fn nodes(&self) -> NodeIssuer {
        NodeIssuer::from_pem(&self.ca, &self.ca_key, &self.ca).expect("an issuer")
    }
}

//! The signer whose authority lies in files.

use std::fs;
use std::path::PathBuf;

use horchestra_auth::pki::{Authority, CertificateRequest, Lifetime, PkiError};
use horchestra_testkit::TempDir;
use horchestra_workers::certificates::signer::{FileSigner, Signer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::support::request;

struct Files(TempDir);

impl Files {
    fn of(authority: &Authority) -> Files {
        let files = Files(TempDir::new().unwrap());
        files.write(authority);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, authority: &Authority) {
        fs::write(self.path("ca.crt"), &authority.pem().certificate).unwrap();
        fs::write(self.path("ca.key"), &authority.pem().key).unwrap();
    }

    fn load(&self) -> Result<FileSigner, PkiError> {
        FileSigner::load(&self.path("ca.crt"), &self.path("ca.key"), Lifetime::CLIENT)
    }
}

async fn signed_by(signer: &FileSigner, authority: &Authority) -> bool {
    let pem = request("node-1");
    let asked = CertificateRequest::from_pem(pem.as_bytes()).unwrap();
    let certificate = signer.sign(&asked, pem.as_bytes()).await.unwrap();
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let (_, parsed) = X509Certificate::from_der(&der).unwrap();
    let (_, issuer) = X509Certificate::from_der(authority.certificate()).unwrap();
    parsed.verify_signature(Some(issuer.public_key())).is_ok()
}

#[tokio::test]
async fn files_that_change_are_used_and_files_that_do_not_fit_are_not() {
    let (first, second) = (Authority::generate().unwrap(), Authority::generate().unwrap());
    let files = Files::of(&first);
    let signer = files.load().unwrap();
    assert!(signed_by(&signer, &first).await);
    assert!(!signer.reload().unwrap(), "nothing has changed");

    // Half of the change.
    fs::write(files.path("ca.crt"), &second.pem().certificate).unwrap();
    let refused = signer.reload().unwrap_err();
    assert!(matches!(refused, PkiError::WrongKey { .. }), "{refused}");
    assert!(signer.health().unusable_files);
    assert!(signed_by(&signer, &first).await, "what was in use stays");
    fs::remove_file(files.path("ca.key")).unwrap();
    assert!(matches!(signer.reload().unwrap_err(), PkiError::File { .. }));
    assert!(signed_by(&signer, &first).await);

    files.write(&second);
    assert!(signer.reload().unwrap());
    assert!(!signer.health().unusable_files);
    assert!(signed_by(&signer, &second).await && !signed_by(&signer, &first).await);
    // Another authority beside it, as while one replaces the other: the first signs.
    let both = format!("{}{}", second.pem().certificate, first.pem().certificate);
    fs::write(files.path("ca.crt"), both).unwrap();
    assert!(signer.reload().unwrap());
    assert!(signed_by(&signer, &second).await);
    assert_eq!(signer.health().until, Some(second.not_after()));
}

#[test]
fn a_signer_that_could_not_sign_is_none() {
    let authority = Authority::generate().unwrap();
    let client = authority.client("somebody", "", Lifetime::CLIENT).unwrap();
    let other = Authority::generate().unwrap();
    for (what, certificate, key, said) in [
        ("another key", &authority.pem().certificate, &other.pem().key, "does not belong"),
        ("no authority", &client.certificate, &client.key, "certificate of an authority"),
        ("no certificate", &client.key, &client.key, "not a usable certificate"),
        ("no key", &authority.pem().certificate, &client.certificate, "not a usable key"),
    ] {
        let files = Files::of(&authority);
        fs::write(files.path("ca.crt"), certificate).unwrap();
        fs::write(files.path("ca.key"), key).unwrap();
        let Err(error) = files.load() else { panic!("{what} is taken") };
        assert!(error.to_string().contains(said), "{what}: {error}");
    }
    let files = Files(TempDir::new().unwrap());
    assert!(files.load().is_err(), "nothing there");
}

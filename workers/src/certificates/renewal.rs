//! Renewing what this process proves itself to Vault with.
//!
//! Two thirds into what is left of its life (at least a minute from now), the certificate is replaced by one that
//! Vault signs under a role of its own: with a new key, the same name, the same groups, the same lifetime, all of
//! that checked. An attempt that fails is made again after a minute, then more rarely, at least once an hour, until
//! one succeeds; also when the file cannot be read. Somebody else who replaces the files is noticed and is fine.
//!
//! What has expired cannot renew itself: that takes an operator.

use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::pki::{CertificateRequest, NewRequest, pem_block, write_file};
use horchestra_runtime::Backoff;
use horchestra_runtime::tls::KeyPairFiles;
use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::vault::{ConfigError, Vault, check_name};
use super::verify::{self, Expected};

/// How long the certificate rests at least before it is renewed, and between the first attempts.
const MINUTE: Duration = Duration::from_secs(60);
/// The longest time between two attempts.
const HOUR: Duration = Duration::from_secs(3600);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Keeps a pair of files alive.
pub struct SelfRenewal {
    vault: Arc<Vault>,
    role: String,
    pair: KeyPairFiles,
    shortest: Duration,
    backoff: Backoff,
}

/// What counts of the certificate that is in use.
struct Own {
    certificate: CertificateDer<'static>,
    common_name: String,
    organizations: Vec<String>,
    lifetime: Duration,
    left: Duration,
}

impl SelfRenewal {
    pub fn new(vault: Arc<Vault>, role: &str, pair: KeyPairFiles) -> Result<SelfRenewal, ConfigError> {
        check_name("a role", role)?;
        let backoff = Backoff::new(MINUTE, HOUR);
        Ok(SelfRenewal { vault, role: role.to_owned(), pair, shortest: MINUTE, backoff })
    }

    /// In a hurry.
    #[must_use]
    pub fn with_pace(self, shortest: Duration, backoff: Backoff) -> SelfRenewal {
        SelfRenewal { shortest, backoff, ..self }
    }

    /// Renews, again and again, until `stopping`: to be run as a task.
    pub async fn run(mut self, stopping: CancellationToken) {
        loop {
            // A pair that cannot be read is told of by the first attempt.
            let own = self.own();
            let wait = own.as_ref().map_or(Duration::ZERO, |own| (own.left * 2 / 3).max(self.shortest));
            if !rest(wait, &stopping).await {
                return;
            }
            if let (Ok(before), Ok(now)) = (own, self.own())
                && before.certificate != now.certificate
            {
                continue;
            }
            while let Err(error) = self.renew().await {
                let pause = self.backoff.pause();
                tracing::error!(
                    certificate = %self.pair.certificate.display(), error, cause = error.source().map(tracing::field::display),
                    "the certificate for Vault could not be renewed; trying again in {} s", pause.as_secs()
                );
                if !rest(pause, &stopping).await {
                    return;
                }
            }
            self.backoff.reset();
            tracing::info!(certificate = %self.pair.certificate.display(), "renewed the certificate for Vault");
        }
    }

    fn own(&self) -> Result<Own, Failure> {
        let certificate = CertificateDer::from_pem_file(&self.pair.certificate)?;
        let (_, parsed) = X509Certificate::from_der(&certificate).map_err(|error| error.to_string())?;
        let name = parsed.subject().iter_common_name().next().ok_or("the certificate names nobody")?;
        let common_name = name.as_str()?.to_owned();
        let organizations = parsed.subject().iter_organization().map(|name| name.as_str().map(str::to_owned));
        let organizations = organizations.collect::<Result<_, _>>()?;
        let (from, until) =
            (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
        let seconds = |count: i64| Duration::from_secs(u64::try_from(count).unwrap_or(0));
        let left = seconds(until - Timestamp::now().as_second());
        let lifetime = seconds(until - from);
        drop(parsed);
        Ok(Own { certificate, common_name, organizations, lifetime, left })
    }

    async fn renew(&self) -> Result<(), Failure> {
        let own = self.own()?;
        let new = NewRequest::generate(&own.common_name)?;
        let asked = CertificateRequest::from_pem(new.request.as_bytes())?;
        let der = CertificateSigningRequestDer::from_pem_slice(new.request.as_bytes())?;
        let (leaf, further) = self.vault.sign(&self.role, &der, &own.common_name, own.lifetime).await?;
        let expected = Expected {
            common_name: &own.common_name,
            organizations: own.organizations.iter().map(String::as_str).collect(),
            public_key: &asked.public_key,
            lifetime: own.lifetime,
        };
        verify::verify(&leaf, &expected, Timestamp::now())?;
        let chain: String = verify::chain(leaf, further)?
            .iter()
            .map(|certificate| pem_block("CERTIFICATE", certificate))
            .collect();
        // Whoever reads between the two finds a pair that does not fit, keeps the old one and looks again.
        write_file(&self.pair.certificate, chain.as_bytes(), 0o644)?;
        write_file(&self.pair.key, new.key.as_bytes(), 0o600)?;
        self.vault.tls().reload()?;
        Ok(())
    }
}

/// False: it is time to stop.
async fn rest(duration: Duration, stopping: &CancellationToken) -> bool {
    stopping.run_until_cancelled(tokio::time::sleep(duration)).await.is_some()
}

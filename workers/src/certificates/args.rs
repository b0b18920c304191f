//! With what certificates of nodes are signed: the flags, and the signer that they come to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use horchestra_auth::pki::{Lifetime, PkiError};
use horchestra_runtime::Tasks;
use horchestra_runtime::args::duration;
use horchestra_runtime::tls::{KeyPairFiles, ReloadingClient, TlsError};

use super::renewal::SelfRenewal;
use super::signer::{FileSigner, Signer};
use super::vault::{ConfigError, Vault, VaultConfig, VaultSigner};

/// Without any of them nothing is signed here, and requests wait. Give all workers of a cluster the same.
#[derive(Clone, Debug, Args)]
pub struct SignerArgs {
    /// Certificate of the authority that nodes' certificates come from, PEM; of several the first signs. With
    /// --pki-vault: the authorities that what Vault signs has to lead to
    #[arg(long, value_name = "FILE")]
    pub cluster_ca: Option<PathBuf>,

    /// Its key, PEM: the workers sign with it. Both files are read again when they change
    #[arg(long, value_name = "FILE", requires = "cluster_ca")]
    pub cluster_ca_key: Option<PathBuf>,

    /// How long the certificates are valid, though never longer than their authority
    #[arg(long, default_value = "90d", value_parser = lifetime, value_name = "DURATION")]
    pub node_cert_ttl: Lifetime,

    /// How often the files of this section are looked at
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub signer_reload_interval: Duration,

    /// Address of a HashiCorp Vault that signs, such as `https://vault.example:8200`; the workers prove themselves to
    /// it with a client certificate (its auth method `cert`)
    #[arg(long, value_name = "URL", conflicts_with = "cluster_ca_key",
        requires_all = ["cluster_ca", "pki_vault_role", "pki_vault_ca", "pki_vault_cert", "pki_vault_key"])]
    pub pki_vault: Option<String>,

    /// Mount of its PKI secrets engine
    #[arg(long, default_value = "pki_int", value_name = "PATH")]
    pub pki_vault_mount: String,

    /// Role of that engine to sign nodes' certificates under: it has to allow the names of nodes as common name, the
    /// organization system:nodes and clients' usage
    #[arg(long, value_name = "ROLE", requires = "pki_vault")]
    pub pki_vault_role: Option<String>,

    /// Authorities that Vault's own certificate must come from, PEM; for a public one the system's file, such as
    /// /etc/ssl/certs/ca-certificates.crt
    #[arg(long, value_name = "FILE", requires = "pki_vault")]
    pub pki_vault_ca: Option<PathBuf>,

    /// Path of its auth method
    #[arg(long, default_value = "cert", value_name = "PATH")]
    pub pki_vault_auth_path: String,

    /// Role of the auth method to log in as [default: the one that fits the certificate]
    #[arg(long, value_name = "ROLE", requires = "pki_vault")]
    pub pki_vault_auth_role: Option<String>,

    /// Client certificate that the workers show Vault, and its chain, PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "pki_vault")]
    pub pki_vault_cert: Option<PathBuf>,

    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "pki_vault")]
    pub pki_vault_key: Option<PathBuf>,

    /// Role of the PKI engine to renew that client certificate under, in good time and with a new key; the files are
    /// replaced [default: somebody else renews it]
    #[arg(long, value_name = "ROLE", requires = "pki_vault")]
    pub pki_vault_self_role: Option<String>,
}

/// Why there is no signer although one was asked for.
#[derive(Debug, thiserror::Error)]
pub enum SignerError {
    #[error("the authority of nodes cannot be used")]
    Authority(#[source] PkiError),
    #[error("the client certificate for Vault cannot be used")]
    Credential(#[source] TlsError),
    #[error("Vault cannot be used")]
    Vault(#[source] ConfigError),
}

fn lifetime(text: &str) -> Result<Lifetime, String> {
    Lifetime::of(duration(text)?).map_err(|error| error.to_string())
}

impl SignerArgs {
    /// The signer, if there is to be one. What it takes to follow its files is among the tasks then.
    pub fn open(&self, tasks: &Tasks) -> Result<Option<Arc<dyn Signer>>, SignerError> {
        let interval = self.signer_reload_interval;
        match (&self.cluster_ca, &self.cluster_ca_key, &self.pki_vault) {
            (Some(ca), _, Some(url)) => self.open_vault(ca, url, tasks).map(Some),
            (Some(ca), Some(key), None) => {
                let signer = FileSigner::load(ca, key, self.node_cert_ttl).map_err(SignerError::Authority)?;
                let signer = Arc::new(signer);
                let following = Arc::clone(&signer).follow(interval, tasks.stopping().clone());
                tasks.vital("signer-files", following);
                Ok(Some(signer))
            }
            _ => Ok(None),
        }
    }

    fn open_vault(
        &self,
        ca: &std::path::Path,
        url: &str,
        tasks: &Tasks,
    ) -> Result<Arc<dyn Signer>, SignerError> {
        let missing =
            |flag: &'static str| SignerError::Vault(ConfigError::Name { what: flag, value: String::new() });
        let file = |file: &Option<PathBuf>, flag| file.clone().ok_or_else(|| missing(flag));
        let pair = KeyPairFiles {
            certificate: file(&self.pki_vault_cert, "the client certificate")?,
            key: file(&self.pki_vault_key, "the client key")?,
        };
        let authorities = file(&self.pki_vault_ca, "the authorities")?;
        let role = self.pki_vault_role.as_deref().ok_or_else(|| missing("the role"))?;
        let tls = ReloadingClient::load(Some(pair.clone()), authorities, &[b"http/1.1"])
            .map_err(SignerError::Credential)?;
        let config = VaultConfig {
            url: url.to_owned(),
            mount: self.pki_vault_mount.clone(),
            auth_path: self.pki_vault_auth_path.clone(),
            auth_role: self.pki_vault_auth_role.clone(),
        };
        let tls = Arc::new(tls);
        let vault = Arc::new(Vault::new(config, Arc::clone(&tls)).map_err(SignerError::Vault)?);
        let signer = VaultSigner::new(Arc::clone(&vault), role, ca, self.node_cert_ttl);
        let signer = signer.map_err(SignerError::Vault)?;
        if let Some(role) = &self.pki_vault_self_role {
            let renewal = SelfRenewal::new(vault, role, pair).map_err(SignerError::Vault)?;
            tasks.vital("vault-credential", renewal.run(tasks.stopping().clone()));
        }
        tasks.vital("signer-files", tls.follow(self.signer_reload_interval, tasks.stopping().clone()));
        Ok(Arc::new(signer))
    }
}

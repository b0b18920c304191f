//! The process-wide cryptography.

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use std::sync::{Arc, OnceLock};

/// Why the provider could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum CryptoError {
    /// Some library has installed another provider first. Going on would mean that connections use
    /// cryptography that nobody chose.
    #[error("another TLS cryptography provider is already installed in this process")]
    AlreadyInstalled,
}

/// Makes aws-lc-rs the provider of every TLS connection of this process. The first thing that `main` does;
/// calling it again is harmless.
pub fn install() -> Result<(), CryptoError> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    if *INSTALLED.get_or_init(|| aws_lc_rs::default_provider().install_default().is_ok()) {
        Ok(())
    } else {
        Err(CryptoError::AlreadyInstalled)
    }
}

/// The provider itself, for configurations that are built here whatever is installed.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(aws_lc_rs::default_provider())).clone()
}

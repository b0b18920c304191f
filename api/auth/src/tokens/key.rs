//! One key.

use std::path::Path;

use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::SigningKeyError;

/// Bytes of a signature: two numbers of 32.
const SIGNATURE: usize = 64;
/// First byte of a point in its uncompressed form; two coordinates of 32 bytes follow.
const UNCOMPRESSED: u8 = 4;

/// An ECDSA key on P-256 that signs and verifies.
pub(super) struct Key {
    pair: EcdsaKeyPair,
    /// First eight bytes of the SHA-256 of the public key (SubjectPublicKeyInfo), base64url, 11 characters.
    pub id: String,
}

impl std::fmt::Debug for Key {
    /// Without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Key {
    /// Reads a key in SEC1 PEM. The path is for messages.
    pub(super) fn from_pem(pem: &[u8], path: &Path) -> Result<Key, SigningKeyError> {
        let path = || path.to_owned();
        let Ok(sec1) = PrivateSec1KeyDer::from_pem_slice(pem) else {
            return Err(match PrivatePkcs8KeyDer::from_pem_slice(pem) {
                Ok(_) => SigningKeyError::Pkcs8 { path: path() },
                Err(_) => SigningKeyError::NotPem { path: path() },
            });
        };
        let pair =
            EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, sec1.secret_sec1_der())
                .map_err(|_| SigningKeyError::Curve { path: path() })?;
        Key::new(pair)
    }

    pub(super) fn new(pair: EcdsaKeyPair) -> Result<Key, SigningKeyError> {
        let public: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(|_| SigningKeyError::Random)?;
        let id = URL_SAFE_NO_PAD.encode(&Sha256::digest(public.as_ref())[..8]);
        Ok(Key { pair, id })
    }

    pub(super) fn generate() -> Result<Key, SigningKeyError> {
        let pair =
            EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(|_| SigningKeyError::Random)?;
        Key::new(pair)
    }

    /// The raw form of a signature, as JWS wants it: not DER.
    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SigningKeyError> {
        let signature = self.pair.sign(&SystemRandom::new(), message).map_err(|_| SigningKeyError::Random)?;
        Ok(signature.as_ref().to_vec())
    }

    pub(super) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        signature.len() == SIGNATURE
            && UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key().as_ref())
                .verify(message, signature)
                .is_ok()
    }

    /// The public key as a JSON Web Key.
    pub(super) fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        let (x, y) = match point.split_first() {
            Some((&UNCOMPRESSED, coordinates)) => coordinates.split_at(coordinates.len() / 2),
            _ => (&[][..], &[][..]),
        };
        json!({
            "kty": "EC",
            "crv": "P-256",
            "use": "sig",
            "alg": "ES256",
            "kid": self.id,
            "x": URL_SAFE_NO_PAD.encode(x),
            "y": URL_SAFE_NO_PAD.encode(y),
        })
    }
}

//! Making tokens and judging them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::claims::{Claims, Header, Kubernetes, ServiceAccount};
use super::files::{Found, KeyFiles, Placed, signing};
use super::key::Key;
use super::{API_AUDIENCE, LEEWAY, LIFETIME, SigningKeyError, TokenError, VAULT_AUDIENCE};
use crate::identity::Identity;

/// Where the keys are published, under the issuer's address.
pub const KEYS_PATH: &str = "/openid/v1/jwks";

const ALGORITHM: &str = "ES256";

/// Longest token that is looked at, in bytes. Ours have some 500.
const TOKEN_LIMIT: usize = 16 << 10;

/// The least time between two looks at the files because of a key that was not known.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Makes and judges tokens, with the keys of [`KeyFiles`].
pub struct Issuer {
    name: String,
    files: Option<KeyFiles>,
    keys: ArcSwap<KeySet>,
    seen: Mutex<Seen>,
}

struct Seen {
    found: Option<Found>,
    looked: std::time::Instant,
}

/// Keys in the order of their age, never empty.
struct KeySet(Vec<Placed>);

/// A token that was just made.
#[derive(Clone, PartialEq, Eq)]
pub struct Minted {
    pub token: String,
    pub expires: Timestamp,
    /// The id of the key that signed it.
    pub key: String,
}

impl Minted {
    /// When it was made, to the second.
    pub fn issued(&self) -> Timestamp {
        self.expires.checked_sub(LIFETIME).unwrap_or(Timestamp::MIN)
    }

    pub(super) fn left(&self, now: Timestamp) -> Duration {
        Duration::try_from(self.expires.duration_since(now)).unwrap_or_default()
    }
}

impl std::fmt::Debug for Minted {
    /// Without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Minted")
            .field("expires", &self.expires)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// A token whose signature, issuer and times are good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    pub claims: Claims,
    /// The id of the key that signed it.
    pub key: String,
    /// From here on it is no longer taken: when it expires, and the leeway.
    pub not_after: Timestamp,
}

impl std::fmt::Debug for Issuer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issuer")
            .field("name", &self.name)
            .field("keys", &self.key_ids())
            .finish_non_exhaustive()
    }
}

impl Issuer {
    /// The issuer of this name, with the keys of these files; one is made where there is none.
    pub fn load(name: &str, files: KeyFiles) -> Result<Issuer, SigningKeyError> {
        if !name.is_empty() {
            files.ensure()?;
        }
        Issuer::open(name, files)
    }

    /// The same, with keys that are there. For processes that others do not take keys from: one that was made here
    /// would sign tokens that nobody takes.
    pub fn open(name: &str, files: KeyFiles) -> Result<Issuer, SigningKeyError> {
        if name.is_empty() {
            return Err(SigningKeyError::NoIssuer);
        }
        let found = files.read()?;
        let keys = KeySet(found.keys()?);
        let seen = Seen { found: Some(found), looked: std::time::Instant::now() };
        Ok(Issuer {
            name: name.to_owned(),
            files: Some(files),
            keys: ArcSwap::from_pointee(keys),
            seen: Mutex::new(seen),
        })
    }

    /// An issuer whose key is gone with the value: for tests and simulations.
    pub fn ephemeral(name: &str) -> Result<Issuer, SigningKeyError> {
        let keys = KeySet(vec![Placed { key: Key::generate()?, since: SystemTime::UNIX_EPOCH }]);
        let seen = Seen { found: None, looked: std::time::Instant::now() };
        Ok(Issuer {
            name: name.to_owned(),
            files: None,
            keys: ArcSwap::from_pointee(keys),
            seen: Mutex::new(seen),
        })
    }

    /// What the claim `iss` says.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Looks at the files. `true`: they had changed and their keys are in use now. On an error the previous
    /// keys are.
    pub fn reload(&self) -> Result<bool, SigningKeyError> {
        let Some(files) = &self.files else { return Ok(false) };
        let mut seen = self.seen.lock();
        seen.looked = std::time::Instant::now();
        let found = files.read()?;
        if seen.found.as_ref() == Some(&found) {
            return Ok(false);
        }
        self.keys.store(Arc::new(KeySet(found.keys()?)));
        seen.found = Some(found);
        Ok(true)
    }

    /// Ids of the keys that verify, the oldest first.
    pub fn key_ids(&self) -> Vec<String> {
        self.keys.load().0.iter().map(|placed| placed.key.id.clone()).collect()
    }

    /// Whether what this key signed is taken.
    pub fn holds(&self, key: &str) -> bool {
        self.keys.load().find(key).is_some()
    }

    /// A token for an Application. An empty audience is [`VAULT_AUDIENCE`].
    pub fn mint(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
        audience: &str,
        now: Timestamp,
    ) -> Result<Minted, SigningKeyError> {
        let keys = self.keys.load();
        let key = keys.signing(SystemTime::from(now)).ok_or(SigningKeyError::Random)?;
        let audience = if audience.is_empty() { VAULT_AUDIENCE } else { audience };
        let now = now.as_second();
        let exp = now.saturating_add(i64::try_from(LIFETIME.as_secs()).unwrap_or(0));
        let claims = Claims {
            iss: self.name.clone(),
            sub: format!("system:serviceaccount:{namespace}:{name}"),
            aud: vec![audience.to_owned()],
            exp,
            nbf: now,
            iat: now,
            kubernetes: Kubernetes {
                namespace: namespace.to_owned(),
                serviceaccount: ServiceAccount { name: name.to_owned(), uid: uid.to_owned() },
            },
        };
        let header = Header { alg: ALGORITHM.into(), typ: "JWT".into(), kid: key.id.as_str().into() };
        let mut token = part(&header);
        token.push('.');
        token.push_str(&part(&claims));
        let signature = key.sign(token.as_bytes())?;
        token.push('.');
        URL_SAFE_NO_PAD.encode_string(signature, &mut token);
        let expires = Timestamp::from_second(exp).unwrap_or(Timestamp::MAX);
        Ok(Minted { token, expires, key: key.id.clone() })
    }

    /// Judges a token, whoever it is meant for.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Verified, TokenError> {
        if token.len() > TOKEN_LIMIT {
            return Err(TokenError::Malformed);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(TokenError::Malformed)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed);
        let header = decode(header)?;
        let header: Header<'_> = serde_json::from_slice(&header).map_err(|_| TokenError::Malformed)?;
        if header.alg != ALGORITHM {
            return Err(TokenError::Malformed);
        }
        let mut keys = self.keys.load_full();
        if keys.find(&header.kid).is_none() {
            // A key that another process signs with already and this one is about to read.
            self.look_again();
            keys = self.keys.load_full();
        }
        let key = keys.find(&header.kid).ok_or(TokenError::UnknownKey)?;
        let (signature, claims) = (decode(signature)?, decode(claims)?);
        if !key.verifies(signed.as_bytes(), &signature) {
            return Err(TokenError::Signature);
        }
        let claims: Claims = serde_json::from_slice(&claims).map_err(|_| TokenError::Malformed)?;
        if claims.iss != self.name {
            return Err(TokenError::Issuer);
        }
        let leeway = i64::try_from(LEEWAY.as_secs()).unwrap_or(0);
        let last = claims.exp.saturating_add(leeway);
        if now.as_second().saturating_add(leeway) < claims.nbf {
            return Err(TokenError::NotYet);
        }
        if now.as_second() > last {
            return Err(TokenError::Expired);
        }
        let not_after = Timestamp::from_second(last).unwrap_or(Timestamp::MAX);
        Ok(Verified { claims, key: key.id.clone(), not_after })
    }

    /// The workload that a token proves to be, to this API.
    pub fn identify(&self, token: &str, now: Timestamp) -> Result<Identity, TokenError> {
        let verified = self.verify(token, now)?;
        if !verified.claims.aud.iter().any(|audience| audience == API_AUDIENCE) {
            return Err(TokenError::Audience);
        }
        Identity::of_workload(&verified).ok_or(TokenError::Nobody)
    }

    /// The public keys, as a JSON Web Key Set.
    pub fn jwks(&self) -> Value {
        let keys: Vec<Value> = self.keys.load().0.iter().map(|placed| placed.key.jwk()).collect();
        json!({"keys": keys})
    }

    /// The OpenID configuration; `None` where the issuer's name is no address at which it could be asked for.
    pub fn configuration(&self) -> Option<Value> {
        self.is_address().then(|| {
            json!({
                "issuer": self.name,
                "jwks_uri": format!("{}{KEYS_PATH}", self.name.trim_end_matches('/')),
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": [ALGORITHM],
            })
        })
    }

    /// Whether the issuer's name is a URL.
    pub fn is_address(&self) -> bool {
        let rest = self.name.strip_prefix("https://").or_else(|| self.name.strip_prefix("http://"));
        rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'))
    }

    fn look_again(&self) {
        if self.seen.lock().looked.elapsed() >= LOOK_AGAIN
            && let Err(error) = self.reload()
        {
            tracing::debug!(%error, "the signing keys could not be read again");
        }
    }
}

impl KeySet {
    fn find(&self, id: &str) -> Option<&Key> {
        self.0.iter().map(|placed| &placed.key).find(|key| key.id == id)
    }

    fn signing(&self, now: SystemTime) -> Option<&Key> {
        signing(&self.0, now).and_then(|at| self.0.get(at)).map(|placed| &placed.key)
    }
}

fn part(value: &impl serde::Serialize) -> String {
    // Maps with text keys and numbers: there is nothing in them that could not be written.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(value).unwrap_or_default())
}

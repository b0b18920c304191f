//! Tokens that were made and still have time left.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{Issuer, LIFETIME, Minted, RENEW_BELOW, SigningKeyError};

/// Whom a token is for. A recreated Application has another uid, and one that moved another node: neither is
/// given a token that its predecessor's host may still hold.
#[derive(Clone, Copy, Debug)]
pub struct Recipient<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    /// Uid of the Application.
    pub uid: &'a str,
    /// The node that the token is sent to.
    pub node: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CacheKey {
    namespace: String,
    name: String,
    uid: String,
    node: String,
    audience: String,
}

impl CacheKey {
    fn new(recipient: &Recipient<'_>, audience: &str) -> CacheKey {
        CacheKey {
            namespace: recipient.namespace.to_owned(),
            name: recipient.name.to_owned(),
            uid: recipient.uid.to_owned(),
            node: recipient.node.to_owned(),
            audience: audience.to_owned(),
        }
    }
}

/// Hands out the same token until it should be renewed, so that what contains it stays the same.
#[derive(Debug)]
pub struct TokenCache {
    issuer: Arc<Issuer>,
    tokens: Mutex<Tokens>,
}

#[derive(Debug, Default)]
struct Tokens {
    by_key: HashMap<CacheKey, Minted>,
    /// At this size the expired ones are thrown out.
    sweep_at: usize,
}

/// The cache is not swept below this size.
const SMALLEST_SWEEP: usize = 256;

impl TokenCache {
    pub fn new(issuer: Arc<Issuer>) -> TokenCache {
        TokenCache { issuer, tokens: Mutex::default() }
    }

    /// A token that is valid for at least [`RENEW_BELOW`] from `now` on, and signed with a key that still
    /// verifies. An empty audience is [`super::VAULT_AUDIENCE`].
    pub fn token(
        &self,
        recipient: &Recipient<'_>,
        audience: &str,
        now: Timestamp,
    ) -> Result<Minted, SigningKeyError> {
        self.token_since(recipient, audience, now, Timestamp::MIN)
    }

    /// As [`TokenCache::token`], and not made before `since`, to the second.
    pub fn token_since(
        &self,
        recipient: &Recipient<'_>,
        audience: &str,
        now: Timestamp,
        since: Timestamp,
    ) -> Result<Minted, SigningKeyError> {
        let key = CacheKey::new(recipient, audience);
        let mut tokens = self.tokens.lock();
        if let Some(known) = tokens.by_key.get(&key)
            && known.left(now) > RENEW_BELOW
            // A clock that was put back would keep one that nobody takes yet.
            && known.left(now) <= LIFETIME
            && known.issued().as_second() >= since.as_second()
            && self.issuer.holds(&known.key)
        {
            return Ok(known.clone());
        }
        let minted = self.issuer.mint(recipient.namespace, recipient.name, recipient.uid, audience, now)?;
        if tokens.by_key.len() >= tokens.sweep_at.max(SMALLEST_SWEEP) {
            tokens.by_key.retain(|_, token| !token.left(now).is_zero());
            tokens.sweep_at = tokens.by_key.len() * 2;
        }
        tokens.by_key.insert(key, minted.clone());
        Ok(minted)
    }

    /// A token that was made before and that is taken still, however little time it has left: for when none can be
    /// made.
    pub fn last(&self, recipient: &Recipient<'_>, audience: &str, now: Timestamp) -> Option<Minted> {
        let known = self.tokens.lock().by_key.get(&CacheKey::new(recipient, audience)).cloned()?;
        (!known.left(now).is_zero() && self.issuer.holds(&known.key)).then_some(known)
    }

    /// How many tokens are kept.
    pub fn len(&self) -> usize {
        self.tokens.lock().by_key.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

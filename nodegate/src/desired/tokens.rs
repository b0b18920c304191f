//! Tokens for the Applications of a node.
//!
//! A token is made when a push needs it and handed out again until it should be renewed, so that a push that differs in
//! nothing else stays the same. All tokens of a node are renewed together, by a timer of its session: one push every
//! nine to ten minutes and not one for each of them. A token that cannot be made is left out, and the others are sent;
//! where there is an older one that is still good, that one goes on.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use horchestra_auth::tokens::{Minted, Recipient, SigningKeyError, TokenCache};
use horchestra_core::kind::Kind;
use horchestra_core::object::{self, Object};
use horchestra_proto::node::v1::WorkloadToken;
use jiff::Timestamp;
use rand::Rng;
use serde_json::{Map, json};
use tokio::time::Instant;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::opened::wipe;
use super::rewrite::token_secret;
use super::secrets::WantedToken;

/// Annotation of a Node with which an operator says how it is sent token volumes: `token` as they are, `secret` as
/// volumes of Secrets.
pub const TOKEN_VOLUMES: &str = "horchestra.io/token-volumes";

/// What an operator says in [`TOKEN_VOLUMES`]; `None`: nothing that would be understood.
pub fn as_secrets(said: &str) -> Option<bool> {
    match said {
        "token" => Some(false),
        "secret" => Some(true),
        _ => None,
    }
}

/// What makes two tokens differ for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSignature {
    uid: Uuid,
    audience: String,
    digest: u64,
}

/// The tokens of one push.
#[derive(Default)]
pub struct Issued {
    pub tokens: Vec<(WantedToken, Minted)>,
    /// Tokens that could not be made.
    pub failed: usize,
}

impl Issued {
    /// Makes what is wanted. `make` makes one, `last` is the one from before.
    pub fn new(
        wanted: Vec<WantedToken>,
        make: impl Fn(&WantedToken) -> Result<Minted, SigningKeyError>,
        last: impl Fn(&WantedToken) -> Option<Minted>,
    ) -> Issued {
        let mut issued = Issued::default();
        for wanted in wanted {
            let made = make(&wanted).or_else(|error| {
                tracing::error!(namespace = wanted.namespace, name = wanted.name, audience = wanted.audience, %error,
                    "a token could not be made");
                issued.failed += 1;
                last(&wanted).ok_or(())
            });
            issued.tokens.extend(made.ok().map(|minted| (wanted, minted)));
        }
        issued
    }

    /// As [`Issued::new`], with tokens of a node that are not older than `since`.
    pub fn of(cache: &TokenCache, node: &str, wanted: Vec<WantedToken>, since: Timestamp) -> Issued {
        let now = Timestamp::now();
        Issued::new(
            wanted,
            |wanted| {
                let uid = wanted.uid.to_string();
                cache.token_since(&recipient(wanted, &uid, node), &wanted.audience, now, since)
            },
            |wanted| {
                let uid = wanted.uid.to_string();
                cache.last(&recipient(wanted, &uid, node), &wanted.audience, now)
            },
        )
    }

    pub fn signatures(&self) -> Vec<TokenSignature> {
        let signature = |(wanted, minted): &(WantedToken, Minted)| {
            let mut hasher = DefaultHasher::new();
            minted.token.hash(&mut hasher);
            TokenSignature { uid: wanted.uid, audience: wanted.audience.clone(), digest: hasher.finish() }
        };
        self.tokens.iter().map(signature).collect()
    }

    /// When the oldest was made.
    pub fn oldest(&self) -> Option<Timestamp> {
        self.tokens.iter().map(|(_, minted)| minted.issued()).min()
    }

    pub fn on_the_wire(&self) -> Vec<WorkloadToken> {
        let token = |(wanted, minted): &(WantedToken, Minted)| WorkloadToken {
            workload: wanted.uid.to_string(),
            token: minted.token.clone(),
            audience: wanted.audience.clone(),
        };
        self.tokens.iter().map(token).collect()
    }

    /// The Secrets that stand for these token volumes, with the files that such a volume has. `volumes` says which
    /// tokens are for one.
    pub fn as_secrets(&self, salt: Uuid, ca: &[u8], volumes: impl Fn(&WantedToken) -> bool) -> Vec<Bytes> {
        let mounted = self.tokens.iter().filter(|(wanted, _)| volumes(wanted));
        mounted.map(|(wanted, minted)| token_files(salt, ca, wanted, minted)).collect()
    }
}

fn recipient<'a>(wanted: &'a WantedToken, uid: &'a str, node: &'a str) -> Recipient<'a> {
    Recipient { namespace: &wanted.namespace, name: &wanted.name, uid, node }
}

fn token_files(salt: Uuid, ca: &[u8], wanted: &WantedToken, minted: &Minted) -> Bytes {
    let name = token_secret(salt, wanted.uid, &wanted.audience);
    let data = json!({
        "token": STANDARD.encode(&minted.token),
        "namespace": STANDARD.encode(&wanted.namespace),
        "ca.crt": STANDARD.encode(ca),
    });
    let mut object = Object(Map::from_iter([
        ("metadata".to_owned(), json!({"namespace": wanted.namespace, "name": name})),
        ("type".to_owned(), "Opaque".into()),
        ("data".to_owned(), data),
    ]));
    let bytes = object::encode(Kind::Secret, &object);
    object.0.values_mut().for_each(wipe);
    Bytes::from_owner(Zeroizing::new(Vec::from(bytes)))
}

/// When the tokens of a node are to be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    oldest: Timestamp,
    pub at: Instant,
}

impl Renewal {
    /// Not before this time has passed.
    pub fn put_off(self, by: Duration) -> Renewal {
        Renewal { at: Instant::now() + by, ..self }
    }

    /// After a push whose oldest token was made at `oldest`. `after` says how old it may get, from and to.
    pub fn next(
        before: Option<Renewal>,
        oldest: Option<Timestamp>,
        (from, to): (Duration, Duration),
    ) -> Option<Renewal> {
        let oldest = oldest?;
        let drawn = rand::rng().random_range(from..=to.max(from));
        let now = Instant::now();
        match before {
            Some(before) if before.oldest == oldest && before.at > now => Some(before),
            _ => {
                let age = Duration::try_from(Timestamp::now().duration_since(oldest)).unwrap_or_default();
                Some(Renewal { oldest, at: now + drawn.saturating_sub(age) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: &str) -> WantedToken {
        WantedToken {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: Uuid::from_u128(name.len() as u128),
            audience: "vault".to_owned(),
        }
    }

    fn minted(token: &str) -> Minted {
        Minted { token: token.to_owned(), expires: Timestamp::now(), key: "k".to_owned() }
    }

    #[test]
    fn one_token_that_cannot_be_made_spares_the_others() {
        let make = |wanted: &WantedToken| match wanted.name.as_str() {
            "a" => Ok(minted("new")),
            _ => Err(SigningKeyError::Random),
        };
        let last = |wanted: &WantedToken| (wanted.name == "bb").then(|| minted("old"));
        let issued = Issued::new(["a", "bb", "ccc"].map(wanted).into(), make, last);
        let got: Vec<(&str, &str)> = issued
            .tokens
            .iter()
            .map(|(wanted, minted)| (wanted.name.as_str(), minted.token.as_str()))
            .collect();
        assert_eq!(got, [("a", "new"), ("bb", "old")], "what was good goes on");
        assert_eq!((issued.failed, issued.on_the_wire().len(), issued.signatures().len()), (2, 2, 2));
    }

    #[test]
    fn a_token_that_was_made_anew_is_another() {
        let signatures =
            |token: &str| Issued { tokens: vec![(wanted("a"), minted(token))], failed: 0 }.signatures();
        assert_eq!(signatures("x"), signatures("x"));
        assert_ne!(signatures("x"), signatures("y"));
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_renewed_before_they_are_too_old() {
        let seconds = Duration::from_secs;
        let ages = (seconds(540), seconds(600));
        let now = Timestamp::now();
        let old = |age: Duration| now.checked_sub(age).unwrap();
        assert_eq!(Renewal::next(None, None, ages), None, "there are none");
        for (age, from, to) in [(0, 539, 600), (100, 439, 500), (590, 0, 10), (900, 0, 0)] {
            let renewal = Renewal::next(None, Some(old(seconds(age))), ages).unwrap();
            let left = renewal.at - Instant::now();
            assert!(left >= seconds(from) && left <= seconds(to), "{age}: {left:?}");
        }
        let first = Renewal::next(None, Some(now), ages).unwrap();
        assert_eq!(
            Renewal::next(Some(first), Some(now), ages),
            Some(first),
            "other pushes leave it as it is"
        );
        let put_off = first.put_off(seconds(30));
        assert_eq!(
            Renewal::next(Some(put_off), Some(now), ages),
            Some(put_off),
            "it failed, and is tried again"
        );
    }
}

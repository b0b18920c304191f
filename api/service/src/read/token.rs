//! Continue tokens: where a listing stopped and which moment it is of.
//!
//! Opaque to clients, but neither secret nor trusted: everything in a token is checked like any other
//! parameter, and a forged one can ask for nothing that a plain list could not. Tokens are good on every
//! replica, since the log can rebuild the moment anywhere, and end with their listing's time.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use horchestra_core::kind::Kind;
use horchestra_core::status::Status;
use horchestra_store::Revision;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Where to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Token {
    /// The revision that the listing is of; -1: whatever is current (after a 410).
    pub rev: Revision,
    /// Number of the kind.
    pub kind: i16,
    /// The last object that was listed.
    pub ns: String,
    pub name: String,
    /// When the listing began, in milliseconds since the epoch.
    pub start: i64,
}

/// [`Token::rev`] of a listing that goes on with the current state.
pub(super) const CURRENT: Revision = -1;

impl Token {
    pub fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("plain data"))
    }

    pub fn decode(text: &str, kind: Kind) -> Result<Token, Status> {
        let bad = || Status::bad_request("continue key is not valid");
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| bad())?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        if token.kind != kind.number() || token.rev < CURRENT || token.rev == 0 {
            return Err(bad());
        }
        Ok(token)
    }

    /// Whether the listing that began then has had its time.
    pub fn is_over(&self, ttl: Duration) -> bool {
        let age = Timestamp::now().as_millisecond().saturating_sub(self.start);
        self.rev != CURRENT && u128::try_from(age).is_ok_and(|age| age > ttl.as_millis())
    }
}

pub(super) fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_and_strangers_do_not() {
        let token = Token {
            rev: 7,
            kind: Kind::Node.number(),
            ns: String::new(),
            name: "ä".to_owned(),
            start: now_ms(),
        };
        assert_eq!(Token::decode(&token.encode(), Kind::Node).unwrap(), token);
        assert!(Token::decode(&token.encode(), Kind::Namespace).is_err(), "of another kind");
        for text in ["", "%%", "bm9wZQ", "e30"] {
            assert_eq!(Token::decode(text, Kind::Node).unwrap_err().code(), 400, "{text:?}");
        }
        let zero = Token { rev: 0, ..token.clone() };
        assert!(Token::decode(&zero.encode(), Kind::Node).is_err());
        let ttl = Duration::from_secs(900);
        assert!(!token.is_over(ttl));
        assert!(Token { start: now_ms() - 901_000, ..token.clone() }.is_over(ttl));
        assert!(!Token { start: 0, rev: CURRENT, ..token }.is_over(ttl));
    }
}

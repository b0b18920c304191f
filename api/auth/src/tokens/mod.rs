//! Tokens that workloads prove themselves with.
//!
//! An [`Issuer`] signs, for one Application and one audience, a JWT (ES256) that says so for fifteen minutes.
//! Whoever is shown one can ask for a TokenReview, or check the signature with the keys that the API publishes.
//! A token for the audience [`API_AUDIENCE`] is a credential of this API.
//!
//! What this guarantees:
//!
//! - Every process that reads the same keys makes and takes the same tokens; nothing is stored and no process
//!   asks another. Keys can be added and taken away while all of them run (see [`KeyFiles`]).
//! - A token is taken only with the algorithm, a key and the issuer's name that are ours. The header of a
//!   token chooses among our keys and nothing else.
//! - The clocks of the makers and takers may differ by a minute ([`LEEWAY`]).
//!
//! What it does not: it never looks at stored objects. A token outlives its Application until it expires, and
//! there is no list of revoked ones. Taking a key away ends every token that was signed with it at once.
//!
//! Refused: a JWT library, which would bring a choice of algorithms of which all but one are a danger here; and
//! keys in the database, where a reader of a dump could make tokens.

mod cache;
mod claims;
mod files;
mod issuer;
mod key;
mod review;

use std::path::PathBuf;
use std::time::Duration;

pub use cache::{Recipient, TokenCache};
pub use claims::{Claims, Kubernetes, ServiceAccount};
pub use files::{KeyFiles, Listed, Signs};
pub use issuer::{Issuer, Minted, Verified};
pub use review::{TokenReviewSpec, review};

/// Who issues, where nobody says otherwise.
pub const DEFAULT_ISSUER: &str = "horchestra";
/// The audience of tokens that are meant for this API.
pub const API_AUDIENCE: &str = "horchestra";
/// The audience of tokens that are meant for Vault, and of those whose audience nobody named.
pub const VAULT_AUDIENCE: &str = "vault";

/// How long a token is valid.
pub const LIFETIME: Duration = Duration::from_secs(15 * 60);
/// A token with no more than this left is replaced.
pub const RENEW_BELOW: Duration = Duration::from_secs(5 * 60);
/// How far clocks may be apart.
pub const LEEWAY: Duration = Duration::from_secs(60);

/// Why a token proves nothing. The texts go to whoever showed it and hold nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("it is not a token that this issuer makes")]
    Malformed,
    #[error("the key that the token is signed with is not known here")]
    UnknownKey,
    #[error("the signature of the token is wrong")]
    Signature,
    #[error("the token is of another issuer")]
    Issuer,
    #[error("the token is not valid yet; check the clocks")]
    NotYet,
    #[error("the token has expired; read it again from its file, where it is renewed")]
    Expired,
    #[error("the token is meant for somebody else: its audience is not \"{API_AUDIENCE}\"")]
    Audience,
    #[error("the token names no workload")]
    Nobody,
}

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SigningKeyError {
    #[error("cannot {doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "{} can be read or changed by others (mode {mode:04o}): make it 0600, and replace the key if somebody \
         may have read it",
        path.display()
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{} is neither a file nor a folder", path.display())]
    NotAFile { path: PathBuf },
    #[error(
        "{} holds no key in PEM with a block EC PRIVATE KEY: make a folder with one by `horchestra-api token-keys \
         new`, or name a file that does not exist and one is made",
        path.display()
    )]
    NotPem { path: PathBuf },
    #[error(
        "the key in {} is in PKCS #8 (PRIVATE KEY), but SEC1 (EC PRIVATE KEY) is needed: convert it with \
         `openssl ec -in OLD -out NEW`",
        path.display()
    )]
    Pkcs8 { path: PathBuf },
    #[error(
        "the key in {} is not one on the curve P-256: make one with `horchestra-api token-keys`",
        path.display()
    )]
    Curve { path: PathBuf },
    #[error("the folder {} holds no key: the names of key files end in .pem", path.display())]
    Empty { path: PathBuf },
    #[error(
        "the folder {} holds keys already: `horchestra-api token-keys add` makes another one in it",
        path.display()
    )]
    Begun { path: PathBuf },
    #[error(
        "a new key in {} would be called {name}, come before {} and never sign: give that one a name that begins \
         with a date, wherever the folder is",
        path.display(), last.display()
    )]
    NeverLast { path: PathBuf, name: String, last: PathBuf },
    #[error("the issuer's name must not be empty")]
    NoIssuer,
    #[error("the random source or the key generator failed")]
    Random,
}

//! Who the caller is and what it may do.
//!
//! An [`Identity`] comes from a client certificate that the TLS layer has verified, or from a token that a
//! workload was given; what is asked is a set of [`Attributes`]; the [`Authorizer`] puts the two together, by
//! what is built in and by the rule objects ([`rbac`]). [`pki`] makes the certificates and [`tokens`] the
//! tokens; [`sealing`] keeps the contents of Secrets from everybody who can only read the database.

pub mod attributes;
pub mod authorizer;
pub mod denied;
pub mod identity;
pub mod pki;
pub mod rbac;
pub mod sealing;
pub mod tokens;

pub use attributes::{Attributes, ResourceAttributes};
pub use authorizer::{Authorizer, Decision, VisibleNamespaces};
pub use denied::DenyList;
pub use identity::{Credential, Identity, IdentityError};
pub use sealing::{KeyRing, SecretKeys};

//! Identities, grants and certificates, as their users meet them.

mod grants;
mod identity;
mod pki;
mod plain;
mod rbac;
mod rbac_property;
mod requests;
mod sealing;
mod tokens;

use horchestra_auth::identity::AUTHENTICATED;
use horchestra_auth::{Credential, Identity};

/// Somebody with these groups, as a certificate would make them.
fn somebody(name: &str, groups: &[&str]) -> Identity {
    let mut groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
    groups.push(AUTHENTICATED.to_owned());
    let credential =
        Credential::Certificate { fingerprint: "00".repeat(32), not_after: jiff::Timestamp::MAX };
    Identity { name: name.to_owned(), groups, credential }
}

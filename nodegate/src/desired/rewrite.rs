//! Where the copy of an Application that is sent has to say something else than the stored object.
//!
//! **Secrets that do not open.** An agent that lacks a Secret leaves an Application that needs it as it is: what runs
//! goes on, what does not run is not started. But it takes an optional one that is missing for one that does not exist,
//! and then restarts the workload without the variable, or empties the folder. So where a Secret exists and cannot be
//! opened, every reference to it is sent as one that is needed. The rest of the node is served as ever.
//!
//! **Token volumes for agents that cannot mount them.** Agents of the first line know the type and fail on it. Such a
//! node is sent a volume of a Secret instead, and that Secret along with it, with the same files. Its name is made from
//! a number that is drawn once per node and that nobody is shown: otherwise another Application of the namespace could
//! name it and be given the token.

use std::collections::BTreeSet;

use bytes::Bytes;
use horchestra_core::kinds::application::DEFAULT_AUDIENCE;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::form::Form;

/// What is to be said differently.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rewrite<'a> {
    /// Names of Secrets that count as needed.
    pub needed: Option<&'a BTreeSet<String>>,
    /// Token volumes are sent as volumes of Secrets, whose names are made from this.
    pub tokens_as_secrets: Option<Uuid>,
}

/// Name of the Secret that stands for a token volume.
pub fn token_secret(salt: Uuid, application: Uuid, audience: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(salt.as_bytes());
    digest.update(application.as_bytes());
    digest.update(audience.as_bytes());
    let name: String = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("horchestra-token-{name}")
}

/// The bytes of an Application for the wire.
pub fn wire(form: &Form, rewrite: Rewrite<'_>) -> Bytes {
    let needed = rewrite.needed.filter(|needed| form.uses.secrets.iter().any(|name| needed.contains(name)));
    let salt = rewrite.tokens_as_secrets.filter(|_| !form.uses.audiences.is_empty());
    if needed.is_none() && salt.is_none() {
        return form.bytes();
    }
    // What was just encoded decodes.
    let Ok(mut object) = serde_json::from_slice::<Map<String, Value>>(&form.bytes()) else {
        return form.bytes();
    };
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        if let Some(needed) = needed {
            need(spec, needed);
        }
        if let Some(salt) = salt {
            let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten();
            for volume in volumes.filter_map(|mount| mount.get_mut("volume")) {
                if volume["type"] == "token" {
                    let named = volume["audience"].as_str().filter(|audience| !audience.is_empty());
                    let audience = named.unwrap_or(DEFAULT_AUDIENCE);
                    *volume =
                        json!({"type": "secret", "name": token_secret(salt, form.signature.uid, audience)});
                }
            }
        }
    }
    Bytes::from(Value::Object(object).to_string())
}

/// Every reference to one of these is one that is needed.
fn need(spec: &mut Map<String, Value>, names: &BTreeSet<String>) {
    let is_one = |reference: &Value| reference["name"].as_str().is_some_and(|name| names.contains(name));
    for (list, member) in [("volumes", "volume"), ("env", "secretRef")] {
        let entries = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for reference in entries.filter_map(|entry| entry.get_mut(member)) {
            let of_secret = member == "secretRef" || reference["type"] == "secret";
            if of_secret
                && is_one(reference)
                && let Some(reference) = reference.as_object_mut()
            {
                reference.remove("optional");
            }
        }
    }
}

//! Names of requests: the audit id that log lines, answers and the change log share.

use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};
use uuid::{Builder, Uuid};

pub static AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// What a request is called.
#[derive(Clone, Debug)]
pub struct AuditId {
    /// As clients see it.
    pub text: HeaderValue,
    /// As the change log keeps it.
    pub id: Uuid,
}

impl AuditId {
    /// Takes the client's own `Audit-Id` when it is short and printable, else makes one. A text that is no
    /// UUID maps to one by its digest, so that it can still be found in the change log.
    pub fn of(headers: &HeaderMap) -> AuditId {
        let given = headers.get(&AUDIT_ID).filter(|value| {
            let bytes = value.as_bytes();
            (1..=64).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
        });
        if let Some(text) = given
            && let Ok(plain) = text.to_str()
        {
            let id = Uuid::try_parse(plain).unwrap_or_else(|_| {
                let digest: [u8; 32] = Sha256::digest(plain).into();
                let mut bytes = [0u8; 16];
                bytes.copy_from_slice(&digest[..16]);
                Builder::from_random_bytes(bytes).into_uuid()
            });
            return AuditId { text: text.clone(), id };
        }
        let id = Uuid::new_v4();
        let text = HeaderValue::from_str(&id.to_string()).unwrap_or_else(|_| HeaderValue::from_static("-"));
        AuditId { text, id }
    }

    pub fn as_str(&self) -> &str {
        self.text.to_str().unwrap_or("-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
        headers
    }

    #[test]
    fn audit_ids_are_taken_over_when_they_are_tame() {
        let of = |text: &str| AuditId::of(&named("audit-id", text));
        assert_eq!(of("abc").as_str(), "abc");
        assert_eq!(of("abc").id, of("abc").id);
        assert_ne!(of("abc").id, of("abd").id);
        let uuid = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        assert_eq!(of(uuid).id.to_string(), uuid);
        for wild in ["", "two words", &"x".repeat(65)] {
            let made = of(wild);
            assert_eq!(made.as_str(), made.id.to_string(), "{wild:?}");
        }
    }
}

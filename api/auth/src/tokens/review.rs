//! TokenReviews: others ask whether a token is good.

use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Issuer;

/// What is asked; other members of the body play no part.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct TokenReviewSpec {
    pub token: Option<String>,
    /// Whom the token should be meant for; none = anybody.
    pub audiences: Option<Vec<String>>,
}

/// The answer to a TokenReview.
pub fn review(issuer: &Issuer, asked: &TokenReviewSpec, now: Timestamp) -> Value {
    let status = match judge(issuer, asked, now) {
        Ok(status) => status,
        Err(why) => json!({"authenticated": false, "error": why}),
    };
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status})
}

fn judge(issuer: &Issuer, asked: &TokenReviewSpec, now: Timestamp) -> Result<Value, String> {
    let verified =
        issuer.verify(asked.token.as_deref().unwrap_or_default(), now).map_err(|error| error.to_string())?;
    let claims = verified.claims;
    let wanted = asked.audiences.as_deref().unwrap_or_default();
    let audiences: Vec<&String> =
        claims.aud.iter().filter(|audience| wanted.is_empty() || wanted.contains(audience)).collect();
    if audiences.is_empty() {
        return Err("the token is meant for none of the audiences that were asked for".to_owned());
    }
    let namespace = &claims.kubernetes.namespace;
    Ok(json!({
        "authenticated": true,
        "audiences": audiences,
        "user": {
            "username": claims.sub,
            "uid": claims.kubernetes.serviceaccount.uid,
            "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{namespace}")],
        },
    }))
}

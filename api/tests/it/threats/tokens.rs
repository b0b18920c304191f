//! Tokens that were put together, or meant for somebody else.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use horchestra_auth::tokens::Issuer;
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{CORE, Fleet, refused};
use crate::client::{Client, Reply};
use crate::stack::{Setup, Who};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const UID: &str = "6f1c3d6e-8f5e-4a61-9a55-0d5f0c1f4b11";

fn issuer() -> Arc<Issuer> {
    Arc::new(Issuer::ephemeral("horchestra").unwrap())
}

async fn fleet(issuer: &Arc<Issuer>) -> Fleet {
    Fleet::with(Setup { issuer: Some(Arc::clone(issuer)), ..Setup::default() }).await
}

fn token(issuer: &Issuer, namespace: &str, name: &str, audience: &str) -> String {
    issuer.mint(namespace, name, UID, audience, Timestamp::now()).unwrap().token
}

/// What this token is worth, in each place where one may stand.
async fn show(client: &Client, token: &str) -> [Reply; 2] {
    let bearer = format!("Bearer {token}");
    let path = format!("{CORE}/nodes");
    let with = async |header: (&str, &str)| client.send(Method::GET, &path, &[header], Bytes::new()).await;
    [with(("authorization", &bearer)).await, with(("x-consul-token", token)).await]
}

fn encoded(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn decoded(part: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

/// A signature as X.509 has it, of one as tokens have it.
fn as_der(signature: &[u8]) -> Vec<u8> {
    let number = |bytes: &[u8]| {
        let from = bytes.iter().position(|byte| *byte != 0).unwrap();
        let mut digits = bytes[from..].to_vec();
        if digits[0] >= 0x80 {
            digits.insert(0, 0);
        }
        [&[2, u8::try_from(digits.len()).unwrap()][..], &digits].concat()
    };
    let numbers = [number(&signature[..32]), number(&signature[32..])].concat();
    [&[0x30, u8::try_from(numbers.len()).unwrap()][..], &numbers].concat()
}

#[tokio::test]
async fn a_token_that_was_put_together_is_nobodys() {
    let ours = issuer();
    let fleet = fleet(&ours).await;
    let stranger = fleet.client(Who::Anonymous).await;
    let good = token(&ours, "team-a", "edge", "horchestra");
    for reply in show(&stranger, &good).await {
        refused(&reply, "User \"system:workload:team-a:edge\" cannot list");
    }
    let other = token(&ours, "team-b", "db", "horchestra");
    let foreign = token(&issuer(), "team-a", "edge", "horchestra");
    let parts = |token: &str| -> [String; 3] {
        token.split('.').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap()
    };
    let [header, claims, signature] = parts(&good);
    let [_, other_claims, other_signature] = parts(&other);
    let [foreign_header, _, foreign_signature] = parts(&foreign);
    let raw = URL_SAFE_NO_PAD.decode(&signature).unwrap();
    let with_header = |change: Value| {
        let mut changed = decoded(&header);
        changed.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        format!("{}.{claims}.{signature}", encoded(&changed))
    };
    let with_claims = |change: Value| {
        let mut changed = decoded(&claims);
        changed.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        format!("{header}.{}.{signature}", encoded(&changed))
    };
    let none = encoded(&json!({"alg": "none", "typ": "JWT"}));
    let mut forged = vec![
        ("another token's signature", format!("{header}.{claims}.{other_signature}")),
        ("another token's claims", format!("{header}.{other_claims}.{signature}")),
        ("a foreign issuer's", foreign.clone()),
        ("a foreign signature under our key's id", format!("{header}.{claims}.{foreign_signature}")),
        ("our signature under a foreign key's id", format!("{foreign_header}.{claims}.{signature}")),
        ("no algorithm and no signature", format!("{none}.{claims}.")),
        ("no algorithm", format!("{none}.{claims}.{signature}")),
        ("our header and no signature", format!("{header}.{claims}.")),
        ("no header", format!(".{claims}.{signature}")),
        ("no key's id", with_header(json!({"kid": null}))),
        ("an empty key's id", with_header(json!({"kid": ""}))),
        ("a path for a key's id", with_header(json!({"kid": "../../dev/null"}))),
        ("a key of its own", with_header(json!({"jwk": ours.jwks()["keys"][0], "jku": "https://x"}))),
        ("another namespace", with_claims(json!({"kubernetes.io": {"namespace": "team-b"}}))),
        ("a longer life", with_claims(json!({"exp": 4_000_000_000_i64}))),
        ("another audience", with_claims(json!({"aud": ["horchestra", "vault"]}))),
        ("a signature in DER", format!("{header}.{claims}.{}", URL_SAFE_NO_PAD.encode(as_der(&raw)))),
        ("half a signature", format!("{header}.{claims}.{}", URL_SAFE_NO_PAD.encode(&raw[..32]))),
        ("zeros", format!("{header}.{claims}.{}", URL_SAFE_NO_PAD.encode([0; 64]))),
        ("a part too many", format!("{good}.{signature}")),
        ("a part too few", format!("{header}.{claims}")),
        ("padding", format!("{good}==")),
        ("a space", format!("{good} x")),
    ];
    for algorithm in ["HS256", "RS256", "PS256", "ES384", "ES512", "EdDSA", "es256", "ES256K", ""] {
        forged.push(("another algorithm", with_header(json!({"alg": algorithm}))));
    }
    for (what, token) in forged {
        for reply in show(&stranger, &token).await {
            assert_eq!(
                (reply.status, reply.reason().as_str()),
                (401, "Unauthorized"),
                "{what}: {token}: {reply:?}"
            );
            assert!(!reply.text().contains(&signature), "{what}: a token is not repeated");
        }
    }
}

#[tokio::test]
async fn a_token_for_somebody_else_is_nobodys_here() {
    let ours = issuer();
    let fleet = fleet(&ours).await;
    let stranger = fleet.client(Who::Anonymous).await;
    for audience in ["vault", "Horchestra", "horchestra ", "https://horchestra", "*", ""] {
        let token = token(&ours, "team-a", "edge", audience);
        for reply in show(&stranger, &token).await {
            assert_eq!(reply.status, 401, "{audience:?}: {reply:?}");
            assert!(reply.message().contains("audience"), "{audience:?}: {}", reply.message());
        }
        for path in ["/version", "/apis", "/api/v1/pods", "/nonsense"] {
            let headers = [("x-consul-token", token.as_str())];
            let reply = stranger.send(Method::GET, path, &headers, Bytes::new()).await;
            assert_eq!(reply.status, 401, "{audience:?} {path}");
        }
    }
}

#[tokio::test]
async fn a_token_for_this_api_does_not_pass_for_vaults() {
    let ours = issuer();
    let fleet = fleet(&ours).await;
    let stranger = fleet.client(Who::Anonymous).await;
    let vault = token(&ours, "ops", "vault", "vault");
    let review = async |token: &str, audiences: Value| {
        let headers = [("authorization", vault.as_str()), ("content-type", "application/json")];
        let body = json!({"spec": {"token": token, "audiences": audiences}}).to_string();
        let reply = stranger.send(Method::POST, REVIEWS, &headers, body).await;
        reply.json_of(201).unwrap()["status"].clone()
    };
    let for_api = token(&ours, "team-a", "edge", "horchestra");
    for audiences in [json!(["vault"]), json!(["vault", "other"]), json!(["Horchestra"])] {
        let status = review(&for_api, audiences.clone()).await;
        assert_eq!(status["authenticated"], false, "{audiences}: {status}");
        assert!(status["error"].is_string() && status["user"].is_null(), "{audiences}: {status}");
    }
    let user = "system:serviceaccount:team-a:edge";
    for (token, audiences, bound) in [
        (&for_api, json!(["horchestra", "vault"]), json!(["horchestra"])),
        (&token(&ours, "team-a", "edge", "vault"), json!(["vault"]), json!(["vault"])),
    ] {
        let status = review(token, audiences).await;
        assert_eq!((&status["authenticated"], &status["audiences"]), (&json!(true), &bound), "{status}");
        assert_eq!(status["user"]["username"], user);
    }
    // Nor does another issuer's, whatever it says of itself.
    let foreign = token(&issuer(), "team-a", "edge", "vault");
    assert_eq!(review(&foreign, json!(["vault"])).await["authenticated"], false);
}

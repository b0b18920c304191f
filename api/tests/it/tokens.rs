//! Workloads that prove themselves with tokens, over real connections: who is believed, and TokenReviews.

use std::sync::Arc;

use bytes::Bytes;
use horchestra_auth::tokens::Issuer;
use horchestra_runtime::tls::{KeyPairFiles, ReloadingClient};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::client::{BOTH, Client, Protocol, Reply};
use crate::stack::{Setup, Stack, Who};

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const KEYS: &str = "/openid/v1/jwks";
const CONFIGURATION: &str = "/.well-known/openid-configuration";
/// What nobody but an operator may read.
const NODES: &str = "/apis/horchestra.io/v1/nodes";
const UID: &str = "6f1c3d6e-8f5e-4a61-9a55-0d5f0c1f4b11";

fn issuer(name: &str) -> Arc<Issuer> {
    Arc::new(Issuer::ephemeral(name).unwrap())
}

async fn with_issuer(issuer: &Arc<Issuer>) -> Stack {
    Stack::with(Setup { issuer: Some(Arc::clone(issuer)), ..Setup::default() }).await
}

/// A token of team-a/edge; it ends after this many seconds, the leeway not counted.
fn token(issuer: &Issuer, audience: &str, seconds: i64) -> String {
    let at = Timestamp::now() + SignedDuration::from_secs(seconds - 900);
    issuer.mint("team-a", "edge", UID, audience, at).unwrap().token
}

async fn get(client: &Client, path: &str, headers: &[(&str, &str)]) -> Reply {
    client.send(Method::GET, path, headers, Bytes::new()).await
}

async fn ask(client: &Client, headers: &[(&str, &str)], body: &Value) -> Reply {
    client.send(Method::POST, REVIEWS, headers, body.to_string()).await
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[tokio::test]
async fn a_token_is_a_workload_wherever_it_stands() {
    let issuer = issuer("horchestra");
    let stack = with_issuer(&issuer).await;
    let good = token(&issuer, "horchestra", 900);
    let (in_bearer, for_vault) = (bearer(&good), bearer(&token(&issuer, "vault", 900)));
    let (expired, just_expired) =
        (bearer(&token(&issuer, "horchestra", -61)), bearer(&token(&issuer, "horchestra", -30)));
    let foreign = bearer(&token(&self::issuer("horchestra"), "horchestra", 900));
    let lower = format!("bearer {good}");
    let workload = "system:workload:team-a:edge";
    // Headers, and the name that answers, if any.
    type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
    let cases: &[Case<'_>] = &[
        (&[], None),
        (&[("authorization", "Bearer whatever")], None),
        (&[("authorization", &in_bearer)], Some(workload)),
        (&[("x-consul-token", &good)], Some(workload)),
        (&[("x-consul-token", "00000000-0000-0000-0000-000000000001")], None),
        (&[("authorization", &in_bearer), ("x-consul-token", "bad")], Some(workload)),
        (&[("authorization", "Bearer bad"), ("x-consul-token", &good)], None),
        (&[("authorization", "Basic YTpi"), ("x-consul-token", &good)], Some(workload)),
        (&[("authorization", &lower)], None),
        (&[("x-consul-token", &in_bearer)], None),
        (&[("authorization", &for_vault)], None),
        (&[("authorization", &foreign)], None),
        (&[("authorization", &expired)], None),
        (&[("authorization", &just_expired)], Some(workload)),
        (&[("x-remote-user", "admin"), ("x-remote-group", "system:masters")], None),
        (&[("authorization", &in_bearer), ("x-remote-user", "admin")], Some(workload)),
    ];
    for protocol in BOTH {
        let stranger = stack.client(Who::Anonymous, protocol);
        for (headers, name) in cases {
            let reply = get(&stranger, NODES, headers).await;
            let Some(name) = name else {
                assert_eq!((reply.status, reply.reason().as_str()), (401, "Unauthorized"), "{headers:?}");
                assert!(reply.message().starts_with("no usable credential was presented"), "{reply:?}");
                assert!(reply.header("www-authenticate").is_empty());
                continue;
            };
            assert_eq!(reply.status, 403, "{headers:?} {reply:?}");
            assert!(reply.message().contains(&format!("User \"{name}\"")), "{headers:?} {}", reply.message());
            assert_eq!(get(&stranger, "/version", headers).await.status, 200);
        }
        // A certificate decides alone.
        let nobody = stack.client(Who::Nobody, protocol);
        for headers in [[("authorization", in_bearer.as_str())], [("authorization", "Bearer bad")]] {
            let reply = get(&nobody, NODES, &headers).await;
            assert!(reply.message().contains("User \"nobody\""), "{}", reply.message());
        }
    }
    let stranger = stack.client(Who::Anonymous, Protocol::Http2);
    let headers = [("authorization", in_bearer.as_str()), ("impersonate-user", "admin")];
    assert_eq!(get(&stranger, "/version", &headers).await.status, 403);
    let why = get(&stranger, "/version", &[("authorization", &expired)]).await.message();
    assert!(why.contains("expired"), "{why}");
}

#[tokio::test]
async fn a_certificate_that_names_nobody_leaves_the_word_to_the_token() {
    let issuer = issuer("horchestra");
    let stack = with_issuer(&issuer).await;
    let authority = stack.pki.signer().pem();
    let key = rcgen::KeyPair::from_pem(&authority.key).unwrap();
    let signer = rcgen::Issuer::from_ca_cert_pem(&authority.certificate, key).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate().unwrap();
    let files = KeyPairFiles {
        certificate: stack.folder().join("unnamed.crt"),
        key: stack.folder().join("unnamed.key"),
    };
    std::fs::write(&files.certificate, params.signed_by(&key, &signer).unwrap().pem()).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    let tls = ReloadingClient::load(Some(files), stack.pki.authority(), &[b"h2"]).unwrap();
    let unnamed = Client::new(stack.address, tls.config(), Protocol::Http2);
    assert_eq!(get(&unnamed, "/version", &[]).await.status, 401);
    let headers = bearer(&token(&issuer, "horchestra", 900));
    let reply = get(&unnamed, NODES, &[("authorization", &headers)]).await;
    assert!(reply.message().contains("system:workload:team-a:edge"), "{}", reply.message());
}

#[tokio::test]
async fn reviews_are_for_those_who_show_a_token() {
    let issuer = issuer("horchestra");
    let stack = with_issuer(&issuer).await;
    let vault = token(&issuer, "vault", 900);
    let in_bearer = bearer(&vault);
    let asks = |token: &str, audiences: Value| {
        json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {"creationTimestamp": null},
            "spec": {"token": token, "audiences": audiences},
            "status": {"user": {}},
        })
    };
    for protocol in BOTH {
        for who in [Who::Anonymous, Who::Master] {
            let client = stack.client(who, protocol);
            for headers in [&[][..], &[("authorization", "Bearer bad")], &[("x-consul-token", &vault)]] {
                let reply = ask(&client, headers, &asks(&vault, json!(null))).await;
                assert_eq!(reply.status, 401, "{who:?} {headers:?}");
                assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
                assert!(reply.text().contains("token of this issuer"));
            }
            for (value, audiences, authenticated) in [
                (in_bearer.as_str(), json!(["vault"]), true),
                (vault.as_str(), json!(null), true),
                (in_bearer.as_str(), json!(["other"]), false),
            ] {
                let reply = ask(&client, &[("authorization", value)], &asks(&vault, audiences)).await;
                let answer = reply.json_of(201).unwrap();
                assert_eq!(answer["status"]["authenticated"], authenticated, "{answer}");
                assert!(answer.get("spec").is_none() && answer.get("metadata").is_none());
            }
        }
    }
    let client = stack.client(Who::Anonymous, Protocol::Http2);
    let authorized = [("authorization", in_bearer.as_str())];
    let answer = ask(&client, &authorized, &asks("garbage", json!([]))).await.json_of(201).unwrap();
    assert_eq!(answer["status"]["authenticated"], false);
    let answer = ask(&client, &authorized, &asks(&vault, json!([]))).await.json_of(201).unwrap();
    assert_eq!(answer["status"]["user"]["username"], "system:serviceaccount:team-a:edge");
    assert_eq!(answer["status"]["user"]["uid"], UID);

    for (body, code) in [
        (Bytes::from_static(b"{"), 400),
        (Bytes::new(), 400),
        (Bytes::from_static(b"[]"), 400),
        (Bytes::from_static(b"{\"spec\":{\"token\":[\"secret-token\"]}}"), 400),
        (Bytes::from_static(b"{\"spec\":[\"a\"]}"), 400),
        (Bytes::from_static(b"{\"spec\":null}"), 201),
        (Bytes::from_static(b"{}"), 201),
        (Bytes::from(vec![b' '; (1 << 20) + 1]), 413),
    ] {
        let size = body.len();
        let reply = client.send(Method::POST, REVIEWS, &authorized, body).await;
        assert_eq!(reply.status, code, "{size}");
        if code != 201 {
            assert_eq!(reply.header("content-type"), "text/plain; charset=utf-8");
            assert!(!reply.text().contains("secret-token"));
        }
    }
    let late = bearer(&token(&issuer, "vault", -61));
    assert_eq!(ask(&client, &[("authorization", &late)], &asks(&vault, json!([]))).await.status, 401);

    // Other methods are the ordinary chain's.
    assert_eq!(get(&client, REVIEWS, &[]).await.status, 401);
    let reply = get(&stack.master(), REVIEWS, &[]).await;
    assert_eq!((reply.status, reply.header("allow")), (405, "POST"));
    let discovered = stack.master().get("/apis").await.text();
    assert!(!discovered.contains("tokenreviews"));
}

#[tokio::test]
async fn without_an_issuer_there_is_nothing_of_it() {
    let stack = Stack::start().await;
    let headers = bearer(&token(&issuer("horchestra"), "horchestra", 900));
    let stranger = stack.client(Who::Anonymous, Protocol::Http2);
    assert_eq!(get(&stranger, "/version", &[("authorization", &headers)]).await.status, 401);
    for path in [REVIEWS, KEYS, CONFIGURATION] {
        assert_eq!(stranger.post(path, &json!({})).await.status, 401, "{path}");
        assert_eq!(stack.master().post(path, &json!({})).await.status, 404, "{path}");
        assert_eq!(get(&stranger, path, &[]).await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn keys_and_configuration_are_for_everybody() {
    let address = issuer("https://fleet.example:8443");
    let stack = with_issuer(&address).await;
    for who in [Who::Anonymous, Who::Master] {
        let client = stack.client(who, Protocol::Http1);
        let keys = client.get(KEYS).await;
        assert_eq!((keys.status, keys.header("content-type")), (200, "application/jwk-set+json"));
        assert_eq!(keys.json(), address.jwks());
        assert!(keys.header("cache-control").contains("max-age=60"));
        let configuration = client.get(CONFIGURATION).await;
        assert_eq!((configuration.status, configuration.header("content-type")), (200, "application/json"));
        assert_eq!(configuration.json()["issuer"], "https://fleet.example:8443");
        assert_eq!(configuration.json()["jwks_uri"], "https://fleet.example:8443/openid/v1/jwks");
        let head = client.send(Method::HEAD, KEYS, &[], Bytes::new()).await;
        assert_eq!((head.status, head.body.len()), (200, 0));
    }
    let stranger = stack.client(Who::Anonymous, Protocol::Http2);
    for path in [KEYS, CONFIGURATION] {
        assert_eq!(stranger.post(path, &json!({})).await.status, 401, "{path}");
        assert_eq!(stack.master().post(path, &json!({})).await.status, 405, "{path}");
    }
    let named = with_issuer(&issuer("horchestra")).await;
    let stranger = named.client(Who::Anonymous, Protocol::Http2);
    assert_eq!(stranger.get(KEYS).await.status, 200);
    assert_eq!(stranger.get(CONFIGURATION).await.status, 401, "a name cannot be asked");
    assert_eq!(named.master().get(CONFIGURATION).await.status, 404);
}

//! Tokens of workloads, as nodes are sent them.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use horchestra_auth::tokens::{Issuer, LIFETIME};
use horchestra_nodegate::settings::Settings;
use horchestra_nodegate::tokens::{AgentCa, Tokens};
use horchestra_testkit::TempDir;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::client::report;
use super::push::Push;
use super::stage::Stage;
use crate::world::{NAMESPACE, app_key};

fn mounts(audiences: &[&str]) -> Value {
    let volume = |(number, audience): (usize, &&str)| match *audience {
        "" => json!({"mountPath": format!("/t{number}"), "volume": {"type": "token"}}),
        named => json!({"mountPath": format!("/t{number}"), "volume": {"type": "token", "audience": named}}),
    };
    json!({"volumes": audiences.iter().enumerate().map(volume).collect::<Vec<_>>()})
}

fn fetches(secret: &str) -> Value {
    json!({"volumes": [{"mountPath": "/s", "volume": {"type": "secret", "name": secret}}]})
}

async fn stage(adjust: impl FnOnce(&mut Settings)) -> (Stage, Arc<Issuer>) {
    let issuer = Arc::new(Issuer::ephemeral("horchestra").unwrap());
    let stage = Stage::with_tokens(Tokens::new(Some(Arc::clone(&issuer)), None), adjust).await;
    for (store, method) in [("by-cert", "cert"), ("by-workload", "kubernetes")] {
        stage.world.create_store(store, method).await;
        stage.world.create_vault_secret(&format!("secret-{store}"), store).await;
    }
    stage.world.create_secret("inline", json!({"k": "v"})).await;
    (stage, issuer)
}

/// A part of a compact token.
fn part(token: &str, number: usize) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(token.split('.').nth(number).unwrap()).unwrap()
}

fn json_part(token: &str, number: usize) -> Value {
    serde_json::from_slice(&part(token, number)).unwrap()
}

#[tokio::test]
async fn each_application_has_a_token_for_each_audience_that_it_needs() {
    let (stage, issuer) = stage(|_| ()).await;
    let all = {
        let mut all = mounts(&["", "third", "third"]);
        all["volumes"].as_array_mut().unwrap().push(fetches("secret-by-workload")["volumes"][0].clone());
        all
    };
    let apps: [(&str, Value, &[&str]); 7] = [
        ("nothing", json!({}), &[]),
        ("inline", fetches("inline"), &[]),
        ("by-certificate", fetches("secret-by-cert"), &[]),
        ("by-workload", fetches("secret-by-workload"), &["vault"]),
        ("unsaid", mounts(&[""]), &["horchestra"]),
        ("named", mounts(&["other"]), &["other"]),
        ("all", all, &["horchestra", "third", "vault"]),
    ];
    let specs: Vec<(&str, Value)> = apps.iter().map(|(name, spec, _)| (*name, spec.clone())).collect();
    stage.world.create_node("n2").await;
    stage.world.create_app("on-another-node", "n2", mounts(&[""])).await;
    stage.world.create_node("n1").await;
    for (name, spec) in &specs {
        stage.world.create_app(name, "n1", spec.clone()).await;
    }
    let mut node = stage.dial("n1").await;
    let push = node.push_where(|push| push.apps.len() == apps.len()).await;
    for (name, _, audiences) in apps {
        assert_eq!(push.tokens(name).into_keys().collect::<Vec<_>>(), audiences, "{name}");
    }
    assert_eq!(push.raw.workload_tokens.len(), 6);

    let token = push.tokens("by-workload")["vault"];
    let (head, claims, signature) = (json_part(token, 0), json_part(token, 1), part(token, 2));
    assert_eq!((&head["alg"], &head["typ"], signature.len()), (&json!("ES256"), &json!("JWT"), 64));
    assert_eq!(head["kid"].as_str().unwrap(), issuer.verify(token, Timestamp::now()).unwrap().key);
    let uid = &stage.world.app("by-workload").await["metadata"]["uid"];
    let account = json!({"namespace": NAMESPACE, "serviceaccount": {"name": "by-workload", "uid": uid}});
    assert_eq!(claims["kubernetes.io"], account);
    assert_eq!(claims["sub"], "system:serviceaccount:team:by-workload");
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!("horchestra"), &json!(["vault"])));
    let lives = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert!(lives <= i64::try_from(LIFETIME.as_secs()).unwrap() && LIFETIME <= Duration::from_secs(900));

    // What has nothing to do with them leaves them as they are.
    let before = texts(&push);
    stage.edit("nothing", json!({"args": ["x"]})).await;
    assert_eq!(texts(&node.push().await), before);
    node.hears_nothing().await;
}

fn texts(push: &Push) -> Vec<String> {
    push.raw.workload_tokens.iter().map(|token| token.token.clone()).collect()
}

#[tokio::test]
async fn tokens_are_renewed_together_long_before_they_end() {
    let defaults = Settings::default();
    assert!(LIFETIME - defaults.token_age.1 >= Duration::from_secs(240), "four minutes are left");
    let (stage, _) = stage(|settings| {
        settings.token_age = (Duration::from_millis(1100), Duration::from_millis(1300));
    })
    .await;
    stage.world.create_node("n1").await;
    for name in ["a", "b"] {
        stage.world.create_app(name, "n1", mounts(&["", "other"])).await;
    }
    let mut node = stage.dial("n1").await;
    let first = texts(&node.push().await);
    // Nothing changes but the time.
    let second = texts(&node.push().await);
    assert_eq!(second.len(), 4);
    assert!(second.iter().all(|token| !first.contains(token)), "all of them in one push");
}

#[tokio::test]
async fn a_new_bearer_of_a_name_has_a_token_of_its_own() {
    let (stage, issuer) = stage(|_| ()).await;
    let mut node = stage.serving("n1", &[("web", mounts(&[""])), ("other", json!({}))]).await;
    stage.delete_app("web").await;
    node.push_where(|push| push.is_deleting("web")).await;
    node.pass([report(NAMESPACE, "web", "Terminated", 1), report(NAMESPACE, "other", "Running", 1)]).await;
    node.push_where(|push| !push.has("web")).await;
    let made = stage.world.create_app("web", "n1", mounts(&[""])).await;
    let push = node.push_where(|push| push.has("web")).await;
    let verified = issuer.verify(push.tokens("web")["horchestra"], Timestamp::now()).unwrap();
    assert_eq!(verified.claims.kubernetes.serviceaccount.uid, made["metadata"]["uid"]);
}

#[tokio::test]
async fn agents_that_cannot_mount_tokens_are_sent_the_files() {
    const CA: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("ca.crt");
    std::fs::write(&path, CA).unwrap();
    let issuer = Arc::new(Issuer::ephemeral("horchestra").unwrap());
    let tokens = Tokens::new(Some(Arc::clone(&issuer)), Some(AgentCa::load(&path).unwrap()));
    let stage = Stage::with_tokens(tokens, |_| ()).await;
    stage.world.create_node("n1").await;
    stage.world.create_app("web", "n1", mounts(&[""])).await;
    let mut node = stage.dial("n1").await;
    let push = node.push().await;
    // A Secret like any other, which only the copy that is sent names.
    let volume = &push.app("web").unwrap()["spec"]["volumes"][0]["volume"];
    assert_eq!(volume["type"], "secret");
    let secret = &push.secrets[&format!("team/{}", volume["name"].as_str().unwrap())];
    let file = |name: &str| {
        let text = secret["data"][name].as_str().unwrap_or_else(|| panic!("{name}: {secret}"));
        String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
    };
    assert_eq!((file("ca.crt").as_str(), file("namespace").as_str()), (CA, NAMESPACE));
    assert!(issuer.verify(&file("token"), Timestamp::now()).is_ok());
    assert_eq!(stage.world.app("web").await["spec"]["volumes"][0]["volume"], json!({"type": "token"}));
}

#[tokio::test]
async fn without_a_key_there_are_no_tokens_and_everything_else() {
    let stage = Stage::new().await;
    stage.world.create_secret("inline", json!({"k": "v"})).await;
    let mut node = stage.serving("n1", &[("web", mounts(&[""]))]).await;
    stage.world.create_app("db", "n1", fetches("inline")).await;
    let push = node.push_where(|push| push.has("db")).await;
    assert_eq!((push.names(), push.secrets.len()), (vec!["db", "web"], 1));
    assert!(push.raw.workload_tokens.is_empty());
    assert_eq!(push.app("web").unwrap()["spec"]["volumes"][0]["volume"]["type"], "token");
    // What is pushed is what is stored.
    assert_eq!(push.app("web").unwrap()["spec"], stage.world.get(&app_key("web")).await["spec"]);
}

//! Tokens of workloads: who is sent which, how they are renewed, and how agents get them that cannot mount them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use horchestra_agent::converge::ConvergeOptions;
use horchestra_agent::node::{Node, NodeOptions};
use horchestra_agent::scripted::ScriptedNode;
use horchestra_auth::tokens::{Issuer, KeyFiles, LIFETIME, Verified};
use horchestra_core::kind::Kind;
use horchestra_nodegate::desired::rewrite::token_secret;
use horchestra_nodegate::settings::Settings;
use horchestra_nodegate::tokens::{AgentCa, Tokens};
use horchestra_proto::node::v1::{AppStatus, DesiredState};
use horchestra_testkit::{TempDir, eventually};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::events::told;
use crate::secrets::{mount, secrets};
use crate::world::{
    NAMESPACE, SOON, TestGateway, World, app_key, assert_no_push, end_of_pass, named, node_key, report,
};

fn issuer() -> Arc<Issuer> {
    Arc::new(Issuer::ephemeral("horchestra").unwrap())
}

async fn gateway(world: &World, tokens: Tokens, adjust: impl FnOnce(&mut Settings)) -> TestGateway {
    world.gateway_of(Some(Arc::clone(&world.keys)), tokens, adjust).await
}

/// A mount of a token for each of these; an empty one names none.
fn tokens_for(audiences: &[&str]) -> Value {
    let volume = |(number, audience): (usize, &&str)| {
        let mut volume = json!({"type": "token"});
        if !audience.is_empty() {
            volume["audience"] = json!(audience);
        }
        json!({"mountPath": format!("/t{number}"), "volume": volume})
    };
    json!({"volumes": audiences.iter().enumerate().map(volume).collect::<Vec<_>>()})
}

/// The tokens of a push: by name of the Application, the audiences and what each token says.
fn by_app(desired: &DesiredState, issuer: &Issuer) -> BTreeMap<String, Vec<(String, Verified)>> {
    let uids: BTreeMap<String, String> = named(desired)
        .into_iter()
        .map(|(name, app)| (app["metadata"]["uid"].as_str().unwrap().to_owned(), name))
        .collect();
    let mut tokens: BTreeMap<String, Vec<(String, Verified)>> = BTreeMap::new();
    for token in &desired.workload_tokens {
        let verified = issuer.verify(&token.token, Timestamp::now()).unwrap();
        assert_eq!(verified.claims.aud, [token.audience.as_str()]);
        tokens.entry(uids[&token.workload].clone()).or_default().push((token.audience.clone(), verified));
    }
    tokens
}

fn texts(desired: &DesiredState) -> Vec<String> {
    desired.workload_tokens.iter().map(|token| token.token.clone()).collect()
}

async fn join(world: &World, gateway: &TestGateway, apps: usize) -> (ScriptedNode, DesiredState) {
    let mut node = world.connect(gateway, "n1").await;
    let desired = node.desired_where(SOON, |desired| desired.applications.len() == apps).await.unwrap();
    (node, desired)
}

#[tokio::test]
async fn an_application_gets_a_token_for_each_audience_that_it_asks_for() {
    let world = World::new().await;
    for node in ["n1", "n2"] {
        world.create_node(node).await;
    }
    for (store, method) in [("by-cert", "cert"), ("by-workload", "kubernetes"), ("unsaid", "")] {
        world.create_store(store, method).await;
    }
    for (secret, store) in
        [("cert", "by-cert"), ("workload", "by-workload"), ("unsaid", "unsaid"), ("lost", "no-such-store")]
    {
        world.create_vault_secret(secret, store).await;
    }
    world.create_secret("inline", json!({"k": "v"})).await;
    let both = {
        let mut both = tokens_for(&["", "third-party", "third-party"]);
        both["env"] = json!([{"name": "A", "secretRef": {"name": "workload", "key": "k", "optional": true}}]);
        both
    };
    let job = |mut spec: Value| {
        spec["lifecycle"] = json!({"restartPolicy": "Never"});
        spec
    };
    let apps: [(&str, Value, &[&str]); 9] = [
        ("nothing", json!({}), &[]),
        ("inline-secret", mount("inline"), &[]),
        ("store-by-certificate", mount("cert"), &[]),
        ("store-unsaid", mount("unsaid"), &[]),
        ("store-missing", mount("lost"), &[]),
        ("store-by-workload", mount("workload"), &["vault"]),
        ("no-audience", tokens_for(&[""]), &["horchestra"]),
        ("named-audience", tokens_for(&["other"]), &["other"]),
        ("all-at-once", both, &["horchestra", "third-party", "vault"]),
    ];
    for (name, spec, _) in &apps {
        world.create_app(name, "n1", spec.clone()).await;
    }
    world.create_app("on-another-node", "n2", tokens_for(&[""])).await;
    world.create_app("ended", "n1", job(tokens_for(&[""]))).await;
    let issuer = issuer();
    let gateway = gateway(&world, Tokens::new(Some(Arc::clone(&issuer)), None), |_| ()).await;
    let (mut node, _) = join(&world, &gateway, apps.len() + 1).await;
    let done = AppStatus { attempts: 1, ..report("ended", "Succeeded", 1) };
    node.app_status(done).await.unwrap();
    let desired = node.desired_where(SOON, |desired| desired.applications.len() == apps.len()).await.unwrap();

    let tokens = by_app(&desired, &issuer);
    for (name, _, audiences) in &apps {
        let got = tokens.get(*name).map(Vec::as_slice).unwrap_or_default();
        let got: Vec<&str> = got.iter().map(|(audience, _)| audience.as_str()).collect();
        assert_eq!(&got, audiences, "{name}");
    }
    assert_eq!(desired.workload_tokens.len(), 6, "no others");
    // All-at-once is the first by name.
    let (_, token) = &tokens["all-at-once"][0];
    let app = world.app("all-at-once").await;
    assert_eq!(token.claims.sub, format!("system:serviceaccount:{NAMESPACE}:all-at-once"));
    let account = &token.claims.kubernetes;
    assert_eq!(
        (account.namespace.as_str(), account.serviceaccount.name.as_str()),
        (NAMESPACE, "all-at-once")
    );
    assert_eq!(account.serviceaccount.uid, app["metadata"]["uid"]);
    assert_eq!(token.claims.exp - token.claims.iat, i64::try_from(LIFETIME.as_secs()).unwrap());

    // What changes something else leaves the tokens as they are.
    let before = texts(&desired);
    world.merge(&app_key("nothing"), json!({"spec": {"args": ["x"]}})).await;
    assert_eq!(texts(&node.desired(SOON).await.unwrap()), before);
    assert_no_push(&mut node).await;
}

#[tokio::test]
async fn without_keys_there_are_no_tokens_and_all_else_is_sent() {
    let world = World::new().await;
    world.create_node("n1").await;
    world.create_secret("s", json!({"k": "v"})).await;
    world.create_app("web", "n1", tokens_for(&[""])).await;
    world.create_app("db", "n1", mount("s")).await;
    let gateway = gateway(&world, Tokens::default(), |_| ()).await;
    let (_node, desired) = join(&world, &gateway, 2).await;
    assert!(desired.workload_tokens.is_empty());
    assert_eq!(desired.secrets.len(), 1);
    assert_eq!(named(&desired)[1].1["spec"]["volumes"][0]["volume"]["type"], "token", "as it was written");
}

#[tokio::test]
async fn the_tokens_of_a_node_are_renewed_together_while_they_are_good() {
    let world = World::new().await;
    world.create_node("n1").await;
    for name in ["a", "b", "c"] {
        world.create_app(name, "n1", tokens_for(&["", "other"])).await;
    }
    let issuer = issuer();
    // To the second, as tokens are.
    let age = (Duration::from_millis(1100), Duration::from_millis(1300));
    let gateway =
        gateway(&world, Tokens::new(Some(Arc::clone(&issuer)), None), |settings| settings.token_age = age)
            .await;
    let (mut node, first) = join(&world, &gateway, 3).await;
    let mut before = texts(&first);
    for round in 0..2 {
        let desired = node.desired(SOON).await.unwrap();
        let now = texts(&desired);
        assert_eq!(now.len(), 6);
        assert!(now.iter().all(|token| !before.contains(token)), "round {round}: all of them in one push");
        assert_eq!(by_app(&desired, &issuer).len(), 3);
        before = now;
    }
    let defaults = Settings::default().token_age;
    let margin = LIFETIME - defaults.1;
    assert!(margin >= Duration::from_secs(4 * 60), "the last minutes are not relied on: {margin:?}");
    assert!(defaults.0 >= Duration::from_secs(9 * 60), "nor is anything pushed more often than need be");
}

#[tokio::test]
async fn a_new_bearer_of_the_name_gets_a_token_of_its_own() {
    let world = World::new().await;
    world.create_node("n1").await;
    world.create_app("web", "n1", tokens_for(&[""])).await;
    let issuer = issuer();
    let gateway = gateway(&world, Tokens::new(Some(Arc::clone(&issuer)), None), |_| ()).await;
    let (mut node, first) = join(&world, &gateway, 1).await;
    world.delete(&app_key("web")).await;
    node.desired(SOON).await.unwrap();
    eventually(SOON, async || {
        node.app_status(report("web", "Terminated", 1)).await.unwrap();
        node.send(end_of_pass()).await.unwrap();
        world.app("web").await.is_null()
    })
    .await;
    let again = world.create_app("web", "n1", tokens_for(&[""])).await;
    let uid = again["metadata"]["uid"].as_str().unwrap();
    let desired = node
        .desired_where(SOON, |desired| {
            desired.workload_tokens.first().is_some_and(|token| token.workload == uid)
        })
        .await
        .unwrap();
    let token = &by_app(&desired, &issuer)["web"][0].1;
    assert_eq!(token.claims.kubernetes.serviceaccount.uid, uid);
    assert_ne!(texts(&desired), texts(&first));
}

#[tokio::test]
async fn a_key_that_is_taken_away_takes_its_tokens_with_it() {
    let world = World::new().await;
    world.create_node("n1").await;
    world.create_app("web", "n1", tokens_for(&[""])).await;
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("keys");
    fs::create_dir(&keys).unwrap();
    let files = KeyFiles::new(&keys);
    assert!(Issuer::open("horchestra", files.clone()).is_err(), "a gateway makes no keys");
    files.ensure().unwrap();
    let old = fs::read_dir(&keys).unwrap().next().unwrap().unwrap().path();
    let issuer = Arc::new(Issuer::open("horchestra", files.clone()).unwrap());
    let gateway = gateway(&world, Tokens::new(Some(Arc::clone(&issuer)), None), |_| ()).await;
    let (mut node, first) = join(&world, &gateway, 1).await;
    let key = by_app(&first, &issuer)["web"][0].1.key.clone();

    let another = TempDir::new().unwrap();
    let made = another.path().join("key.pem");
    KeyFiles::new(&made).ensure().unwrap();
    fs::rename(&made, keys.join("9999.pem")).unwrap();
    fs::remove_file(old).unwrap();
    let gate = &gateway.gateway.gate;
    assert!(gate.tokens.reload().unwrap());
    gate.look_again();
    let desired = node.desired(SOON).await.unwrap();
    assert_ne!(by_app(&desired, &issuer)["web"][0].1.key, key);
}

const CA: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

fn agent_ca(folder: &TempDir) -> AgentCa {
    let path = folder.path().join("agent-ca.crt");
    fs::write(&path, CA).unwrap();
    AgentCa::load(&path).unwrap()
}

/// How the token volume of an Application was sent: its type, and the Secret that it names.
fn volume_of(desired: &DesiredState, app: &str) -> (String, String) {
    let apps = named(desired);
    let (_, app) = apps.iter().find(|(name, _)| name == app).unwrap();
    let volume = &app["spec"]["volumes"][0]["volume"];
    let text = |member: &str| volume[member].as_str().unwrap_or_default().to_owned();
    (text("type"), text("name"))
}

fn files_of(desired: &DesiredState, secret: &str) -> BTreeMap<String, String> {
    let sent = secrets(desired);
    let Some(secret) = sent.get(&format!("{NAMESPACE}/{secret}")) else { return BTreeMap::new() };
    let data = secret["data"].as_object().unwrap();
    let text = |value: &Value| String::from_utf8(STANDARD.decode(value.as_str().unwrap()).unwrap()).unwrap();
    data.iter().map(|(name, value)| (name.clone(), text(value))).collect()
}

#[tokio::test]
async fn agents_that_cannot_mount_tokens_get_the_files_as_a_secret() {
    let world = World::new().await;
    world.create_node("n1").await;
    world.create_app("web", "n1", tokens_for(&["", "other"])).await;
    world.create_app("plain", "n1", json!({})).await;
    let (folder, issuer) = (TempDir::new().unwrap(), issuer());
    let gateway =
        gateway(&world, Tokens::new(Some(Arc::clone(&issuer)), Some(agent_ca(&folder))), |_| ()).await;
    let (_node, desired) = join(&world, &gateway, 2).await;
    let (kind, secret) = volume_of(&desired, "web");
    assert_eq!(kind, "secret");
    let files = files_of(&desired, &secret);
    assert_eq!(files.keys().collect::<Vec<_>>(), ["ca.crt", "namespace", "token"]);
    assert_eq!((files["ca.crt"].as_str(), files["namespace"].as_str()), (CA, NAMESPACE));
    let token = issuer.verify(&files["token"], Timestamp::now()).unwrap();
    assert_eq!(token.claims.aud, ["horchestra"]);
    assert_eq!(desired.secrets.len(), 2, "one for each audience");
    let sent = secrets(&desired);
    for secret in sent.values() {
        assert_eq!((&secret["kind"], &secret["type"]), (&json!("Secret"), &json!("Opaque")));
    }
    assert_eq!(
        world.app("web").await["spec"]["volumes"][0]["volume"],
        json!({"type": "token"}),
        "as it is stored"
    );
    let uid = world.app("web").await["metadata"]["uid"].as_str().unwrap().to_owned();
    // Drawn once per node: whoever knows all that can be read cannot work the name out.
    let form = world.operator.store().token_form("n1").await.unwrap().unwrap();
    let uid = uid.parse().unwrap();
    assert_eq!(secret, token_secret(form.salt, uid, "horchestra"));
    assert_ne!(secret, token_secret(uuid::Uuid::nil(), uid, "horchestra"));
}

/// Who serves the node next, what an operator has said before that, and how the volume is sent.
type Turn = (&'static str, bool, Option<Value>, &'static str);

#[tokio::test]
async fn how_a_node_is_sent_tokens_is_decided_once_and_changed_by_an_operator_alone() {
    let folder = TempDir::new().unwrap();
    let say = |how: Value| Some(json!({"metadata": {"annotations": {"horchestra.io/token-volumes": how}}}));
    let begun_with_ca: [Turn; 6] = [
        ("a gateway for old agents", true, None, "secret"),
        ("the same again", true, None, "secret"),
        ("one that is not", false, None, "secret"),
        ("one that is not, and an operator says so", false, say(json!("token")), "token"),
        ("a gateway for old agents, and the word is taken back", true, say(json!(null)), "token"),
        ("and an operator says so", true, say(json!("secret")), "secret"),
    ];
    let begun_without: [Turn; 3] = [
        ("a gateway for new agents", false, None, "token"),
        ("one for old agents", true, None, "token"),
        ("a word that means nothing", true, say(json!("files")), "token"),
    ];
    for turns in [begun_with_ca.as_slice(), &begun_without] {
        let world = World::new().await;
        world.create(Kind::Namespace, "", json!({"metadata": {"name": "default"}})).await;
        world.create_node("n1").await;
        world.create_app("web", "n1", tokens_for(&[""])).await;
        let issuer = issuer();
        let mut named_before = None;
        for (what, with_ca, said, expected) in turns {
            if let Some(said) = said {
                world.merge(&node_key("n1"), said.clone()).await;
            }
            let tokens = Tokens::new(Some(Arc::clone(&issuer)), with_ca.then(|| agent_ca(&folder)));
            let gateway = gateway(&world, tokens, |_| ()).await;
            let (_node, desired) = join(&world, &gateway, 1).await;
            let (kind, secret) = volume_of(&desired, "web");
            assert_eq!(&kind, expected, "{what}");
            if kind == "secret" {
                let name = named_before.get_or_insert(secret.clone());
                assert_eq!(name, &secret, "{what}: another name would restart the workload");
                // Without the file there is nothing to send; a node that lacks the Secret leaves what runs alone.
                assert_eq!(files_of(&desired, &secret).len(), if *with_ca { 3 } else { 0 }, "{what}");
                if !with_ca {
                    let event = eventually(SOON, async || told(&world, "TokensWait").await.pop()).await;
                    assert!(event["message"].as_str().unwrap().contains("--agent-ca"), "{event}");
                }
            }
            gateway.gateway.shutdown().await;
        }
    }
}

#[tokio::test]
async fn an_operators_word_reaches_a_node_that_is_connected() {
    let world = World::new().await;
    world.create_node("n1").await;
    world.create_app("web", "n1", tokens_for(&[""])).await;
    let folder = TempDir::new().unwrap();
    let tokens = Tokens::new(Some(issuer()), Some(agent_ca(&folder)));
    let gateway = gateway(&world, tokens, |_| ()).await;
    let (mut node, desired) = join(&world, &gateway, 1).await;
    assert_eq!(volume_of(&desired, "web").0, "secret");
    for how in ["token", "secret"] {
        let said = json!({"metadata": {"annotations": {"horchestra.io/token-volumes": how}}});
        world.merge(&node_key("n1"), said).await;
        assert_eq!(volume_of(&node.desired(SOON).await.unwrap(), "web").0, how);
    }
}

#[tokio::test]
async fn an_agent_that_refuses_token_volumes_runs_what_has_one() {
    for (with_ca, phase) in [(true, "Running"), (false, "Failed")] {
        let world = World::new().await;
        world.create_node("n1").await;
        world.create_app("web", "n1", tokens_for(&["", "other"])).await;
        let folder = TempDir::new().unwrap();
        let tokens = Tokens::new(Some(issuer()), with_ca.then(|| agent_ca(&folder)));
        let gateway = gateway(&world, tokens, |_| ()).await;
        let converge = ConvergeOptions { no_token_volumes: true, ..ConvergeOptions::default() };
        let options =
            NodeOptions { converge, heartbeat: Duration::from_millis(100), ..NodeOptions::default() };
        let node = Node::new(gateway.controller(), world.identity("n1"), options).unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn({
            let stop = stop.clone();
            async move { node.run(stop).await }
        });
        eventually(SOON, async || world.app("web").await["status"]["phase"] == phase).await;
        stop.cancel();
        running.await.unwrap();
    }
}

//! Secrets and tokens in the hands of workloads that run.

use horchestra_agent::units::ledger::UnitDirectory;
use horchestra_proto::node::v1::controller_message::Body as Down;
use horchestra_proto::node::v1::{DesiredState, WorkloadToken};
use serde_json::{Value, json};

use crate::apps::TestApp;
use crate::pki::Pki;
use crate::processes::{State, begin, eventually};

/// A push of one application with Secrets (name and data) and tokens (audience and token).
fn push(app: &TestApp, secrets: &[(&str, Value)], tokens: &[(&str, &str)]) -> Down {
    let secret = |(name, data): &(&str, Value)| {
        json!({"metadata": {"name": name, "namespace": "shop"}, "type": "Opaque", "data": data})
            .to_string()
            .into()
    };
    let token = |(audience, token): &(&str, &str)| WorkloadToken {
        workload: app.uid().to_string(),
        token: (*token).to_owned(),
        audience: (*audience).to_owned(),
    };
    Down::Desired(DesiredState {
        applications: vec![app.0.to_string().into()],
        secrets: secrets.iter().map(secret).collect(),
        workload_tokens: tokens.iter().map(token).collect(),
        ..DesiredState::default()
    })
}

fn file(unit: &UnitDirectory, path: &str) -> Option<String> {
    std::fs::read_to_string(unit.files().join(path)).ok()
}

fn starts(unit: &UnitDirectory) -> u32 {
    unit.state().map_or(0, |state| state.starts)
}

#[tokio::test]
async fn a_workload_finds_its_secrets_and_tokens_and_follows_their_changes() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    // What the workload itself can read, of both sorts.
    let app = TestApp::new("web")
        .shell("echo $PASSWORD > seen; cat $HORCHESTRA_FILES/etc/db/password $HORCHESTRA_FILES/run/id/namespace >> seen; exec sleep 1000")
        .spec("env", json!([{"name": "PASSWORD", "secretRef": {"name": "db", "key": "password"}}]))
        .spec(
            "volumes",
            json!([
                {"mountPath": "/etc/db", "volume": {"type": "secret", "name": "db"}},
                {"mountPath": "/etc/extra", "volume": {"type": "secret", "name": "extra", "optional": true}},
                {"mountPath": "/run/id", "volume": {"type": "token"}},
                {"mountPath": "/run/other", "volume": {"type": "token", "audience": "other"}},
            ]),
        );
    let unit = state.unit(&app);
    let password = |value: &str| json!({"password": value});
    session.send(push(&app, &[("db", password("czE="))], &[("horchestra", "t1")])).await;
    session.phase("web", "Running").await;
    eventually("the workload's own look", || {
        std::fs::read_to_string(state.work(&app, "seen")).is_ok_and(|seen| seen == "s1\ns1shop")
    })
    .await;
    assert_eq!(file(&unit, "run/id/token").as_deref(), Some("t1"));
    assert_eq!(file(&unit, "run/id/ca.crt"), Some(pki.ca.clone()));
    assert!(!unit.files().join("run/other").exists(), "no token, no folder");
    assert!(!unit.files().join("etc/extra").exists(), "it is optional");

    for (what, secrets, tokens, path, expected) in [
        (
            "another value",
            vec![("db", password("czI="))],
            vec![("horchestra", "t1")],
            "etc/db/password",
            Some("s2"),
        ),
        (
            "another token",
            vec![("db", password("czI="))],
            vec![("horchestra", "t2")],
            "run/id/token",
            Some("t2"),
        ),
        (
            "an optional Secret that comes",
            vec![("db", password("czI=")), ("extra", json!({"k": "dg=="}))],
            vec![("horchestra", "t2")],
            "etc/extra/k",
            Some("v"),
        ),
        ("and goes", vec![("db", password("czI="))], vec![("horchestra", "t2")], "etc/extra/k", None),
        (
            "a second token",
            vec![("db", password("czI="))],
            vec![("horchestra", "t2"), ("other", "t3")],
            "run/other/token",
            Some("t3"),
        ),
    ] {
        session.send(push(&app, &secrets, &tokens)).await;
        eventually(what, || file(&unit, path).as_deref() == expected).await;
        assert_eq!(starts(&unit), 1, "{what}: nothing is restarted");
    }
    // Without what it needs it is left alone, and gone with everything when nobody wants it.
    session.send(push(&app, &[], &[])).await;
    session
        .until(|up| matches!(up, horchestra_proto::node::v1::node_message::Body::NodeUsage(_)).then_some(()))
        .await;
    assert_eq!((file(&unit, "etc/db/password").as_deref(), starts(&unit)), (Some("s2"), 1));
    session.push([]).await;
    session.idle().await;
    assert!(!unit.path().exists());
    node.stop().await;
}

#[tokio::test]
async fn what_lacks_a_secret_fails_without_a_word_until_it_comes() {
    let (pki, state) = (Pki::new(), State::new());
    let (_gateway, node, mut session) = begin(&pki, &state).await;
    let app = TestApp::new("web")
        .shell("exec sleep 1000")
        .spec("volumes", json!([{"mountPath": "/etc/db", "volume": {"type": "secret", "name": "db"}}]));
    session.send(push(&app, &[], &[])).await;
    let failed = session.phase("web", "Failed").await;
    assert_eq!((failed.message.as_str(), failed.observed_generation, failed.exit_code), ("", 0, 0));
    session.send(push(&app, &[("db", json!({"k": "dg=="}))], &[])).await;
    assert_eq!(session.phase("web", "Running").await.observed_generation, 1);
    node.stop().await;
}

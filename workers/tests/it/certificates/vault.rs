//! The signer that asks a Vault, and what it does not believe.

use std::sync::Arc;
use std::time::Duration as Wait;

use horchestra_auth::Identity;
use horchestra_auth::pki::{CertificateRequest, Lifetime};
use horchestra_runtime::Backoff;
use horchestra_testkit::eventually;
use horchestra_workers::certificates::renewal::SelfRenewal;
use horchestra_workers::certificates::signer::{SignError, Signer};
use horchestra_workers::certificates::vault::VaultSigner;
use horchestra_workers::certificates::verify;
use jiff::Timestamp;
use rcgen::{BasicConstraints, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;
use time::Duration;
use tokio_util::sync::CancellationToken;

use super::fake::{Ca, FakeVault, leaf};
use super::support::{SOON, World, agent, request, tampered};

fn signer(vault: &FakeVault) -> VaultSigner {
    VaultSigner::new(vault.client(), "nodes", &vault.path("ca.crt"), Lifetime::CLIENT).unwrap()
}

async fn sign(signer: &VaultSigner, pem: &str) -> Result<String, SignError> {
    let asked = CertificateRequest::from_pem(pem.as_bytes()).unwrap();
    signer.sign(&asked, pem.as_bytes()).await
}

/// The error with its cause.
fn said(error: &SignError) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    format!("{error}: {cause}")
}

#[tokio::test]
async fn a_vault_is_logged_in_to_once_and_asked_once_for_each_certificate() {
    let vault = FakeVault::start().await;
    let signer = signer(&vault);
    assert!(vault.calls().is_empty(), "nothing is dialled before there is something to sign");
    let pem = request("node-1");
    let bundle = sign(&signer, &pem).await.unwrap();
    let [login, signed] = &vault.calls()[..] else { panic!("{:?}", vault.calls()) };
    assert_eq!((login.path.as_str(), login.client.as_str()), ("/v1/auth/cert/login", "workers-1"));
    assert_eq!((&login.body, login.token.as_str()), (&json!({"name": "workers"}), ""));
    assert_eq!((signed.path.as_str(), signed.token.as_str()), ("/v1/pki_int/sign/nodes", "token-1"));
    assert_eq!((&signed.body["common_name"], &signed.body["ttl"]), (&json!("node-1"), &json!("7776000s")));
    assert_eq!(signed.body["csr"].as_str().unwrap().trim(), pem.replace('\r', "").trim());

    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap).collect();
    let intermediate = CertificateDer::from_pem_slice(vault.intermediate.pem.as_bytes()).unwrap();
    assert_eq!(chain.len(), 2, "the leaf and the intermediate, without the root");
    assert_eq!(chain[1], intermediate);
    let identity = Identity::from_verified(&chain[0]).unwrap().unwrap();
    assert_eq!(identity.node(), Some("node-1"));
    let mut root = RootCertStore::empty();
    root.add(CertificateDer::from_pem_slice(vault.root.pem.as_bytes()).unwrap()).unwrap();
    verify::leads_to(&chain, root, Timestamp::now()).unwrap();

    sign(&signer, &request("node-2")).await.unwrap();
    assert_eq!((vault.count("/login"), vault.count("/sign/nodes")), (1, 2), "the token is used again");
}

#[tokio::test]
async fn a_token_that_ended_or_was_revoked_is_replaced() {
    let vault = FakeVault::start().await;
    let signer = signer(&vault);
    sign(&signer, &request("node-1")).await.unwrap();
    vault.answer("/sign/nodes", 403, r#"{"errors": ["permission denied"]}"#);
    sign(&signer, &request("node-2")).await.unwrap();
    assert_eq!(vault.count("/login"), 2);
    assert_eq!(vault.calls().last().unwrap().token, "token-2");
    // A token without a lease is good for the call that it was fetched for.
    vault.lease(0);
    let short = self::signer(&vault);
    for _ in 0..2 {
        sign(&short, &request("node-3")).await.unwrap();
    }
    assert_eq!(vault.count("/login"), 4);
}

/// A Vault whose role is set up wrongly, or that belongs to somebody else by now.
#[tokio::test]
async fn a_certificate_that_was_not_asked_for_is_refused() {
    let vault = FakeVault::start().await;
    let signer = signer(&vault);
    let (below, root) = (Arc::clone(&vault.intermediate), vault.root.pem.clone());
    let stranger = Arc::new(Ca::root("stranger").below("stranger's"));
    type Change = Box<dyn Fn(&mut rcgen::CertificateParams) + Send + Sync>;
    let change = |change: fn(&mut rcgen::CertificateParams)| -> Change { Box::new(change) };
    let organization = |params: &mut rcgen::CertificateParams, group: &str| {
        params.distinguished_name.remove(DnType::OrganizationName);
        if !group.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
    };
    let cases: Vec<(&str, Change, &str)> = vec![
        ("the groups of the request", Box::new(move |p| organization(p, "system:masters")), "system:masters"),
        ("no group", Box::new(move |p| organization(p, "")), "the groups []"),
        (
            "another name",
            change(|p| {
                p.distinguished_name.remove(DnType::CommonName);
                p.distinguished_name.push(DnType::CommonName, "node-2");
            }),
            "node-2",
        ),
        ("an authority", change(|p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)), "of an authority"),
        (
            "the power to sign",
            change(|p| p.key_usages.push(rcgen::KeyUsagePurpose::KeyCertSign)),
            "of an authority",
        ),
        (
            "for servers alone",
            change(|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            "not for clients",
        ),
        ("for nothing in particular", change(|p| p.extended_key_usages.clear()), "not for clients"),
        (
            "a server's name as well",
            change(|p| {
                p.subject_alt_names = vec![SanType::DnsName("api.example".try_into().unwrap())];
            }),
            "api.example",
        ),
        (
            "another node's name as well",
            change(|p| {
                p.subject_alt_names =
                    ["node-1", "node-2"].map(|it| SanType::DnsName(it.try_into().unwrap())).into();
            }),
            "node-2",
        ),
        (
            "it is over",
            change(|p| p.not_after = time::OffsetDateTime::now_utc() - Duration::hours(1)),
            "valid from",
        ),
        (
            "it has not begun",
            change(|p| p.not_before = time::OffsetDateTime::now_utc() + Duration::hours(1)),
            "valid from",
        ),
        (
            "ten years",
            change(|p| p.not_after = time::OffsetDateTime::now_utc() + Duration::days(3650)),
            "valid from",
        ),
    ];
    for (what, change, fault) in cases {
        let (below, root) = (Arc::clone(&below), root.clone());
        vault.sign_with(move |asked| {
            let mut params = leaf(&asked.common_name, Some("system:nodes"), Duration::seconds(asked.ttl));
            change(&mut params);
            (
                params.signed_by(&asked.public_key, &below.issuer).unwrap().pem(),
                vec![below.pem.clone(), root.clone()],
            )
        });
        wrong(&signer, what, fault).await;
    }
    let (by, others) = (Arc::clone(&below), Arc::clone(&stranger));
    vault.sign_with(move |asked| {
        let params = leaf(&asked.common_name, Some("system:nodes"), Duration::seconds(asked.ttl));
        let other = KeyPair::generate().unwrap();
        (params.signed_by(&other, &by.issuer).unwrap().pem(), vec![by.pem.clone()])
    });
    wrong(&signer, "another key", "another key").await;
    let by = Arc::clone(&below);
    vault.sign_with(move |asked| {
        let params = leaf(&asked.common_name, Some("system:nodes"), Duration::seconds(asked.ttl));
        (params.signed_by(&asked.public_key, &by.issuer).unwrap().pem(), vec![others.pem.clone()])
    });
    wrong(&signer, "a chain of somebody else", "chain is broken").await;
    let by = Arc::clone(&stranger);
    vault.sign_with(move |asked| {
        let params = leaf(&asked.common_name, Some("system:nodes"), Duration::seconds(asked.ttl));
        (params.signed_by(&asked.public_key, &by.issuer).unwrap().pem(), vec![by.pem.clone()])
    });
    wrong(&signer, "an authority that nobody believes", "no authority that is believed").await;
    let by = Arc::clone(&below);
    vault.sign_with(move |asked| {
        let params = leaf(&asked.common_name, Some("system:nodes"), Duration::seconds(asked.ttl));
        (params.signed_by(&asked.public_key, &by.issuer).unwrap().pem(), vec![root.clone()])
    });
    wrong(&signer, "the intermediate is missing", "no authority that is believed").await;
    vault.behave();
    sign(&signer, &request("node-1")).await.expect("and a good one is taken");
}

async fn wrong(signer: &VaultSigner, what: &str, fault: &str) {
    let error = sign(signer, &request("node-1")).await.expect_err(what);
    assert!(matches!(error, SignError::Wrong(_)) && said(&error).contains(fault), "{what}: {}", said(&error));
}

#[tokio::test]
async fn what_a_vault_may_add_is_taken() {
    let vault = FakeVault::start().await;
    let below = Arc::clone(&vault.intermediate);
    vault.sign_with(move |asked| {
        let mut params = leaf(&asked.common_name, Some("system:nodes"), Duration::hours(1));
        // Its defaults: the common name among the names, usage for servers too, a shorter life.
        params.subject_alt_names = vec![SanType::DnsName(asked.common_name.as_str().try_into().unwrap())];
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        (
            params.signed_by(&asked.public_key, &below.issuer).unwrap().pem(),
            vec![below.pem.clone(), below.pem.clone()],
        )
    });
    let bundle = sign(&signer(&vault), &request("node-1")).await.unwrap();
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 2, "each once");
}

#[tokio::test]
async fn a_tampered_request_does_not_get_to_the_vault() {
    let vault = FakeVault::start().await;
    let signer = signer(&vault);
    let good = CertificateRequest::from_pem(request("node-1").as_bytes()).unwrap();
    for (what, pem) in
        [("tampered with", tampered()), ("another one", request("node-1")), ("nonsense", "x".to_owned())]
    {
        let error = signer.sign(&good, pem.as_bytes()).await.expect_err(what);
        assert!(matches!(error, SignError::Refused(_)), "{what}: {}", said(&error));
    }
    assert!(vault.calls().is_empty());
}

#[tokio::test]
async fn what_a_vault_that_fails_says_is_told_apart() {
    let vault = FakeVault::start().await;
    let long = format!(r#"{{"errors": ["{}"]}}"#, "no ".repeat(1000));
    let cases: Vec<(&str, &'static str, u16, String, bool)> = vec![
        (
            "a role that forbids it",
            "/sign/nodes",
            400,
            r#"{"errors": ["common name not allowed"]}"#.into(),
            false,
        ),
        ("no such role", "/sign/nodes", 404, r#"{"errors": []}"#.into(), false),
        ("forbidden", "/sign/nodes", 403, long, false),
        ("no certificate", "/sign/nodes", 200, "{}".into(), false),
        ("not JSON", "/sign/nodes", 200, "hello".into(), false),
        ("no PEM", "/sign/nodes", 200, r#"{"data": {"certificate": "hello"}}"#.into(), false),
        ("an error inside", "/sign/nodes", 500, "oops".into(), true),
        ("it is sealed", "/sign/nodes", 503, r#"{"errors": ["Vault is sealed"]}"#.into(), true),
        ("too much to do", "/sign/nodes", 429, String::new(), true),
        ("an answer without end", "/sign/nodes", 200, "x".repeat(3 << 20), true),
        ("it does not know us", "/login", 403, r#"{"errors": ["invalid certificate"]}"#.into(), true),
        ("a login without a token", "/login", 200, r#"{"auth": {}}"#.into(), true),
        ("a token with a line break", "/login", 200, r#"{"auth": {"client_token": "a\nb"}}"#.into(), true),
    ];
    for (what, path, code, answer, outage) in cases {
        let signer = signer(&vault);
        vault.answer(path, code, answer);
        let error = sign(&signer, &request("node-1")).await.expect_err(what);
        assert_eq!(error.is_outage(), outage, "{what}: {}", said(&error));
        assert!(said(&error).len() < 450, "{what}: {}", said(&error));
    }
    let signer = signer(&vault);
    vault.answer("/sign/nodes", 400, r#"{"errors": ["common name not allowed"]}"#);
    let error = sign(&signer, &request("node-1")).await.unwrap_err();
    assert!(
        said(&error).contains("400") && said(&error).contains("common name not allowed"),
        "{}",
        said(&error)
    );
}

#[tokio::test]
async fn a_server_that_is_not_the_vault_is_told_nothing() {
    let vault = FakeVault::start().await;
    std::fs::write(vault.path("other.crt"), Ca::root("other").pem).unwrap();
    let tls =
        horchestra_runtime::tls::ReloadingClient::load(Some(vault.pair()), vault.path("other.crt"), &[]);
    let client =
        horchestra_workers::certificates::vault::Vault::new(vault.config(), Arc::new(tls.unwrap())).unwrap();
    let signer =
        VaultSigner::new(Arc::new(client), "nodes", &vault.path("ca.crt"), Lifetime::CLIENT).unwrap();
    let error = sign(&signer, &request("node-1")).await.unwrap_err();
    assert!(error.is_outage(), "{}", said(&error));
    assert!(vault.calls().is_empty());
}

#[tokio::test]
async fn the_loop_signs_with_a_vault_and_waits_for_one_that_is_wrong() {
    let (world, vault) = (World::new(true).await, FakeVault::start().await);
    let signer: Arc<dyn Signer> = Arc::new(signer(&vault));
    vault.sign_with(|_| ("hello".to_owned(), Vec::new()));
    world.create(&agent("node-1", "aa"), "r", &request("node-1")).await;
    let mut reconciler = world.reconciler(Some(signer));
    world.pass_of(&mut reconciler).await;
    let status = world.status("r").await;
    assert_eq!(status["phase"], "Pending");
    assert_eq!(status.get("certificate"), None);
    let reason = status["reason"].as_str().unwrap();
    assert!(
        reason.contains("not signed yet") && !reason.contains("Vault"),
        "what is inside is for the log: {reason}"
    );
    vault.behave();
    eventually(SOON, async || {
        world.pass_of(&mut reconciler).await;
        world.status("r").await["phase"] == "Approved"
    })
    .await;
    assert_eq!(
        Identity::from_verified(&world.certificate("r").await).unwrap().unwrap().node(),
        Some("node-1")
    );
}

/// What this process proves itself to Vault with, as it is in the file.
fn own(vault: &FakeVault) -> (String, String, Timestamp) {
    let read = |name| std::fs::read_to_string(vault.path(name)).unwrap();
    let certificate = CertificateDer::from_pem_slice(read("client.crt").as_bytes()).unwrap();
    let identity = Identity::from_verified(&certificate).unwrap().unwrap();
    assert_eq!((identity.name.as_str(), identity.groups[0].as_str()), ("workers-1", "vault-clients"));
    let until = identity.credential.not_after();
    (read("client.crt"), read("client.key"), until)
}

#[tokio::test]
async fn the_credential_for_vault_renews_itself_and_does_not_give_up() {
    let vault = FakeVault::start().await;
    let client = vault.client();
    let below = Arc::clone(&vault.intermediate);
    let attempts = std::sync::atomic::AtomicUsize::new(0);
    vault.sign_with(move |asked| {
        // First in the wrong group, then as it should be, if a little longer.
        let wrong = attempts.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        let group = if wrong { "system:masters" } else { "vault-clients" };
        let params = leaf(&asked.common_name, Some(group), Duration::seconds(asked.ttl + 20));
        (params.signed_by(&asked.public_key, &below.issuer).unwrap().pem(), vec![below.pem.clone()])
    });
    vault.answer("/sign/own", 500, "");
    vault.answer("/login", 503, "");
    let quick = Backoff::new(Wait::from_millis(1), Wait::from_millis(10));
    let renewal = SelfRenewal::new(Arc::clone(&client), "own", vault.pair()).unwrap();
    let renewal = renewal.with_pace(Wait::from_millis(1), quick);
    // A file that cannot be read is no reason to give up, nor to wait.
    std::fs::write(vault.path("client.crt"), "hello").unwrap();
    let stop = CancellationToken::new();
    let mut running = Box::pin(renewal.run(stop.clone()));
    assert!(futures::poll!(running.as_mut()).is_pending());
    let (certificate, key) = vault.root.client("workers-1", "vault-clients", Duration::seconds(600));
    std::fs::write(vault.path("client.crt"), certificate).unwrap();
    std::fs::write(vault.path("client.key"), key).unwrap();
    let before = own(&vault);
    let running = tokio::spawn(running);
    let renewed = eventually(SOON, async || {
        let now = own(&vault);
        (now.0 != before.0 && now.1 != before.1 && client.tls().reload().is_ok()).then_some(now)
    })
    .await;
    assert!(renewed.2 > before.2, "it is valid for longer");
    assert_eq!(renewed.0.matches("BEGIN CERTIFICATE").count(), 2);
    assert!(renewed.1.contains("EC PRIVATE KEY"));
    let mode = |name: &str| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(vault.path(name)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!((mode("client.crt"), mode("client.key")), (0o644, 0o600));
    // It is in use: the next call shows it.
    vault.behave();
    let signer = VaultSigner::new(client, "nodes", &vault.path("ca.crt"), Lifetime::CLIENT).unwrap();
    sign(&signer, &request("node-1")).await.unwrap();
    assert!(vault.count("/sign/own") >= 3, "{}", vault.count("/sign/own"));
    stop.cancel();
    tokio::time::timeout(SOON, running).await.unwrap().unwrap();
}

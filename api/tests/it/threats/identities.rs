//! Passing for somebody else.

use bytes::Bytes;
use horchestra_auth::pki::{Authority, Issued, Lifetime};
use http::Method;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair};
use serde_json::json;

use super::{CORE, Fleet, refused};
use crate::client::{BOTH, Client, Protocol};
use crate::stack::Who;

const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A client certificate of the administrators' group, changed, and signed by this authority or by itself.
fn certificate(signer: Option<&Authority>, change: impl FnOnce(&mut CertificateParams)) -> Issued {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "admin");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    let certificate = match signer {
        None => params.self_signed(&key),
        Some(authority) => {
            let pem = authority.pem();
            let authority =
                rcgen::Issuer::from_ca_cert_pem(&pem.certificate, KeyPair::from_pem(&pem.key).unwrap())
                    .unwrap();
            params.signed_by(&key, &authority)
        }
    };
    Issued { certificate: certificate.unwrap().pem(), key: key.serialize_pem() }
}

async fn is_let_in(client: &Client) -> bool {
    let request = client.request(Method::GET, "/version", &[], Bytes::new());
    match client.open(request).await {
        Ok(answer) => {
            assert_eq!(answer.status(), 200, "a handshake that succeeds is an identity");
            true
        }
        Err(_) => false,
    }
}

#[tokio::test]
async fn a_certificate_that_no_believed_authority_vouches_for_ends_the_handshake() {
    let fleet = Fleet::start().await;
    let ours = fleet.stack.pki.signer();
    let foreign = Authority::generate().unwrap();
    let past = |params: &mut CertificateParams| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    };
    let future = |params: &mut CertificateParams| {
        params.not_before = rcgen::date_time_ymd(2090, 1, 1);
        params.not_after = rcgen::date_time_ymd(2091, 1, 1);
    };
    // The same names and the same key usage as the real authority, and another key.
    let impostor = Authority::generate().unwrap();
    for (what, issued, let_in) in [
        ("one of ours", certificate(Some(ours), |_| ()), true),
        ("of a foreign authority", certificate(Some(&foreign), |_| ()), false),
        ("of an authority with the name of ours", certificate(Some(&impostor), |_| ()), false),
        ("signed by itself", certificate(None, |_| ()), false),
        ("expired", certificate(Some(ours), past), false),
        ("not valid yet", certificate(Some(ours), future), false),
        ("of the authority itself", ours.pem().clone(), false),
        ("issued by a foreign one to our names", foreign.node("n1", Lifetime::CLIENT).unwrap(), false),
    ] {
        for protocol in BOTH {
            let client = fleet.holder(&issued, protocol);
            assert_eq!(is_let_in(&client).await, let_in, "{what}, {protocol:?}");
        }
    }
}

#[tokio::test]
async fn the_servers_own_certificate_opens_nothing_as_a_clients() {
    let fleet = Fleet::start().await;
    let files = fleet.stack.pki.serving();
    let serving = Issued {
        certificate: std::fs::read_to_string(&files.certificate).unwrap(),
        key: std::fs::read_to_string(&files.key).unwrap(),
    };
    let usage = |usage| move |params: &mut CertificateParams| params.extended_key_usages = usage;
    let ours = fleet.stack.pki.signer();
    for (what, issued) in [
        ("the one that the replica shows", serving),
        (
            "one for servers in the administrators' group",
            certificate(Some(ours), usage(vec![ExtendedKeyUsagePurpose::ServerAuth])),
        ),
        ("one for signing code", certificate(Some(ours), usage(vec![ExtendedKeyUsagePurpose::CodeSigning]))),
    ] {
        for protocol in BOTH {
            assert!(!is_let_in(&fleet.holder(&issued, protocol)).await, "{what}, {protocol:?}");
        }
    }
}

#[tokio::test]
async fn headers_that_name_somebody_make_nobody_somebody_else() {
    let fleet = Fleet::start().await;
    fleet.secret("team-a", "db").await;
    let claims = [
        ("x-remote-user", "admin"),
        ("x-remote-group", "system:masters"),
        ("x-remote-extra-scopes", "all"),
        ("x-forwarded-user", "admin"),
        ("x-forwarded-groups", "system:masters"),
        ("x-forwarded-client-cert", "By=x;Subject=\"CN=admin,O=system:masters\""),
        ("x-client-cert", "admin"),
        ("x-ssl-client-s-dn", "CN=admin,O=system:masters"),
        ("ssl-client-subject-dn", "CN=admin,O=system:masters"),
        ("x-auth-request-user", "admin"),
        ("x-webauth-user", "admin"),
        ("remote-user", "admin"),
        ("forwarded", "for=127.0.0.1;by=admin"),
        ("cookie", "user=admin"),
        ("authorization", "Basic YWRtaW46YWRtaW4="),
        ("x-audit-user", "admin"),
    ];
    let nodes = format!("{CORE}/nodes");
    for protocol in BOTH {
        let (nobody, stranger) =
            (fleet.stack.client(Who::Nobody, protocol), fleet.stack.client(Who::Anonymous, protocol));
        let each = claims.iter().map(std::slice::from_ref).chain([&claims[..]]);
        for headers in each {
            let reply = nobody.send(Method::GET, &nodes, headers, Bytes::new()).await;
            refused(&reply, "User \"nobody\" cannot list");
            let reply = stranger.send(Method::GET, &nodes, headers, Bytes::new()).await;
            assert_eq!((reply.status, reply.reason().as_str()), (401, "Unauthorized"), "{headers:?}");
        }
        for path in ["/version?user=admin", "/version?access_token=x", "/version?as=admin"] {
            assert_eq!(stranger.get(path).await.status, 401, "{path}");
        }
    }
    // To act as somebody else is asked for, not claimed; doing it as oneself would be the wrong answer.
    let (master, nobody) = (fleet.master(), fleet.client(Who::Nobody).await);
    let secret = format!("{CORE}/namespaces/team-a/secrets/db");
    for header in ["impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-a"] {
        for client in [&master, &nobody] {
            let reply = client.send(Method::DELETE, &secret, &[(header, "bob")], Bytes::new()).await;
            refused(&reply, "impersonation is not supported");
        }
    }
    assert_eq!(master.get(&secret).await.status, 200, "nothing was deleted");
}

#[tokio::test]
async fn a_name_like_that_of_a_group_is_only_a_name() {
    let fleet = Fleet::start().await;
    fleet.secret("team-a", "db").await;
    for name in ["system:masters", "system:nodes", "system:controllers", "system:authenticated", "admin"] {
        let client = fleet.client(Who::User(name, "people")).await;
        let user =
            client.post(WHO_AM_I, &json!({})).await.json_of(201).unwrap()["status"]["userInfo"].clone();
        assert_eq!(user["username"], name);
        assert_eq!(user["groups"], json!(["people", "system:authenticated"]), "{name}");
        for path in ["nodes", "applications", "namespaces/team-a/secrets/db", "namespaces/team-a"] {
            refused(&client.get(&format!("{CORE}/{path}")).await, &format!("User \"{name}\" cannot"));
        }
        let listed = client.get("/api/v1/namespaces").await.json_of(200).unwrap();
        assert_eq!(listed["items"], json!([]), "{name}");
        let own = json!({"metadata": {"name": name.replace(':', "-")}, "spec": {}});
        refused(&client.post(&format!("{CORE}/nodes"), &own).await, "cannot create resource \"nodes\"");
    }
    // Nor does a group that looks like one stand for it.
    for group in ["System:Masters", "system:masters ", "system:master", "masters", "system:masters,x"] {
        let name = "gustav";
        let issued = fleet.stack.pki.signer().client(name, group, Lifetime::CLIENT).unwrap();
        let client = fleet.holder(&issued, Protocol::Http2);
        refused(&client.get(&format!("{CORE}/nodes")).await, "User \"gustav\" cannot list");
    }
}

//! `horchestra-local pki`, as an operator runs it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use horchestra_auth::Identity;
use horchestra_auth::pki::Authority;
use horchestra_core::values::{decode_base64, encode_base64};
use horchestra_testkit::TempDir;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::json;

use crate::stack::said;

fn pki(folder: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_horchestra-local"))
        .current_dir(folder)
        .arg("pki")
        .args(words)
        .output()
        .expect("the tool can be started")
}

fn good(folder: &Path, words: &[&str]) {
    let output = pki(folder, words);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode()
        & 0o7777
}

fn identity(pem: &[u8]) -> Identity {
    Identity::from_verified(&CertificateDer::from_pem_slice(pem).unwrap()).unwrap().unwrap()
}

/// A value of a kubeconfig; all of ours are on one line.
fn value(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.trim().trim_start_matches("- ").strip_prefix(name));
    let value = line.unwrap_or_else(|| panic!("no {name} in {text}")).trim();
    value.trim_matches('"').to_owned()
}

#[test]
fn an_installation_is_made_once_and_kept() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join("pki").join(name);
    let init = ["init", "--host", "fleet.example", "--host", "192.0.2.7"];
    good(folder.path(), &init);
    assert_eq!(mode(&folder.path().join("pki")), 0o700);
    for (name, expected) in [
        ("ca.crt", 0o644),
        ("ca.key", 0o600),
        ("server.crt", 0o644),
        ("server.key", 0o600),
        ("admin.conf", 0o600),
        ("horchestra-api.crt", 0o644),
        ("horchestra-workers.key", 0o600),
        ("horchestra-nodegate.key", 0o600),
    ] {
        assert_eq!(mode(&at(name)), expected, "{name}");
        if name.ends_with(".key") {
            assert!(fs::read_to_string(at(name)).unwrap().starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
        }
    }
    let admin = fs::read_to_string(at("admin.conf")).unwrap();
    assert_eq!(value(&admin, "server:"), "https://fleet.example:8443");
    assert_eq!(value(&admin, "current-context:"), "horchestra");
    let who = identity(&decode_base64(&value(&admin, "client-certificate-data:")).unwrap());
    assert_eq!((who.name.as_str(), who.groups[0].as_str()), ("admin", "system:masters"));
    assert_eq!(
        decode_base64(&value(&admin, "certificate-authority-data:")).unwrap(),
        fs::read(at("ca.crt")).unwrap()
    );

    let before: Vec<_> =
        ["ca.crt", "server.crt", "admin.conf"].map(|name| fs::read(at(name)).unwrap()).into();
    good(folder.path(), &init);
    let after: Vec<_> = ["ca.crt", "server.crt", "admin.conf"].map(|name| fs::read(at(name)).unwrap()).into();
    assert_eq!(before, after, "what is good is kept");
    good(folder.path(), &["serving", "--host", "other.example"]);
    assert_ne!(fs::read(at("server.crt")).unwrap(), after[1]);
    let api = fs::read(at("horchestra-api.crt")).unwrap();
    good(folder.path(), &["controller", "api", "--host", "other.example"]);
    assert_ne!(fs::read(at("horchestra-api.crt")).unwrap(), api);
    let controller = identity(&fs::read(at("horchestra-api.crt")).unwrap());
    assert_eq!(
        (controller.name.as_str(), controller.groups[0].as_str()),
        ("horchestra-api", "system:controllers")
    );
}

#[test]
fn clients_and_nodes_get_what_they_need_in_one_file() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    good(folder.path(), &["init", "--host", "fleet.example"]);

    good(folder.path(), &["node", "node-1", "--server", "https://fleet.example:8443"]);
    let conf = fs::read_to_string(at("node-1.conf")).unwrap();
    assert_eq!(
        (mode(&at("node-1.conf")), value(&conf, "server:").as_str()),
        (0o600, "https://fleet.example:8443")
    );
    let who = identity(&decode_base64(&value(&conf, "client-certificate-data:")).unwrap());
    assert_eq!((who.name.as_str(), who.node()), ("node-1", Some("node-1")));
    let key = decode_base64(&value(&conf, "client-key-data:")).unwrap();
    assert!(key.starts_with(b"-----BEGIN EC PRIVATE KEY-----"));

    good(folder.path(), &["cert", "alice", "--group", "dev,ops", "--ttl", "1h"]);
    let who = identity(&fs::read(at("alice.crt")).unwrap());
    assert_eq!(who.groups, ["dev", "ops", "system:authenticated"]);
    let left = who.credential.not_after().as_second() - jiff::Timestamp::now().as_second();
    assert!((3500..=3600).contains(&left), "{left}");
    assert_eq!((mode(&at("alice.crt")), mode(&at("alice.key"))), (0o644, 0o600));

    let words = ["kubeconfig", "bob", "--group", "ops", "--server", "https://[::1]:8443", "--name", "prod"];
    good(folder.path(), &[&words[..], &["--out", "bob.yaml"]].concat());
    let conf = fs::read_to_string(at("bob.yaml")).unwrap();
    assert_eq!(value(&conf, "current-context:"), "prod");
    let who = identity(&decode_base64(&value(&conf, "client-certificate-data:")).unwrap());
    let days = (who.credential.not_after().as_second() - jiff::Timestamp::now().as_second()) / 86_400;
    assert!((89..=90).contains(&days), "{days} days");

    good(folder.path(), &["cert", "a/b", "--out", "odd"]);
    assert_eq!(identity(&fs::read(at("odd.crt")).unwrap()).name, "a/b");
}

#[test]
fn requests_are_signed_by_hand() {
    let folder = TempDir::new().unwrap();
    good(folder.path(), &["init", "--host", "fleet.example"]);
    let at = |name: &str| folder.path().join(name);
    let request = |name: &str| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
        params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    };
    fs::write(at("request.pem"), request("node-1")).unwrap();
    let object = json!({
        "kind": "CertificateSigningRequest",
        "spec": {"request": encode_base64(request("node-2").as_bytes())},
    });
    fs::write(at("request.json"), object.to_string()).unwrap();
    for (file, node) in [("request.pem", "node-1"), ("request.json", "node-2")] {
        good(folder.path(), &["sign", file, "--out", "signed.crt", "--ttl", "24h"]);
        let who = identity(&fs::read(at("signed.crt")).unwrap());
        assert_eq!((who.node(), who.groups.len()), (Some(node), 2), "no group but that of nodes");
    }
    fs::write(at("masters.pem"), request("system:masters")).unwrap();
    fs::write(at("no-request.pem"), Authority::generate().unwrap().pem().certificate.clone()).unwrap();
    fs::write(at("no-request.json"), json!({"kind": "Secret"}).to_string()).unwrap();
    for (file, words) in [
        ("masters.pem", "node"),
        ("no-request.pem", "CERTIFICATE REQUEST"),
        ("no-request.json", "CertificateSigningRequest"),
        ("missing.pem", "missing.pem"),
    ] {
        let output = pki(folder.path(), &["sign", file, "--out", "refused.crt"]);
        assert!(!output.status.success() && said(&output).contains(words), "{file}: {}", said(&output));
        assert!(!at("refused.crt").exists());
    }
}

#[test]
fn what_would_be_unsafe_or_useless_is_refused() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let refused = |words: &[&str], said_of: &str| {
        let output = pki(folder.path(), words);
        let text = said(&output);
        assert!(!output.status.success() && text.contains(said_of), "{words:?}: {text}");
    };
    refused(&["cert", "alice"], "pki init");
    refused(&["init"], "--host");
    refused(&["init", "--host", "no host"], "no host");
    refused(&["init", "--host", "a.example", "--server", "a.example"], "https://");

    fs::create_dir(at("real")).unwrap();
    symlink(at("real"), at("link")).unwrap();
    refused(&["init", "--host", "a.example", "--pki-dir", "link"], "symbolic link");
    fs::create_dir(at("open")).unwrap();
    fs::set_permissions(at("open"), fs::Permissions::from_mode(0o770)).unwrap();
    refused(&["init", "--host", "a.example", "--pki-dir", "open"], "can write there");
    fs::write(at("file"), "").unwrap();
    refused(&["init", "--host", "a.example", "--pki-dir", "file"], "something else");

    good(folder.path(), &["init", "--host", "a.example"]);
    for ttl in ["0", "0s", "-1h", "1"] {
        let ttl = format!("--ttl={ttl}");
        let output = pki(folder.path(), &["cert", "alice", &ttl]);
        assert!(!output.status.success(), "{ttl}");
    }
    assert!(!at("alice.crt").exists());
    refused(&["node", "Node_1", "--server", "https://a:8443"], "Node_1");
    refused(&["node", "node-1", "--server", "a:8443"], "https://");
    refused(&["cert", "a/b"], "--out");
    refused(&["cert", ""], "name");
    refused(&["cert", "alice", "--group", "dev,,ops"], "group");

    fs::write(at("victim"), "precious").unwrap();
    symlink(at("victim"), at("alice.crt")).unwrap();
    refused(&["cert", "alice"], "alice.crt");
    symlink(at("victim"), at("node-1.conf")).unwrap();
    refused(&["node", "node-1", "--server", "https://a:8443"], "node-1.conf");
    assert_eq!(fs::read_to_string(at("victim")).unwrap(), "precious");
}

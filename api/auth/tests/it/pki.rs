use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use horchestra_auth::Identity;
use horchestra_auth::identity::{CONTROLLERS, MASTERS, NODES};
use horchestra_auth::pki::{
    Authority, CertificateRequest, HostName, Issued, Lifetime, LocalPki, NewRequest, PairFiles, PkiError,
    Process, private_folder, write_file,
};
use horchestra_testkit::TempDir;
use jiff::{SignedDuration, Timestamp};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone()).unwrap();
    Arc::new(roots)
}

fn accepted_as_client(authority: &Authority, pem: &str) -> bool {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(authority), provider).build().unwrap();
    verifier.verify_client_cert(&der(pem), &[], UnixTime::now()).is_ok()
}

fn accepted_as_server(authority: &Authority, pem: &str, host: &str) -> bool {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(authority), provider).build().unwrap();
    let name = ServerName::try_from(host.to_owned()).unwrap();
    verifier.verify_server_cert(&der(pem), &[], &name, &[], UnixTime::now()).is_ok()
}

fn pair(files: &PairFiles) -> Issued {
    Issued {
        certificate: fs::read_to_string(&files.certificate).unwrap(),
        key: fs::read_to_string(&files.key).unwrap(),
    }
}

fn identity(pem: &str) -> Identity {
    Identity::from_verified(&der(pem)).unwrap().unwrap()
}

#[test]
fn each_certificate_serves_its_purpose_and_no_other() {
    let authority = Authority::generate().unwrap();
    let stranger = Authority::generate().unwrap();
    let hosts = [HostName::parse("api.example.org").unwrap(), HostName::parse("192.0.2.7").unwrap()];
    let server = authority.server(&hosts, Lifetime::SERVER).unwrap();
    let admin = authority.client("admin", MASTERS, Lifetime::ADMIN).unwrap();
    let node = authority.node("node-1", Lifetime::CLIENT).unwrap();
    let api = authority.controller("horchestra-api", &hosts, Lifetime::CONTROLLER).unwrap();

    for (what, issued, as_client, as_server) in [
        ("server", &server, false, true),
        ("admin", &admin, true, false),
        ("node", &node, true, false),
        ("controller", &api, true, true),
    ] {
        assert_eq!(accepted_as_client(&authority, &issued.certificate), as_client, "{what} as client");
        for host in ["api.example.org", "192.0.2.7", "localhost", "127.0.0.1", "::1"] {
            assert_eq!(
                accepted_as_server(&authority, &issued.certificate, host),
                as_server,
                "{what} as {host}"
            );
        }
        assert!(!accepted_as_server(&authority, &issued.certificate, "other.example.org"), "{what}");
        assert!(!accepted_as_client(&stranger, &issued.certificate), "{what} of another authority");
    }
    for (issued, name, group) in [
        (&admin, "admin", Some(MASTERS)),
        (&node, "node-1", Some(NODES)),
        (&api, "horchestra-api", Some(CONTROLLERS)),
        (&server, "api.example.org", None),
    ] {
        let found = identity(&issued.certificate);
        assert_eq!(found.name, name);
        assert_eq!(found.groups.len(), 1 + group.iter().len(), "{:?}", found.groups);
        assert!(group.is_none_or(|group| found.in_group(group)), "{:?}", found.groups);
    }
}

#[test]
fn keys_are_sec1_and_belong_to_their_certificates() {
    let authority = Authority::generate().unwrap();
    let issued = authority.client("alice", "team-a", Lifetime::CLIENT).unwrap();
    for (issued, what) in [(authority.pem(), "authority"), (&issued, "client")] {
        assert!(issued.key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"), "{what}");
        let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap();
        assert!(matches!(key, PrivateKeyDer::Sec1(_)), "{what}");
        let chain = vec![der(&issued.certificate)];
        rustls::sign::CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
            .unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    assert!(!format!("{issued:?} {authority:?}").contains("PRIVATE"));
}

#[test]
fn lifetimes_are_positive_and_end_with_the_authority() {
    assert!(matches!(Lifetime::of(Duration::ZERO), Err(PkiError::NoLifetime)));
    assert!(matches!(Lifetime::of(Duration::from_millis(999)), Err(PkiError::NoLifetime)));
    let authority = Authority::generate().unwrap();
    let days = |days: i64| SignedDuration::from_hours(24 * days);
    for (lifetime, expected) in [
        (Lifetime::of(Duration::from_secs(60)).unwrap(), SignedDuration::from_secs(60)),
        (Lifetime::CLIENT, days(90)),
        (Lifetime::of(Duration::from_secs(40 * 365 * 24 * 3600)).unwrap(), days(3650)),
        (Lifetime::of(Duration::MAX).unwrap(), days(3650)),
    ] {
        let issued = authority.client("a", "", lifetime).unwrap();
        let not_after = identity(&issued.certificate).credential.not_after();
        let life = not_after.duration_since(Timestamp::now());
        assert!(
            life <= expected && life > expected - SignedDuration::from_secs(30),
            "{life:?} for {expected:?}"
        );
    }
}

#[test]
fn names_that_no_certificate_can_bear_are_refused() {
    let authority = Authority::generate().unwrap();
    for node in ["", "a/b", "../ca", "Node", "-a", "a-", "a..b", "a_b", "a.", "ü", &"a".repeat(254)] {
        assert!(matches!(authority.node(node, Lifetime::CLIENT), Err(PkiError::Name { .. })), "{node:?}");
        assert!(matches!(HostName::parse(node), Err(PkiError::Name { .. })), "{node:?}");
    }
    for node in ["a", "node-1", "node-1.example.org", "1", "10.0.0.1"] {
        assert!(authority.node(node, Lifetime::CLIENT).is_ok(), "{node:?}");
    }
    assert!(matches!(authority.client("", "a", Lifetime::CLIENT), Err(PkiError::Name { .. })));
}

#[test]
fn an_authority_is_only_taken_whole() {
    let authority = Authority::generate().unwrap();
    let other = Authority::generate().unwrap();
    let again = Authority::from_pem(&authority.pem().certificate, &authority.pem().key).unwrap();
    let issued = again.server(&[], Lifetime::SERVER).unwrap();
    assert!(accepted_as_server(&authority, &issued.certificate, "localhost"));

    let client = authority.client("a", "", Lifetime::CLIENT).unwrap();
    for (certificate, key) in [
        (&authority.pem().certificate, &other.pem().key),
        (&client.certificate, &client.key),
        (&authority.pem().certificate, &authority.pem().certificate),
        (&authority.pem().key, &authority.pem().key),
    ] {
        assert!(Authority::from_pem(certificate, key).is_err());
    }
}

#[test]
fn the_folder_is_made_once_and_kept() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("pki");
    let hosts = [HostName::parse("10.1.2.3").unwrap()];
    let pki = LocalPki::ensure(&folder, &hosts).unwrap();
    pki.node("node-1").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    let mut names: Vec<String> = Vec::new();
    let mut contents = Vec::new();
    let mut look = || {
        let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        names = files.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
        contents = files.iter().map(|path| fs::read(path).unwrap()).collect::<Vec<_>>();
        for path in files {
            let expected = if path.extension().unwrap() == "key" { 0o600 } else { 0o644 };
            assert_eq!(mode(&path), expected, "{}", path.display());
        }
        (names.clone(), contents.clone())
    };
    let first = look();
    let expected: Vec<String> = [
        "admin",
        "ca",
        "horchestra-api",
        "horchestra-nodegate",
        "horchestra-workers",
        "node-node-1",
        "server",
    ]
    .iter()
    .flat_map(|name| [format!("{name}.crt"), format!("{name}.key")])
    .collect();
    assert_eq!(first.0, expected);

    let again = LocalPki::ensure(&folder, &hosts).unwrap();
    again.node("node-1").unwrap();
    assert!(look() == first, "something was made again");

    let signer = again.signer();
    assert!(accepted_as_server(signer, &pair(&again.serving()).certificate, "10.1.2.3"));
    assert!(accepted_as_client(signer, &pair(&again.admin()).certificate));
    for process in Process::ALL {
        let controller = pair(&again.controller(process));
        assert_eq!(identity(&controller.certificate).name, process.name());
        assert!(accepted_as_server(signer, &controller.certificate, "10.1.2.3"));
    }
    assert!(matches!(again.node("../x"), Err(PkiError::Name { .. })));
}

#[test]
fn what_cannot_go_on_serving_is_made_again() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("pki");
    let pki = LocalPki::ensure(&folder, &[]).unwrap();
    let admin = pki.admin();
    let put = |issued: &Issued| {
        write_file(&admin.certificate, issued.certificate.as_bytes(), 0o644).unwrap();
        write_file(&admin.key, issued.key.as_bytes(), 0o600).unwrap();
    };
    let good = pair(&admin);
    let nearly_over =
        pki.signer().client("admin", MASTERS, Lifetime::of(Duration::from_secs(60)).unwrap()).unwrap();
    let foreign = Authority::generate().unwrap().client("admin", MASTERS, Lifetime::ADMIN).unwrap();
    let mixed = Issued { certificate: good.certificate.clone(), key: foreign.key.clone() };
    let broken = Issued { certificate: "nothing".to_owned(), key: good.key.clone() };
    for (what, issued) in
        [("nearly over", &nearly_over), ("foreign", &foreign), ("mixed", &mixed), ("broken", &broken)]
    {
        put(issued);
        let again = LocalPki::ensure(&folder, &[]).unwrap();
        let found = pair(&again.admin());
        assert_ne!(found.certificate, issued.certificate, "{what}");
        assert!(accepted_as_client(again.signer(), &found.certificate), "{what}");
    }
    fs::remove_file(&admin.key).unwrap();
    LocalPki::ensure(&folder, &[]).unwrap();
    assert!(admin.key.exists());

    // A host that was not known before.
    let before = pair(&pki.serving());
    let again = LocalPki::ensure(&folder, &[HostName::parse("10.9.9.9").unwrap()]).unwrap();
    let after = pair(&again.serving());
    assert_ne!(before.certificate, after.certificate);
    assert!(accepted_as_server(again.signer(), &after.certificate, "10.9.9.9"));
}

#[test]
fn an_authority_is_never_replaced() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("pki");
    LocalPki::ensure(&folder, &[]).unwrap();
    let key = fs::read(folder.join("ca.key")).unwrap();

    fs::remove_file(folder.join("ca.key")).unwrap();
    assert!(matches!(LocalPki::ensure(&folder, &[]), Err(PkiError::HalfAnAuthority { .. })));
    let other = Authority::generate().unwrap();
    fs::write(folder.join("ca.key"), &other.pem().key).unwrap();
    assert!(matches!(LocalPki::ensure(&folder, &[]), Err(PkiError::WrongKey { .. })));
    fs::write(folder.join("ca.key"), "nonsense").unwrap();
    assert!(matches!(LocalPki::ensure(&folder, &[]), Err(PkiError::Material { .. })));
    fs::write(folder.join("ca.key"), key).unwrap();
    assert!(LocalPki::ensure(&folder, &[]).is_ok());
}

#[test]
fn what_is_not_valid_yet_goes_by_a_clock_that_was_wrong() {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("pki");
    let pki = LocalPki::ensure(&folder, &[]).unwrap();
    let in_days = |days: i64| {
        let second = Timestamp::now().as_second() + days * 24 * 3600;
        time::OffsetDateTime::from_unix_timestamp(second).unwrap()
    };
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.not_before = in_days(1);
    params.not_after = in_days(100);

    // A certificate is made anew, with the clock as it is now.
    let issuer = rcgen::Issuer::from_ca_cert_der(
        pki.signer().certificate(),
        rcgen::KeyPair::from_pem(&pki.signer().pem().key).unwrap(),
    );
    let early = params.signed_by(&key, &issuer.unwrap()).unwrap().pem();
    write_file(&pki.admin().certificate, early.as_bytes(), 0o644).unwrap();
    write_file(&pki.admin().key, key.serialize_pem().as_bytes(), 0o600).unwrap();
    let again = LocalPki::ensure(&folder, &[]).unwrap();
    assert_ne!(pair(&again.admin()).certificate, early);

    // The authority is not, since others may have certificates of it.
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    fs::write(folder.join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
    fs::write(folder.join("ca.key"), key.serialize_pem()).unwrap();
    let error = LocalPki::ensure(&folder, &[]).unwrap_err();
    assert!(matches!(error, PkiError::FutureAuthority { .. }), "{error}");
    assert!(error.to_string().contains("set the clock"), "{error}");
}

#[test]
fn folders_and_files_that_others_could_have_prepared_are_refused() {
    let dir = TempDir::new().unwrap();
    let real = dir.path().join("real");
    private_folder(&real).unwrap();
    private_folder(&real).unwrap();
    let link = dir.path().join("link");
    symlink(&real, &link).unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    for mode in [0o770, 0o707, 0o720, 0o702] {
        fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
        assert!(matches!(private_folder(&open), Err(PkiError::Folder { .. })), "{mode:o}");
    }
    for path in [&link, &file] {
        assert!(matches!(private_folder(path), Err(PkiError::Folder { .. })), "{}", path.display());
        assert!(LocalPki::ensure(path, &[]).is_err());
    }

    // A link in place of a file is neither followed nor replaced.
    let target = dir.path().join("target");
    fs::write(&target, "untouched").unwrap();
    symlink(&target, real.join("a.key")).unwrap();
    assert!(matches!(write_file(&real.join("a.key"), b"secret", 0o600), Err(PkiError::NotAFile { .. })));
    assert_eq!(fs::read_to_string(&target).unwrap(), "untouched");

    // An old mode is not inherited, and nothing else stays in the folder.
    let loose = real.join("b.key");
    fs::write(&loose, "old").unwrap();
    fs::set_permissions(&loose, fs::Permissions::from_mode(0o666)).unwrap();
    write_file(&loose, b"new", 0o600).unwrap();
    assert_eq!(fs::metadata(&loose).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_to_string(&loose).unwrap(), "new");
    assert_eq!(fs::read_dir(&real).unwrap().count(), 2);
    assert!(matches!(write_file(&dir.path().join("none/x"), b"", 0o600), Err(PkiError::File { .. })));
}

#[test]
fn a_kubeconfig_holds_everything_inline() {
    let dir = TempDir::new().unwrap();
    let pki = LocalPki::ensure(&dir.path().join("pki"), &[]).unwrap();
    let yaml = pki.kubeconfig("https://127.0.0.1:8443", "admin", &pki.admin()).unwrap();
    let decoded = |field: &str| {
        let line = yaml.lines().find_map(|line| line.trim().strip_prefix(field)).expect(field);
        let bytes =
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, line.trim()).expect(field);
        String::from_utf8(bytes).expect(field)
    };
    let admin = pair(&pki.admin());
    assert_eq!(decoded("client-certificate-data:"), admin.certificate);
    assert_eq!(decoded("client-key-data:"), admin.key);
    assert_eq!(decoded("certificate-authority-data:"), fs::read_to_string(pki.authority()).unwrap());
    for line in [
        "apiVersion: v1",
        "kind: Config",
        "- name: \"horchestra\"",
        "    server: \"https://127.0.0.1:8443\"",
        "- name: \"admin\"",
        "    cluster: \"horchestra\"",
        "    user: \"admin\"",
        "current-context: \"horchestra\"",
    ] {
        assert!(yaml.lines().any(|found| found == line), "no {line:?} in\n{yaml}");
    }
}

#[test]
fn several_groups_are_several_organizations() {
    let authority = Authority::generate().unwrap();
    for groups in [&[][..], &["dev"], &["dev", "ops", "a group with spaces"], &["é", "x", "y", "z"]] {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        // As long as a name may get, so that lengths need two bytes.
        for name in ["alice", &"a".repeat(200)] {
            let issued = authority.member(name, &groups, Lifetime::CLIENT).unwrap();
            assert!(accepted_as_client(&authority, &issued.certificate), "{groups:?}");
            let mut expected = groups.clone();
            expected.push("system:authenticated".to_owned());
            let identity = identity(&issued.certificate);
            assert_eq!((identity.name.as_str(), identity.groups), (name, expected));
            let key = rcgen::KeyPair::from_pem(&issued.key).unwrap();
            let (certificate, spki) =
                (der(&issued.certificate), rcgen::PublicKeyData::subject_public_key_info(&key));
            let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).unwrap();
            assert_eq!(parsed.public_key().raw, spki, "the key belongs to it");
        }
    }
    for odd in ["", "a\nb"] {
        let groups = ["dev".to_owned(), odd.to_owned()];
        assert!(authority.member("alice", &groups, Lifetime::CLIENT).is_err(), "{odd:?}");
    }
}

/// A request in PEM for this name that asks for all that it must not get.
fn greedy_request(name: &str) -> (String, rcgen::KeyPair) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["evil.example".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.distinguished_name.push(rcgen::DnType::OrganizationName, MASTERS);
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    (params.serialize_request(&key).unwrap().pem().unwrap(), key)
}

#[test]
fn of_a_request_only_name_and_key_are_signed() {
    let authority = Authority::generate().unwrap();
    let (pem, key) = greedy_request("node-1");
    let request = CertificateRequest::from_pem(pem.as_bytes()).unwrap();
    let signed = authority.sign(&request, Lifetime::of(Duration::from_secs(7200)).unwrap()).unwrap();
    assert_eq!(signed.matches("BEGIN CERTIFICATE").count(), 1, "the leaf alone");
    assert!(accepted_as_client(&authority, &signed));
    assert!(!accepted_as_server(&authority, &signed, "evil.example"));
    let identity = identity(&signed);
    assert_eq!((identity.name.as_str(), &identity.groups[0]), ("node-1", &NODES.to_owned()));
    assert_eq!(identity.groups.len(), 2);
    let certificate = der(&signed);
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).unwrap();
    assert_eq!(parsed.public_key().raw, rcgen::PublicKeyData::subject_public_key_info(&key));
    assert!(!parsed.is_ca() && parsed.subject_alternative_name().unwrap().is_none());
    let usages = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(usages.client_auth && !usages.server_auth && !usages.any && usages.other.is_empty());
    assert!(parsed.key_usage().unwrap().unwrap().value.digital_signature());
    let (now, validity) = (Timestamp::now().as_second(), parsed.validity());
    assert!((now - 3700..=now - 3500).contains(&validity.not_before.timestamp()));
    assert!((now + 7100..=now + 7200).contains(&validity.not_after.timestamp()));
    assert!(parsed.raw_serial().len() >= 15, "128 random bits");

    for odd in ["system:masters", "Node", "a/b"] {
        let (pem, _) = greedy_request(odd);
        let request = CertificateRequest::from_pem(pem.as_bytes()).unwrap();
        assert!(matches!(authority.sign(&request, Lifetime::CLIENT), Err(PkiError::Name { .. })), "{odd}");
    }
}

#[test]
fn a_request_of_our_own_is_for_a_name_and_a_new_key() {
    let (one, two) = (NewRequest::generate("node-1").unwrap(), NewRequest::generate("node-1").unwrap());
    let read = |new: &NewRequest| CertificateRequest::from_pem(new.request.as_bytes()).unwrap();
    assert_eq!(read(&one).common_name, "node-1");
    assert_ne!(read(&one).public_key, read(&two).public_key);
    assert!(one.key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
    let authority = Authority::generate().unwrap();
    let certificate = authority.sign(&read(&one), Lifetime::CLIENT).unwrap();
    let key = PrivateKeyDer::from_pem_slice(one.key.as_bytes()).unwrap();
    rustls::sign::CertifiedKey::from_der(vec![der(&certificate)], key, &aws_lc_rs::default_provider())
        .unwrap();
}

#[test]
fn an_authority_is_loaded_from_files_that_belong_together() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (authority, other) = (Authority::generate().unwrap(), Authority::generate().unwrap());
    let missing = Authority::load(&at("ca.crt"), &at("ca.key")).unwrap_err();
    assert!(matches!(&missing, PkiError::File { path, .. } if *path == at("ca.crt")), "{missing}");
    for (name, text) in [
        ("ca.crt", &authority.pem().certificate),
        ("ca.key", &authority.pem().key),
        ("other.key", &other.pem().key),
    ] {
        fs::write(at(name), text).unwrap();
    }
    let loaded = Authority::load(&at("ca.crt"), &at("ca.key")).unwrap();
    assert_eq!(loaded.certificate(), authority.certificate());
    assert!(loaded.not_after() > Timestamp::now());
    let wrong = Authority::load(&at("ca.crt"), &at("other.key")).unwrap_err();
    assert!(matches!(wrong, PkiError::WrongKey { .. }), "{wrong}");
}

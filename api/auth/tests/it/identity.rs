use horchestra_auth::identity::{MASTERS, NODES, fingerprint};
use horchestra_auth::pki::Authority;
use horchestra_auth::{Credential, Identity, IdentityError};
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, DnValue, KeyPair};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// The OID of organizations; the library keeps one value for each of its own names of a type, so that a
/// second organization has to come under this one.
fn organization() -> DnType {
    DnType::CustomDnType(vec![2, 5, 4, 10])
}

fn certificate(subject: Vec<(DnType, DnValue)>) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(vec!["ignored.example.org".to_owned()]).unwrap();
    params.distinguished_name = DistinguishedName::new();
    for (attribute, value) in subject {
        params.distinguished_name.push(attribute, value);
    }
    params.custom_extensions = vec![CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0])];
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
}

fn utf8(text: &str) -> DnValue {
    DnValue::Utf8String(text.to_owned())
}

#[test]
fn the_subject_becomes_name_and_groups() {
    let cn = || DnType::CommonName;
    let o = || DnType::OrganizationName;
    type Subject = Vec<(DnType, DnValue)>;
    type Expected = Option<(&'static str, Vec<&'static str>)>;
    let cases: Vec<(&str, Subject, Expected)> = vec![
        (
            "groups in their order",
            vec![(cn(), utf8("alice")), (o(), utf8("a")), (organization(), utf8("b"))],
            Some(("alice", vec!["a", "b"])),
        ),
        ("no group", vec![(cn(), utf8("bob"))], Some(("bob", vec![]))),
        (
            "a printable string reads as well",
            vec![(cn(), DnValue::PrintableString("carol".try_into().unwrap())), (o(), utf8("a"))],
            Some(("carol", vec!["a"])),
        ),
        ("a name that is a group's gives no group", vec![(cn(), utf8(MASTERS))], Some((MASTERS, vec![]))),
        (
            "letter for letter",
            vec![(cn(), utf8("Ünï Cödé, O=system:masters")), (o(), utf8(" A "))],
            Some(("Ünï Cödé, O=system:masters", vec![" A "])),
        ),
        (
            "the unit and other attributes do not count",
            vec![(cn(), utf8("dave")), (DnType::OrganizationalUnitName, utf8(MASTERS))],
            Some(("dave", vec![])),
        ),
        (
            "the same group twice is one",
            vec![(cn(), utf8("erin")), (o(), utf8("a")), (organization(), utf8("a"))],
            Some(("erin", vec!["a"])),
        ),
        (
            "groups that only tokens give are left out",
            vec![(cn(), utf8("f")), (o(), utf8("system:workloads")), (organization(), utf8("b"))],
            Some(("f", vec!["b"])),
        ),
        (
            "a group of service accounts is left out",
            vec![(cn(), utf8("g")), (o(), utf8("system:serviceaccounts:team-a"))],
            Some(("g", vec![])),
        ),
        (
            "the group that says nobody is left out",
            vec![(cn(), utf8("h")), (o(), utf8("system:unauthenticated"))],
            Some(("h", vec![])),
        ),
        ("no common name", vec![(o(), utf8(MASTERS))], None),
        ("an empty common name", vec![(cn(), utf8("")), (o(), utf8(MASTERS))], None),
    ];
    for (case, subject, expected) in cases {
        let identity = Identity::from_verified(&certificate(subject)).unwrap();
        let expected = expected.map(|(name, mut groups)| {
            groups.push("system:authenticated");
            (name.to_owned(), groups.into_iter().map(str::to_owned).collect::<Vec<_>>())
        });
        assert_eq!(identity.map(|identity| (identity.name, identity.groups)), expected, "{case}");
    }
}

#[test]
fn subjects_that_could_pass_for_somebody_else_are_refused() {
    let refused = |subject| Identity::from_verified(&certificate(subject)).unwrap_err();
    for name in [
        "system:workload:team-a:web",
        "system:serviceaccount:team-a:web",
        "system:loop:scheduler",
        "system:node:node-1",
        "system:gateway:1",
    ] {
        assert!(
            matches!(refused(vec![(DnType::CommonName, utf8(name))]), IdentityError::Reserved { .. }),
            "{name}"
        );
    }
    let two =
        vec![(DnType::CommonName, utf8("alice")), (DnType::CustomDnType(vec![2, 5, 4, 3]), utf8("admin"))];
    assert!(matches!(refused(two), IdentityError::Ambiguous));
    for text in ["a\0b", "a\nb", "a\u{7f}"] {
        let name = refused(vec![(DnType::CommonName, utf8(text))]);
        assert!(matches!(name, IdentityError::Text { attribute: "common name" }), "{text:?}");
        let group = refused(vec![(DnType::CommonName, utf8("a")), (DnType::OrganizationName, utf8(text))]);
        assert!(matches!(group, IdentityError::Text { attribute: "organization" }), "{text:?}");
    }
    let wide = DnValue::BmpString("alice".try_into().unwrap());
    assert!(matches!(refused(vec![(DnType::CommonName, wide)]), IdentityError::Text { .. }));
    let garbage = CertificateDer::from(vec![0x30, 0x03, 1, 2, 3]);
    assert!(matches!(Identity::from_verified(&garbage), Err(IdentityError::Unreadable { .. })));
}

#[test]
fn the_credential_is_the_certificate_and_ends_with_it() {
    let issued =
        Authority::generate().unwrap().node("node-1", horchestra_auth::pki::Lifetime::CLIENT).unwrap();
    let leaf = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
    let identity = Identity::from_verified(&leaf).unwrap().unwrap();
    assert_eq!(identity.node(), Some("node-1"));
    assert!(identity.in_group(NODES) && !identity.in_group(MASTERS));

    let Credential::Certificate { fingerprint: found, not_after } = &identity.credential else {
        panic!("not a certificate: {:?}", identity.credential)
    };
    assert_eq!(*found, fingerprint(&leaf));
    assert!(found.len() == 64 && found.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)));
    assert!(identity.valid_at(Timestamp::now()));
    assert!(identity.valid_at(*not_after));
    assert!(!identity.valid_at(*not_after + SignedDuration::from_secs(1)));
    let life = not_after.duration_since(Timestamp::now());
    assert!(life > SignedDuration::from_hours(90 * 24 - 1) && life <= SignedDuration::from_hours(90 * 24));
}

//! Tokens of workloads: what they say, who takes them, and the keys behind them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::encoding::{AsDer, EcPrivateKeyRfc5915Der, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING,
    ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use horchestra_auth::tokens::{
    Issuer, KeyFiles, Recipient, SigningKeyError, Signs, TokenCache, TokenError, TokenReviewSpec, review,
};
use horchestra_auth::{Credential, Identity};
use horchestra_testkit::TempDir;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// How long anything may take before a test fails.
const DEADLINE: Duration = Duration::from_secs(20);
const UID: &str = "6f1c3d6e-8f5e-4a61-9a55-0d5f0c1f4b11";

fn now() -> Timestamp {
    Timestamp::now()
}

fn later(seconds: i64) -> Timestamp {
    now() + SignedDuration::from_secs(seconds)
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

fn sec1(pair: &EcdsaKeyPair) -> String {
    let der: EcPrivateKeyRfc5915Der<'_> = pair.private_key().as_der().unwrap();
    pem("EC PRIVATE KEY", der.as_ref())
}

fn key(algorithm: &'static EcdsaSigningAlgorithm) -> EcdsaKeyPair {
    EcdsaKeyPair::generate(algorithm).unwrap()
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// An issuer whose key the test holds as well.
struct Forge {
    issuer: Arc<Issuer>,
    pair: EcdsaKeyPair,
    _folder: TempDir,
}

impl Forge {
    fn new() -> Forge {
        let folder = TempDir::new().unwrap();
        let pair = key(&ECDSA_P256_SHA256_FIXED_SIGNING);
        let file = folder.path().join("key.pem");
        write(&file, &sec1(&pair), 0o600);
        let issuer = Arc::new(Issuer::load("horchestra", KeyFiles::new(file)).unwrap());
        Forge { issuer, pair, _folder: folder }
    }

    fn header(&self) -> Value {
        json!({"alg": "ES256", "typ": "JWT", "kid": self.issuer.key_ids()[0]})
    }

    fn claims(&self) -> Value {
        let second = now().as_second();
        json!({
            "iss": "horchestra",
            "sub": "system:serviceaccount:team-a:edge",
            "aud": ["horchestra"],
            "exp": second + 900,
            "nbf": second,
            "iat": second,
            "kubernetes.io": {"namespace": "team-a", "serviceaccount": {"name": "edge", "uid": UID}},
        })
    }

    fn signed(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let head = format!("{}.{}", part(header), part(claims));
        let signature = self.pair.sign(&SystemRandom::new(), head.as_bytes()).unwrap();
        format!("{head}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }
}

fn parts(token: &str) -> (Value, Value, Vec<u8>) {
    let parts: Vec<&str> = token.split('.').collect();
    let [header, claims, signature] = parts.as_slice() else { panic!("not three parts: {token}") };
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).unwrap();
    let read = |part: &str| serde_json::from_slice(&decode(part)).unwrap();
    (read(header), read(claims), decode(signature))
}

#[test]
fn a_token_says_who_for_whom_and_how_long() {
    let forge = Forge::new();
    let at = now();
    let minted = forge.issuer.mint("team-a", "web", UID, "", at).unwrap();
    let (header, claims, signature) = parts(&minted.token);
    let public: PublicKeyX509Der<'_> = forge.pair.public_key().as_der().unwrap();
    let kid = URL_SAFE_NO_PAD.encode(&Sha256::digest(public.as_ref())[..8]);
    assert_eq!(kid.len(), 11);
    assert_eq!(header, json!({"alg": "ES256", "typ": "JWT", "kid": kid}));
    let second = at.as_second();
    assert_eq!(
        claims,
        json!({
            "iss": "horchestra",
            "sub": "system:serviceaccount:team-a:web",
            "aud": ["vault"],
            "iat": second,
            "nbf": second,
            "exp": second + 900,
            "kubernetes.io": {"namespace": "team-a", "serviceaccount": {"name": "web", "uid": UID}},
        })
    );
    assert_eq!(signature.len(), 64, "two numbers, not DER");
    let signed = minted.token.rsplit_once('.').unwrap().0;
    let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, forge.pair.public_key().as_ref());
    public.verify(signed.as_bytes(), &signature).unwrap();
    let verified = forge.issuer.verify(&minted.token, at).unwrap();
    assert_eq!((verified.key, verified.not_after.as_second()), (kid, second + 960));
    assert!(!format!("{minted:?}").contains(signed), "a token is not for logs");
}

#[test]
fn a_token_for_this_api_is_a_workload_and_no_other_is() {
    let forge = Forge::new();
    let identify = |token: &str| forge.issuer.identify(token, now());
    let good = forge.issuer.mint("team-a", "edge", UID, "horchestra", now()).unwrap();
    let identity = identify(&good.token).unwrap();
    assert_eq!(identity.name, "system:workload:team-a:edge");
    assert_eq!(identity.groups, ["system:workloads", "system:authenticated"]);
    assert!(identity.node().is_none());
    let Credential::Token { key, uid, not_after } = &identity.credential else { panic!("no token") };
    assert_eq!((key, uid.as_str()), (&good.key, UID));
    assert_eq!(not_after.as_second(), good.expires.as_second() + 60);
    assert!(identity.valid_at(*not_after) && !identity.valid_at(*not_after + SignedDuration::from_secs(1)));

    let change = |path: &str, value: Value| {
        let mut claims = forge.claims();
        *claims.pointer_mut(path).unwrap() = value;
        forge.signed(&forge.header(), &claims)
    };
    let without = |name: &str| {
        let mut claims = forge.claims();
        claims.as_object_mut().unwrap().remove(name);
        forge.signed(&forge.header(), &claims)
    };
    let headed = |header: Value| forge.signed(&header, &forge.claims());
    let kid = forge.issuer.key_ids()[0].clone();
    let second = now().as_second();
    let untouched = forge.signed(&forge.header(), &forge.claims());
    let torn = |at: usize| {
        let parts: Vec<&str> = untouched.split('.').collect();
        [&parts[..at], &parts[at + 1..]].concat().join(".")
    };
    let stranger = Issuer::ephemeral("horchestra").unwrap();
    let foreign = stranger.mint("team-a", "edge", UID, "horchestra", now()).unwrap().token;
    let mixed = {
        let other = change("/sub", json!("system:serviceaccount:team-b:root"));
        format!("{}.{}", other.rsplit_once('.').unwrap().0, untouched.rsplit_once('.').unwrap().1)
    };
    let der = {
        let signed = untouched.rsplit_once('.').unwrap().0;
        let der: EcPrivateKeyRfc5915Der<'_> = forge.pair.private_key().as_der().unwrap();
        let pair = EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_ASN1_SIGNING, der.as_ref()).unwrap();
        let signature = pair.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    };

    let cases: &[(&str, String, Option<TokenError>)] = &[
        ("as it should be", untouched.clone(), None),
        ("several audiences", change("/aud", json!(["vault", "horchestra"])), None),
        ("half a minute past its end", change("/exp", json!(second - 30)), None),
        ("over a minute past its end", change("/exp", json!(second - 61)), Some(TokenError::Expired)),
        ("beginning in half a minute", change("/nbf", json!(second + 30)), None),
        ("beginning in a minute and a half", change("/nbf", json!(second + 90)), Some(TokenError::NotYet)),
        ("made in the future", change("/iat", json!(second + 9000)), None),
        ("without a type", headed(json!({"alg": "ES256", "kid": kid})), None),
        ("for Vault", change("/aud", json!(["vault"])), Some(TokenError::Audience)),
        ("for nobody", change("/aud", json!([])), Some(TokenError::Audience)),
        ("an audience that is no list", change("/aud", json!("horchestra")), Some(TokenError::Malformed)),
        ("no namespace", change("/kubernetes.io/namespace", json!("")), Some(TokenError::Nobody)),
        ("no name", change("/kubernetes.io/serviceaccount/name", json!("")), Some(TokenError::Nobody)),
        ("no workload", without("kubernetes.io"), Some(TokenError::Nobody)),
        ("no end", without("exp"), Some(TokenError::Malformed)),
        ("of another issuer", change("/iss", json!("somebody")), Some(TokenError::Issuer)),
        ("of another key", foreign, Some(TokenError::UnknownKey)),
        ("without a key", headed(json!({"alg": "ES256"})), Some(TokenError::UnknownKey)),
        ("unsigned", headed(json!({"alg": "none", "kid": kid})), Some(TokenError::Malformed)),
        ("another algorithm", headed(json!({"alg": "HS256", "kid": kid})), Some(TokenError::Malformed)),
        ("no algorithm", headed(json!({"kid": kid})), Some(TokenError::Malformed)),
        ("signature of another token", mixed, Some(TokenError::Signature)),
        ("signature in DER", der, Some(TokenError::Signature)),
        ("no signature", format!("{}.", untouched.rsplit_once('.').unwrap().0), Some(TokenError::Signature)),
        ("two parts", torn(2), Some(TokenError::Malformed)),
        ("one part", "whatever".to_owned(), Some(TokenError::Malformed)),
        ("four parts", format!("{untouched}.e30"), Some(TokenError::Malformed)),
        ("padded", format!("{untouched}=="), Some(TokenError::Malformed)),
        ("empty", String::new(), Some(TokenError::Malformed)),
        ("very long", "a".repeat(1 << 20), Some(TokenError::Malformed)),
    ];
    for (what, token, expected) in cases {
        assert_eq!(identify(token).err(), *expected, "{what}");
    }
}

#[test]
fn reviews_tell_others_whose_a_token_is() {
    let forge = Forge::new();
    let token = forge.issuer.mint("team-a", "web", UID, "vault", now()).unwrap().token;
    let expired = forge.issuer.mint("team-a", "web", UID, "vault", later(-900 - 61)).unwrap().token;
    // The token, the audiences that are asked for, and those that are answered.
    type Case<'a> = (&'a str, &'a [&'a str], Option<&'a [&'a str]>);
    let cases: &[Case<'_>] = &[
        (&token, &[], Some(&["vault"])),
        (&token, &["vault"], Some(&["vault"])),
        (&token, &["other", "vault"], Some(&["vault"])),
        (&token, &["other"], None),
        (&expired, &[], None),
        ("garbage", &[], None),
        ("", &[], None),
    ];
    for (token, audiences, expected) in cases {
        let asked = TokenReviewSpec {
            token: Some((*token).to_owned()),
            audiences: Some(audiences.iter().map(|audience| (*audience).to_owned()).collect()),
        };
        let answer = review(&forge.issuer, &asked, now());
        let status = &answer["status"];
        match expected {
            Some(audiences) => assert_eq!(
                answer,
                json!({
                    "apiVersion": "authentication.k8s.io/v1",
                    "kind": "TokenReview",
                    "status": {
                        "authenticated": true,
                        "audiences": audiences,
                        "user": {
                            "username": "system:serviceaccount:team-a:web",
                            "uid": UID,
                            "groups": ["system:serviceaccounts", "system:serviceaccounts:team-a"],
                        },
                    },
                })
            ),
            None => {
                assert_eq!(status["authenticated"], false, "{token} {audiences:?}");
                assert!(status["error"].as_str().is_some_and(|error| !error.is_empty()));
                assert!(status.get("user").is_none());
            }
        }
    }
}

#[test]
fn the_published_keys_verify_and_the_configuration_repeats_the_issuer() {
    let forge = Forge::new();
    let jwks = forge.issuer.jwks();
    let [published] = jwks["keys"].as_array().unwrap().as_slice() else { panic!("{jwks}") };
    let mut point = vec![4];
    for name in ["x", "y"] {
        point.extend(URL_SAFE_NO_PAD.decode(published[name].as_str().unwrap()).unwrap());
    }
    assert_eq!(point, forge.pair.public_key().as_ref());
    for (name, value) in [("kty", "EC"), ("crv", "P-256"), ("use", "sig"), ("alg", "ES256")] {
        assert_eq!(published[name], value);
    }
    assert_eq!(published["kid"], forge.issuer.key_ids()[0]);
    assert!(published.get("d").is_none(), "the private part stays here");

    for (name, keys_at) in [
        ("https://fleet.example:8443", Some("https://fleet.example:8443/openid/v1/jwks")),
        ("https://fleet.example/a/", Some("https://fleet.example/a/openid/v1/jwks")),
        ("http://10.0.0.1", Some("http://10.0.0.1/openid/v1/jwks")),
        ("horchestra", None),
        ("https://", None),
        ("ftp://x", None),
    ] {
        let issuer = Issuer::ephemeral(name).unwrap();
        let configuration = issuer.configuration();
        assert_eq!(configuration.is_some(), issuer.is_address(), "{name}");
        assert_eq!(configuration.as_ref().map(|found| found["jwks_uri"].as_str().unwrap()), keys_at);
        if let Some(configuration) = configuration {
            let claims = parts(&issuer.mint("a", "b", UID, "", now()).unwrap().token).1;
            assert_eq!(configuration["issuer"], claims["iss"], "to the letter");
        }
    }
}

#[test]
fn a_key_is_made_once_and_only_for_its_owner() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("jwt.pem");
    let load = || Issuer::load("horchestra", KeyFiles::new(&file)).unwrap();
    let first = load();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(fs::read_to_string(&file).unwrap().starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
    let token = first.mint("team-a", "web", UID, "", now()).unwrap().token;
    let second = load();
    assert_eq!(first.key_ids(), second.key_ids());
    second.verify(&token, now()).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");

    let shared = folder.path().join("shared.pem");
    let together: Vec<_> = (0..8)
        .map(|_| {
            let shared = shared.clone();
            std::thread::spawn(move || Issuer::load("horchestra", KeyFiles::new(shared)).unwrap().key_ids())
        })
        .collect();
    let mut ids: Vec<_> = together.into_iter().map(|thread| thread.join().unwrap()).collect();
    ids.dedup();
    assert_eq!(ids.len(), 1, "processes that start at once make one key: {ids:?}");

    let keys = folder.path().join("keys");
    fs::create_dir(&keys).unwrap();
    let of_folder = Issuer::load("horchestra", KeyFiles::new(&keys)).unwrap();
    assert_eq!(of_folder.key_ids().len(), 1);
    assert_eq!(Issuer::load("horchestra", KeyFiles::new(&keys)).unwrap().key_ids(), of_folder.key_ids());
}

#[test]
fn keys_are_made_in_a_folder_and_the_one_that_comes_last_signs_when_everybody_has_it() {
    let root = TempDir::new().unwrap();
    let folder = root.path().join("keys");
    let files = KeyFiles::new(&folder);
    let listed = |at: Timestamp| -> Vec<(String, Signs)> {
        files.list(at).unwrap().into_iter().map(|key| (key.name, key.signs)).collect()
    };
    assert!(files.add(now()).unwrap_err().to_string().contains("keys"), "there is no folder yet");
    let first = files.begin("2026-11-29T08:00:00Z".parse().unwrap()).unwrap();
    assert_eq!(first, "2026-11-29T080000Z.pem");
    for (path, mode) in [(folder.clone(), 0o700), (folder.join(&first), 0o600)] {
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
    }
    assert_eq!(listed(now()), [(first.clone(), Signs::Now)], "alone it need not wait");
    let refused = files.begin(now()).unwrap_err().to_string();
    assert!(refused.contains("token-keys add"), "{refused}");

    let second = files.add("2026-11-30T09:30:00Z".parse().unwrap()).unwrap();
    assert_eq!(listed(later(300)), [(first.clone(), Signs::No), (second.clone(), Signs::Now)]);
    let issuer = Issuer::load("horchestra", files.clone()).unwrap();
    let ids: Vec<String> = files.list(now()).unwrap().into_iter().map(|key| key.id).collect();
    assert_eq!(issuer.key_ids(), ids);
    assert_eq!(issuer.mint("default", "web", "u", "", later(300)).unwrap().key, ids[1]);

    for early in ["2026-11-30T09:30:00Z", "2026-11-30T09:29:59Z"] {
        assert!(files.add(early.parse().unwrap()).is_err(), "a key that would never sign is not made");
    }
    write(&folder.join("zebra.pem"), &fs::read_to_string(folder.join(&first)).unwrap(), 0o600);
    let refused = files.add(later(300)).unwrap_err().to_string();
    assert!(refused.contains("zebra.pem") && refused.contains("never sign"), "{refused}");
    assert_eq!(listed(later(300)).len(), 3, "nothing was made");
}

#[test]
fn keys_that_cannot_be_used_say_what_to_do() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("jwt.pem");
    let p256 = key(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let good = sec1(&p256);
    let pkcs8 = pem("PRIVATE KEY", p256.to_pkcs8v1().unwrap().as_ref());
    let p384 = sec1(&key(&ECDSA_P384_SHA384_FIXED_SIGNING));
    let with_parameters = format!("{}{good}", pem("EC PARAMETERS", &[6, 8, 42, 134, 72, 206, 61, 3, 1, 7]));
    let cases: &[(&str, &str, u32, &[&str])] = &[
        ("as it should be", &good, 0o600, &[]),
        ("as openssl writes it", &with_parameters, 0o400, &[]),
        ("for a group", &good, 0o640, &[]),
        ("P-384", &p384, 0o600, &["P-256", "horchestra-api token-keys"]),
        ("PKCS #8", &pkcs8, 0o600, &["PKCS #8", "openssl ec"]),
        ("no PEM", "secret", 0o600, &["EC PRIVATE KEY", "horchestra-api token-keys new"]),
        ("empty", "", 0o600, &["EC PRIVATE KEY"]),
        ("a certificate's block", &pem("CERTIFICATE", b"x"), 0o600, &["EC PRIVATE KEY"]),
        ("broken inside", &pem("EC PRIVATE KEY", b"x"), 0o600, &["P-256"]),
        ("for everybody", &good, 0o644, &["0600"]),
        ("writable by a group", &good, 0o660, &["0600"]),
    ];
    for (what, text, mode, words) in cases {
        write(&file, text, *mode);
        match Issuer::load("horchestra", KeyFiles::new(&file)) {
            Ok(_) => assert!(words.is_empty(), "{what}"),
            Err(error) => {
                let error = error.to_string();
                assert!(
                    !words.is_empty() && words.iter().all(|word| error.contains(word)),
                    "{what}: {error}"
                );
                assert!(error.contains("jwt.pem") && !error.contains("secret"), "{what}: {error}");
            }
        }
    }
    write(&file, &good, 0o600);
    assert!(matches!(Issuer::load("", KeyFiles::new(&file)), Err(SigningKeyError::NoIssuer)));
    let nowhere = folder.path().join("no/such/folder/key.pem");
    assert!(matches!(Issuer::load("a", KeyFiles::new(nowhere)), Err(SigningKeyError::File { .. })));
}

/// The time at which a file came to be cannot be set, so it is the issuer that is given a later time.
#[test]
fn keys_rotate_with_overlap_while_everybody_runs() {
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("keys");
    fs::create_dir(&keys).unwrap();
    let place = |name: &str| {
        let text = sec1(&key(&ECDSA_P256_SHA256_FIXED_SIGNING));
        write(&keys.join(name), &text, 0o600);
    };
    place("2026-01.pem");
    fs::write(keys.join("README"), "not a key").unwrap();
    fs::write(keys.join(".2026-09.pem"), "half a key").unwrap();
    let load = || Issuer::load("horchestra", KeyFiles::new(&keys)).unwrap();
    let (one, other) = (load(), load());
    let mint = |issuer: &Issuer, at: Timestamp| issuer.mint("team-a", "web", UID, "", at).unwrap();
    let old = mint(&one, now());
    assert!(!one.reload().unwrap(), "nothing changed");

    place("2026-02.pem");
    assert!(one.reload().unwrap());
    assert_eq!(one.key_ids().len(), 2);
    let soon = mint(&one, later(120));
    assert_ne!(soon.key, old.key, "the newest signs when it has been there for a while");
    // The other process has not looked yet: an unknown key makes it look, though not too often.
    horchestra_testkit::eventually_blocking(DEADLINE, || other.verify(&soon.token, later(120)));
    assert_eq!(other.key_ids(), one.key_ids());
    for issuer in [&one, &other] {
        issuer.verify(&old.token, now()).unwrap();
    }

    fs::remove_file(keys.join("2026-01.pem")).unwrap();
    assert!(one.reload().unwrap());
    assert_eq!(one.verify(&old.token, now()), Err(TokenError::UnknownKey));
    one.verify(&soon.token, later(120)).unwrap();
    assert!(!one.holds(&old.key) && one.holds(&soon.key));

    write(&keys.join("2026-03.pem"), "-----BEGIN EC", 0o600);
    assert!(one.reload().is_err(), "half a file");
    one.verify(&soon.token, later(120)).unwrap();
    fs::remove_file(keys.join("2026-03.pem")).unwrap();
    fs::remove_file(keys.join("2026-02.pem")).unwrap();
    assert!(matches!(one.reload(), Err(SigningKeyError::Empty { .. })), "never without a key");
    one.verify(&soon.token, later(120)).unwrap();
}

#[test]
fn a_young_key_waits_while_there_is_an_older_one() {
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("keys");
    fs::create_dir(&keys).unwrap();
    let since = |name: &str| fs::metadata(keys.join(name)).unwrap().ctime();
    let place = |name: &str| write(&keys.join(name), &sec1(&key(&ECDSA_P256_SHA256_FIXED_SIGNING)), 0o600);
    place("a.pem");
    place("b.pem");
    while since("b.pem") < since("a.pem") + 2 {
        std::thread::sleep(Duration::from_millis(50));
        place("b.pem");
    }
    let issuer = Issuer::load("horchestra", KeyFiles::new(&keys)).unwrap();
    let [older, newer] = issuer.key_ids().try_into().unwrap();
    let signs = |second| {
        let at = Timestamp::from_second(second).unwrap();
        issuer.mint("a", "b", UID, "", at).unwrap().key
    };
    assert_eq!(signs(since("b.pem")), newer, "all are young: the folder was just made");
    assert_eq!(signs(since("a.pem") + 61), older, "one has settled and the other has not");
    assert_eq!(signs(since("b.pem") + 61), newer);
    let listed = |second| {
        let listed = KeyFiles::new(&keys).list(Timestamp::from_second(second).unwrap()).unwrap();
        listed.into_iter().map(|key| key.signs).collect::<Vec<_>>()
    };
    assert_eq!(listed(since("b.pem")), [Signs::No, Signs::Now]);
    let soon = Timestamp::from_second(since("b.pem") + 60).unwrap();
    assert_eq!(listed(since("a.pem") + 61), [Signs::Now, Signs::From(soon)]);
    assert_eq!(listed(since("b.pem") + 61), [Signs::No, Signs::Now]);
}

#[test]
fn a_cached_token_stays_the_same_until_it_should_be_renewed() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("jwt.pem");
    let issuer = Arc::new(Issuer::load("horchestra", KeyFiles::new(&file)).unwrap());
    let cache = TokenCache::new(Arc::clone(&issuer));
    let web = Recipient { namespace: "team-a", name: "web", uid: UID, node: "node-1" };
    let at = now();
    let after = |seconds| at + SignedDuration::from_secs(seconds);
    let first = cache.token(&web, "vault", at).unwrap();
    assert_eq!(cache.token(&web, "vault", after(599)).unwrap(), first);
    for (what, recipient, audience) in [
        ("another audience", web, "horchestra"),
        ("recreated", Recipient { uid: "another", ..web }, "vault"),
        ("moved", Recipient { node: "node-2", ..web }, "vault"),
        ("a namesake", Recipient { namespace: "team-b", ..web }, "vault"),
    ] {
        assert_ne!(cache.token(&recipient, audience, at).unwrap().token, first.token, "{what}");
    }
    let second = cache.token(&web, "vault", after(600)).unwrap();
    assert_ne!(second, first, "five minutes are left: it is renewed");
    assert_eq!(cache.token(&web, "vault", after(600)).unwrap(), second);
    issuer.verify(&second.token, after(600)).unwrap();

    write(&file, &sec1(&key(&ECDSA_P256_SHA256_FIXED_SIGNING)), 0o600);
    assert!(issuer.reload().unwrap());
    let third = cache.token(&web, "vault", after(600)).unwrap();
    assert_eq!(third.key, issuer.key_ids()[0], "a token of a key that is gone is not handed out");

    for many in 0..2000 {
        let uid = many.to_string();
        cache.token(&Recipient { uid: &uid, ..web }, "vault", after(many)).unwrap();
    }
    assert!(cache.len() < 2000, "what has expired is thrown out: {}", cache.len());
}

#[test]
fn a_cached_token_is_made_anew_for_who_wants_a_younger_one() {
    let issuer = Arc::new(Issuer::ephemeral("horchestra").unwrap());
    let cache = TokenCache::new(issuer);
    let web = Recipient { namespace: "team-a", name: "web", uid: UID, node: "node-1" };
    let at = now();
    let after = |seconds| at + SignedDuration::from_secs(seconds);
    assert_eq!(cache.last(&web, "vault", at), None);
    let first = cache.token(&web, "vault", at).unwrap();
    for (what, now, since, same) in [
        ("one from then", 100, 0, true),
        ("one from before, to the second", 100, -5, true),
        ("a younger one", 100, 60, false),
    ] {
        let token = cache.token_since(&web, "vault", after(now), after(since)).unwrap();
        assert_eq!(token == first, same, "{what}");
    }
    let second = cache.last(&web, "vault", after(100)).unwrap();
    assert_ne!(second, first);
    assert_eq!(cache.last(&web, "vault", after(100 + 899)), Some(second.clone()), "good to its end");
    assert_eq!(cache.last(&web, "vault", after(100 + 900)), None);
    // A clock that was put back: nobody would take the token from then for some time.
    let third = cache.token(&web, "vault", at).unwrap();
    assert_ne!(third, second);
    assert_eq!(third.issued(), Timestamp::from_second(at.as_second()).unwrap());
}

#[test]
fn workloads_have_no_groups_but_their_own() {
    let forge = Forge::new();
    let token = forge.issuer.mint("team-a", "system:masters", UID, "horchestra", now()).unwrap().token;
    let identity: Identity = forge.issuer.identify(&token, now()).unwrap();
    assert!(!identity.in_group("system:masters") && !identity.in_group("system:nodes"));
}

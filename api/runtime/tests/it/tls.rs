use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use horchestra_runtime::tls::{
    ClientCertificates, KeyPairFiles, ReloadingClient, ReloadingServer, TlsError, TlsMetrics,
};
use horchestra_runtime::{Metrics, PeerChain};
use horchestra_testkit::{TempDir, eventually};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ProtocolVersion, ServerConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use tokio_util::sync::CancellationToken;

use crate::DEADLINE;

/// An authority of this test's own making.
struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate chain and its key, PEM.
struct Pair {
    certificate: String,
    key: String,
}

fn params(name: &str, usage: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    params
}

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

impl Ca {
    fn new(name: &str) -> Ca {
        let key = KeyPair::generate().unwrap();
        let params = ca_params(name);
        let pem = params.self_signed(&key).unwrap().pem();
        Ca { pem, issuer: Issuer::new(params, key) }
    }

    fn intermediate(&self, name: &str) -> Ca {
        let key = KeyPair::generate().unwrap();
        let params = ca_params(name);
        let pem = params.signed_by(&key, &self.issuer).unwrap().pem();
        Ca { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, params: CertificateParams) -> Pair {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }

    fn server(&self, name: &str) -> Pair {
        self.issue(params(name, ExtendedKeyUsagePurpose::ServerAuth))
    }

    fn client(&self, name: &str) -> Pair {
        self.issue(params(name, ExtendedKeyUsagePurpose::ClientAuth))
    }
}

/// A listener's files and what was made from them.
struct Fixture {
    dir: TempDir,
    ca: Ca,
    server: Arc<ReloadingServer>,
}

impl Fixture {
    fn new(required: bool) -> Fixture {
        let dir = TempDir::new().unwrap();
        let ca = Ca::new("the authority");
        write(&dir, "server", &ca.server("first"));
        fs::write(dir.path().join("ca.crt"), &ca.pem).unwrap();
        let authority = dir.path().join("ca.crt");
        let clients = if required {
            ClientCertificates::Required { ca: authority }
        } else {
            ClientCertificates::Optional { ca: authority }
        };
        let server = ReloadingServer::load(files(&dir, "server"), clients, &[b"h2", b"http/1.1"]).unwrap();
        Fixture { dir, ca, server: Arc::new(server) }
    }

    /// A client that trusts the listener's authority and shows `pair`.
    fn client(&self, pair: Option<&Pair>, alpn: &[&[u8]]) -> Arc<ClientConfig> {
        let authority = self.dir.path().join("trusted.crt");
        fs::write(&authority, &self.ca.pem).unwrap();
        let pair = pair.map(|pair| {
            write(&self.dir, "client", pair);
            files(&self.dir, "client")
        });
        ReloadingClient::load(pair, authority, alpn).unwrap().config()
    }

    async fn connect(&self, client: Arc<ClientConfig>) -> Result<Connection, String> {
        connect(&self.server, client, "localhost").await
    }
}

fn write(dir: &TempDir, name: &str, pair: &Pair) {
    fs::write(dir.path().join(format!("{name}.crt")), &pair.certificate).unwrap();
    fs::write(dir.path().join(format!("{name}.key")), &pair.key).unwrap();
}

fn files(dir: &TempDir, name: &str) -> KeyPairFiles {
    let at = |end: &str| -> PathBuf { dir.path().join(format!("{name}.{end}")) };
    KeyPairFiles { certificate: at("crt"), key: at("key") }
}

struct Connection {
    server: server::TlsStream<DuplexStream>,
    client: client::TlsStream<DuplexStream>,
}

impl Connection {
    fn session(&self) -> &ServerConnection {
        self.server.get_ref().1
    }

    /// How many certificates the server has of its peer.
    fn shown(&self) -> usize {
        PeerChain::of(self.session()).map_or(0, |chain| chain.certificates().len())
    }
}

/// A handshake and one byte each way, since in TLS 1.3 a client learns of its refusal only when it reads.
async fn connect(
    listener: &ReloadingServer,
    client: Arc<ClientConfig>,
    host: &str,
) -> Result<Connection, String> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let accepting = async {
        let mut stream = TlsAcceptor::from(listener.config()).accept(far).await.map_err(|e| e.to_string())?;
        stream.write_all(b"!").await.map_err(|e| e.to_string())?;
        stream.flush().await.map_err(|e| e.to_string())?;
        Ok::<_, String>(stream)
    };
    let host = ServerName::try_from(host.to_owned()).unwrap();
    let connecting = async {
        let mut stream = TlsConnector::from(client).connect(host, near).await.map_err(|e| e.to_string())?;
        stream.read_u8().await.map_err(|e| e.to_string())?;
        Ok::<_, String>(stream)
    };
    let (server, client) = tokio::time::timeout(DEADLINE, async { tokio::join!(accepting, connecting) })
        .await
        .expect("the handshake hangs");
    match (server, client) {
        (Ok(server), Ok(client)) => Ok(Connection { server, client }),
        (Err(error), _) => Err(format!("server: {error}")),
        (_, Err(error)) => Err(format!("client: {error}")),
    }
}

#[tokio::test]
async fn a_client_certificate_may_be_withheld_but_one_that_is_shown_must_verify() {
    let fixture = Fixture::new(false);
    let stranger = Ca::new("a stranger");
    let good = fixture.ca.client("alice");
    let with = |change: fn(&mut CertificateParams)| {
        let mut params = params("alice", ExtendedKeyUsagePurpose::ClientAuth);
        change(&mut params);
        fixture.ca.issue(params)
    };
    let expired = with(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let early = with(|params| params.not_before = rcgen::date_time_ymd(4000, 1, 1));
    let serving = with(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
    let foreign = stranger.client("alice");
    // The same names as the real authority, another key.
    let forged = Ca::new("the authority").client("alice");

    for (case, pair, shown) in [
        ("none", None, Some(0)),
        ("good", Some(&good), Some(1)),
        ("expired", Some(&expired), None),
        ("not yet valid", Some(&early), None),
        ("for servers", Some(&serving), None),
        ("of a stranger", Some(&foreign), None),
        ("forged", Some(&forged), None),
    ] {
        let outcome = fixture.connect(fixture.client(pair, &[b"h2"])).await;
        assert_eq!(outcome.as_ref().ok().map(Connection::shown), shown, "{case}: {:?}", outcome.err());
    }
}

#[tokio::test]
async fn a_chain_longer_than_the_leaf_is_accepted_and_kept() {
    let fixture = Fixture::new(false);
    let intermediate = fixture.ca.intermediate("an intermediate");
    let leaf = intermediate.client("alice");
    let chain =
        Pair { certificate: format!("{}{}", leaf.certificate, intermediate.pem), key: leaf.key.clone() };
    let with_root =
        Pair { certificate: format!("{}{}", chain.certificate, fixture.ca.pem), key: leaf.key.clone() };
    for (case, pair, shown) in
        [("chain", &chain, Some(2)), ("with root", &with_root, Some(3)), ("leaf", &leaf, None)]
    {
        let outcome = fixture.connect(fixture.client(Some(pair), &[])).await;
        assert_eq!(outcome.as_ref().ok().map(Connection::shown), shown, "{case}: {:?}", outcome.err());
    }
    let connection = fixture.connect(fixture.client(Some(&chain), &[])).await.unwrap();
    let found = PeerChain::of(connection.session()).unwrap();
    let expected = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
    assert_eq!(*found.leaf(), expected);
}

#[tokio::test]
async fn a_listener_that_requires_certificates_takes_nobody_without() {
    let fixture = Fixture::new(true);
    assert!(fixture.connect(fixture.client(None, &[])).await.is_err());
    let pair = fixture.ca.client("alice");
    assert_eq!(fixture.connect(fixture.client(Some(&pair), &[])).await.unwrap().shown(), 1);
}

#[tokio::test]
async fn protocols_are_negotiated_and_a_name_is_not_needed() {
    let fixture = Fixture::new(false);
    type Offer = &'static [&'static [u8]];
    let cases: [(Offer, Option<&[u8]>); 4] = [
        (&[], None),
        (&[b"h2"], Some(b"h2")),
        (&[b"http/1.1"], Some(b"http/1.1")),
        (&[b"http/1.1", b"h2"], Some(b"h2")),
    ];
    for (offered, chosen) in cases {
        let connection = fixture.connect(fixture.client(None, offered)).await.unwrap();
        assert_eq!(connection.session().alpn_protocol(), chosen, "{offered:?}");
        assert_eq!(connection.client.get_ref().1.alpn_protocol(), chosen);
        assert_eq!(connection.session().server_name(), Some("localhost"));
    }
    assert!(fixture.connect(fixture.client(None, &[b"spdy/3"])).await.is_err());
    // An address is never sent as a name.
    let connection = connect(&fixture.server, fixture.client(None, &[]), "127.0.0.1").await.unwrap();
    assert_eq!(connection.session().server_name(), None);
}

#[tokio::test]
async fn tls_1_2_and_1_3_are_spoken_and_sessions_are_not_resumed() {
    let fixture = Fixture::new(false);
    let pair = fixture.ca.client("alice");
    for (version, expected) in [
        (&rustls::version::TLS12, ProtocolVersion::TLSv1_2),
        (&rustls::version::TLS13, ProtocolVersion::TLSv1_3),
    ] {
        // A client of its own, which would resume.
        let mut roots = rustls::RootCertStore::empty();
        let pem = |text: &str| CertificateDer::from_pem_slice(text.as_bytes()).unwrap();
        roots.add(pem(&fixture.ca.pem)).unwrap();
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![pem(&pair.certificate)], key)
            .unwrap();
        let client = Arc::new(client);
        for _ in 0..3 {
            let connection = fixture.connect(client.clone()).await.unwrap();
            assert_eq!(connection.session().protocol_version(), Some(expected));
            assert_eq!(connection.session().handshake_kind(), Some(rustls::HandshakeKind::Full));
            assert_eq!(connection.shown(), 1);
        }
    }
}

#[tokio::test]
async fn tls_1_1_is_refused() {
    let fixture = Fixture::new(false);
    // The minor version, the type of the record that is answered, and what it begins with. But for the
    // version, the two greetings are the same, and all that the listener needs is in them.
    let cases: [(u8, u8, &[u8]); 2] = [
        (2, 0x15, &[2, 70]), // a fatal alert: protocol version
        (3, 0x16, &[2]),     // a ServerHello
    ];
    for (minor, record_type, begins) in cases {
        let mut hello = vec![3, minor];
        hello.extend([7; 32]); // random
        hello.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]); // no session, one cipher suite, no compression
        let extensions = [
            [0, 13, 0, 4, 0, 2, 4, 3],  // signatures: ECDSA on P-256 with SHA-256
            [0, 10, 0, 4, 0, 2, 0, 23], // groups: P-256
        ];
        hello.extend([0, 16]);
        hello.extend(extensions.concat());
        let length = u8::try_from(hello.len()).unwrap();
        let mut record = vec![0x16, 3, 1, 0, length + 4, 1, 0, 0, length];
        record.extend(&hello);

        let (mut near, far) = tokio::io::duplex(64 * 1024);
        near.write_all(&record).await.unwrap();
        let accepting = TlsAcceptor::from(fixture.server.config()).accept(far);
        let answering = async {
            let mut header = [0; 5];
            near.read_exact(&mut header).await.unwrap();
            let mut answer = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
            near.read_exact(&mut answer).await.unwrap();
            drop(near);
            (header[0], answer)
        };
        let (accepted, (found, answer)) =
            tokio::time::timeout(DEADLINE, async { tokio::join!(accepting, answering) }).await.unwrap();
        assert!(accepted.is_err());
        assert!(found == record_type && answer.starts_with(begins), "version 3.{minor}: {found} {answer:?}");
    }
}

/// A client whose only certificate comes from an authority that the listener does not name. It must be asked
/// in a way that lets it show the certificate all the same.
#[derive(Debug)]
struct Picky(Arc<rustls::sign::CertifiedKey>, Arc<parking_lot::Mutex<Option<usize>>>);

impl rustls::client::ResolvesClientCert for Picky {
    fn resolve(
        &self,
        hints: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        *self.1.lock() = Some(hints.len());
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn the_request_for_a_certificate_names_no_authorities() {
    let fixture = Fixture::new(false);
    let pair = fixture.ca.client("alice");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let key = rustls::sign::CertifiedKey::from_der(chain, key, &provider).unwrap();
    let hints = Arc::new(parking_lot::Mutex::new(None));
    let mut client = ClientConfig::clone(&fixture.client(None, &[]));
    client.client_auth_cert_resolver = Arc::new(Picky(Arc::new(key), hints.clone()));
    assert_eq!(fixture.connect(Arc::new(client)).await.unwrap().shown(), 1);
    assert_eq!(*hints.lock(), Some(0));
}

#[tokio::test]
async fn replaced_files_are_used_by_the_next_connection_and_broken_ones_are_not() {
    let fixture = Fixture::new(false);
    let stopping = CancellationToken::new();
    let following = tokio::spawn(fixture.server.clone().follow(Duration::from_millis(10), stopping.clone()));
    let client = fixture.client(None, &[]);
    let serving = async || {
        let connection = fixture.connect(client.clone()).await.unwrap();
        let certificates = connection.client.get_ref().1.peer_certificates().unwrap();
        certificates[0].to_vec()
    };
    let first = serving().await;
    let open = fixture.connect(client.clone()).await.unwrap();

    // The key of another certificate, half a file, no file: the first stays.
    let second = fixture.ca.server("second");
    fs::write(fixture.dir.path().join("server.key"), &second.key).unwrap();
    assert!(matches!(fixture.server.reload(), Err(TlsError::KeyPair { .. })));
    let half = &second.certificate[..second.certificate.len() / 2];
    fs::write(fixture.dir.path().join("server.crt"), half).unwrap();
    assert!(matches!(fixture.server.reload(), Err(TlsError::Pem { .. })));
    fs::remove_file(fixture.dir.path().join("server.crt")).unwrap();
    assert!(matches!(fixture.server.reload(), Err(TlsError::Read { .. })));
    assert_eq!(serving().await, first);

    fs::write(fixture.dir.path().join("server.crt"), &second.certificate).unwrap();
    eventually(DEADLINE, async || serving().await != first).await;
    // What was open goes on.
    let (mut server, mut near) = (open.server, open.client);
    server.write_all(b"?").await.unwrap();
    server.flush().await.unwrap();
    assert_eq!(near.read_u8().await.unwrap(), b'?');

    stopping.cancel();
    tokio::time::timeout(DEADLINE, following).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_new_authority_lets_its_clients_in_and_a_removed_one_keeps_them_out() {
    let fixture = Fixture::new(false);
    let other = Ca::new("another authority");
    let (old, new) = (fixture.ca.client("alice"), other.client("alice"));
    let let_in = async |pair: &Pair| fixture.connect(fixture.client(Some(pair), &[])).await.is_ok();
    let authorities = fixture.dir.path().join("ca.crt");
    let before = fixture.client(Some(&old), &[]);

    assert_eq!((let_in(&old).await, let_in(&new).await), (true, false));
    fs::write(&authorities, format!("{}{}", fixture.ca.pem, other.pem)).unwrap();
    assert!(fixture.server.reload().unwrap());
    assert!(!fixture.server.reload().unwrap());
    assert_eq!((let_in(&old).await, let_in(&new).await), (true, true));
    fs::write(&authorities, &other.pem).unwrap();
    assert!(fixture.server.reload().unwrap());
    assert_eq!((let_in(&old).await, let_in(&new).await), (false, true));
    // Not even somebody who was in before.
    assert!(fixture.connect(before).await.is_err());

    fs::write(&authorities, "no certificate").unwrap();
    assert!(matches!(fixture.server.reload(), Err(TlsError::Pem { .. })));
    assert!(let_in(&new).await);
}

#[tokio::test]
async fn a_connection_is_cut_when_the_authority_behind_it_is_removed() {
    let fixture = Fixture::new(false);
    let other = Ca::new("another authority");
    let authorities = fixture.dir.path().join("ca.crt");
    let both = format!("{}{}", fixture.ca.pem, other.pem);
    fs::write(&authorities, &both).unwrap();
    assert!(fixture.server.reload().unwrap());

    let lost = async |pair: Option<&Pair>| {
        let (_, mut trust) = fixture.server.accept();
        let connection = fixture.connect(fixture.client(pair, &[])).await.unwrap();
        let chain = PeerChain::of(connection.session());
        let (heard, hear) = tokio::sync::oneshot::channel();
        let waiting = tokio::spawn(async move {
            trust.lost(chain.as_ref()).await;
            let _ = heard.send(());
        });
        (waiting, hear)
    };
    let (old, mut old_cut) = lost(Some(&fixture.ca.client("alice"))).await;
    let (new, mut new_cut) = lost(Some(&other.client("alice"))).await;
    let (anonymous, mut anonymous_cut) = lost(None).await;

    // Neither a new pair nor an order of authorities that says the same is a reason.
    write(&fixture.dir, "server", &fixture.ca.server("second"));
    fs::write(&authorities, format!("{}{}", other.pem, fixture.ca.pem)).unwrap();
    assert!(fixture.server.reload().unwrap());
    // A removed authority is, although the pair is broken.
    fs::write(fixture.dir.path().join("server.key"), "half a key").unwrap();
    fs::write(&authorities, &other.pem).unwrap();
    assert!(fixture.server.reload().is_err());
    assert!(fixture.server.failing());
    tokio::time::timeout(DEADLINE, &mut old_cut).await.expect("cut").unwrap();
    // The change has been judged for one of them and cannot be pending for the others: each has a task of its
    // own on this one thread, woken before the first one could be heard.
    for cut in [&mut new_cut, &mut anonymous_cut] {
        assert!(cut.try_recv().is_err());
    }
    let late = fixture.connect(fixture.client(Some(&fixture.ca.client("alice")), &[])).await;
    assert!(late.is_err());
    old.await.unwrap();
    new.abort();
    anonymous.abort();
}

#[tokio::test]
async fn a_change_between_the_settings_and_the_handshake_is_not_missed() {
    let fixture = Fixture::new(false);
    let (config, mut trust) = fixture.server.accept();
    fs::write(fixture.dir.path().join("ca.crt"), &Ca::new("another authority").pem).unwrap();
    assert!(fixture.server.reload().unwrap());
    let client = fixture.client(Some(&fixture.ca.client("alice")), &[]);
    let (near, far) = tokio::io::duplex(64 * 1024);
    let accepting = TlsAcceptor::from(config).accept(far);
    let connecting = TlsConnector::from(client).connect(ServerName::try_from("localhost").unwrap(), near);
    let (server, _client) = tokio::join!(accepting, connecting);
    let chain = PeerChain::of(server.unwrap().get_ref().1);
    assert!(chain.is_some(), "the old settings let it in");
    tokio::time::timeout(DEADLINE, trust.lost(chain.as_ref())).await.expect("cut at once");
}

#[tokio::test]
async fn metrics_say_how_long_the_files_last() {
    let fixture = Fixture::new(false);
    let client = ReloadingClient::load(None, fixture.dir.path().join("ca.crt"), &[]).unwrap();
    let client = Arc::new(client);
    let metrics = Metrics::new("test", "0", None);
    TlsMetrics::default()
        .server("serving", "client-authorities", &fixture.server)
        .client("own", "gateway-authorities", &client)
        .register(&metrics);
    let value = |name: &str, certificate: &str| {
        let text = metrics.encode().unwrap();
        let start = format!("horchestra_{name}{{certificate=\"{certificate}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(start.as_str()));
        line.map(|value| value.parse::<i64>().unwrap())
    };
    let day = 24 * 3600;
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap();
    let now = i64::try_from(now.as_secs()).unwrap();
    let lasting = |days: i64| {
        let mut params = params("short", ExtendedKeyUsagePurpose::ServerAuth);
        params.not_after = time::OffsetDateTime::from_unix_timestamp(now + days * day).unwrap();
        params
    };
    for days in [10, -1] {
        write(&fixture.dir, "server", &fixture.ca.issue(lasting(days)));
        assert!(fixture.server.reload().unwrap());
        let left = value("tls_expiry_seconds", "serving").unwrap();
        assert!((days * day - 600..=days * day).contains(&left), "{left}");
    }
    assert!(value("tls_expiry_seconds", "client-authorities").unwrap() > day);
    assert!(value("tls_expiry_seconds", "gateway-authorities").unwrap() > day);
    assert_eq!(value("tls_expiry_seconds", "own"), None, "it shows nothing");
    assert_eq!(value("tls_files_unusable", "serving"), Some(0));
    fs::write(fixture.dir.path().join("server.key"), "half a key").unwrap();
    assert!(fixture.server.reload().is_err());
    assert_eq!(value("tls_files_unusable", "serving"), Some(1));
    assert_eq!(value("tls_files_unusable", "own"), Some(0));
}

#[tokio::test]
async fn a_client_takes_only_servers_of_its_authority_and_name() {
    let fixture = Fixture::new(false);
    let stranger = Ca::new("a stranger");
    let authority = fixture.dir.path().join("other.crt");
    fs::write(&authority, &stranger.pem).unwrap();
    let client = ReloadingClient::load(None, authority.clone(), &[]).unwrap();
    assert!(fixture.connect(client.config()).await.is_err());
    fs::write(&authority, &fixture.ca.pem).unwrap();
    assert!(client.reload().unwrap());
    assert!(fixture.connect(client.config()).await.is_ok());
    assert!(connect(&fixture.server, client.config(), "elsewhere.example.org").await.is_err());
}

//! TLS between the processes and their database: with a server that takes nothing else, every program works; where the
//! other end cannot be believed, each says so in a line.

use std::fs;
use std::path::Path;
use std::time::Duration;

use horchestra_auth::pki::{Authority, HostName, Issued, Lifetime};
use horchestra_testkit::binaries::Account;
use horchestra_testkit::{Cluster, ClusterOptions, TempDir, eventually};

use crate::guide::programs;
use crate::plane::Program;
use crate::replicas::{Part, Replicas};
use crate::stack::said;

const SOON: Duration = Duration::from_secs(90);
const PARTS: [Part; 3] = [Part::Api(0), Part::Workers(0), Part::Gateway(0)];

/// In no certificate, and this machine all the same.
const NAMELESS: &str = "127.0.0.2";

/// A server that can be reached over TLS only. Its certificate is for `localhost` and the usual addresses of that.
struct Encrypted {
    server: Cluster,
    folder: TempDir,
}

impl Encrypted {
    fn start() -> Encrypted {
        let folder = TempDir::new().unwrap();
        let account = Account::find().unwrap();
        account.own(folder.path()).unwrap();
        let authority = Authority::generate().unwrap();
        let issued = authority.server(&[HostName::parse("localhost").unwrap()], Lifetime::SERVER).unwrap();
        let Issued { certificate, key } = issued;
        let hba = "local all all trust\nhostssl all all 127.0.0.0/8 trust\n";
        // Whose name is another, and one of the same name.
        let stranger = Authority::generate().unwrap();
        let stranger =
            stranger.server(&[HostName::parse("stranger.example").unwrap()], Lifetime::SERVER).unwrap();
        let namesake = Authority::generate().unwrap().pem().certificate.clone();
        for (name, text) in [
            ("ca.crt", &authority.pem().certificate),
            ("stranger.crt", &stranger.certificate),
            ("namesake.crt", &namesake),
            ("server.crt", &certificate),
            ("server.key", &key),
            ("hba.conf", &hba.to_owned()),
        ] {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            readable_by_owner(&path);
            account.own(&path).unwrap();
        }
        let file = |name: &str| folder.path().join(name).display().to_string();
        let settings = [
            ("listen_addresses", format!("127.0.0.1,{NAMELESS}")),
            ("ssl", "on".to_owned()),
            ("ssl_cert_file", file("server.crt")),
            ("ssl_key_file", file("server.key")),
            ("hba_file", file("hba.conf")),
        ];
        let settings = settings.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let server =
            Cluster::start(ClusterOptions { settings, fsync: true, ..ClusterOptions::default() }).unwrap();
        Encrypted { server, folder }
    }

    /// With these parameters.
    fn url(&self, host: &str, parameters: &str) -> String {
        format!("postgres://postgres@{host}:{}/postgres?{parameters}", self.server.port())
    }

    fn verified(&self, host: &str, authority: &str) -> String {
        let file = self.folder.path().join(authority);
        self.url(host, &format!("sslmode=verify-full&sslrootcert={}", file.display()))
    }
}

fn readable_by_owner(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

async fn plane(database_url: String) -> Replicas {
    Replicas::lay_out(vec![("DATABASE_URL", database_url)], &PARTS).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_program_works_on_a_server_that_takes_nothing_but_tls() {
    let server = Encrypted::start();
    for url in [server.url("127.0.0.1", "sslmode=require"), server.verified("localhost", "ca.crt")] {
        let mut replicas = plane(url).await;
        replicas.prepare(&programs());
        replicas.start_all(&programs()).await;
        let looked = replicas.run(&programs(), &["check", "--secret-keys", "secret-keys"]);
        assert!(looked.status.success(), "{}", said(&looked));
    }
    let refused = plane(server.url("127.0.0.1", "sslmode=disable")).await.run(&programs(), &["migrate"]);
    assert!(!refused.status.success(), "{}", said(&refused));
    assert!(said(&refused).contains("no encryption"), "{}", said(&refused));
}

/// `migrate`, `check` and every process say this of the database; what goes on says it once.
async fn assert_said(url: String, what: &str) {
    let replicas = plane(url).await;
    replicas.make_keys(&programs());
    for command in [["migrate"].as_slice(), &["check"]] {
        let output = replicas.run(&programs(), command);
        assert!(!output.status.success(), "{command:?}: {}", said(&output));
        assert!(lines(&said(&output), what) > 0, "{command:?}: {}", said(&output));
    }
    for part in PARTS {
        let log = replicas.folder().join("log");
        let process = Program::start(replicas.process(part, &programs()), &log);
        let text = || fs::read_to_string(&log).unwrap_or_default();
        eventually(SOON, async || if lines(&text(), what) == 1 { Ok(()) } else { Err(text()) }).await;
        // It has tried again by then, and says nothing new.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(lines(&text(), what), 1, "{part}: {}", text());
        process.stop();
        fs::remove_file(&log).unwrap();
    }
}

fn lines(text: &str, what: &str) -> usize {
    text.lines().filter(|line| line.contains(what)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_authority_is_not_believed() {
    let server = Encrypted::start();
    assert_said(server.verified("localhost", "stranger.crt"), "UnknownIssuer").await;
    assert_said(server.verified("localhost", "namesake.crt"), "BadSignature").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_name_is_not_believed() {
    let server = Encrypted::start();
    assert_said(server.verified(NAMELESS, "ca.crt"), "not valid for name").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_not_spoken_to_where_tls_is_asked_for() {
    let server = Cluster::start(ClusterOptions::default()).unwrap();
    let url = format!("{}?sslmode=require", server.url("postgres"));
    assert_said(url, "server does not support TLS").await;
}

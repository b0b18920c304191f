//! No value of a Secret on any disk: not in the database's files, its write-ahead log, a dump, its statistics, or
//! a log of the server or of any process of ours; nor in what is told to others than those who may read it. The same goes
//! for tokens that workloads are given.
//!
//! A whole stack runs with every log at its most talkative. Values come in by every way there is ([`ways`]): through
//! kubectl and beside it, accepted and refused. Every value holds one token that is made up for the test, and
//! everything is searched for it in all forms that it could have ([`search`]). A second token is stored where
//! everybody may see it (a label, an Application, the words of an Event, a statement, a path): where the first must
//! not be found the second must be, or the search would prove nothing.

mod search;
mod ways;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use horchestra_auth::pki::{Lifetime, LocalPki};
use horchestra_testkit::{Cluster, ClusterOptions, Shutdown, TempDir, eventually, postgres_program};
use hyper::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use self::search::Search;
use crate::client::Client;
use crate::rotation::client_folder;
use crate::stack::{RECOVERY, Stack, said};
use crate::tour::kubectls;

pub const SECRETS: &str = "/apis/horchestra.io/v1/namespaces/default/secrets";
const APPLICATIONS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";
const EVENTS: [&str; 2] = ["/api/v1/events", "/apis/events.k8s.io/v1/events"];
const LOG: &str = "trace,h2=info,hyper=info,hyper_util=info,rustls=info,tower=info,mio=info";
/// How every token of a workload begins.
const TOKEN: &[u8] = b"eyJhbGciOiJFUzI1Ni";
/// Processes of the stack that have logs and metrics.
const PROCESSES: [&str; 4] = ["api-0", "api-1", "workers-0", "nodegate-0"];

/// Everything that takes part.
pub struct World {
    pub stack: Stack,
    pub master: Client,
    /// Somebody with a certificate and no rights.
    pub nobody: Client,
    pub anonymous: Client,
    /// `None`: there is no kubectl on this machine.
    kubectl: Option<PathBuf>,
    /// Manifests and the caches of kubectl, which are their owner's business.
    own: TempDir,
    /// In every value.
    pub token: String,
    /// In what is stored in the clear.
    pub clear: String,
}

impl World {
    fn of(stack: Stack) -> World {
        let address = SocketAddr::from(([127, 0, 0, 1], stack.port("api")));
        let folder = stack.home().join("pki");
        let nobody =
            LocalPki::ensure(&folder, &[]).unwrap().signer().client("nobody", "none", Lifetime::CLIENT);
        let nobody = client_folder(&fs::read_to_string(folder.join("ca.crt")).unwrap(), &nobody.unwrap());
        World {
            master: stack.client("api"),
            nobody: Client::new(address, nobody.path()),
            anonymous: Client::anonymous(address, &folder),
            stack,
            kubectl: kubectls().pop(),
            own: TempDir::new().unwrap(),
            token: Uuid::new_v4().simple().to_string(),
            clear: Uuid::new_v4().simple().to_string(),
        }
    }

    /// A Secret with the token in it, in every alignment and among characters that have to be escaped.
    pub fn secret(&self, name: &str) -> Value {
        use base64::Engine as _;
        let (token, clear) = (&self.token, &self.clear);
        json!({
            "apiVersion": "horchestra.io/v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {"clear": clear},
                "annotations": {"example.org/note": format!("\"{token}\"")},
            },
            "stringData": {
                "one": format!("x{token}y"),
                "two": format!("xy{token}z"),
                "three": token,
                "quoted": format!("he said \"{token}\"\n\t\\ <&> \u{e9}"),
            },
            "data": {
                "four": base64::engine::general_purpose::STANDARD.encode(format!("xyz{token}")),
            },
        })
    }

    /// Runs kubectl with a manifest; answers whether it was content, and what it said. `None`: there is no kubectl.
    pub fn kubectl(&self, args: &[&str], document: Option<&Value>) -> Option<(bool, String)> {
        let program = self.kubectl.as_ref()?;
        let file = self.own.path().join("manifest.json");
        let mut command = Command::new(program);
        command
            .args(args)
            .env("KUBECONFIG", self.stack.kubeconfig())
            .env("HOME", self.own.path())
            .env("KUBECACHEDIR", self.own.path().join("cache"));
        if let Some(document) = document {
            fs::write(&file, document.to_string()).unwrap();
            command.arg("-f").arg(&file);
        }
        let output = command.output().unwrap();
        Some((output.status.success(), said(&output)))
    }
}

/// A server that tells its log everything. Without its statistics where they are not installed.
fn talkative() -> (Cluster, bool) {
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let settings = vec![
        setting("log_statement", "all"),
        setting("log_min_duration_statement", "0"),
        setting("log_parameter_max_length", "-1"),
        setting("log_parameter_max_length_on_error", "-1"),
        setting("log_error_verbosity", "verbose"),
    ];
    let mut counted = settings.clone();
    counted.push(setting("shared_preload_libraries", "pg_stat_statements"));
    counted.push(setting("pg_stat_statements.track", "all"));
    let start = |settings| Cluster::start(ClusterOptions { settings, ..ClusterOptions::default() });
    match start(counted) {
        Ok(cluster) => (cluster, true),
        Err(error) => {
            assert!(format!("{error:#}").contains("pg_stat_statements"), "{error:#}");
            missing("PG_STAT_STATEMENTS");
            (start(settings).unwrap(), false)
        }
    }
}

#[allow(clippy::print_stderr)]
fn missing(what: &str) {
    eprintln!("\n*** NO {what} WAS FOUND: IT IS NOT SEARCHED ***\n");
}

fn psql(url: &str, statement: &str) -> Vec<u8> {
    let mut command = Command::new(postgres_program("psql").unwrap());
    let output = command.args([url, "-v", "ON_ERROR_STOP=1", "-c", statement]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    output.stdout
}

fn holds(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            files(&path, into);
        } else if path.is_file() {
            into.push(path);
        }
    }
}

/// A rotation of the key, as it is documented, beside everything that runs.
async fn rotate(world: &World) {
    let (stack, keys) = (&world.stack, world.stack.secret_keys());
    let old = stack.operate(&["secret-keys", "list", &keys]);
    let old = old.split_whitespace().next().unwrap();
    let listed = stack.operate(&["secret-keys", "add", &keys]);
    let new = listed.lines().last().unwrap();
    for (command, seals) in
        [(None, Some(false)), (Some(["use", &keys, new, "--in", "0"].as_slice()), Some(true))]
    {
        if let Some(command) = command {
            stack.operate(&[&["secret-keys"], command].concat());
        }
        for process in ["api-0", "api-1", "nodegate-0"] {
            eventually(RECOVERY, async || stack.key_of(process, new).await == seals).await;
        }
    }
    ways::accepted(world, "turned").await;
    for _ in 0..2 {
        stack.operate(&["reseal", "--secret-keys", &keys]);
    }
    stack.operate(&["secret-keys", "remove", &keys, old]);
    for process in ["api-0", "api-1", "nodegate-0"] {
        eventually(RECOVERY, async || stack.key_of(process, old).await.is_none()).await;
    }
}

/// What anybody may see of the second token: an Application with a history, an Event, a refusal, a path.
async fn show(world: &World) {
    let (master, clear) = (&world.master, &world.clear);
    let app = |image: &str| {
        json!({
            "apiVersion": "horchestra.io/v1", "kind": "Application",
            "metadata": {"name": format!("a{clear}"), "namespace": "default", "annotations": {"example.org/note": clear}},
            "spec": {"image": format!("registry.example/{clear}:{image}")},
        })
    };
    match world.kubectl(&["apply"], Some(&app("1"))) {
        Some((content, said)) => assert!(content, "{said}"),
        None => assert_eq!(master.call(Method::POST, APPLICATIONS, Some(&app("1"))).await.unwrap().0, 201),
    }
    let path = format!("{APPLICATIONS}/a{clear}");
    assert_eq!(master.call(Method::PATCH, &path, Some(&app("2"))).await.unwrap().0, 200);
    let mut wrong = app("3");
    wrong["spec"]["lifecycle"] = json!({"restartPolicy": clear});
    let (code, refused) = master.call(Method::PATCH, &path, Some(&wrong)).await.unwrap();
    assert!(code == 422 && refused.to_string().contains(clear.as_str()), "{code} {refused}");
    let event = json!({
        "metadata": {"name": "told", "namespace": "default"}, "type": "Normal", "reason": "Told",
        "message": format!("about {clear}"),
        "involvedObject": {"kind": "Secret", "namespace": "default", "name": "applied", "apiVersion": "horchestra.io/v1"},
    });
    let (code, refused) =
        master.call(Method::POST, "/api/v1/namespaces/default/events", Some(&event)).await.unwrap();
    assert_eq!(code, 201, "{refused}");
}

/// What people are shown who do not ask for the contents of Secrets: Events, histories, metrics.
async fn told(world: &World) -> BTreeMap<String, Vec<u8>> {
    let mut told = BTreeMap::new();
    let history = format!("{SECRETS}/applied-first/revisions");
    for path in [EVENTS[0], EVENTS[1], &history] {
        let (code, body) = world.master.call(Method::GET, path, None).await.unwrap();
        assert!(code == 200 || path == history, "{path}: {body}");
        told.insert(path.to_owned(), body.to_string().into_bytes());
    }
    for process in PROCESSES {
        let page = world.stack.metrics(process).await.unwrap();
        assert!(page.contains("horchestra_"), "{page}");
        told.insert(format!("the metrics of {process}"), page.into_bytes());
    }
    told
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_value_of_a_secret_is_on_a_disk() {
    let (mut cluster, counted) = talkative();
    let url = cluster.url("postgres");
    if counted {
        psql(&url, "create extension pg_stat_statements");
    }
    let environment = vec![("DATABASE_URL", url.clone()), ("RUST_LOG", LOG.to_owned())];
    let world = World::of(Stack::up_in(environment, &["--nodes", "1", "--api-replicas", "2"]));

    show(&world).await;
    ways::accepted(&world, "first").await;
    ways::refused(&world).await;
    let before = ways::contents(&world.master).await;
    assert!(
        Search::of(&world.token).find(before.to_string().as_bytes()).is_some(),
        "who may read it does get it"
    );
    rotate(&world).await;
    let after = ways::contents(&world.master).await;
    for (name, object) in before.as_object().unwrap() {
        assert_eq!(&after[name], object, "nothing changed but the key");
    }

    let opened = "horchestra_gate_secrets_open_bytes ";
    let page = world.stack.metrics("nodegate-0").await.unwrap();
    let opened = page.lines().find_map(|line| line.strip_prefix(opened)).unwrap();
    assert!(opened.parse::<u64>().unwrap() > 0, "the gateway has had them in its hands");

    let mut searched = told(&world).await;
    // Statistics of statements replace constants in queries, and keep other statements as they are.
    psql(&url, &format!("comment on table horchestra.objects is '{}'", world.clear));
    if counted {
        let kept = psql(&url, "select query from pg_stat_statements");
        assert!(String::from_utf8_lossy(&kept).contains("commit_"), "ours are among them");
        searched.insert("the statistics".to_owned(), kept);
    }
    let kept = psql(&url, "select * from horchestra.history");
    searched.insert("the history".to_owned(), kept);
    let dump = Command::new(postgres_program("pg_dump").unwrap()).arg(&url).output().unwrap();
    assert!(dump.status.success(), "{}", said(&dump));
    searched.insert("the dump".to_owned(), dump.stdout);
    searched.insert("the log of the server".to_owned(), cluster.log().into_bytes());
    // Everything that was in memory is written out, and nothing moves any more.
    world.stack.down();
    cluster.stop(Shutdown::Fast).unwrap();
    let (token, clear) = (Search::of(&world.token), Search::of(&world.clear));
    let mut seen = BTreeMap::new();
    for (what, bytes) in &searched {
        if let Some(found) = token.find(bytes) {
            panic!("a value is in {what}: {found}");
        }
        assert!(!holds(bytes, TOKEN), "a token of a workload is in {what}");
        seen.insert(what.clone(), clear.find(bytes).is_some());
    }
    let mut paths = Vec::new();
    files(cluster.folder(), &mut paths);
    files(world.stack.home(), &mut paths);
    for path in paths {
        let bytes = fs::read(&path).unwrap();
        if let Some(found) = token.find(&bytes) {
            panic!("a value is in {}: {found}", path.display());
        }
        assert!(!holds(&bytes, TOKEN), "a token of a workload is in {}", path.display());
        let folder =
            ["base", "pg_wal"].into_iter().find(|folder| path.starts_with(cluster.data().join(folder)));
        let log = path.extension().is_some_and(|extension| extension == "log");
        let what = match folder {
            Some(folder) => folder.to_owned(),
            None if log => path.file_stem().unwrap().to_string_lossy().into_owned(),
            None => continue,
        };
        *seen.entry(what).or_default() |= clear.find(&bytes).is_some();
    }
    // Where a value would be found if it were there.
    for what in
        EVENTS.into_iter().chain(["the history", "the dump", "the log of the server", "base", "pg_wal"])
    {
        assert_eq!(seen.get(what), Some(&true), "{what}: {seen:?}");
    }
    assert!(seen["api-0"] || seen["api-1"], "{seen:?}");
    assert!(!counted || seen["the statistics"], "{seen:?}");
    assert!(PROCESSES.iter().all(|process| seen.contains_key(*process)), "{seen:?}");
}

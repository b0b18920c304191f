//! What somebody would try, and what comes of it: one test for each threat that is known.
//!
//! Everything here goes the whole way: real certificates over TLS, real streams of nodes, PostgreSQL. Where the
//! test lies elsewhere, with other tests of the same thing, the list says where. [`the_list_is_complete`] keeps it
//! honest: every test that is named is there and runs, none is named twice, and none of these files has one that
//! is not named.
//!
//! What is *not* claimed: that nobody thinks of something else. Whoever does adds a line, and its test.
//!
//! # Paths
//!
//! - An escape in a path, so that router and judge see different namespaces: 400, before anybody is asked for a
//!   name. `paths::an_escaped_path_is_refused_before_anybody_is_asked_for_a_name`
//! - A whole second path in the version segment, which the judge does not look at: 400.
//!   `paths::a_second_path_in_the_version_segment_opens_nothing`
//! - A group or a version that is not the kind's, to come under a rule for another group: nothing is there.
//!   `paths::a_grant_in_a_foreign_group_opens_no_object`
//! - `watch=true` on one object, because watching is granted and getting is not: it is a get.
//!   `paths::a_watch_flag_on_one_object_asks_for_a_get`
//! - Finding out without a name what there is: 401, whatever the path.
//!   `connections.rs: both_protocols_answer_and_strangers_are_401_everywhere`
//! - Finding out by a route that is switched off which nodes there are: it answers as nonsense does.
//!   `paths::a_route_that_is_off_does_not_tell_which_nodes_there_are`
//!
//! # Identities
//!
//! - Headers of proxies that say who one is: dropped unread. Impersonation: 403, since to do it as oneself would be
//!   worse. `identities::headers_that_name_somebody_make_nobody_somebody_else`
//! - A certificate that a foreign authority, or its holder, signed, or whose time is over: no handshake.
//!   `identities::a_certificate_that_no_believed_authority_vouches_for_ends_the_handshake`
//! - The certificate of the server, shown by a client: no handshake.
//!   `identities::the_servers_own_certificate_opens_nothing_as_a_clients`
//! - The name of a powerful group as one's own: only a name.
//!   `identities::a_name_like_that_of_a_group_is_only_a_name`
//! - Signs in the names of workloads and namespaces that make two of them read as one: no such names.
//!   `bodies::no_two_workloads_can_be_taken_for_each_other`
//!
//! # Certificates
//!
//! - Asking for the group of the administrators: the certificate is a node's.
//!   `certificates::who_asks_for_the_administrators_group_gets_a_nodes_certificate`
//! - Writing somebody else down as who asked: overwritten, and restored.
//!   `certificates::who_asked_is_the_servers_word`
//! - Bringing one's own decision along, or writing it later: undecided, and kept so.
//!   `certificates::nobody_decides_about_a_request_by_writing_it`
//! - Exchanging the request once it was looked at, or approved: 403.
//!   `certificates::a_request_is_not_exchanged_for_another_one`
//! - A request that is not signed with its own key: 422.
//!   `certificates::a_request_that_is_not_signed_with_its_key_is_not_stored`
//! - A request that is not signed with its own key and got in all the same: denied, not signed.
//!   `workers/tests/it/certificates/issuing.rs: a_tampered_request_is_denied_and_not_signed`
//! - Asking for another node's name: held for a person, and never signed by itself.
//!   `workers/tests/it/certificates/issuing.rs: a_request_for_another_node_is_held_and_never_signed`
//! - Asking for more names, for other uses, or to be an authority: not copied.
//!   `workers/tests/it/certificates/issuing.rs: extensions_that_a_request_asks_for_are_not_copied`
//! - A Vault that issues something else than what was asked for: not handed on.
//!   `workers/tests/it/certificates/vault.rs: a_certificate_that_was_not_asked_for_is_refused`
//! - Requests that are left lying: they go in their time.
//!   `api/service/tests/it/certificates.rs: loops_let_requests_expire_as_they_saw_them_and_nothing_else`
//! - Requests without end: 403 from a number on.
//!   `certificates::a_requester_heaps_up_a_bounded_number_of_requests`
//!
//! # Tokens
//!
//! - A token put together from parts of others, with another algorithm, or under another key: nobody's.
//!   `tokens::a_token_that_was_put_together_is_nobodys`
//! - A token for Vault, shown here: nobody's. `tokens::a_token_for_somebody_else_is_nobodys_here`
//! - A token for this API, shown to Vault: not authenticated for Vault's audience.
//!   `tokens::a_token_for_this_api_does_not_pass_for_vaults`
//! - Having tokens tried out: 401 without a token of one's own.
//!   `tokens.rs: reviews_are_for_those_who_show_a_token`
//!
//! # Nodes
//!
//! - A stolen certificate that opens a second stream: `AlreadyExists`, the first goes on.
//!   `nodegate/tests/it/sessions.rs: a_second_stream_on_another_gateway_is_refused_as_well`
//! - Reading Applications, volumes and Secrets with a node's certificate: 403.
//!   `nodes::a_nodes_certificate_reads_nothing_of_tenants`
//! - Tailing the workload of another node: not found, and no log is opened.
//!   `nodes::a_nodes_certificate_tails_no_workload_of_another_node`
//! - Writing other Nodes, other kinds, one's own labels or spec, whatever was granted: 403.
//!   `nodes::a_nodes_certificate_writes_its_own_node_and_little_of_that`
//! - Reporting about another Node, by a name in another spelling or twice: dropped.
//!   `nodegate/tests/it/threats.rs: a_report_about_another_node_is_dropped_however_it_is_spelled`
//! - A namespace on one's Node, so that a twin is stored that nobody sees: dropped.
//!   `nodegate/tests/it/threats.rs: a_namespace_on_a_node_makes_no_hidden_twin`
//! - A heartbeat of tomorrow, the capacity of a mountain, labels that draw work: the server's clock, a ceiling,
//!   labels that the server derives. `nodegate/tests/it/threats.rs: a_node_is_not_believed_what_it_cannot_know`
//! - Reporting about a workload of another node: dropped.
//!   `nodegate/tests/it/threats.rs: a_report_about_a_workload_of_another_node_is_dropped`
//! - Reporting what a workload of another node uses, or what cannot be: dropped.
//!   `nodegate/tests/it/samples.rs: only_believable_samples_of_what_runs_there_count`
//! - A machine whose Node was deleted, back for work: it gets none until an operator admits it.
//!   `nodegate/tests/it/registration.rs: a_deleted_node_is_frozen_and_comes_back_as_a_stranger`
//! - A certificate on a machine that it was not made for: under strict registration no Node.
//!   `nodegate/tests/it/registration.rs: under_strict_registration_the_address_has_to_bear_the_name`
//!
//! # Rights
//!
//! - Widening one's own rights by writing roles or bindings: 403.
//!   `rights::a_tenant_does_not_widen_its_own_rights`
//! - Handing out a wildcard: administrators alone.
//!   `rights::wildcards_are_handed_out_by_administrators_alone`
//! - Rules so long that judging them takes for ever: 403, unjudged.
//!   `rights::a_role_too_large_to_be_judged_is_refused_unjudged`
//! - A binding in a namespace to a role that speaks of paths or of the cluster: neither comes with it.
//!   `rights::a_binding_in_a_namespace_opens_neither_paths_nor_the_cluster`
//! - Waiting for a namespace's name to come back: nothing can stay behind in it.
//!   `rights::a_name_that_comes_back_brings_no_rights_with_it`
//! - A right to see usage, with which Nodes are written and Secrets read in its group: there is nothing there.
//!   `usage.rs: nothing_is_written_through_what_is_measured`
//! - Reading the logs of nodes because one may read nodes: a right of its own.
//!   `rights::who_reads_nodes_does_not_read_their_logs`
//! - Signs in the names of rules that mean something to a policy engine: opaque.
//!   `rights::names_in_rules_are_opaque`
//! - Learning the names of namespaces by watching, or as a viewer of nodes: refused, or narrowed.
//!   `rbac.rs: namespaces_are_listed_as_far_as_somebody_may_know_of_them`
//!
//! # References
//!
//! - Reading a Secret by having it mounted: 403.
//!   `references::a_workload_is_given_no_secret_that_its_author_cannot_read`
//! - The same, hidden in a part of a set: 403.
//!   `references::a_set_hides_no_secret_that_its_author_cannot_read`
//! - Naming what lies in another namespace: there is no way to say it.
//!   `references::no_reference_leads_into_another_namespace`
//! - Joining a Service that one may not read: 403.
//!   `references::a_workload_joins_no_service_that_its_author_cannot_read`
//!
//! # Tenants
//!
//! - Asking the catalog about the services of another namespace, in whatever way: 403.
//!   `tenants::the_catalog_shows_nobody_the_services_of_others`
//! - Reading logs of another namespace: not found, and no log is opened.
//!   `tenants::a_log_of_another_namespace_is_not_opened`
//! - Taking up every place for logs: eight for each caller. `logs.rs: the_ninth_stream_of_a_caller_is_refused`
//!
//! # Bodies
//!
//! - Another namespace in the body than in the path, in whatever spelling: 400, or the path's.
//!   `bodies::a_body_puts_nothing_into_another_namespace_than_its_path`
//! - A patch that makes one object another one: it stays that one.
//!   `bodies::a_patch_stays_with_the_object_that_it_is_sent_to`
//! - A patch that doubles its copies, or that has no end: refused.
//!   `bodies::a_patch_that_grows_without_end_is_refused`
//! - Finalizers, deletion marks and owners of the system's: refused, or as stored.
//!   `bodies::what_the_system_marks_objects_with_is_not_a_clients_to_write`
//! - Running as root, as a user of another namespace, or as a number that becomes one: 403.
//!   `bodies::no_workload_runs_as_root_or_as_another_namespaces_user`
//! - Getting back in an error what nobody may read: no error says it.
//!   `bodies::no_refusal_repeats_the_value_of_a_secret`
//! - Making a replica panic: 500 for that request. `bodies::a_panic_costs_the_request_that_brought_it_and_no_other`
//! - Making a gateway panic: the end of that session.
//!   `nodegate/tests/it/threats.rs: a_panic_costs_the_session_that_brought_it_and_no_other`

mod bodies;
mod certificates;
mod identities;
mod nodes;
mod paths;
mod references;
mod rights;
mod tenants;
mod tokens;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use horchestra_auth::pki::Issued;
use horchestra_runtime::tls::{KeyPairFiles, ReloadingClient};
use horchestra_store::postgres::{Options, PostgresBackend};
use horchestra_store::{Store, StoreOptions};
use horchestra_testkit::TestDatabase;
use http::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::{Client, Protocol, Reply};
use crate::rbac::Rules;
use crate::replicas::database;
use crate::stack::{Setup, Stack, Who};

const CORE: &str = "/apis/horchestra.io/v1";
const RBAC: &str = "/apis/rbac.horchestra.io/v1";

/// A replica on PostgreSQL, its operator, and the namespaces of two tenants.
struct Fleet {
    stack: Stack,
    rules: Rules,
    _database: TestDatabase,
}

impl Fleet {
    async fn start() -> Fleet {
        Fleet::with(Setup::default()).await
    }

    async fn with(setup: Setup) -> Fleet {
        let database = database().await;
        let backend = PostgresBackend::open(database.url(), Options::default()).unwrap();
        let store = Store::open(backend, StoreOptions::default());
        let stack = Stack::with(Setup { store: Some(store), ..setup }).await;
        let rules = Rules(stack.master().keep().await);
        for namespace in ["team-a", "team-b"] {
            rules.namespace(namespace).await;
        }
        Fleet { stack, rules, _database: database }
    }

    /// A client with a connection of its own.
    async fn client(&self, who: Who) -> Client {
        self.stack.client(who, Protocol::Http2).keep().await
    }

    /// The operator.
    fn master(&self) -> Client {
        self.rules.0.clone()
    }

    /// Whoever holds this certificate and its key.
    fn holder(&self, issued: &Issued, protocol: Protocol) -> Client {
        let file = |ending: &str| self.stack.folder().join(format!("{}.{ending}", Uuid::new_v4()));
        let files = KeyPairFiles { certificate: file("crt"), key: file("key") };
        std::fs::write(&files.certificate, &issued.certificate).unwrap();
        std::fs::write(&files.key, &issued.key).unwrap();
        let alpn: &[&[u8]] = match protocol {
            Protocol::Http1 => &[b"http/1.1"],
            Protocol::Http2 => &[b"h2"],
        };
        let tls = ReloadingClient::load(Some(files), self.stack.pki.authority(), alpn).unwrap();
        Client::new(self.stack.address, tls.config(), protocol)
    }

    /// A Secret with a password.
    async fn secret(&self, namespace: &str, name: &str) {
        let secret = json!({"metadata": {"name": name}, "stringData": {"password": "hunter2"}});
        self.rules.put(&format!("{CORE}/namespaces/{namespace}/secrets"), secret).await;
    }
}

/// Refused with 403, in these words.
#[track_caller]
fn refused(reply: &Reply, words: &str) {
    assert_eq!((reply.status, reply.reason().as_str()), (403, "Forbidden"), "{reply:?}");
    assert!(reply.message().contains(words), "{words:?} is not in {:?}", reply.message());
}

/// An apply that insists.
async fn apply(client: &Client, path: &str, object: &Value) -> Reply {
    let headers = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{path}?fieldManager=threats&force=true");
    client.send(Method::PATCH, &path, &headers, object.to_string()).await
}

/// The file and the name of every test in the list above.
fn listed(here: &Path) -> Vec<(PathBuf, String)> {
    let root = here.ancestors().nth(4).expect("the repository").to_path_buf();
    let mut listed = Vec::new();
    for line in include_str!("mod.rs").lines().filter_map(|line| line.strip_prefix("//!")) {
        let words: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        for word in words {
            if let Some((module, test)) = word.split_once("::") {
                listed.push((here.join(format!("{module}.rs")), test.to_owned()));
            } else if let Some((file, test)) = word.split_once(".rs: ") {
                let folder = if file.contains('/') { root.clone() } else { here.join("..") };
                listed.push((folder.join(format!("{file}.rs")), test.to_owned()));
            }
        }
    }
    listed
}

/// The tests of a file that run.
fn tests(file: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut tests = BTreeSet::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if !line.starts_with("#[tokio::test") {
            continue;
        }
        let next = lines.next().unwrap_or_default();
        let name = next.strip_prefix("async fn ").and_then(|rest| rest.split('(').next());
        // An attribute between the two could keep the test from running.
        tests
            .insert(name.unwrap_or_else(|| panic!("{next} follows {line} in {}", file.display())).to_owned());
    }
    tests
}

#[test]
fn the_list_is_complete() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/threats");
    let listed = listed(&here);
    assert!(listed.len() > 50, "the list was read: {listed:?}");
    let mut seen = BTreeSet::new();
    for (file, test) in &listed {
        assert!(tests(file).contains(test), "{test} does not run in {}", file.display());
        assert!(seen.insert(test), "{test} stands for two");
    }
    let mut own = vec![here.ancestors().nth(4).unwrap().join("nodegate/tests/it/threats.rs")];
    own.extend(std::fs::read_dir(&here).unwrap().map(|entry| entry.unwrap().path()));
    for file in own {
        for test in tests(&file) {
            assert!(seen.contains(&test), "{test} of {} is not in the list", file.display());
        }
    }
}

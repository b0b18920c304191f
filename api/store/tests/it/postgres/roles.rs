//! Who may do what in the database: the roles that migrations make.

use std::sync::Arc;

use futures::FutureExt;
use horchestra_store::Backend;
use horchestra_store::postgres::{self, Options, PostgresBackend, statements};
use horchestra_testkit::{TestDatabase, empty_database};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};
use tokio::task::JoinSet;

use super::database::database;
use super::schema::parameters;
use crate::behaviour::{addresses, claims, commits, guards, presence, pushes, sealing};
use crate::fixture::World;

/// The address of the database as somebody who is in the role `role` and has no other rights.
pub fn as_role(database: &TestDatabase, role: &str) -> String {
    let sign = if database.url().contains('?') { '&' } else { '?' };
    format!("{}{sign}options[role]={role}", database.url())
}

/// What the upkeep of the log sends, which changes tables by hand: business of the owner.
const UPKEEP: &[&str] = &[
    "raise_oldest",
    "trim_history",
    "raise_trimmed",
    "trim_tombstones",
    "trim_commits",
    "trim_nonces",
    "trim_released",
];

#[tokio::test]
async fn a_runtime_role_may_send_every_statement_but_those_of_upkeep() {
    let database = database().await;
    let mut connection =
        PgConnection::connect(&as_role(&database, "horchestra_runtime")).await.expect("a connection");
    let mut refused = Vec::new();
    for statement in statements::ALL {
        let name = statement.name;
        let prepare = format!("prepare {name} as {}", statement.sql);
        sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut connection).await.expect(name);
        let arguments = vec!["null"; parameters(statement.sql)].join(", ");
        let arguments = if arguments.is_empty() { arguments } else { format!("({arguments})") };
        // Rights are looked at before anything runs.
        let explain = format!("explain execute {name}{arguments}");
        match sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await {
            Ok(_) => {}
            Err(error) => {
                assert!(error.to_string().contains("permission denied"), "{name}: {error}");
                refused.push(name);
            }
        }
    }
    assert_eq!(refused, UPKEEP);
}

/// A database to which processes connect in the runtime role.
async fn runtime_world() -> World {
    let database = Arc::new(database().await);
    let url = as_role(&database, "horchestra_runtime");
    let connect = move || {
        let backend: Arc<dyn Backend> =
            PostgresBackend::open(&url, Options::default()).expect("a well-formed URL");
        async move { backend }.boxed()
    };
    World::new(Box::new(connect), database)
}

/// Tables that only functions write.
const GUARDED: &[&str] = &[
    "address_leases",
    "address_ranges",
    "claims",
    "commits",
    "edges",
    "events",
    "history",
    "lease_epochs",
    "losses",
    "migrations",
    "node_sessions",
    "objects",
    "push_holds",
    "push_releases",
    "released_claims",
    "seals",
    "spent_nonces",
    "state",
    "tombstones",
];

#[tokio::test]
async fn a_runtime_role_writes_objects_through_functions_alone() {
    commits::a_create_is_seen_by_its_maker_and_by_others(&runtime_world().await).await;
    commits::a_deletion_takes_a_revision_and_frees_the_name(&runtime_world().await).await;
    commits::an_item_is_all_or_nothing(&runtime_world().await).await;
    commits::a_lost_answer_can_be_settled(&runtime_world().await).await;
    guards::references_are_counted(&runtime_world().await).await;
    guards::a_guard_on_a_lease_fences(&runtime_world().await).await;
    claims::an_object_comes_with_its_claims_or_not_at_all(&runtime_world().await).await;
    addresses::an_address_is_had_until_the_end(&runtime_world().await).await;
    presence::a_lease_has_one_holder_and_its_epoch_counts_holders(&runtime_world().await).await;
    presence::a_node_has_one_live_session(&runtime_world().await).await;
    presence::a_name_is_borne_by_one_gateway_at_a_time(&runtime_world().await).await;
    presence::samples_are_kept_for_the_session_that_brought_them(&runtime_world().await).await;
    pushes::a_hold_is_of_all_nodes_or_of_one_until_it_is_released(&runtime_world().await).await;
    sealing::bodies_are_sealed_anew_without_a_revision(&runtime_world().await).await;

    let database = database().await;
    let url = as_role(&database, "horchestra_runtime");
    let mut owner = PgConnection::connect(database.url()).await.expect("a connection");
    let tables = sqlx::query(
        "select c.relname::text from pg_class c where c.relnamespace = 'horchestra'::regnamespace \
         and c.relkind in ('r', 'p') order by 1",
    );
    let tables: Vec<String> =
        tables.fetch_all(&mut owner).await.expect("tables").iter().map(|row| row.get(0)).collect();
    let mut runtime = PgConnection::connect(&url).await.expect("a connection");
    let mut guarded = Vec::new();
    for table in &tables {
        let mut refused = 0;
        for statement in [
            format!("insert into horchestra.{table} default values"),
            format!("delete from horchestra.{table} where false"),
            format!("truncate horchestra.{table}"),
        ] {
            let answer = sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut runtime).await;
            refused +=
                usize::from(answer.is_err_and(|error| error.to_string().contains("permission denied")));
        }
        // Partitions are written through the log, as their owner does it.
        if refused == 3 && !table.starts_with("events_") {
            guarded.push(table.as_str());
        }
        assert!(refused == 3 || refused == 1, "{table}: {refused} of three are refused");
        assert!(!table.starts_with("events_") || refused == 3, "{table}");
    }
    assert_eq!(guarded, GUARDED);
    let changed =
        sqlx::raw_sql("update horchestra.objects set phase = 'Running'").execute(&mut runtime).await;
    assert!(changed.is_err_and(|error| error.to_string().contains("permission denied")));
}

async fn run(connection: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await.expect(statements);
}

/// How many views a role may read, and how many functions of the store another may call.
async fn rights(connection: &mut PgConnection, reader: &str, runtime: &str) -> (i64, i64) {
    let row = sqlx::query(
        "select (select count(*) from pg_class c where c.relnamespace = 'inspect'::regnamespace \
         and has_table_privilege($1, c.oid, 'select')), \
         (select count(*) from pg_proc p where p.pronamespace = 'horchestra'::regnamespace \
         and has_function_privilege($2, p.oid, 'execute'))",
    );
    let row = row.bind(reader).bind(runtime).fetch_one(connection).await.expect("rights");
    (row.get(0), row.get(1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_of_one_server_can_be_migrated_at_once() {
    let mut making = JoinSet::new();
    for _ in 0..3 {
        making.spawn(async move {
            let database = empty_database().await.expect("a database");
            postgres::migrate_schema(database.url()).await.expect("migrated");
            let mut connection = PgConnection::connect(database.url()).await.expect("a connection");
            rights(&mut connection, "horchestra_reader", "horchestra_runtime").await
        });
    }
    let all = making.join_all().await;
    assert!(all.iter().all(|(views, functions)| *views > 40 && *functions > 20), "{all:?}");
}

/// Roles belong to the whole server, where those with the real names are there already: others stand in for them.
#[tokio::test]
async fn an_owner_that_may_make_no_roles_migrates_and_grants_once_they_are_made() {
    let database = empty_database().await.expect("a database");
    let [owner, reader, runtime] =
        ["owner", "reader", "runtime"].map(|role| format!("{}_{role}", database.name()));
    let mut admin = PgConnection::connect(database.url()).await.expect("a connection");
    run(&mut admin, &format!("create role {owner}; grant create on database {} to {owner}", database.name()))
        .await;
    postgres::migrate_schema(&as_role(&database, &owner)).await.expect("it takes no superuser");

    let mut connection = PgConnection::connect(&as_role(&database, &owner)).await.expect("a connection");
    let definition = sqlx::query("select pg_get_functiondef('horchestra.grant_roles()'::regprocedure)");
    let definition: String = definition.fetch_one(&mut connection).await.expect("the function").get(0);
    let other = definition
        .replace("horchestra.grant_roles", "horchestra.grant_others")
        .replace("horchestra_reader", &reader)
        .replace("horchestra_runtime", &runtime);
    run(&mut connection, &other).await;
    run(&mut connection, "select horchestra.grant_others()").await;
    let made =
        sqlx::query("select count(*) from pg_roles where rolname in ($1, $2)").bind(&reader).bind(&runtime);
    assert_eq!(made.fetch_one(&mut admin).await.expect("roles").get::<i64, _>(0), 0);

    run(&mut admin, &format!("create role {reader} nologin; create role {runtime} nologin")).await;
    assert_eq!(rights(&mut admin, &reader, &runtime).await, (0, 0));
    run(&mut connection, "select horchestra.grant_others()").await;
    let (views, functions) = rights(&mut admin, &reader, &runtime).await;
    assert!(views > 40 && functions > 20, "{views}, {functions}");
    connection.close().await.expect("closed");
    run(
        &mut admin,
        &format!(
            "drop owned by {reader}, {runtime}, {owner} cascade; drop role {reader}, {runtime}, {owner}"
        ),
    )
    .await;
}

//! `pg_dump` and `pg_restore`, as the guide says.

use horchestra_testkit::Cluster;
use hyper::Method;
use serde_json::json;

use super::fleet::{Fleet, server, sql, texts};
use crate::plane::running;
use crate::tour::kubectls;

const SECRETS: &str = "/apis/horchestra.io/v1/namespaces/default/secrets";

/// A database of the server as the owner of the schema, who is no superuser.
fn as_owner(server: &Cluster, database: &str) -> String {
    format!("postgres://horchestra@127.0.0.1:{}/{database}", server.port())
}

/// Who may do what with each thing of the schemas, and as whom functions run.
async fn rights(url: &str) -> Vec<String> {
    let sorted =
        |list: &str| format!("(select string_agg(a::text, ' ' order by a::text) from unnest({list}) a)");
    let query = format!(
        "with schemas as (select oid, nspname, nspacl from pg_namespace where nspname in ('horchestra', 'inspect')) \
         select concat_ws(' | ', 'schema', nspname, {}) from schemas \
         union all select concat_ws(' | ', c.relkind::text, c.oid::regclass::text, c.relowner::regrole::text, {}) \
         from pg_class c join schemas s on s.oid = c.relnamespace where c.relkind in ('r', 'p', 'v', 'm', 'S') \
         union all select concat_ws(' | ', 'function', p.oid::regprocedure::text, p.proowner::regrole::text, \
         p.prosecdef::text, p.proconfig::text, {}) from pg_proc p join schemas s on s.oid = p.pronamespace order by 1",
        sorted("nspacl"),
        sorted("c.relacl"),
        sorted("p.proacl"),
    );
    texts(url, &query).await
}

/// What a role is answered.
async fn answer(url: &str, role: &str, query: &str) -> Result<(), String> {
    use sqlx::Connection as _;
    let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
    let statement = format!("set role {role}; {query}");
    let answer = sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await;
    answer.map(drop).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_comes_back_on_another_server_with_its_roles_and_stops_nothing() {
    if kubectls().is_empty() {
        return;
    }
    let (old, new) = (server(), server());
    sql(&old.url("postgres"), "create role horchestra login createrole").await;
    sql(&old.url("postgres"), "create database horchestra owner horchestra").await;
    let url = as_owner(&old, "horchestra");
    let mut fleet = Fleet::start(&url).await;
    let kept = fleet.run("kept").await;
    let gone = fleet.run("gone").await;
    let secret = json!({"metadata": {"name": "db"}, "data": {"password": "czNjcjN0"}});
    let (code, made) = fleet.client.call_patiently(Method::POST, SECRETS, Some(&secret)).await;
    assert_eq!(code, 201, "{made}");

    let reader = fleet.reader(&url);
    reader.run("dump");
    let lost = fleet.run("lost").await;
    fleet.delete("gone").await;
    let revision = fleet.revision().await;
    let before = running(&fleet.agents);
    fleet.stop_plane();

    // Another server, which has never heard of these roles.
    let restored = as_owner(&new, "restored");
    let operator = reader.with("ADMIN_URL", new.url("postgres")).with("RESTORED_URL", restored.clone());
    operator.run("new-server");
    operator.run("read-dump");
    assert_eq!(rights(&restored).await, rights(&url).await);
    let role = async |role: &str, query: &str| answer(&new.url("restored"), role, query).await;
    assert_eq!(role("horchestra_reader", "select * from inspect.applications").await, Ok(()));
    assert_eq!(role("horchestra_runtime", "select * from horchestra.objects").await, Ok(()));
    for (name, query) in [
        ("horchestra_reader", "select * from horchestra.objects"),
        ("horchestra_runtime", "delete from horchestra.objects"),
    ] {
        assert!(role(name, query).await.is_err_and(|error| error.contains("permission denied")), "{name}");
    }

    fleet.start_plane(&restored).await;
    fleet.wait_until_held("DatabaseReplaced").await;
    // Whoever comes back with a revision of what is gone is told so, however far others have got since.
    assert!(fleet.revision().await > revision);
    fleet.watch(revision).await.assert_expires().await;
    assert_eq!(running(&fleet.agents), before, "nothing was started or stopped");
    let (_, found) = fleet.client.call_patiently(Method::GET, &format!("{SECRETS}/db"), None).await;
    assert_eq!(found["data"], secret["data"], "{found}");

    let operator = operator.with("DATABASE_URL", restored);
    fleet.converge(&operator, &kept, &lost).await;
    // What was deleted since the dump was taken is there again.
    horchestra_testkit::eventually(super::SOON, async || {
        fleet.agents.iter().zip(&gone).all(|(agent, uid)| agent.holds(uid))
    })
    .await;
}

//! The database as people read it: the cookbook, and what a reader cannot get at.

mod cookbook;
mod world;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection, Row};
use uuid::Uuid;

use self::world::{CLEAR, PAYLOAD, World};

/// A connection with the rights of a reader.
async fn reader(world: &World) -> PgConnection {
    let mut connection = PgConnection::connect(world.database.url()).await.expect("a connection");
    run(&mut connection, "set session authorization horchestra_reader").await;
    connection
}

async fn run(connection: &mut PgConnection, statement: &str) {
    sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(connection).await.expect(statement);
}

/// The rows of a query, each as JSON.
async fn rows(connection: &mut PgConnection, query: &str) -> Vec<String> {
    let query = query.trim().trim_end_matches(';');
    let wrapped = AssertSqlSafe(format!("select to_jsonb(q)::text from ({query}) q"));
    let rows =
        sqlx::raw_sql(wrapped).fetch_all(connection).await.unwrap_or_else(|error| panic!("{query}: {error}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// The one text column of a query.
async fn texts(connection: &mut PgConnection, query: &str) -> Vec<String> {
    let rows = sqlx::raw_sql(AssertSqlSafe(query.to_owned())).fetch_all(connection).await.expect(query);
    rows.iter().map(|row| row.get(0)).collect()
}

/// Everything in the database that is not PostgreSQL's own and has rows.
const RELATIONS: &str = "select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace \
    where c.relkind in ('r', 'p', 'v', 'm', 'S', 'f') and n.nspname not in ('pg_catalog', 'information_schema', \
    'pg_toast') and n.nspname !~ '^pg_(temp|toast_temp)_' order by 1";

/// As text, in base64 at each of three alignments, and either of them where bytes are shown as hexadecimal digits.
fn shapes(of: &str) -> Vec<String> {
    let plain = of.to_owned();
    let inner = |shift: usize| {
        let padded = STANDARD.encode(format!("{}{of}", &"xyz"[..shift]));
        // Without what depends on the neighbours.
        padded[4..padded.len() - 4].to_owned()
    };
    let mut shapes = vec![plain, inner(0), inner(1), inner(2)];
    let digits: Vec<String> =
        shapes.iter().map(|shape| shape.bytes().map(|byte| format!("{byte:02x}")).collect()).collect();
    shapes.extend(digits);
    shapes
}

#[tokio::test]
async fn a_reader_sees_the_views_and_nothing_else() {
    let world = World::new().await;
    let mut owner = PgConnection::connect(world.database.url()).await.expect("a connection");
    let mut reader = reader(&world).await;

    let (mut readable, mut refused) = (Vec::new(), 0);
    for relation in texts(&mut owner, RELATIONS).await {
        let statement = format!("select * from {relation} limit 1");
        let answer = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(&mut reader).await;
        match answer {
            Ok(_) => readable.push(relation),
            Err(error) => {
                assert!(error.to_string().contains("permission denied"), "{relation}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 25 && readable.len() > 40, "{refused} are refused, {readable:?} are not");
    assert!(readable.iter().all(|relation| relation.starts_with("inspect.")), "{readable:?}");
    // The other way round, every view is for readers.
    let views = texts(
        &mut owner,
        "select oid::regclass::text from pg_class where relnamespace = 'inspect'::regnamespace",
    );
    assert_eq!(views.await.len(), readable.len());
    for relation in &readable {
        let name = relation.trim_start_matches("inspect.");
        for statement in [format!("delete from {relation}"), format!("create table inspect.{name}_x ()")] {
            let answer = sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut reader).await;
            assert!(answer.is_err(), "{statement}");
        }
    }

    // Functions: those of `inspect` alone. They see their arguments and nothing else, but for two: one reads a view of
    // these with the reader's own rights, the other is the owner's and lists connections.
    let functions = "select p.oid::regprocedure::text || case when p.prosecdef then ' owner' else '' end || case p.provolatile \
         when 'i' then '' else ' reads' end from pg_proc p join pg_namespace n on n.oid = p.pronamespace \
         where n.nspname not in ('pg_catalog', 'information_schema') \
         and has_function_privilege('horchestra_reader', p.oid, 'execute') order by 1";
    let callable = texts(&mut owner, functions).await;
    assert!(callable.len() > 10 && callable.iter().all(|name| name.starts_with("inspect.")), "{callable:?}");
    let special: Vec<&String> =
        callable.iter().filter(|name| name.contains(' ') && !name.ends_with(')')).collect();
    assert_eq!(
        special,
        ["inspect.list_connections() owner reads", "inspect.revision_at(timestamp with time zone) reads"]
    );
    for call in [
        "horchestra.head()",
        "horchestra.seal_of('{}')",
        "horchestra.grant_roles()",
        "pg_read_file('PG_VERSION')",
    ] {
        let answer = sqlx::raw_sql(AssertSqlSafe(format!("select {call}"))).fetch_all(&mut reader).await;
        assert!(answer.is_err_and(|error| error.to_string().contains("permission denied")), "{call}");
    }
}

#[tokio::test]
async fn no_payload_of_a_secret_is_shown_to_anybody() {
    let world = World::new().await;
    let mut owner = PgConnection::connect(world.database.url()).await.expect("a connection");
    let sealed = "select convert_from(body, 'UTF8')::jsonb #>> '{sealed,payload}' from horchestra.objects \
                  where kind = 7 and name = 'planted'";
    let sealed = texts(&mut owner, sealed).await.remove(0);
    assert!(sealed.len() > 100);

    // A superuser, in every table, finds what is in the clear, and of Secrets what is sealed.
    let (hidden, clear) = (shapes(PAYLOAD), shapes(CLEAR));
    let (mut found_clear, mut found_sealed) = (0, 0);
    let sealed_digits: String = sealed.bytes().map(|byte| format!("{byte:02x}")).collect();
    for relation in texts(&mut owner, RELATIONS).await {
        let all = rows(&mut owner, &format!("select * from {relation}")).await.join("\n");
        for shape in &hidden {
            assert!(!all.contains(shape.as_str()), "{relation} shows {shape}");
        }
        found_clear += usize::from(clear.iter().any(|shape| all.contains(shape.as_str())));
        found_sealed += usize::from(all.contains(&sealed_digits));
    }
    assert!(found_clear >= 5, "the search finds what is there");
    assert!(found_sealed >= 2, "the heads and the log hold it sealed");

    // A reader, in everything that can be read, the server's own views included, finds not even that.
    let mut reader = reader(&world).await;
    let readable = "select c.oid::regclass::text from pg_class c where c.relkind in ('r', 'p', 'v', 'm') \
                    and has_table_privilege('horchestra_reader', c.oid, 'select') order by 1";
    let (mut found_clear, mut looked_at) = (Vec::new(), 0);
    for relation in texts(&mut owner, readable).await {
        // Whole rows as text: some of the server's own types are no JSON.
        let query = format!("select r::text from {relation} r");
        let Ok(all) = sqlx::raw_sql(AssertSqlSafe(query)).fetch_all(&mut reader).await else { continue };
        looked_at += 1;
        let all: Vec<Option<String>> = all.iter().map(|row| row.get(0)).collect();
        let all = all.into_iter().flatten().collect::<Vec<_>>().join("\n");
        for shape in hidden.iter().chain([&sealed, &sealed_digits]) {
            assert!(!all.contains(shape.as_str()), "{relation} shows {shape}");
        }
        if all.contains(CLEAR) {
            found_clear.push(relation);
        }
    }
    assert!(looked_at > 150, "{looked_at}");
    for view in ["inspect.secrets", "inspect.applications"] {
        assert!(found_clear.iter().any(|found| found == view), "{found_clear:?}");
    }
}

#[tokio::test]
async fn no_condition_of_a_readers_looks_below_a_view_of_secrets() {
    let world = World::new().await;
    let mut reader = reader(&world).await;
    // Cheaper than any condition of the view's own, and it would tell of every row that it is asked about.
    run(
        &mut reader,
        "create function pg_temp.tell(value text) returns boolean language plpgsql cost 0.0001 as \
         $$ begin raise notice '%', value; return true; end $$",
    )
    .await;
    let plan = texts(&mut reader, "explain select name from inspect.secrets where pg_temp.tell(name)").await;
    let told = plan.iter().position(|line| line.contains("tell(")).expect("a filter");
    let scanned = plan.iter().position(|line| line.contains("on objects")).expect("a scan");
    assert!(told < scanned, "it is asked last: {plan:#?}");
}

#[tokio::test]
async fn a_user_is_made_a_reader_as_the_cookbook_says() {
    let world = World::new().await;
    let name = format!("alice_{}", Uuid::new_v4().simple());
    let mut owner = PgConnection::connect(world.database.url()).await.expect("a connection");
    run(&mut owner, &format!("create user {name}; grant horchestra_reader to {name}")).await;
    run(&mut owner, &format!("set session authorization {name}")).await;
    assert!(!rows(&mut owner, "select * from inspect.applications").await.is_empty());
    let refused = sqlx::raw_sql("select * from horchestra.objects").fetch_all(&mut owner).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("permission denied")));
    run(&mut owner, "reset session authorization").await;
    run(&mut owner, &format!("drop user {name}")).await;
}

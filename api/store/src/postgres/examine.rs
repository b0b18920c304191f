//! Looking a database over, for whoever wants to know whether it can be relied on. Changes nothing, and takes no lock
//! that anybody waits for.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection, Row};
use tokio::time::timeout;

use super::between::Way;
use super::{fitness, listen, migrate, statements};
use crate::schema::Schema;

/// What is wrong with reaching or reading a database.
#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    #[error("the database URL is malformed")]
    Url(#[source] sqlx::Error),
    #[error("the database cannot be reached")]
    Connect(#[source] sqlx::Error),
    #[error("the database did not answer within {0:?}")]
    Patience(Duration),
    #[error("the database cannot be read")]
    Read(#[source] sqlx::Error),
    #[error("the way to the database mixes up prepared statements")]
    MixedUp,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Examination {
    /// As the server writes it, and as a number (`150018`).
    pub version: String,
    pub version_number: i32,
    pub encoding: String,
    /// Name and value of every setting that matters.
    pub settings: Vec<(&'static str, String)>,
    pub schema: Schema,
    /// It takes no writes: a standby, or set so.
    pub read_only: bool,
    /// Connections are lent for one transaction at a time.
    pub lends: bool,
    /// Whether notifications arrive where a process would listen; `None`: it could not be tried.
    pub hears: Option<bool>,
    /// How far the database's clock is ahead of this machine's, in microseconds, to within `clock_error`.
    pub clock_ahead: i64,
    pub clock_error: i64,
    /// Program, place and version of every process that runs.
    pub processes: Vec<(String, String, String)>,
    /// Objects whose heads were compared with the log.
    pub compared: i64,
    /// Where heads and log disagree: at most [`NAMED`].
    pub disagreements: Vec<String>,
}

/// Disagreements that are named.
pub const NAMED: usize = 20;

/// Settings that matter.
const SETTINGS: [&str; 5] =
    ["fsync", "full_page_writes", "synchronous_commit", "max_connections", "max_prepared_transactions"];

/// How long comparing heads with the log may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Whether processes say that they are there: not before migration 14.
const ANNOUNCED: &str = "select to_regclass('horchestra.processes') is not null";

/// Who runs.
pub(super) const PROCESSES: &str = "select p.program, p.place, p.version from horchestra.processes p \
    where p.seen_at > statement_timestamp() - interval '30 seconds' order by 1, 2";

/// Heads with the log, as of one moment. Of what changed before the log begins nothing can be said.
pub(super) const COMPARE: &str = "with s as materialized (select t.oldest, \
        coalesce((select c.rv from horchestra.commits c order by c.rv desc limit 1), 0) as head from horchestra.state t), \
    newest as materialized (select distinct on (e.kind, e.ns, e.name) e.kind, e.ns, e.name, e.rv, e.op \
        from horchestra.events e, s where e.rv > s.oldest order by e.kind, e.ns, e.name, e.rv desc), \
    wrong as ( \
        select o.kind, o.ns, o.name, format('the head says revision %s, and the log has something else there', o.rv) as what \
            from horchestra.objects o cross join s left join horchestra.events e on e.rv = o.rv \
            where o.rv > s.oldest and (e.rv is null or e.op = 3 \
                or (e.kind, e.ns, e.name, e.uid) is distinct from (o.kind, o.ns, o.name, o.uid) or e.body <> o.body) \
        union all select n.kind, n.ns, n.name, format('the log changes it at revision %s, which the head does not know', n.rv) \
            from newest n where n.op <> 3 and not exists (select 1 from horchestra.objects o \
                where o.kind = n.kind and o.ns = n.ns and o.name = n.name and o.rv = n.rv) \
        union all select n.kind, n.ns, n.name, format('the log deletes it at revision %s, and it is there', n.rv) \
            from newest n join horchestra.objects o on o.kind = n.kind and o.ns = n.ns and o.name = n.name where n.op = 3 \
        union all select o.kind, o.ns, o.name, format('there are %s of it', count(*)) \
            from horchestra.objects o group by o.kind, o.ns, o.name having count(*) > 1 \
        union all select 0::smallint, '', '', format('the log has %s rows where there should be %s', c.rows, s.head - s.oldest) \
            from s, (select count(*) as rows from horchestra.events e, s where e.rv > s.oldest) c \
            where c.rows <> s.head - s.oldest) \
    select (select count(*) from horchestra.objects) as compared, \
        coalesce((select array_agg(case w.kind when 0 then w.what else inspect.kind_name(w.kind) || ' ' || \
            concat_ws('/', nullif(w.ns, ''), w.name) || ': ' || w.what end) from (select * from wrong limit $1) w), '{}') as wrong";

/// Looks the database over, and whether notifications arrive on `listen_url`, which is `url` where there is none.
pub async fn examine(url: &str, listen_url: Option<&str>) -> Result<Examination, ExamineError> {
    let options = |url: &str| {
        let options: PgConnectOptions = url.parse().map_err(ExamineError::Url)?;
        Ok::<_, ExamineError>(options.application_name("horchestra-check"))
    };
    let (way, listening) = (Way::new(options(url)?), options(listen_url.unwrap_or(url))?);
    let reach = Duration::from_secs(10);
    let late = |_| ExamineError::Patience(reach);
    let between = timeout(reach, way.between()).await.map_err(late)?.map_err(ExamineError::Connect)?;
    if between.mixes {
        return Err(ExamineError::MixedUp);
    }
    let connected = timeout(reach, way.connect()).await.map_err(late)?;
    let mut connection = connected.map_err(ExamineError::Connect)?;
    let found = timeout(PATIENCE, look(&mut connection)).await.map_err(|_| ExamineError::Patience(PATIENCE));
    // Read only: however it is closed, nothing is lost.
    let _ = connection.close().await;
    let mut found = found?.map_err(ExamineError::Read)?;
    found.lends = between.lends;
    found.hears = listen::hears(&listening, &way).await;
    Ok(found)
}

async fn look(connection: &mut PgConnection) -> Result<Examination, sqlx::Error> {
    let about = "select current_setting('server_version') as version, \
        current_setting('server_version_num')::int as version_number, current_setting('server_encoding') as encoding, \
        current_setting('transaction_read_only') = 'on' as read_only";
    let about = sqlx::query(about).fetch_one(&mut *connection).await?;
    let mut settings = Vec::with_capacity(SETTINGS.len());
    for name in SETTINGS {
        let row = sqlx::query("select current_setting($1)").bind(name).fetch_one(&mut *connection).await?;
        settings.push((name, row.try_get(0)?));
    }
    let (clock_ahead, clock_error) = clock(connection).await?;
    let mut found = Examination {
        version: about.try_get("version")?,
        version_number: about.try_get("version_number")?,
        encoding: about.try_get("encoding")?,
        settings,
        schema: Schema { newest: None, needed: 0, known: migrate::newest() },
        read_only: about.try_get("read_only")?,
        lends: false,
        hears: None,
        clock_ahead,
        clock_error,
        processes: Vec::new(),
        compared: 0,
        disagreements: Vec::new(),
    };
    let there = sqlx::query(statements::MIGRATED.sql).fetch_one(&mut *connection);
    if !there.await?.try_get::<bool, _>(0)? {
        return Ok(found);
    }
    let row = sqlx::query(statements::SCHEMA.sql).fetch_one(&mut *connection).await?;
    found.schema = fitness::of_row(&row, migrate::newest())?;
    let announced = sqlx::query(ANNOUNCED).fetch_one(&mut *connection).await?;
    if announced.try_get(0)? {
        for row in sqlx::query(PROCESSES).fetch_all(&mut *connection).await? {
            found.processes.push((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?));
        }
    }
    if found.schema.fault().is_some() {
        return Ok(found);
    }
    let named = i64::try_from(NAMED).unwrap_or(i64::MAX);
    let compared = sqlx::query(COMPARE).bind(named).fetch_one(connection).await?;
    found.compared = compared.try_get("compared")?;
    found.disagreements = compared.try_get("wrong")?;
    Ok(found)
}

/// How far the database's clock is ahead, and how sure that is; the quickest of a few answers says it best.
async fn clock(connection: &mut PgConnection) -> Result<(i64, i64), sqlx::Error> {
    let mut best: Option<(i64, i64)> = None;
    for _ in 0..5 {
        let (asked, began) = (SystemTime::now(), Instant::now());
        let query = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";
        let there: i64 = sqlx::query(query).fetch_one(&mut *connection).await?.try_get(0)?;
        let half = micros(began.elapsed()) / 2;
        let here = micros(asked.duration_since(UNIX_EPOCH).unwrap_or_default()).saturating_add(half);
        if best.is_none_or(|(_, error)| half < error) {
            best = Some((there - here, half));
        }
    }
    Ok(best.unwrap_or_default())
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

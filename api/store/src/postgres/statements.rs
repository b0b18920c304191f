//! Every SQL statement that a running process sends, by name.
//!
//! One list, so that a test can prepare and explain each against a migrated database, and so that each has
//! a latency metric under its name. Statements that only set up a connection or change the schema are not
//! here.

/// What every connection of a running process is set to. No statement, lock or idle transaction of ours
/// lives longer than five seconds, so that no process can hold up the others for longer. Commits are
/// durable whatever the cluster's default. A statement whose client is gone ends within a second or two. Plans are generic and never scan whole tables: they are made when
/// the tables are still empty, and kept. The newest version of a name is read from the end of
/// its index entries, never by collecting and sorting them (of which a foreign snapshot can keep thousands).
pub const SESSION: &str = "select \
    set_config('statement_timeout', '5000', false), \
    set_config('lock_timeout', '5000', false), \
    set_config('idle_in_transaction_session_timeout', '5000', false), \
    set_config('client_connection_check_interval', '1000', false), \
    set_config('synchronous_commit', case current_setting('synchronous_commit') when 'off' then 'on' \
               else current_setting('synchronous_commit') end, false), \
    set_config('plan_cache_mode', 'force_generic_plan', false), \
    set_config('enable_seqscan', 'off', false), \
    set_config('enable_hashjoin', 'off', false), \
    set_config('enable_mergejoin', 'off', false), \
    set_config('enable_bitmapscan', 'off', false), \
    set_config('enable_sort', 'off', false), \
    set_config('jit', 'off', false), \
    set_config('timezone', 'UTC', false)";

/// The notification channel. What is said on it is the newest revision, or [`LEASE_GIVEN_UP`].
pub const CHANNEL: &str = "horchestra";
pub const LEASE_GIVEN_UP: &str = "lease";

/// Loading everything is the one thing that may take longer than other statements: it locks nothing that
/// anybody waits for. The transaction counts as idle while this process still works through what was sent, which
/// takes a while when it gets little time; cut off for that, it would begin anew, and never get to the end.
pub const LOAD_TIMEOUT: &str = "select set_config('statement_timeout', '60s', true), \
    set_config('idle_in_transaction_session_timeout', '60s', true)";

/// A statement of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Label of its latency metric.
    pub name: &'static str,
    pub sql: &'static str,
    /// Must never read the whole of `objects` or `events`.
    pub keyed: bool,
}

const fn keyed(name: &'static str, sql: &'static str) -> Statement {
    Statement { name, sql, keyed: true }
}

const fn whole(name: &'static str, sql: &'static str) -> Statement {
    Statement { name, sql, keyed: false }
}

macro_rules! commit_arguments {
    () => {
        "$1::uuid, $2::int[], $3::int[], $4::int[], $5::text[], $6::text[], $7::uuid[], $8::uuid[], \
         $9::int[], $10::smallint[], $11::smallint[], $12::text[], $13::text[], $14::uuid[], \
         $15::bigint[], $16::bigint[], $17::boolean[], $18::text[], $19::text[], $20::bigint[], \
         $21::bigint[], $22::bytea[], $23::bytea[], $24::bytea[], $25::bigint[], $26::int[], \
         $27::int[], $28::smallint[], $29::smallint[], $30::text[], $31::text[], $32::smallint[], \
         $33::bigint[], $34::uuid[], $35::int[], $36::smallint[], $37::smallint[], $38::text[], \
         $39::text[]"
    };
}

/// What an event row carries for [`super::rows::log_row`], under the alias `e`.
macro_rules! event_columns {
    () => {
        "e.rv, e.uid, e.audit, e.trace, (extract(epoch from e.at) * 1000000)::bigint as at, e.core_rv, \
         e.generation, e.cpu, e.memory, e.prev_rv, e.prev_cpu, e.prev_memory, e.op, e.kind, e.deleting, \
         e.ns, e.name, e.who, e.verb, e.node, e.phase, e.prev_node, e.prev_phase, e.index, e.prev_index, \
         e.managed, e.body, case when e.trace is not null then \
         (select t.span from horchestra.spans t where t.rv = e.rv) end as span"
    };
}

/// The state of the log, under the alias `s`.
macro_rules! head_source {
    () => {
        "(select greatest(horchestra.head(), t.oldest) as head, t.oldest, t.epoch, \
          (select system_identifier::text from pg_control_system()) as system, \
          (select d.oid::text from pg_database d where d.datname = current_database()) as database \
          from horchestra.state t) s"
    };
}

/// The row at the revision `a.rv`, as far as a fingerprint needs it.
macro_rules! anchor_columns {
    () => {
        "a.rv as anchor_rv, a.kind as anchor_kind, a.ns as anchor_ns, a.name as anchor_name, \
         a.uid as anchor_uid, a.audit as anchor_audit"
    };
}

macro_rules! session_query {
    () => {
        "select s.node, s.epoch, s.session, s.gateway, coalesce(g.internal_address, '') as internal_address, s.peer, \
         s.certificate, \
         (extract(epoch from s.opened_at) * 1000000)::bigint as opened_at, \
         (extract(epoch from greatest(s.opened_at, p.last_seen)) * 1000000)::bigint as last_seen \
         from horchestra.node_sessions s \
         left join horchestra.gateways g on g.id = s.gateway \
         left join horchestra.session_presence p on p.node = s.node and p.session = s.session"
    };
}

macro_rules! history_columns {
    () => {
        "kind, ns, name, uid, rv, generation, body, who, verb, audit, trace, \
         (extract(epoch from at) * 1000000)::bigint as at"
    };
}

macro_rules! commit_object_arguments {
    () => {
        "$1::uuid, $2::text, $3::text, $4::uuid, $5::uuid, $6::smallint, \
         $7::smallint, $8::text, $9::text, $10::uuid, $11::bigint, $12::bigint, $13::boolean, $14::text, \
         $15::text, $16::bigint, $17::bigint, $18::bytea, $19::bytea, $20::bytea, $21::bigint, \
         $22::smallint[], $23::smallint[], $24::text[], $25::text[], $26::smallint[], $27::bigint[], \
         $28::uuid[], $29::smallint[], $30::smallint[], $31::text[], $32::text[], $33::smallint[], $34::text[], \
         $35::text[], $36::uuid[], $37::boolean[]"
    };
}

// After the macros, which it uses.
mod nodes;

pub use nodes::*;

pub const COMMIT: Statement =
    keyed("commit", concat!("select * from horchestra.commit_batch(", commit_arguments!(), ")"));
/// As [`COMMIT`], for a batch some of which is traced; $40 the span of each item, null where there is none.
pub const COMMIT_TRACED: Statement = keyed(
    "commit_traced",
    concat!(
        "with done as materialized (select * from horchestra.commit_batch(",
        commit_arguments!(),
        ")), noted as (insert into horchestra.spans (rv, span) select made.rv, made.span from done d \
         cross join lateral (select d.revisions[n] as rv, ($40::bigint[])[($9::int[])[n]] as span \
         from generate_subscripts(d.revisions, 1) n) made where made.rv > 0 and made.span is not null) \
         select * from done"
    ),
);
/// A batch of one item of one operation, and claims and releases after it.
pub const COMMIT_OBJECT: Statement = keyed(
    "commit_object",
    concat!("select * from horchestra.commit_object(", commit_object_arguments!(), ")"),
);
/// As [`COMMIT_OBJECT`], for an item that is traced; $38 its span.
pub const COMMIT_OBJECT_TRACED: Statement = keyed(
    "commit_object_traced",
    concat!(
        "with done as materialized (select * from horchestra.commit_object(",
        commit_object_arguments!(),
        ")), noted as (insert into horchestra.spans (rv, span) select d.revision, $38::bigint from done d \
         where d.revision > 0) select * from done"
    ),
);
pub const SETTLE: Statement =
    keyed("settle", "select revisions, items from horchestra.settle_nonce($1::uuid, $2::bigint)");
pub const ENSURE_PARTITIONS: Statement =
    keyed("ensure_partitions", "select horchestra.ensure_partitions($1::bigint, $2::int)");

pub const HEAD: Statement =
    keyed("head", concat!("select s.head, s.oldest, s.epoch, s.system, s.database from ", head_source!()));
/// $1 the revision to read after, $2 how many rows.
pub const CHANGES: Statement = keyed(
    "changes",
    concat!(
        "select s.head, s.oldest, s.epoch, s.system, s.database, ",
        anchor_columns!(),
        ", ",
        event_columns!(),
        " from ",
        head_source!(),
        " left join horchestra.events a on a.rv = $1 and a.rv > s.oldest \
         left join lateral (select * from horchestra.events x where x.rv > greatest($1, s.oldest) \
         order by x.rv limit $2) e on true order by e.rv"
    ),
);
/// $1 a revision.
pub const ANCHOR: Statement =
    keyed("anchor", concat!("select ", anchor_columns!(), " from horchestra.events a where a.rv = $1"));
/// $1 kinds.
pub const LOAD: Statement = whole(
    "load",
    "select uid, rv, core_rv, generation, cpu, memory, kind, deleting, ns, name, node, phase, index, \
     managed, body from horchestra.objects where kind = any ($1::smallint[])",
);
/// $1 kind, $2 the revision to go back to, $3 the revision to start from.
pub const UNDO: Statement = keyed(
    "undo",
    "with first as (select distinct on (ns, name) * from horchestra.events \
     where kind = $1 and rv > $2 and rv <= $3 order by ns, name, rv) \
     select f.ns, f.name, coalesce(f.prev_uid, f.uid) as uid, f.prev_rv as rv, f.prev_core_rv as core_rv, \
     f.prev_generation as generation, f.prev_cpu as cpu, f.prev_memory as memory, f.kind, \
     f.prev_deleting as deleting, f.prev_node as node, f.prev_phase as phase, f.prev_index as index, \
     case when f.op = 3 then f.managed when f.prev_body is not null then f.prev_managed else p.managed end \
     as managed, \
     case when f.op = 3 then f.body when f.prev_body is not null then f.prev_body else p.body end as body \
     from first f left join horchestra.events p on p.rv = f.prev_rv and f.op = 2 and f.prev_body is null",
);

/// $1 uid, $2 how many.
pub const HISTORY_OF_UID: Statement = keyed(
    "history_of_uid",
    concat!(
        "select * from (select ",
        history_columns!(),
        ", true as deleted from horchestra.tombstones where uid = $1 union all (select ",
        history_columns!(),
        ", false as deleted from horchestra.history where uid = $1)) h order by rv desc"
    ),
);
/// $1 kind, $2 namespace, $3 name.
pub const HISTORY_OF_KEY: Statement = keyed(
    "history_of_key",
    concat!(
        "with u as materialized (select uid from horchestra.objects where kind = $1 and ns = $2 and name = $3 \
         union select uid from horchestra.tombstones where kind = $1 and ns = $2 and name = $3) \
         select * from (select ",
        history_columns!(),
        ", true as deleted from horchestra.tombstones where uid in (select uid from u) union all select ",
        history_columns!(),
        ", false as deleted from horchestra.history where uid in (select uid from u)) h \
         where kind = $1 and ns = $2 and name = $3 order by rv desc"
    ),
);
/// $1 uids.
pub const TOMBSTONES: Statement = keyed(
    "tombstones",
    concat!(
        "select ",
        history_columns!(),
        ", true as deleted from horchestra.tombstones where uid = any ($1::uuid[])"
    ),
);
/// $1 space, $2 value and $3 owner to start behind, $4 how many.
pub const ALL_CLAIMS: Statement = keyed(
    "all_claims",
    "select c.space, c.value, c.owner, c.shared, \
     exists (select 1 from horchestra.tombstones t where t.uid = c.owner) as owner_deleted \
     from horchestra.claims c where (c.space, c.value, c.owner) > ($1::text, $2::text, $3::uuid) \
     order by c.space, c.value, c.owner limit $4",
);
/// $1 space.
pub const CLAIMS: Statement = keyed(
    "claims",
    "select space, value, owner, shared from horchestra.claims where space = $1 order by value, owner",
);

/// $1 namespaces, $2 names and $3 uids of Applications, $4 and $5 the range, $6 and $7 what is skipped, $8 how long
/// an address is held back (microseconds).
pub const LEASE_ADDRESSES: Statement = keyed(
    "lease_addresses",
    "select holder, leased from horchestra.lease_addresses($1::text[], $2::text[], $3::uuid[], $4::text::inet, \
     $5::text::inet, $6::text[]::inet[], $7::text[]::inet[], $8::bigint * interval '1 microsecond')",
);
/// $1 namespaces, $2 names and $3 uids of Applications, $4 their addresses.
pub const ADOPT_ADDRESSES: Statement = keyed(
    "adopt_addresses",
    "select refused from horchestra.adopt_addresses($1::text[], $2::text[], $3::uuid[], $4::text[]::inet[])",
);
pub const ADDRESS_LEASES: Statement = keyed(
    "address_leases",
    "select host(l.address) as address, l.owner from horchestra.address_leases l where l.owner is not null \
     order by l.address",
);
/// $1 space, $2 age (microseconds).
pub const RELEASED_CLAIMS: Statement = keyed(
    "released_claims",
    "select r.value from horchestra.released_claims r where r.space = $1 \
     and r.at > clock_timestamp() - $2::bigint * interval '1 microsecond' order by r.value",
);
/// Of addresses that became free long ago nothing needs to be known.
/// $1 the revision that the log begins behind.
pub const TRIM_SPANS: Statement = keyed(
    "trim_spans",
    "delete from horchestra.spans where rv in \
     (select s.rv from horchestra.spans s where s.rv <= $1 order by s.rv limit 100000)",
);
pub const TRIM_RELEASED: Statement = whole(
    "trim_released",
    "delete from horchestra.released_claims where at < clock_timestamp() - interval '1 day'",
);

/// What an idle connection is asked.
pub const ALIVE: Statement = keyed("alive", "select 1");
/// $1 channel, $2 what is said on it.
pub const NOTIFY: Statement = keyed("notify", "select pg_notify($1, $2)");
/// $1 kind, $2 namespace and $3 name to start behind, $4 how many.
pub const SEALED_HEADS: Statement = keyed(
    "sealed_heads",
    "select uid, ns, name, rv, body from horchestra.objects where kind = $1 and (ns, name) > ($2, $3) \
     order by ns, name limit $4",
);
/// $1 kind, $2 from, $3 to, $4 how many rows.
pub const SEALED_LOG: Statement = keyed(
    "sealed_log",
    "select e.rv, e.uid, e.ns, e.name, e.body, coalesce(e.prev_uid, e.uid) as prev_uid, e.prev_body \
     from horchestra.events e where e.kind = $1 and e.rv > $2 and e.rv <= $3 order by e.rv limit $4",
);
/// One element per body: $1 places, $2 namespaces, $3 names, $4 revisions, $5 what stands there, $6 what is to.
pub const RESEAL: Statement = keyed(
    "reseal",
    "select horchestra.reseal($1::smallint[], $2::text[], $3::text[], $4::bigint[], $5::bytea[], $6::bytea[])",
);
pub const KEY_USE: Statement = keyed(
    "key_use",
    "select key_id, count(*) as objects from horchestra.seals group by key_id order by key_id",
);

/// Whether anything was ever migrated here.
pub const MIGRATED: Statement = keyed("migrated", "select to_regclass('horchestra.migrations') is not null");
/// The newest migration that has run, and the oldest one that a program has to know since something was taken away.
pub const SCHEMA: Statement = keyed(
    "schema",
    "select coalesce(max(version), 0) as newest, \
     coalesce(max(substring(description from '^contract_([0-9]+)_')::bigint), 0) as needed \
     from horchestra.migrations",
);
pub const SETTINGS: Statement = keyed("settings", "select version, body from horchestra.settings");
pub const SETTINGS_FIRST: Statement = keyed(
    "settings_first",
    "insert into horchestra.settings (version, body) values (1, $1) on conflict (id) do nothing",
);
pub const SETTINGS_NEXT: Statement = keyed(
    "settings_next",
    "update horchestra.settings set version = version + 1, body = $1 where version = $2",
);

pub const BEGIN_EPOCH: Statement =
    keyed("begin_epoch", "select horchestra.begin_epoch($1::uuid, $2::bigint)");

/// $1 name, $2 holder, $3 term in microseconds; the same unit below.
pub const ACQUIRE_LEASE: Statement = keyed(
    "acquire_lease",
    "select horchestra.acquire_lease($1::text, $2::uuid, $3::bigint * interval '1 microsecond')",
);
/// Microseconds, below zero when the term is over; no row: nobody holds it.
pub const LEASE_LEFT: Statement = keyed(
    "lease_left",
    "select (extract(epoch from l.until - clock_timestamp()) * 1000000)::bigint \
     from horchestra.leases l join horchestra.lease_epochs e using (name) where l.name = $1 and e.held",
);
pub const RENEW_LEASE: Statement = keyed(
    "renew_lease",
    "update horchestra.leases l set until = clock_timestamp() + $4::bigint * interval '1 microsecond' \
     where l.name = $1 and l.holder = $2 and l.epoch = $3 and exists (select 1 from horchestra.lease_epochs e \
     where e.name = $1 and e.epoch = $3 and e.held) returning l.epoch",
);
/// Those who wait for a lease are told of it.
pub const RELEASE_LEASE: Statement = keyed(
    "release_lease",
    "select horchestra.release_lease($1::text, $2::uuid, $3::bigint), pg_notify('horchestra', 'lease')",
);

/// What the server knows of itself: rows of (what, of which, number); see the crate's module `survey`. Tables that look
/// like partitions of the log count as the log, attached or not.
pub const SURVEY: Statement = keyed(
    "survey",
    "with tables as (select case when c.relname ~ '^events_[0-9]+$' then 'events' else c.relname::text end as of, \
         pg_total_relation_size(c.oid) as bytes, pg_stat_get_live_tuples(c.oid) as live, \
         pg_stat_get_dead_tuples(c.oid) as dead \
         from pg_class c join pg_namespace n on n.oid = c.relnamespace \
         where n.nspname = 'horchestra' and c.relkind = 'r'), \
     sessions as (select xact_start, wait_event_type from pg_stat_activity \
         where datname = current_database() and pid <> pg_backend_pid()) \
     select 'table_bytes' as what, of, sum(bytes)::float8 as value from tables group by of \
     union all select 'table_rows', of, sum(live)::float8 from tables group by of \
     union all select 'table_dead_rows', of, sum(dead)::float8 from tables group by of \
     union all select 'lease_held', l.name, (e.held and l.until > clock_timestamp())::int::float8 \
         from horchestra.leases l join horchestra.lease_epochs e using (name) \
     union all select 'partitions', '', count(*)::float8 from pg_inherits \
         where inhparent = 'horchestra.events'::regclass \
     union all select 'notifications', '', pg_notification_queue_usage() \
     union all select 'oldest_transaction', '', coalesce(extract(epoch from clock_timestamp() - least( \
         (select min(xact_start) from sessions), \
         (select min(prepared) from pg_prepared_xacts where database = current_database()))), 0)::float8 \
     union all select 'lock_waits', '', count(*)::float8 from sessions where wait_event_type = 'Lock' \
     union all select 'connections', '', count(*)::float8 + 1 from sessions \
     union all select 'connections_limit', '', current_setting('max_connections')::float8 \
     union all select 'transaction_age', '', age(datfrozenxid)::float8 from pg_database \
         where datname = current_database()",
);

/// Partitions of the log with their bounds, lowest first. A pending detach is one that was interrupted.
pub const PARTITIONS: Statement = keyed(
    "partitions",
    "select c.relname::text as name, i.inhdetachpending as pending from pg_inherits i \
     join pg_class c on c.oid = i.inhrelid where i.inhparent = 'horchestra.events'::regclass",
);
/// Tables that look like partitions but are not attached: what is left of an interrupted drop or creation.
pub const DETACHED_PARTITIONS: Statement = keyed(
    "detached_partitions",
    "select c.relname::text as name from pg_class c join pg_namespace n on n.oid = c.relnamespace \
     where n.nspname = 'horchestra' and c.relkind = 'r' and c.relname ~ '^events_[0-9]+$' \
     and not exists (select 1 from pg_inherits i where i.inhrelid = c.oid)",
);
/// $1 from, $2 to (exclusive): how old the newest row of a stretch of the log is, in microseconds.
pub const NEWEST_AGE: Statement = keyed(
    "newest_age",
    "select (extract(epoch from clock_timestamp() - at) * 1000000)::bigint from horchestra.events \
     where rv >= $1 and rv < $2 order by rv desc limit 1",
);
pub const RAISE_OLDEST: Statement =
    keyed("raise_oldest", "update horchestra.state set oldest = $1 where oldest < $1");
/// From where the history is to be trimmed.
pub const TRIMMED: Statement = keyed("trimmed", "select greatest(trimmed, oldest) from horchestra.state");
/// $1 from, $2 to: objects that changed in this stretch keep their $3 newest versions.
pub const TRIM_HISTORY: Statement = keyed(
    "trim_history",
    "with u as materialized (select distinct uid from horchestra.events where rv > $1 and rv <= $2 and op = 2) \
     delete from horchestra.history h using u, lateral (select x.rv from horchestra.history x \
     where x.uid = u.uid order by x.rv desc offset $3 - 1 limit 1) k \
     where h.uid = u.uid and h.rv < k.rv",
);
pub const RAISE_TRIMMED: Statement =
    keyed("raise_trimmed", "update horchestra.state set trimmed = $1 where trimmed < $1");
/// $1 microseconds: records of nodes that have had no Node since.
pub const TRIM_PUSH_RECORDS: Statement = keyed(
    "trim_push_records",
    "with old as materialized (select r.node from horchestra.push_records r \
     where r.at < clock_timestamp() - $1::bigint * interval '1 microsecond' \
     and not exists (select 1 from horchestra.objects o where o.kind = 2 and o.ns = '' and o.name = r.node) \
     order by r.node limit 1000), \
     holdings as (delete from horchestra.pushed p using old where p.node = old.node) \
     delete from horchestra.push_records r using old where r.node = old.node",
);
/// $1 microseconds. Those stay of what a node may still hold: they are the reason why it may be ended there.
pub const TRIM_TOMBSTONES: Statement = keyed(
    "trim_tombstones",
    "with old as materialized (select uid, rv from horchestra.tombstones \
     where at < clock_timestamp() - $1::bigint * interval '1 microsecond' \
     and not exists (select 1 from horchestra.pushed p where p.uid = tombstones.uid) order by at limit 1000), \
     unheld as (delete from horchestra.history h using old where h.uid = old.uid and h.rv < old.rv) \
     delete from horchestra.tombstones t using old where t.uid = old.uid and t.rv = old.rv",
);
/// The newest row stays whatever its age: the next batch numbers from it.
pub const TRIM_COMMITS: Statement = whole(
    "trim_commits",
    "delete from horchestra.commits c using (select rv from horchestra.commits \
     where at < clock_timestamp() - interval '10 minutes' and rv < horchestra.head() \
     order by rv limit 100000) old where c.rv = old.rv",
);
pub const TRIM_NONCES: Statement = whole(
    "trim_nonces",
    "delete from horchestra.spent_nonces where at < clock_timestamp() - interval '1 hour'",
);

/// What is sent beside the catalogue: to set up a connection, by `migrate` and by `check`.
pub const BESIDE: &[(&str, &str)] = &[
    ("session", SESSION),
    ("load_timeout", LOAD_TIMEOUT),
    ("grant_roles", super::migrate::GRANT),
    ("first_revision", super::migrate::HEAD),
    ("check_processes", super::examine::PROCESSES),
    ("check_objects", super::examine::COMPARE),
];

/// The whole catalogue.
pub const ALL: &[Statement] = &[
    ALIVE,
    NOTIFY,
    COMMIT,
    COMMIT_TRACED,
    COMMIT_OBJECT,
    COMMIT_OBJECT_TRACED,
    SETTLE,
    ENSURE_PARTITIONS,
    HEAD,
    CHANGES,
    ANCHOR,
    LOAD,
    UNDO,
    HISTORY_OF_UID,
    HISTORY_OF_KEY,
    TOMBSTONES,
    CLAIMS,
    ALL_CLAIMS,
    LEASE_ADDRESSES,
    ADOPT_ADDRESSES,
    ADDRESS_LEASES,
    RELEASED_CLAIMS,
    SEALED_HEADS,
    SEALED_LOG,
    RESEAL,
    KEY_USE,
    MIGRATED,
    SCHEMA,
    SETTINGS,
    SETTINGS_FIRST,
    SETTINGS_NEXT,
    BEGIN_EPOCH,
    ACQUIRE_LEASE,
    LEASE_LEFT,
    RENEW_LEASE,
    RELEASE_LEASE,
    RENEW_GATEWAY,
    NAME_GATEWAY,
    RETIRE_GATEWAY,
    ANNOUNCE,
    WITHDRAW,
    CLAIM_SESSIONS,
    RELEASE_SESSIONS,
    TOUCH_SESSIONS,
    SESSION_OF,
    SESSIONS,
    DENIED,
    DENY,
    ALLOW,
    END_STALE_SESSIONS,
    PRUNE_SEEN,
    PRUNE_GATEWAYS,
    PRUNE_HEARTBEATS,
    RECORD_HEARTBEATS,
    RECORD_BEATS,
    HEARTBEATS,
    PUSH_RECORDS,
    RECORD_PUSHES,
    HOLDS,
    ENGAGE_HOLD,
    RELEASE_HOLD,
    SHOW_LOSS,
    BORN,
    SETTLE_HOME,
    TOKEN_FORM,
    CHOOSE_TOKEN_FORM,
    RECORD_SAMPLES,
    SAMPLES,
    PRUNE_SAMPLES,
    SURVEY,
    PARTITIONS,
    DETACHED_PARTITIONS,
    NEWEST_AGE,
    RAISE_OLDEST,
    TRIMMED,
    TRIM_HISTORY,
    RAISE_TRIMMED,
    TRIM_PUSH_RECORDS,
    TRIM_TOMBSTONES,
    TRIM_COMMITS,
    TRIM_NONCES,
    TRIM_RELEASED,
    TRIM_SPANS,
];

-- The ordered store: objects, the change log, and what guards read.
--
-- Every change of an object takes the next revision under one ordering lock (see
-- commit_batch). What a guard of a write reads is changed only while that lock is held, so a
-- plain read under it is a fence. Renewals and heartbeats live in tables that no guard reads.

-- The one row of facts about this history as a whole.
create table horchestra.state (
    id      boolean primary key default true check (id),
    -- Replaced when a reader has shown that part of the history was lost.
    epoch   uuid not null default gen_random_uuid(),
    -- Every change after this revision is in the log.
    oldest  bigint not null default 0,
    -- The history of what changed up to this revision has been trimmed.
    trimmed bigint not null default 0
);
insert into horchestra.state default values;

-- The heads. Bodies are canonical JSON without resourceVersion and managedFields; only what SQL itself needs
-- is a column.
--
-- The key ends with the revision although there is one row per name (which the ordering lock sees to): the
-- newest entry of a name is one index descent away, and an update names its row exactly. Without the revision
-- every lookup would walk all versions that some old snapshot elsewhere keeps from being removed, and writes
-- would get slower for as long as that snapshot lives. The price is that updates are never heap-only.
create table horchestra.objects (
    uid         uuid     not null,
    rv          bigint   not null,
    core_rv     bigint   not null,
    generation  bigint   not null,
    -- Applications: the effective request while capacity is occupied. Nodes: the capacity.
    cpu         bigint   not null,
    memory      bigint   not null,
    -- Digest of the reference edges that the object carries (0: none): tells whether edges change at all.
    edge_hash   bigint   not null,
    kind        smallint not null,
    deleting    boolean  not null,
    ns          text     collate "C" not null,
    name        text     collate "C" not null,
    node        text     collate "C",
    phase       text     collate "C",
    -- Labels and selectable fields: JSON, one object of each.
    index       bytea    not null,
    managed     bytea,
    body        bytea    not null,
    constraint objects_pkey primary key (kind, ns, name, rv)
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05);
create index objects_node on horchestra.objects (node) where node is not null;

-- The change log, in ranges of revisions (see partition_span). `prev_*` is the state before the change, so
-- that any retained revision can be rebuilt by undoing; the bulky part of it only where the previous version
-- stands in an older partition, which may be gone before this row is.
create table horchestra.events (
    rv              bigint   not null,
    uid             uuid     not null,
    audit           uuid     not null,
    trace           uuid,
    at              timestamptz not null,
    core_rv         bigint   not null,
    generation      bigint   not null,
    cpu             bigint   not null,
    memory          bigint   not null,
    prev_rv         bigint   not null,
    prev_core_rv    bigint,
    prev_generation bigint,
    prev_cpu        bigint,
    prev_memory     bigint,
    prev_uid        uuid,
    -- 1 added, 2 modified, 3 deleted.
    op              smallint not null,
    kind            smallint not null,
    deleting        boolean  not null,
    prev_deleting   boolean,
    ns              text     collate "C" not null,
    name            text     collate "C" not null,
    who             text     not null,
    verb            text     not null,
    node            text     collate "C",
    phase           text     collate "C",
    prev_node       text     collate "C",
    prev_phase      text     collate "C",
    index           bytea    not null,
    prev_index      bytea,
    managed         bytea,
    body            bytea    not null,
    prev_managed    bytea,
    prev_body       bytea,
    constraint events_pkey primary key (rv)
) partition by range (rv);

-- One row per batch that stored something. The newest row is where the next batch numbers from; rows of the
-- last minutes answer what became of a batch whose answer was lost.
create table horchestra.commits (
    rv        bigint primary key,
    nonce     uuid        not null,
    at        timestamptz not null,
    -- Revision per operation (0: claims and releases, -1: of a refused item).
    revisions bigint[]    not null,
    -- Index of the last operation of each item.
    items     int[]       not null,
    -- The log's row at `rv`, as far as it takes to tell it from any other; nothing where an epoch begins.
    uid       uuid,
    audit     uuid,
    kind      smallint,
    ns        text collate "C",
    name      text collate "C"
);

-- Nonces that must never commit (again): given up by their callers (no revisions), or of a batch that stored
-- something but took no revision, so that it has no row above.
create table horchestra.spent_nonces (
    nonce     uuid primary key,
    at        timestamptz not null,
    revisions bigint[],
    items     int[]
);

-- Versions of an object that differ in more than status.
create table horchestra.history (
    uid        uuid     not null,
    rv         bigint   not null,
    generation bigint   not null,
    audit      uuid     not null,
    trace      uuid,
    at         timestamptz not null,
    kind       smallint not null,
    ns         text     collate "C" not null,
    name       text     collate "C" not null,
    who        text     not null,
    verb       text     not null,
    body       bytea    not null,
    constraint history_pkey primary key (uid, rv)
);

-- Deleted objects, with their last state.
create table horchestra.tombstones (
    uid        uuid     not null,
    rv         bigint   not null,
    generation bigint   not null,
    audit      uuid     not null,
    trace      uuid,
    at         timestamptz not null,
    kind       smallint not null,
    ns         text     collate "C" not null,
    name       text     collate "C" not null,
    who        text     not null,
    verb       text     not null,
    body       bytea    not null,
    constraint tombstones_pkey primary key (uid, rv)
);
create index tombstones_key on horchestra.tombstones (kind, ns, name);
create index tombstones_at on horchestra.tombstones (at);

-- References between objects, by the uid of the object that carries them.
create table horchestra.edges (
    source      uuid     not null,
    relation    smallint not null,
    target_kind smallint not null,
    target_ns   text     collate "C" not null,
    target_name text     collate "C" not null,
    constraint edges_pkey primary key (source, relation, target_kind, target_ns, target_name)
);
create index edges_target on horchestra.edges (relation, target_kind, target_ns, target_name);

-- Values (ids, addresses, ports) that objects hold.
create table horchestra.claims (
    space  text    collate "C" not null,
    value  text    collate "C" not null,
    owner  uuid    not null,
    shared boolean not null,
    constraint claims_pkey primary key (space, value, owner)
);
create index claims_owner on horchestra.claims (owner);
create unique index claims_exclusive on horchestra.claims (space, value) where not shared;

-- Cluster-wide settings: one row.
create table horchestra.settings (
    id      boolean primary key default true check (id),
    version bigint not null,
    body    bytea  not null
);

-- Leadership: the epoch is what guards read; holder and term are not.
create table horchestra.lease_epochs (
    name  text    collate "C" primary key,
    epoch bigint  not null,
    held  boolean not null
);
create table horchestra.leases (
    name   text        collate "C" primary key,
    holder uuid        not null,
    epoch  bigint      not null,
    until  timestamptz not null
) with (fillfactor = 50);

-- Gateways and the node sessions that they hold. Sessions are what guards read; terms and last_seen are not.
create table horchestra.gateways (
    id               uuid        primary key,
    internal_address text        not null,
    until            timestamptz not null
) with (fillfactor = 50);
create sequence horchestra.session_epoch;
create table horchestra.node_sessions (
    node        text collate "C" primary key,
    epoch       bigint      not null,
    session     uuid        not null,
    gateway     uuid        not null,
    peer        text        not null,
    certificate text        not null,
    opened_at   timestamptz not null
);
create table horchestra.session_presence (
    node      text collate "C" primary key,
    session   uuid        not null,
    last_seen timestamptz not null
) with (fillfactor = 50);

-- What nodes report of themselves between visible changes. Logged: a crash of the database must not make a
-- fleet look silent.
create table horchestra.heartbeats (
    node             text collate "C" primary key,
    at               timestamptz not null,
    allocated_cpu    bigint not null,
    allocated_memory bigint not null
) with (fillfactor = 50);

-- lz4 costs far less time than the default compression; not every server is built with it.
do $$
declare
    t text;
    c text;
begin
    if 'lz4' = any (select unnest(enumvals) from pg_settings where name = 'default_toast_compression') then
        foreach t in array array['objects', 'events', 'history', 'tombstones'] loop
            foreach c in array array['body', 'managed', 'prev_body', 'prev_managed'] loop
                if exists (select 1 from pg_attribute
                           where attrelid = ('horchestra.' || t)::regclass and attname = c) then
                    execute format('alter table horchestra.%I alter column %I set compression lz4', t, c);
                end if;
            end loop;
        end loop;
    end if;
end $$;

-- What nodes were last sent, and when nothing may be sent to them.
--
-- A push replaces everything that a node was told before, and the node destroys what it does not name. So what each
-- node may hold is written down before it is sent, and is taken off the record only after a push without it, which
-- needs a recorded reason; and when this database turns out not to have what somebody has already seen, pushes are
-- held until an operator releases them.

-- Nodes that were ever sent anything.
create table horchestra.push_records (
    node     text collate "C" primary key,
    -- Of the state that was sent when the record last changed.
    revision bigint      not null,
    at       timestamptz not null
);

-- What a node may hold: Applications (kind 3), and volumes of its own (kind 6). It can hold less, never more. Tombstones
-- of what is named here are kept, however old.
create table horchestra.pushed (
    node text     collate "C" not null,
    kind smallint not null,
    uid  uuid     not null,
    ns   text     collate "C" not null,
    name text     collate "C" not null,
    constraint pushed_pkey primary key (node, kind, uid)
);
create index pushed_uid on horchestra.pushed (uid);

-- Holds in force: of all nodes (the empty name), or of one.
create table horchestra.push_holds (
    node    text collate "C" primary key,
    -- Another one whenever the hold of all nodes is engaged again: releases are of one.
    hold    uuid        not null,
    since   timestamptz not null,
    reason  text        not null,
    message text        not null
);

-- Nodes that were released from the hold of all nodes.
create table horchestra.push_releases (
    node text collate "C" primary key,
    hold uuid        not null,
    at   timestamptz not null
);

-- Histories that somebody has known further than this database has them: each engages the hold once, however many
-- processes have known it.
create table horchestra.losses (
    epoch    uuid        not null,
    system   text        collate "C" not null,
    database text        collate "C" not null,
    revision bigint      not null,
    at       timestamptz not null,
    constraint losses_pkey primary key (epoch, system, database)
);

-- Engages a hold. The one of all nodes (the empty name) is a new one every time.
create function horchestra.engage_hold(node_ text, reason_ text, message_ text) returns void
language plpgsql volatile as $$
begin
    insert into horchestra.push_holds as h (node, hold, since, reason, message)
        values (node_, gen_random_uuid(), clock_timestamp(), reason_, message_)
        on conflict (node) do update set reason = excluded.reason, message = excluded.message,
            hold = case when node_ = '' then excluded.hold else h.hold end,
            since = case when node_ = '' then excluded.since else h.since end;
    if node_ = '' then
        delete from horchestra.push_releases;
    end if;
end $$;

-- Releases one node, or with null everything; true if that was held. What is on record and nobody can explain goes off
-- it: that it may be destroyed is what was asked for.
create function horchestra.release_hold(node_ text) returns boolean
language plpgsql volatile as $$
declare
    held    boolean := false;
    cluster uuid;
begin
    delete from horchestra.pushed p where (node_ is null or p.node = node_)
        and not exists (select 1 from horchestra.tombstones t where t.uid = p.uid)
        and not exists (select 1 from horchestra.objects o
            where o.kind = p.kind and o.ns = p.ns and o.name = p.name and o.uid = p.uid);
    -- They count as nodes that this database has sent something to, so what they were before is not asked again.
    insert into horchestra.push_records (node, revision, at)
        select n.node, 0, clock_timestamp() from (select node_ as node where node_ <> ''
            union select h.node from horchestra.push_holds h where node_ is null and h.node <> '') n
        on conflict (node) do nothing;
    -- And what they were sent that this database has not reached is forgotten.
    update horchestra.push_records r set revision = horchestra.head()
        where (node_ is null or r.node = node_) and r.revision > horchestra.head();
    if node_ is null then
        delete from horchestra.push_holds;
        held := found;
        delete from horchestra.push_releases;
        return held;
    end if;
    delete from horchestra.push_holds h where h.node = node_ and node_ <> '';
    held := found;
    select h.hold into cluster from horchestra.push_holds h where h.node = '';
    if found then
        insert into horchestra.push_releases as r (node, hold, at) values (node_, cluster, clock_timestamp())
            on conflict (node) do update set hold = excluded.hold, at = excluded.at where r.hold <> excluded.hold;
        held := held or found;
    end if;
    return held;
end $$;

-- Where this data was last known to be, and to be complete: the server, the database, and the server's timeline, which
-- changes when a standby is promoted, and when a backup is brought forward to some moment.
alter table horchestra.state
    add column home_system   text collate "C",
    add column home_database text collate "C",
    add column home_timeline int,
    -- When this database was made, as far as it is known.
    add column born          timestamptz not null default clock_timestamp();
update horchestra.state set born = 'epoch' where exists (select 1 from horchestra.commits);

-- Looks whether the data is where it was. `vouches`: the caller has seen it there and nothing is missing. Data that came
-- from another database engages the hold at once, data on another timeline when nobody vouches for it: with `patient`
-- false is answered then, to be asked again.
create function horchestra.settle_home(vouches boolean, patient boolean) returns boolean
language plpgsql volatile as $$
declare
    system_   text;
    database_ text;
    timeline_ int;
    home      horchestra.state;
begin
    select c.system_identifier::text into system_ from pg_control_system() c;
    select d.oid::text into database_ from pg_database d where d.datname = current_database();
    timeline_ := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
    select s.* into home from horchestra.state s;
    if (home.home_system, home.home_database, home.home_timeline)
            is not distinct from (system_, database_, timeline_) then
        return true;
    end if;
    perform pg_advisory_xact_lock(7239181146252901);
    select s.* into home from horchestra.state s;
    if vouches or home.home_system is null then
        null;
    elsif (home.home_system, home.home_database) is distinct from (system_, database_) then
        perform horchestra.engage_hold('', 'DatabaseReplaced', 'this data was in another database before');
    elsif home.home_timeline is distinct from timeline_ then
        if patient then
            return false;
        end if;
        perform horchestra.engage_hold('', 'HistoryUnproven', format('the server went from timeline %s to %s, and '
            || 'nobody who was there before says that nothing was lost', home.home_timeline, timeline_));
    end if;
    update horchestra.state set home_system = system_, home_database = database_, home_timeline = timeline_;
    return true;
end $$;

-- Somebody has known this history further, or another one in this place. Begins a new epoch if that is wanted; see
-- begin_epoch.
create function horchestra.show_loss(
    known_epoch uuid, known_system text, known_database text, known bigint, found_epoch uuid, begins boolean,
    reason_ text, message_ text
) returns void
language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock(7239181146252901);
    insert into horchestra.losses (epoch, system, database, revision, at)
        values (known_epoch, known_system, known_database, known, clock_timestamp()) on conflict do nothing;
    if found then
        perform horchestra.engage_hold('', reason_, message_);
    end if;
    if begins then
        perform horchestra.begin_epoch(found_epoch, known);
    end if;
    -- The hold is engaged; that is not to be done again for where the data is.
    perform horchestra.settle_home(true, false);
end $$;

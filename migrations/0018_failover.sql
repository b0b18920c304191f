-- What must not be confused by a failover of the server, a clock that was set, or the death of a leader.

-- As in 0004, but for two things. Epochs grow by more than one, and by nobody knows how much: a server that has lost its
-- last moments in a failover would otherwise give one away a second time, while its first holder still acts. And a term
-- that ends much later than any would is cut short: the clock was set back, and its holder may be dead.
create or replace function horchestra.acquire_lease(name_ text, holder_ uuid, ttl interval) returns bigint
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    l record;
    e record;
    now_ timestamptz := clock_timestamp();
    -- Nobody's term is longer.
    longest interval := greatest(10 * ttl, interval '2 minutes');
    fresh bigint;
begin
    -- Somebody else's running term is seen without the lock: that is how nearly every call ends.
    if exists (select 1 from horchestra.leases x join horchestra.lease_epochs y using (name)
               where x.name = name_ and x.holder <> holder_ and y.held
                 and x.until > now_ and x.until <= now_ + longest) then
        return null;
    end if;
    perform pg_advisory_xact_lock(7239181146252901);
    now_ := clock_timestamp();
    fresh := 1 + floor(random() * 1000000)::bigint;
    select * into e from horchestra.lease_epochs y where y.name = name_;
    if not found then
        insert into horchestra.lease_epochs (name, epoch, held) values (name_, fresh, true);
        insert into horchestra.leases (name, holder, epoch, until) values (name_, holder_, fresh, now_ + ttl);
        return fresh;
    end if;
    select * into l from horchestra.leases x where x.name = name_ for update skip locked;
    if not found then
        return null; -- its holder is renewing it this very moment
    end if;
    if e.held and l.holder = holder_ then
        update horchestra.leases x set until = now_ + ttl where x.name = name_;
        return e.epoch;
    elsif e.held and l.until > now_ then
        update horchestra.leases x set until = now_ + longest where x.name = name_ and x.until > now_ + longest;
        return null;
    end if;
    fresh := e.epoch + fresh;
    update horchestra.lease_epochs y set epoch = fresh, held = true where y.name = name_;
    update horchestra.leases x set holder = holder_, epoch = fresh, until = now_ + ttl where x.name = name_;
    return fresh;
end $$;

-- As in 0004, but that a gateway whose term ends much later than any would counts as gone: the clock was set back. One
-- that lives says so within seconds, and gets its nodes back when they dial.
create or replace function horchestra.claim_session(
    node_ text, gateway_ uuid, peer_ text, certificate_ text, session_ uuid, stale interval
) returns table (epoch bigint, session uuid)
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    s record;
    now_ timestamptz;
    fresh bigint;
begin
    perform pg_advisory_xact_lock(7239181146252901);
    now_ := clock_timestamp();
    select x.gateway, greatest(x.opened_at, (select p.last_seen from horchestra.session_presence p
            where p.node = x.node and p.session = x.session)) as last_seen
        into s from horchestra.node_sessions x where x.node = node_;
    if found and s.last_seen >= now_ - stale
       and exists (select 1 from horchestra.gateways g
                   where g.id = s.gateway and g.until > now_ and g.until <= now_ + interval '10 minutes') then
        return;
    end if;
    fresh := nextval('horchestra.session_epoch');
    insert into horchestra.node_sessions as x (node, epoch, session, gateway, peer, certificate, opened_at)
        values (node_, fresh, session_, gateway_, peer_, certificate_, now_)
        on conflict (node) do update set epoch = excluded.epoch, session = excluded.session,
            gateway = excluded.gateway, peer = excluded.peer, certificate = excluded.certificate,
            opened_at = excluded.opened_at;
    return query select fresh, session_;
end $$;

-- Since when a gateway has been in its term without a break, and nodes could be heard there. Whoever begins to look at
-- heartbeats knows by it that somebody was there to record them, though nobody looked.
alter table horchestra.gateways add column since timestamptz not null default clock_timestamp();

-- By a trigger, so that programs from before this migration keep it as well. A term that comes to end earlier than it did
-- shows that the clock was set back: how old a heartbeat of before is, nobody knows then.
create function horchestra.gateway_is_back() returns trigger language plpgsql as $$
begin
    new.since := clock_timestamp();
    return new;
end $$;
create trigger gateway_is_back before update of until on horchestra.gateways
    for each row when (old.until <= clock_timestamp() or new.until < old.until)
    execute function horchestra.gateway_is_back();

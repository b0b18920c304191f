-- Leases and sessions: functions that change what guards read, so they hold the ordering lock. Nothing in
-- them waits for another lock: rows that renewals touch are passed over when they are locked.

create function horchestra.acquire_lease(name_ text, holder_ uuid, ttl interval) returns bigint
language plpgsql volatile as $$
declare
    l record;
    e record;
    now_ timestamptz := clock_timestamp();
    fresh bigint;
begin
    -- Somebody else's running term is seen without the lock: that is how nearly every call ends.
    if exists (select 1 from horchestra.leases x join horchestra.lease_epochs y using (name)
               where x.name = name_ and x.holder <> holder_ and x.until > now_ and y.held) then
        return null;
    end if;
    perform pg_advisory_xact_lock(7239181146252901);
    now_ := clock_timestamp();
    select * into e from horchestra.lease_epochs y where y.name = name_;
    if not found then
        insert into horchestra.lease_epochs (name, epoch, held) values (name_, 1, true);
        insert into horchestra.leases (name, holder, epoch, until) values (name_, holder_, 1, now_ + ttl);
        return 1;
    end if;
    select * into l from horchestra.leases x where x.name = name_ for update skip locked;
    if not found then
        return null; -- its holder is renewing it this very moment
    end if;
    if e.held and l.holder = holder_ then
        update horchestra.leases x set until = now_ + ttl where x.name = name_;
        return e.epoch;
    elsif e.held and l.until > now_ then
        return null;
    end if;
    fresh := e.epoch + 1;
    update horchestra.lease_epochs y set epoch = fresh, held = true where y.name = name_;
    update horchestra.leases x set holder = holder_, epoch = fresh, until = now_ + ttl where x.name = name_;
    return fresh;
end $$;

create function horchestra.release_lease(name_ text, holder_ uuid, epoch_ bigint) returns void
language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock(7239181146252901);
    -- Holder and epoch change together under this lock, so the epoch alone is proof.
    update horchestra.lease_epochs y set held = false
        where y.name = name_ and y.epoch = epoch_ and y.held
          and exists (select 1 from horchestra.leases x where x.name = name_ and x.holder = holder_);
end $$;

-- Claims the session of a node; no row: a live session exists.
create function horchestra.claim_session(
    node_ text, gateway_ uuid, peer_ text, certificate_ text, session_ uuid, stale interval
) returns table (epoch bigint, session uuid)
language plpgsql volatile as $$
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
       and exists (select 1 from horchestra.gateways g where g.id = s.gateway and g.until > now_) then
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

create function horchestra.release_session(node_ text, epoch_ bigint, session_ uuid) returns void
language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock(7239181146252901);
    delete from horchestra.node_sessions x
        where x.node = node_ and x.epoch = epoch_ and x.session = session_;
end $$;

-- Gives a nonce up for good and answers what it committed, if it did. `since`: a revision from before it.
create function horchestra.settle_nonce(nonce_ uuid, since bigint, out revisions bigint[], out items int[])
language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock(7239181146252901);
    select c.revisions, c.items into revisions, items
        from horchestra.commits c where c.rv > since and c.nonce = nonce_;
    if not found then
        insert into horchestra.spent_nonces as s (nonce, at) values (nonce_, clock_timestamp())
            on conflict (nonce) do update set at = excluded.at
            returning s.revisions, s.items into revisions, items;
    end if;
end $$;

-- Starts a new epoch well above both the head and `known`, unless another process has already done so.
create function horchestra.begin_epoch(seen uuid, known bigint) returns void
language plpgsql volatile as $$
declare
    span  bigint := horchestra.partition_span();
    head  bigint;
    fresh  bigint;
    epoch_ uuid;
begin
    perform pg_advisory_xact_lock(7239181146252901);
    head := horchestra.head();
    select s.epoch into epoch_ from horchestra.state s;
    if epoch_ is distinct from seen and head > known then
        return;
    end if;
    -- A whole number of partitions, so that nothing of the old epoch shares one with the new.
    fresh := (greatest(head, known) / span + 4) * span;
    perform horchestra.ensure_partitions(fresh, 3);
    insert into horchestra.commits (rv, nonce, at, revisions, items)
        values (fresh, gen_random_uuid(), clock_timestamp(), '{}', '{}');
    update horchestra.state set epoch = gen_random_uuid(), oldest = fresh;
    perform pg_notify('horchestra', fresh::text);
end $$;

-- Addresses of workloads that have a network of their own. An address is in one row, and so is its owner: nothing is
-- leased twice, and nobody has two. A row without an owner is an address that is to be had again once it has been free
-- for long enough; addresses that never were anybody's have no row.
create table horchestra.address_leases (
    address     inet primary key,
    -- Uid of the Application.
    owner       uuid unique,
    released_at timestamptz,
    constraint address_leases_state check ((owner is null) = (released_at is not null))
);
create index address_leases_free on horchestra.address_leases (released_at, address) where owner is null;

-- How far a range has been given out: every address of it before `next` has a row above, or was passed over for good.
create table horchestra.address_ranges (
    first inet not null,
    last  inet not null,
    next  inet not null,
    constraint address_ranges_pkey primary key (first, last)
);

-- An Application that is erased gives its address back, whatever way it goes.
create function horchestra.release_address() returns trigger
language plpgsql as $$
begin
    update horchestra.address_leases l set owner = null, released_at = clock_timestamp() where l.owner = old.uid;
    return null;
end $$;
create trigger release_address after delete on horchestra.objects
    for each row when (old.kind = 3) execute function horchestra.release_address();

-- Gives each of these Applications an address between `first_` and `last_`, or the one that it has. Of one that does
-- not exist (any more) nothing is answered; one that cannot have any is answered without. Preferred is the address
-- that has been free for longest, if that is longer than `hold`, then the lowest that never was anybody's. What lies
-- between `skip_first` and `skip_last` is given to nobody; a single address (a node's) is looked at again later, a
-- stretch is passed over for good. Holds the ordering lock, so that an Application is not erased meanwhile.
create function horchestra.lease_addresses(
    ns_ text[], name_ text[], uid_ uuid[], first_ inet, last_ inet, skip_first inet[], skip_last inet[], hold interval
) returns table (holder uuid, leased text)
language plpgsql volatile as $$
declare
    now_   timestamptz;
    begun  inet;
    next_  inet;
    chosen inet;
    beyond inet;
begin
    perform pg_advisory_xact_lock(7239181146252901);
    now_ := clock_timestamp();
    select r.next into begun from horchestra.address_ranges r where r.first = first_ and r.last = last_;
    next_ := coalesce(begun, first_);
    for i in 1 .. coalesce(cardinality(uid_), 0) loop
        select l.address into chosen from horchestra.address_leases l where l.owner = uid_[i];
        if not found then
            continue when coalesce((select o.uid from horchestra.objects o where o.kind = 3 and o.ns = ns_[i]
                and o.name = name_[i] order by o.rv desc limit 1) <> uid_[i], true);
            loop
                select l.address into chosen from horchestra.address_leases l
                    where l.owner is null and l.released_at < now_ - hold
                    order by l.released_at, l.address limit 1;
                exit when not found;
                if chosen < first_ or chosen > last_ then
                    -- Of a range that was in use before.
                    delete from horchestra.address_leases l where l.address = chosen;
                elsif exists (select 1 from unnest(skip_first, skip_last) s(f, l) where chosen between s.f and s.l) then
                    update horchestra.address_leases l set released_at = now_ where l.address = chosen;
                else
                    exit;
                end if;
            end loop;
            if chosen is not null then
                update horchestra.address_leases l set owner = uid_[i], released_at = null where l.address = chosen;
            else
                while next_ <= last_ loop
                    select max(s.l) into beyond from unnest(skip_first, skip_last) s(f, l)
                        where next_ between s.f and s.l;
                    if beyond is null then
                        insert into horchestra.address_leases as l (address, owner) values (next_, uid_[i])
                            on conflict (address) do nothing returning l.address into chosen;
                    elsif beyond = next_ then
                        insert into horchestra.address_leases (address, released_at) values (next_, now_)
                            on conflict (address) do nothing;
                    end if;
                    next_ := least(greatest(beyond, next_), last_) + 1;
                    exit when chosen is not null;
                end loop;
            end if;
        end if;
        holder := uid_[i];
        leased := host(chosen);
        return next;
    end loop;
    if begun is null then
        -- The range was changed. Should it ever be changed back, that one is looked through from its beginning.
        delete from horchestra.address_ranges r where r.first <> first_ or r.last <> last_;
    end if;
    if next_ is distinct from begun then
        insert into horchestra.address_ranges as r (first, last, next) values (first_, last_, next_)
            on conflict (first, last) do update set next = excluded.next;
    end if;
end $$;

-- Leases to each of these Applications the address that it is known to have (one that was imported runs already).
-- Answers those that cannot have it: it is another one's, or they have another one.
create function horchestra.adopt_addresses(ns_ text[], name_ text[], uid_ uuid[], address_ inet[])
returns table (refused uuid)
language plpgsql volatile as $$
declare
    other uuid;
begin
    -- Nearly always there is nothing to do, and no need for the lock.
    if not exists (select 1 from unnest(uid_, address_) t(u, a) where not exists
            (select 1 from horchestra.address_leases l where l.address = t.a and l.owner = t.u)) then
        return;
    end if;
    perform pg_advisory_xact_lock(7239181146252901);
    for i in 1 .. cardinality(uid_) loop
        other := null;
        select l.owner into other from horchestra.address_leases l where l.address = address_[i];
        continue when other = uid_[i];
        continue when coalesce((select o.uid from horchestra.objects o where o.kind = 3 and o.ns = ns_[i]
            and o.name = name_[i] order by o.rv desc limit 1) <> uid_[i], true);
        if other is not null or exists (select 1 from horchestra.address_leases l where l.owner = uid_[i]) then
            refused := uid_[i];
            return next;
        else
            insert into horchestra.address_leases as l (address, owner) values (address_[i], uid_[i])
                on conflict (address) do update set owner = excluded.owner, released_at = null;
        end if;
    end loop;
end $$;

-- When addresses of Services became free, so that they are not given out again at once.
create table horchestra.released_claims (
    space text        collate "C" not null,
    value text        collate "C" not null,
    at    timestamptz not null,
    constraint released_claims_pkey primary key (space, value)
);

create function horchestra.remember_release() returns trigger
language plpgsql as $$
begin
    insert into horchestra.released_claims as r (space, value, at) values (old.space, old.value, clock_timestamp())
        on conflict (space, value) do update set at = excluded.at;
    return null;
end $$;
create trigger remember_release after delete on horchestra.claims
    for each row when (old.space = 'service-address') execute function horchestra.remember_release();

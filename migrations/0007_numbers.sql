-- Claims of numbers, and a guard on them: nobody else holds any number of a range. A claim names one number (`7`) or
-- a range (`<first>/<count>`); every other value is a text and nothing more.
create function horchestra.claim_first(value text) returns bigint
language sql immutable strict parallel safe as $$
    select case when value ~ '^[0-9]{1,15}(/[0-9]{1,15})?$' then split_part(value, '/', 1)::bigint end
$$;

create function horchestra.claim_last(value text) returns bigint
language sql immutable strict parallel safe as $$
    select horchestra.claim_first(value)
        + case when split_part(value, '/', 2) = '' then 0 else split_part(value, '/', 2)::bigint - 1 end
$$;

alter table horchestra.claims add column last bigint generated always as (horchestra.claim_last(value)) stored;
create index claims_numbers on horchestra.claims (space, last) where last is not null;

create or replace function horchestra.guard_holds(
    guard smallint, kind_ smallint, ns_ text, name_ text, relation_ smallint, number_ bigint, id_ uuid
) returns boolean
language plpgsql volatile as $$
declare
    node_cpu bigint;
    node_memory bigint;
    used_cpu bigint;
    used_memory bigint;
begin
    case guard
    when 1 then -- the object exists and is not being deleted
        return coalesce((select not o.deleting from horchestra.objects o
            where o.kind = kind_ and o.ns = ns_ and o.name = name_ order by o.rv desc limit 1), false);
    when 2 then -- the head is exactly at a revision (0: there is none)
        return coalesce((select o.rv from horchestra.objects o
            where o.kind = kind_ and o.ns = ns_ and o.name = name_ order by o.rv desc limit 1), 0) = number_;
    when 3 then -- nothing but Events (kind 14) lives in the namespace
        return not exists (select 1 from horchestra.objects o
            where o.kind = any ('{3,4,5,6,7,8,9,10}'::smallint[]) and o.ns = name_);
    when 4 then -- at most so many references to the target
        return (select count(*) from (select 1 from horchestra.edges e
            where e.relation = relation_ and e.target_kind = kind_ and e.target_ns = ns_
              and e.target_name = name_ limit number_ + 1) found) <= number_;
    when 5 then -- the applications on the node fit (number 1: a capacity of 0 is without bound)
        select o.cpu, o.memory into node_cpu, node_memory from horchestra.objects o
            where o.kind = 2 and o.ns = '' and o.name = name_ order by o.rv desc limit 1;
        if not found then
            return false;
        end if;
        select coalesce(sum(o.cpu), 0), coalesce(sum(o.memory), 0) into used_cpu, used_memory
            from horchestra.objects o where o.node = name_ and o.kind = 3;
        return (used_cpu <= node_cpu or (number_ = 1 and node_cpu = 0))
           and (used_memory <= node_memory or (number_ = 1 and node_memory = 0));
    when 6 then -- the live session of the node is this one
        return exists (select 1 from horchestra.node_sessions s
            where s.node = name_ and s.epoch = number_ and s.session = id_);
    when 7 then -- the lease is held in this epoch
        return exists (select 1 from horchestra.lease_epochs l
            where l.name = name_ and l.epoch = number_ and l.held);
    when 8 then -- at most so many Events live in the namespace
        return (select count(*) from (select 1 from horchestra.objects o
            where o.kind = 14 and o.ns = name_ limit number_ + 1) found) <= number_;
    when 9 then -- no other owner holds a number of the range (ranges of a space do not overlap)
        return coalesce((select horchestra.claim_first(c.value) > horchestra.claim_last(name_)
            from horchestra.claims c
            where c.space = ns_ and c.last >= horchestra.claim_first(name_) and c.owner <> id_
            order by c.last limit 1), true);
    end case;
end $$;

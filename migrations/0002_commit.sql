-- The write path. See the essay in the store's postgres module for what it guarantees and why it is built
-- like this.

-- Revisions per partition of the log. A constant: partition n holds [n * span, (n + 1) * span).
create function horchestra.partition_span() returns bigint
language sql immutable parallel safe as $$ select 262144::bigint $$;

-- The one lock of the write path; held to the end of the transaction.
create function horchestra.ordering_lock() returns void
language sql volatile as $$ select pg_advisory_xact_lock(7239181146252901) $$;

-- The last revision given out, or where the current epoch began if nothing has been since.
create function horchestra.head() returns bigint
language sql stable as $$ select coalesce((select rv from horchestra.commits order by rv desc limit 1), 0) $$;

-- Makes sure that the log has partitions for `ahead` spans beyond the one that holds revision `at`. Answers
-- the first revision without a partition. Never PARTITION OF: that would lock the log against writers.
create function horchestra.ensure_partitions(at bigint, ahead int) returns bigint
language plpgsql volatile as $$
declare
    span  bigint := horchestra.partition_span();
    first bigint := at / span;
    child text;
begin
    perform pg_advisory_xact_lock(7239181146252902);
    for n in first .. first + ahead loop
        child := 'events_' || n;
        if not exists (select 1 from pg_inherits
                       where inhparent = 'horchestra.events'::regclass
                         and inhrelid = to_regclass('horchestra.' || child)) then
            execute format('create table if not exists horchestra.%I (like horchestra.events '
                || 'including defaults including storage including compression)', child);
            execute format('alter table horchestra.%I add constraint range check (rv >= %s and rv < %s)',
                child, n * span, (n + 1) * span);
            execute format('alter table horchestra.events attach partition horchestra.%I '
                || 'for values from (%s) to (%s)', child, n * span, (n + 1) * span);
            execute format('alter table horchestra.%I drop constraint range', child);
        end if;
    end loop;
    return (first + ahead + 1) * span;
end $$;

select horchestra.ensure_partitions(0, 3);

-- Whether one guard holds right now. Codes are those of the writer in the store's postgres module.
create function horchestra.guard_holds(
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
    end case;
end $$;

-- Applies one operation as revision `rev`. Answers 0 when it was applied, else why nothing was done:
-- -1 the key is taken, -2 there is no such object, -4 the claim is held by another, a positive number: the
-- head is there, not where it was expected.
create function horchestra.apply_op(
    op_ smallint, rev bigint, kind_ smallint, ns_ text, name_ text, uid_ uuid, expect bigint,
    generation_ bigint, flag boolean, node_ text, phase_ text, cpu_ bigint, memory_ bigint,
    index_ bytea, managed_ bytea, body_ bytea, edge_hash_ bigint,
    edge_relation smallint[], edge_kind smallint[], edge_ns text[], edge_name text[],
    who_ text, verb_ text, audit_ uuid, trace_ uuid, now_ timestamptz
) returns bigint
language plpgsql volatile as $$
declare
    old record;
    core boolean := op_ <> 3;
begin
    if op_ = 1 then
        if exists (select 1 from horchestra.objects o
                   where o.kind = kind_ and o.ns = ns_ and o.name = name_) then
            return -1;
        end if;
        insert into horchestra.objects (uid, rv, core_rv, generation, cpu, memory, edge_hash, kind, deleting,
                ns, name, node, phase, index, managed, body)
            values (uid_, rev, rev, generation_, cpu_, memory_, edge_hash_, kind_, flag,
                ns_, name_, node_, phase_, index_, managed_, body_);
        insert into horchestra.events (rv, uid, audit, trace, at, core_rv, generation, cpu, memory, prev_rv,
                op, kind, deleting, ns, name, who, verb, node, phase, index, managed, body)
            values (rev, uid_, audit_, trace_, now_, rev, generation_, cpu_, memory_, 0,
                1, kind_, flag, ns_, name_, who_, verb_, node_, phase_, index_, managed_, body_);
        if edge_hash_ <> 0 then
            insert into horchestra.edges (source, relation, target_kind, target_ns, target_name)
                select uid_, r, k, s, n from unnest(edge_relation, edge_kind, edge_ns, edge_name) t(r, k, s, n)
                on conflict do nothing;
        end if;
    elsif op_ <= 3 then
        select o.uid, o.rv, o.core_rv, o.generation, o.deleting, o.node, o.phase, o.cpu, o.memory, o.index,
                o.edge_hash,
                case when o.rv < rev / 262144 * 262144 then o.body end as body,
                case when o.rv < rev / 262144 * 262144 then o.managed end as managed
            into old from horchestra.objects o
            where o.kind = kind_ and o.ns = ns_ and o.name = name_ order by o.rv desc limit 1;
        if not found then
            return -2;
        elsif old.rv <> expect then
            return old.rv;
        end if;
        update horchestra.objects o set uid = uid_, rv = rev, core_rv = case when core then rev else o.core_rv end,
                generation = generation_, cpu = cpu_, memory = memory_, edge_hash = edge_hash_, deleting = flag,
                node = node_, phase = phase_, index = index_, managed = managed_, body = body_
            where o.kind = kind_ and o.ns = ns_ and o.name = name_ and o.rv = expect;
        insert into horchestra.events (rv, uid, audit, trace, at, core_rv, generation, cpu, memory, prev_rv,
                prev_core_rv, prev_generation, prev_cpu, prev_memory, prev_uid,
                op, kind, deleting, prev_deleting, ns, name, who, verb, node, phase, prev_node, prev_phase,
                index, prev_index, managed, body, prev_managed, prev_body)
            values (rev, uid_, audit_, trace_, now_, case when core then rev else old.core_rv end, generation_,
                cpu_, memory_, old.rv,
                old.core_rv, old.generation, old.cpu, old.memory, nullif(old.uid, uid_),
                2, kind_, flag, old.deleting, ns_, name_, who_, verb_, node_, phase_, old.node, old.phase,
                index_, old.index, managed_, body_, old.managed, old.body);
        if edge_hash_ <> old.edge_hash or uid_ <> old.uid then
            delete from horchestra.edges e where e.source = old.uid;
            insert into horchestra.edges (source, relation, target_kind, target_ns, target_name)
                select uid_, r, k, s, n from unnest(edge_relation, edge_kind, edge_ns, edge_name) t(r, k, s, n)
                on conflict do nothing;
        end if;
    elsif op_ = 4 then
        select o.uid, o.rv, o.core_rv, o.generation, o.deleting, o.node, o.phase, o.cpu, o.memory, o.index,
                o.edge_hash, o.body, o.managed
            into old from horchestra.objects o
            where o.kind = kind_ and o.ns = ns_ and o.name = name_ order by o.rv desc limit 1;
        if not found then
            return -2;
        elsif old.rv <> expect then
            return old.rv;
        end if;
        delete from horchestra.objects o
            where o.kind = kind_ and o.ns = ns_ and o.name = name_ and o.rv = expect;
        insert into horchestra.events (rv, uid, audit, trace, at, core_rv, generation, cpu, memory, prev_rv,
                prev_core_rv, prev_generation, prev_cpu, prev_memory,
                op, kind, deleting, prev_deleting, ns, name, who, verb, node, phase, prev_node, prev_phase,
                index, prev_index, managed, body)
            values (rev, old.uid, audit_, trace_, now_, rev, old.generation, old.cpu, old.memory, old.rv,
                old.core_rv, old.generation, old.cpu, old.memory,
                3, kind_, old.deleting, old.deleting, ns_, name_, who_, verb_, old.node, old.phase, old.node,
                old.phase, old.index, old.index, old.managed, old.body);
        if old.edge_hash <> 0 then
            delete from horchestra.edges e where e.source = old.uid;
        end if;
        delete from horchestra.claims c where c.owner = old.uid;
        if kind_ <> 14 then
            insert into horchestra.tombstones (uid, rv, generation, audit, trace, at, kind, ns, name, who, verb,
                    body)
                values (old.uid, rev, old.generation, audit_, trace_, now_, kind_, ns_, name_, who_, verb_,
                    old.body);
        end if;
        return 0;
    elsif op_ = 5 then
        if exists (select 1 from horchestra.claims c
                   where c.space = ns_ and c.value = name_ and c.owner <> uid_ and not (c.shared and flag)) then
            return -4;
        end if;
        insert into horchestra.claims (space, value, owner, shared) values (ns_, name_, uid_, flag)
            on conflict (space, value, owner) do update set shared = excluded.shared
            where claims.shared <> excluded.shared;
        return 0;
    else
        delete from horchestra.claims c where c.owner = uid_ and c.space = ns_;
        return 0;
    end if;
    if core and kind_ <> 14 then
        insert into horchestra.history (uid, rv, generation, audit, trace, at, kind, ns, name, who, verb, body)
            values (uid_, rev, generation_, audit_, trace_, now_, kind_, ns_, name_, who_, verb_, body_);
    end if;
    return 0;
end $$;

-- Commits one item of one operation: what commit_batch (see the next migration) does for such an item, without
-- the price of unpacking columns. A lone writer's way. Answers the revision (0: a claim or release) or, when `refused` is not 0, why
-- it was refused, where, and the head found, as commit_batch does.
create function horchestra.commit_one(
    nonce_ uuid, who_ text, verb_ text, audit_ uuid, trace_ uuid,
    op_ smallint, kind_ smallint, ns_ text, name_ text, uid_ uuid, expect bigint,
    generation_ bigint, flag boolean, node_ text, phase_ text, cpu_ bigint, memory_ bigint,
    index_ bytea, managed_ bytea, body_ bytea, edge_hash_ bigint,
    guard_code smallint[], guard_kind smallint[], guard_ns text[], guard_name text[],
    guard_relation smallint[], guard_number bigint[], guard_id uuid[],
    edge_relation smallint[], edge_kind smallint[], edge_ns text[], edge_name text[],
    out revision bigint, out refused smallint, out refused_at int, out refused_head bigint,
    out anchor_rv bigint, out anchor_uid uuid, out anchor_audit uuid, out anchor_kind smallint,
    out anchor_ns text, out anchor_name text
)
language plpgsql volatile as $$
declare
    now_    timestamptz;
    holds   boolean;
    verdict bigint;
    last_uid uuid;
begin
    perform pg_advisory_xact_lock(7239181146252901);
    now_ := clock_timestamp();
    select c.rv, c.uid, c.audit, c.kind, c.ns, c.name
        into anchor_rv, anchor_uid, anchor_audit, anchor_kind, anchor_ns, anchor_name
        from horchestra.commits c order by c.rv desc limit 1;
    if exists (select 1 from horchestra.spent_nonces s where s.nonce = nonce_) then
        raise exception 'this commit was given up by its caller' using errcode = 'HZ002';
    end if;
    for g in 1 .. coalesce(array_length(guard_code, 1), 0) loop
        if guard_code[g] = 1 then
            holds := coalesce((select not o.deleting from horchestra.objects o where o.kind = guard_kind[g]
                and o.ns = guard_ns[g] and o.name = guard_name[g] order by o.rv desc limit 1), false);
        else
            holds := horchestra.guard_holds(guard_code[g], guard_kind[g], guard_ns[g], guard_name[g],
                guard_relation[g], guard_number[g], guard_id[g]);
        end if;
        if not holds then
            revision := -1;
            refused := 5;
            refused_at := g;
            refused_head := 0;
            return;
        end if;
    end loop;
    revision := coalesce(anchor_rv, 0) + 1;
    verdict := horchestra.apply_op(op_, revision, kind_, ns_, name_, uid_, expect, generation_, flag, node_,
        phase_, cpu_, memory_, index_, managed_, body_, edge_hash_, edge_relation, edge_kind, edge_ns, edge_name,
        who_, verb_, audit_, trace_, now_);
    if verdict <> 0 then
        revision := -1;
        refused := case when verdict > 0 then 3 else -verdict end;
        refused_at := 1;
        refused_head := greatest(verdict, 0);
        return;
    end if;
    refused := 0;
    if op_ <= 4 then
        last_uid := uid_;
        if op_ = 4 then
            select e.uid into last_uid from horchestra.events e where e.rv = revision;
        end if;
        insert into horchestra.commits (rv, nonce, at, revisions, items, uid, audit, kind, ns, name)
            values (revision, nonce_, now_, array[revision], '{1}', last_uid, audit_, kind_, ns_, name_);
        perform pg_notify('horchestra', revision::text);
    else
        revision := 0;
        insert into horchestra.spent_nonces (nonce, at, revisions, items) values (nonce_, now_, '{0}', '{1}');
    end if;
end $$;

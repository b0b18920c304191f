-- Commits one item of one operation and of the claims and releases that go along with it: the lone writer's way for
-- an object that has an id or an address of its own. Neither columns to unpack nor a subtransaction: an operation
-- after the first is hardly ever refused, since whoever claims has looked before. If it is, HZ004 undoes
-- everything, and the caller sends the item as a batch, which says why. Replicas of the version before go on
-- calling commit_one.
create function horchestra.commit_object(
    nonce_ uuid, who_ text, verb_ text, audit_ uuid, trace_ uuid,
    op_ smallint, kind_ smallint, ns_ text, name_ text, uid_ uuid, expect bigint,
    generation_ bigint, flag boolean, node_ text, phase_ text, cpu_ bigint, memory_ bigint,
    index_ bytea, managed_ bytea, body_ bytea, edge_hash_ bigint,
    guard_code smallint[], guard_kind smallint[], guard_ns text[], guard_name text[],
    guard_relation smallint[], guard_number bigint[], guard_id uuid[],
    edge_relation smallint[], edge_kind smallint[], edge_ns text[], edge_name text[],
    more_op smallint[], more_space text[], more_value text[], more_owner uuid[], more_shared boolean[],
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
    more    int := cardinality(more_op);
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
    for m in 1 .. more loop
        verdict := horchestra.apply_op(more_op[m], 0, 0::smallint, more_space[m], more_value[m], more_owner[m], 0, 0,
            more_shared[m], null, null, 0, 0, null, null, null, 0, null, null, null, null,
            who_, verb_, audit_, trace_, now_);
        if verdict <> 0 then
            raise exception 'a later operation of the item is refused' using errcode = 'HZ004';
        end if;
    end loop;
    if op_ <= 4 then
        last_uid := uid_;
        if op_ = 4 then
            select e.uid into last_uid from horchestra.events e where e.rv = revision;
        end if;
        insert into horchestra.commits (rv, nonce, at, revisions, items, uid, audit, kind, ns, name)
            values (revision, nonce_, now_, array[revision] || array_fill(0::bigint, array[more]), array[1 + more],
                last_uid, audit_, kind_, ns_, name_);
        perform pg_notify('horchestra', revision::text);
    else
        revision := 0;
        insert into horchestra.spent_nonces (nonce, at, revisions, items)
            values (nonce_, now_, array_fill(0::bigint, array[1 + more]), array[1 + more]);
    end if;
end $$;

-- Commits a batch. See the essay in the store's postgres module.
--
-- The batch comes as columns: one array element per item (item_*), per operation (op_*), per guard (guard_*)
-- and per reference edge (edge_*); item_ops, item_guards, op_edges hold the index of the last element that
-- belongs to the item or operation, segments the last item of each segment. Items of one segment do not
-- look at what others of it write, so they are judged and written as a set; segments follow each other in
-- order. Answers one revision per operation (0: claims and releases, -1: of a refused item) and, per refused
-- item: why (1 exists, 2 not found, 3 conflict, 4 claim taken, 5 guard), which operation or guard (1-based,
-- within the item), and the head found. The anchor is the log's row before the first that this batch added.
create function horchestra.commit_batch(
    nonce_ uuid, segments int[],
    item_ops int[], item_guards int[], item_who text[], item_verb text[], item_audit uuid[], item_trace uuid[],
    op_item int[], op_code smallint[], op_kind smallint[], op_ns text[], op_name text[], op_uid uuid[],
    op_expect bigint[], op_generation bigint[], op_flag boolean[], op_node text[], op_phase text[],
    op_cpu bigint[], op_memory bigint[], op_index bytea[], op_managed bytea[], op_body bytea[],
    op_edge_hash bigint[], op_edges int[],
    guard_item int[], guard_code smallint[], guard_kind smallint[], guard_ns text[], guard_name text[],
    guard_relation smallint[], guard_number bigint[], guard_id uuid[],
    edge_op int[], edge_relation smallint[], edge_kind smallint[], edge_ns text[], edge_name text[],
    out revisions bigint[], out refused_item int[], out refused_code smallint[], out refused_at int[],
    out refused_head bigint[],
    out anchor_rv bigint, out anchor_uid uuid, out anchor_audit uuid, out anchor_kind smallint,
    out anchor_ns text, out anchor_name text
)
language plpgsql volatile as $$
declare
    start     bigint;
    base      bigint;
    mark      bigint;
    now_      timestamptz;
    item_lo   int := 1;
    item_hi   int;
    op_lo     int := 1;
    op_hi     int;
    guard_lo  int := 1;
    guard_hi  int;
    before    bigint;
    verdict   bigint;
    reason    smallint;
    place     int;
    e_lo      int;
    e_hi      int;
    f_item    int[];
    f_code    smallint[];
    f_at      int[];
    f_head    bigint[];
    g_item    int[];
    g_at      int[];
    revs      bigint[];
    edges_move boolean;
    last_uid  uuid;
begin
    perform pg_advisory_xact_lock(7239181146252901);
    now_ := clock_timestamp();
    select c.rv, c.uid, c.audit, c.kind, c.ns, c.name
        into anchor_rv, anchor_uid, anchor_audit, anchor_kind, anchor_ns, anchor_name
        from horchestra.commits c order by c.rv desc limit 1;
    start := coalesce(anchor_rv, 0);
    base := start;
    if exists (select 1 from horchestra.spent_nonces s where s.nonce = nonce_) then
        raise exception 'this commit was given up by its caller' using errcode = 'HZ002';
    end if;
    revisions := '{}';
    refused_item := '{}';
    refused_code := '{}';
    refused_at := '{}';
    refused_head := '{}';

    foreach item_hi in array segments loop
        op_hi := item_ops[item_hi];
        guard_hi := item_guards[item_hi];

        if item_lo = item_hi then
            -- One item: straight through, in order.
            reason := 0;
            for g in guard_lo .. guard_hi loop
                if guard_code[g] <> 5 and not horchestra.guard_holds(guard_code[g], guard_kind[g], guard_ns[g],
                        guard_name[g], guard_relation[g], guard_number[g], guard_id[g]) then
                    reason := 5;
                    place := g - guard_lo + 1;
                    verdict := 0;
                    exit;
                end if;
            end loop;
            before := base;
            if reason <> 0 then
                revs := array_fill(-1::bigint, array[op_hi - op_lo + 1]);
            elsif op_lo = op_hi and not (5 = any (guard_code[guard_lo:guard_hi])) then
                e_hi := op_edges[op_lo];
                e_lo := case when op_lo = 1 then 1 else op_edges[op_lo - 1] + 1 end;
                verdict := horchestra.apply_op(op_code[op_lo], base + 1, op_kind[op_lo], op_ns[op_lo],
                    op_name[op_lo], op_uid[op_lo], op_expect[op_lo], op_generation[op_lo], op_flag[op_lo],
                    op_node[op_lo], op_phase[op_lo], op_cpu[op_lo], op_memory[op_lo], op_index[op_lo],
                    op_managed[op_lo], op_body[op_lo], op_edge_hash[op_lo],
                    case when e_hi >= e_lo then edge_relation[e_lo:e_hi] end,
                    case when e_hi >= e_lo then edge_kind[e_lo:e_hi] end,
                    case when e_hi >= e_lo then edge_ns[e_lo:e_hi] end,
                    case when e_hi >= e_lo then edge_name[e_lo:e_hi] end,
                    item_who[item_lo], item_verb[item_lo], item_audit[item_lo], item_trace[item_lo], now_);
                if verdict = 0 then
                    if op_code[op_lo] <= 4 then
                        base := base + 1;
                        revs := array[base];
                    else
                        revs := array[0::bigint];
                    end if;
                else
                    reason := case when verdict > 0 then 3 else -verdict end;
                    place := 1;
                    revs := array[-1::bigint];
                end if;
            else
                -- Several operations, or a guard that looks at their effect: a subtransaction takes back
                -- what was applied before the refusal.
                revs := '{}';
                begin
                    for o in op_lo .. op_hi loop
                        e_hi := op_edges[o];
                        e_lo := case when o = 1 then 1 else op_edges[o - 1] + 1 end;
                        verdict := horchestra.apply_op(op_code[o], base + 1, op_kind[o], op_ns[o],
                            op_name[o], op_uid[o], op_expect[o], op_generation[o], op_flag[o],
                            op_node[o], op_phase[o], op_cpu[o], op_memory[o], op_index[o],
                            op_managed[o], op_body[o], op_edge_hash[o],
                            case when e_hi >= e_lo then edge_relation[e_lo:e_hi] end,
                            case when e_hi >= e_lo then edge_kind[e_lo:e_hi] end,
                            case when e_hi >= e_lo then edge_ns[e_lo:e_hi] end,
                            case when e_hi >= e_lo then edge_name[e_lo:e_hi] end,
                            item_who[item_lo], item_verb[item_lo], item_audit[item_lo], item_trace[item_lo],
                            now_);
                        if verdict <> 0 then
                            reason := case when verdict > 0 then 3 else -verdict end;
                            place := o - op_lo + 1;
                            raise exception using errcode = 'HZ001';
                        elsif op_code[o] <= 4 then
                            base := base + 1;
                            revs := revs || base;
                        else
                            revs := revs || 0::bigint;
                        end if;
                    end loop;
                    for g in guard_lo .. guard_hi loop
                        if guard_code[g] = 5 and not horchestra.guard_holds(guard_code[g], guard_kind[g],
                                guard_ns[g], guard_name[g], guard_relation[g], guard_number[g], guard_id[g]) then
                            reason := 5;
                            place := g - guard_lo + 1;
                            verdict := 0;
                            raise exception using errcode = 'HZ001';
                        end if;
                    end loop;
                exception when sqlstate 'HZ001' then
                    base := before;
                    revs := array_fill(-1::bigint, array[op_hi - op_lo + 1]);
                end;
            end if;
            revisions := revisions || revs;
            if reason <> 0 then
                refused_item := refused_item || item_lo;
                refused_code := refused_code || reason;
                refused_at := refused_at || place;
                refused_head := refused_head || case when reason = 3 then verdict else 0 end;
            end if;
        else
            -- Many items that do not meet: judge all, then write all.
            g_item := '{}';
            if guard_hi >= guard_lo then
                select coalesce(array_agg(b.item order by b.item), '{}'), coalesce(array_agg(b.at order by b.item), '{}')
                    into g_item, g_at
                    from (select guard_item[g] as item,
                                 min(g) - case when guard_item[g] = 1 then 0 else item_guards[guard_item[g] - 1] end as at
                          from generate_series(guard_lo, guard_hi) g
                          where not case guard_code[g]
                              when 1 then coalesce((select not o.deleting from horchestra.objects o
                                  where o.kind = guard_kind[g] and o.ns = guard_ns[g] and o.name = guard_name[g]
                                  order by o.rv desc limit 1), false)
                              when 7 then exists (select 1 from horchestra.lease_epochs l
                                  where l.name = guard_name[g] and l.epoch = guard_number[g] and l.held)
                              when 6 then exists (select 1 from horchestra.node_sessions s where s.node = guard_name[g]
                                  and s.epoch = guard_number[g] and s.session = guard_id[g])
                              else horchestra.guard_holds(guard_code[g], guard_kind[g], guard_ns[g],
                                  guard_name[g], guard_relation[g], guard_number[g], guard_id[g])
                              end
                          group by guard_item[g]) b;
            end if;

            with i as materialized (
                select n, op_item[n] as item, op_code[n] as op, op_kind[n] as kind, op_ns[n] as ns,
                       op_name[n] as name, op_expect[n] as expect, op_edge_hash[n] as edge_hash, op_uid[n] as uid,
                       op_flag[n] as flag
                from generate_series(op_lo, op_hi) n
            ), judged as materialized (
                select i.n, i.item, i.op, coalesce(o.rv, 0) as head,
                       i.op <= 3 and (coalesce(o.edge_hash, 0) <> i.edge_hash or (o.uid <> i.uid)) as moves,
                       case when i.op = 1 then case when o.rv is not null then 1 else 0 end
                            when i.op <= 4 then case when o.rv is null then 2 when o.rv <> i.expect then 3 else 0 end
                            when i.op = 5 then case when exists (select 1 from horchestra.claims c
                                where c.space = i.ns and c.value = i.name and c.owner <> i.uid
                                  and not (c.shared and i.flag)) then 4 else 0 end
                            else 0 end as code
                from i left join lateral (select h.rv, h.uid, h.edge_hash from horchestra.objects h
                    where h.kind = i.kind and h.ns = i.ns and h.name = i.name order by h.rv desc limit 1) o on true
            ), bad as materialized (
                select distinct on (item) item, n, code, head from judged
                where code <> 0 and not (item = any (g_item)) order by item, n
            ), placed as (
                select j.n, j.moves, case when j.item = any (g_item) or b.item is not null then -1
                         when j.op > 4 then 0
                         else base + count(*) filter (where j.op <= 4 and not (j.item = any (g_item)) and b.item is null)
                                         over (order by j.n) end as rev
                from judged j left join bad b on b.item = j.item
            )
            select array_agg(p.rev order by p.n), bool_or(p.rev > 0 and p.moves), max(p.rev),
                   (select array_agg(b.item order by b.item) from bad b),
                   (select array_agg(b.code::smallint order by b.item) from bad b),
                   (select array_agg(b.n - case when b.item = 1 then 0 else item_ops[b.item - 1] end order by b.item) from bad b),
                   (select array_agg(case when b.code = 3 then b.head else 0 end order by b.item) from bad b)
                into revs, edges_move, before, f_item, f_code, f_at, f_head
                from placed p;
            revisions := revisions || revs;
            base := greatest(base, before);
            if f_item is not null then
                refused_item := refused_item || f_item;
                refused_code := refused_code || f_code;
                refused_at := refused_at || f_at;
                refused_head := refused_head || f_head;
            end if;
            if g_item <> '{}' then
                refused_item := refused_item || g_item;
                refused_code := refused_code || array_fill(5::smallint, array[cardinality(g_item)]);
                refused_at := refused_at || g_at;
                refused_head := refused_head || array_fill(0::bigint, array[cardinality(g_item)]);
            end if;

            if 4 = any (op_code[op_lo:op_hi]) then
                with d as (
                    select n, revisions[n] as rev, op_kind[n] as kind, op_ns[n] as ns, op_name[n] as name,
                           op_item[n] as item, op_expect[n] as expect
                    from generate_series(op_lo, op_hi) n where op_code[n] = 4 and revisions[n] > 0
                ), gone as (
                    delete from horchestra.objects o using d
                    where o.kind = d.kind and o.ns = d.ns and o.name = d.name and o.rv = d.expect
                    returning d.rev, d.item, o.*
                ), logged as (
                    insert into horchestra.events (rv, uid, audit, trace, at, core_rv, generation, cpu, memory,
                            prev_rv, prev_core_rv, prev_generation, prev_cpu, prev_memory, op, kind, deleting,
                            prev_deleting, ns, name, who, verb, node, phase, prev_node, prev_phase, index,
                            prev_index, managed, body)
                        select rev, uid, item_audit[item], item_trace[item], now_, rev, generation, cpu, memory,
                            rv, core_rv, generation, cpu, memory, 3, kind, deleting,
                            deleting, ns, name, item_who[item], item_verb[item], node, phase, node, phase, index,
                            index, managed, body
                        from gone
                ), unreferred as (
                    delete from horchestra.edges e using gone where e.source = gone.uid and gone.edge_hash <> 0
                ), unclaimed as (
                    delete from horchestra.claims c using gone where c.owner = gone.uid
                )
                insert into horchestra.tombstones (uid, rv, generation, audit, trace, at, kind, ns, name, who,
                        verb, body)
                    select uid, rev, generation, item_audit[item], item_trace[item], now_, kind, ns, name,
                        item_who[item], item_verb[item], body
                    from gone where kind <> 14;
            end if;

            -- Before the heads move: a later statement could no longer find the edges of a replaced uid.
            if edges_move then
                delete from horchestra.edges e using generate_series(op_lo, op_hi) n, horchestra.objects o
                    where op_code[n] in (2, 3) and revisions[n] > 0
                      and o.kind = op_kind[n] and o.ns = op_ns[n] and o.name = op_name[n] and o.rv = op_expect[n]
                      and (o.edge_hash <> op_edge_hash[n] or o.uid <> op_uid[n]) and e.source = o.uid;
                insert into horchestra.edges (source, relation, target_kind, target_ns, target_name)
                    select op_uid[edge_op[x]], edge_relation[x], edge_kind[x], edge_ns[x], edge_name[x]
                    from generate_series(case when op_lo = 1 then 1 else op_edges[op_lo - 1] + 1 end, op_edges[op_hi]) x
                    where revisions[edge_op[x]] > 0
                    on conflict do nothing;
            end if;

            if 2 = any (op_code[op_lo:op_hi]) or 3 = any (op_code[op_lo:op_hi]) then
                with i as materialized (
                    select n, revisions[n] as rev, op_code[n] <> 3 as core, op_kind[n] as kind, op_ns[n] as ns,
                           op_name[n] as name, op_item[n] as item, op_expect[n] as expect
                    from generate_series(op_lo, op_hi) n where op_code[n] in (2, 3) and revisions[n] > 0
                ), logged as (
                    insert into horchestra.events (rv, uid, audit, trace, at, core_rv, generation, cpu, memory,
                            prev_rv, prev_core_rv, prev_generation, prev_cpu, prev_memory, prev_uid, op, kind,
                            deleting, prev_deleting, ns, name, who, verb, node, phase, prev_node, prev_phase,
                            index, prev_index, managed, body, prev_managed, prev_body)
                        select i.rev, op_uid[n], item_audit[i.item], item_trace[i.item], now_,
                            case when i.core then i.rev else o.core_rv end, op_generation[n], op_cpu[n],
                            op_memory[n], o.rv, o.core_rv, o.generation, o.cpu, o.memory,
                            nullif(o.uid, op_uid[n]), 2, i.kind, op_flag[n], o.deleting, i.ns, i.name,
                            item_who[i.item], item_verb[i.item], op_node[n], op_phase[n], o.node, o.phase,
                            op_index[n], o.index, op_managed[n], op_body[n],
                            case when o.rv < i.rev / 262144 * 262144 then o.managed end,
                            case when o.rv < i.rev / 262144 * 262144 then o.body end
                        from i join horchestra.objects o on o.kind = i.kind and o.ns = i.ns and o.name = i.name
                            and o.rv = i.expect
                ), kept as (
                    insert into horchestra.history (uid, rv, generation, audit, trace, at, kind, ns, name, who,
                            verb, body)
                        select op_uid[n], rev, op_generation[n], item_audit[item], item_trace[item], now_, kind,
                            ns, name, item_who[item], item_verb[item], op_body[n]
                        from i where core and kind <> 14
                )
                update horchestra.objects o set uid = op_uid[i.n], rv = i.rev,
                        core_rv = case when i.core then i.rev else o.core_rv end, generation = op_generation[i.n],
                        cpu = op_cpu[i.n], memory = op_memory[i.n], edge_hash = op_edge_hash[i.n],
                        deleting = op_flag[i.n], node = op_node[i.n], phase = op_phase[i.n],
                        index = op_index[i.n], managed = op_managed[i.n], body = op_body[i.n]
                    from i where o.kind = i.kind and o.ns = i.ns and o.name = i.name and o.rv = i.expect;
            end if;

            if 1 = any (op_code[op_lo:op_hi]) then
                with i as materialized (
                    select n, revisions[n] as rev, op_item[n] as item
                    from generate_series(op_lo, op_hi) n where op_code[n] = 1 and revisions[n] > 0
                ), stored as (
                    insert into horchestra.objects (uid, rv, core_rv, generation, cpu, memory, edge_hash, kind,
                            deleting, ns, name, node, phase, index, managed, body)
                        select op_uid[n], rev, rev, op_generation[n], op_cpu[n], op_memory[n], op_edge_hash[n],
                            op_kind[n], op_flag[n], op_ns[n], op_name[n], op_node[n], op_phase[n], op_index[n],
                            op_managed[n], op_body[n]
                        from i
                ), logged as (
                    insert into horchestra.events (rv, uid, audit, trace, at, core_rv, generation, cpu, memory,
                            prev_rv, op, kind, deleting, ns, name, who, verb, node, phase, index, managed, body)
                        select rev, op_uid[n], item_audit[item], item_trace[item], now_, rev, op_generation[n],
                            op_cpu[n], op_memory[n], 0, 1, op_kind[n], op_flag[n], op_ns[n], op_name[n],
                            item_who[item], item_verb[item], op_node[n], op_phase[n], op_index[n], op_managed[n],
                            op_body[n]
                        from i
                )
                insert into horchestra.history (uid, rv, generation, audit, trace, at, kind, ns, name, who, verb,
                        body)
                    select op_uid[n], rev, op_generation[n], item_audit[item], item_trace[item], now_, op_kind[n],
                        op_ns[n], op_name[n], item_who[item], item_verb[item], op_body[n]
                    from i where op_kind[n] <> 14;
            end if;

            if 5 = any (op_code[op_lo:op_hi]) then
                insert into horchestra.claims (space, value, owner, shared)
                    select op_ns[n], op_name[n], op_uid[n], op_flag[n]
                    from generate_series(op_lo, op_hi) n where op_code[n] = 5 and revisions[n] = 0
                    on conflict (space, value, owner) do update set shared = excluded.shared
                    where claims.shared <> excluded.shared;
            end if;
            if 6 = any (op_code[op_lo:op_hi]) then
                delete from horchestra.claims c using generate_series(op_lo, op_hi) n
                    where op_code[n] = 6 and revisions[n] = 0 and c.owner = op_uid[n] and c.space = op_ns[n];
            end if;
        end if;

        item_lo := item_hi + 1;
        op_lo := op_hi + 1;
        guard_lo := guard_hi + 1;
    end loop;

    if base > start then
        place := array_position(revisions, base);
        last_uid := op_uid[place];
        if op_code[place] = 4 then
            -- Only the database knew it.
            select e.uid into last_uid from horchestra.events e where e.rv = base;
        end if;
        insert into horchestra.commits (rv, nonce, at, revisions, items, uid, audit, kind, ns, name)
            values (base, nonce_, now_, revisions, item_ops, last_uid, item_audit[op_item[place]], op_kind[place], op_ns[place], op_name[place]);
        perform pg_notify('horchestra', base::text);
    elsif 0 = any (revisions) then
        insert into horchestra.spent_nonces (nonce, at, revisions, items)
            values (nonce_, now_, revisions, item_ops);
    end if;
end $$;

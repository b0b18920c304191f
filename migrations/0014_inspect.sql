-- The database as something that people read: the schema `inspect`, the roles that may do what, and processes that say
-- that they are there.
--
-- Views are named after the plurals. What people filter on is a column of the base table (namespace, name, node, phase,
-- revision, whether it is being deleted, what it counts with); everything else is taken out of the body, which is
-- parsed once for a row that is shown, and only if a column asks for it: hence the `offset 0` below, which keeps the
-- planner from copying the parsing into every column. No index was added for readers: each would be paid for by every
-- write, and a whole kind is read in less than a second where no index helps.
--
-- A body that is not what it should be makes columns null and never an error. All functions here see to that, and see
-- nothing but their arguments, so readers may call them. `document` leaves out what is sealed, whatever asks for it.
create schema inspect;
comment on schema inspect is 'Read-only views for people; the queries to begin with are in migrations/README.md';

-- ---- casts that never fail ------------------------------------------------------------------------------------------

create function inspect.document(body bytea) returns jsonb
language plpgsql immutable strict cost 1000 as $$
declare
    found jsonb;
begin
    found := convert_from(body, 'UTF8')::jsonb;
    return case when found ? 'sealed' then found - 'sealed' else found end;
exception when others then
    return null;
end $$;

create function inspect.whole(value text) returns bigint
language sql immutable parallel safe as $$ select case when value ~ '^[+-]?[0-9]{1,18}$' then value::bigint end $$;

create function inspect.truth(value text) returns boolean
language sql immutable parallel safe as $$ select case value when 'true' then true when 'false' then false end $$;

-- A time with its offset, as JSON has them.
create function inspect.moment(value text) returns timestamptz
language plpgsql immutable strict cost 200 as $$
begin
    if value ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})$' then
        return value::timestamptz;
    end if;
    return null;
exception when others then
    return null;
end $$;

-- The amount of a quantity such as `250m` or `1.5Gi`, to a billionth, rounded away from zero as everywhere.
create function inspect.quantity(value text) returns numeric
language plpgsql immutable strict cost 200 as $$
declare
    parts text[] := regexp_match(btrim(value), '^([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,9})?$');
    exact numeric;
begin
    if parts is null or length(btrim(value)) > 32 or abs(inspect.whole(substring(parts[3] from 2))) > 30 then
        return null;
    end if;
    exact := parts[2]::numeric * case
        when parts[3] is null then 1
        when right(parts[3], 1) = 'i' then 2::numeric ^ (10 * strpos('KMGTPE', left(parts[3], 1)))
        when length(parts[3]) = 1 then 10::numeric ^ (3 * (strpos('num kMGTPE', parts[3]) - 4))
        else 10::numeric ^ (substr(parts[3], 2)::int)
    end;
    return trim_scale(ceil(exact * 1000000000) / 1000000000) * case parts[1] when '-' then -1 else 1 end;
exception when others then
    return null;
end $$;

-- What contents of a Secret compare by: equal for equal ones of one Secret, and meaningless without its key.
create function inspect.contents(body bytea) returns text
language plpgsql immutable strict cost 1000 as $$
begin
    return left(encode(decode(convert_from(body, 'UTF8')::jsonb #>> '{sealed,digest}', 'base64'), 'hex'), 16);
exception when others then
    return null;
end $$;

-- Cores, of billionths of one.
create function inspect.cores(nano bigint) returns numeric
language sql immutable parallel safe as $$ select trim_scale(nano / 1000000000.0) $$;

-- Cores that a sample shows in use, where it shows any.
create function inspect.rate(sample jsonb) returns numeric
language sql immutable parallel safe as $$
    select case when inspect.whole(sample ->> 'before_at') > 0
                 and inspect.whole(sample ->> 'at') - inspect.whole(sample ->> 'before_at') between 1000000000 and 600000000000
                 and inspect.whole(sample ->> 'cpu') >= inspect.whole(sample ->> 'before_cpu')
        then round(1000.0 * (inspect.whole(sample ->> 'cpu') - inspect.whole(sample ->> 'before_cpu'))
                   / (inspect.whole(sample ->> 'at') - inspect.whole(sample ->> 'before_at')), 3) end
$$;

-- An array, or an empty one.
create function inspect.items(value jsonb) returns jsonb
language sql immutable parallel safe as $$ select case jsonb_typeof(value) when 'array' then value else '[]' end $$;

-- The condition of this type.
create function inspect.condition(document jsonb, type text) returns jsonb
language sql immutable parallel safe as $$
    select jsonb_path_query_first(document, '$.status.conditions[*] ? (@.type == $type)',
        jsonb_build_object('type', type), true)
$$;

-- What differs between two versions: path to [before, after]. Objects are gone into, lists compared as a whole.
create function inspect.differences(before jsonb, after jsonb, path text default '', deep int default 12) returns jsonb
language plpgsql immutable cost 2000 as $$
declare
    member text;
    found  jsonb := '{}';
begin
    if path = '' and (before is null or after is null) then
        return null;
    elsif deep = 0 or jsonb_typeof(before) is distinct from 'object' or jsonb_typeof(after) is distinct from 'object' then
        return jsonb_build_object(path, jsonb_build_array(before, after));
    end if;
    for member in select jsonb_object_keys(before) union select jsonb_object_keys(after) loop
        if before -> member is distinct from after -> member then
            found := found || inspect.differences(before -> member, after -> member,
                case path when '' then member else path || '.' || member end, deep - 1);
        end if;
    end loop;
    return found;
end $$;

create function inspect.kind_name(kind smallint) returns text
language sql immutable parallel safe as $$
    select case kind when 1 then 'Namespace' when 2 then 'Node' when 3 then 'Application' when 4 then 'ApplicationSet'
        when 5 then 'Service' when 6 then 'PersistentVolume' when 7 then 'Secret' when 8 then 'SecretStore'
        when 9 then 'Role' when 10 then 'RoleBinding' when 11 then 'ClusterRole' when 12 then 'ClusterRoleBinding'
        when 13 then 'CertificateSigningRequest' when 14 then 'Event' else 'kind ' || kind end
$$;

-- ---- a view per kind, and one of its past ---------------------------------------------------------------------------

do $make$
declare
    -- Of every kind. `b.d` is the body, `i.d` are labels and selectable fields.
    common constant text := $c$
        o.name, o.uid, o.rv as revision, o.core_rv as core_revision, o.generation,
        inspect.moment(b.d #>> '{metadata,creationTimestamp}') as created_at, o.deleting,
        inspect.moment(b.d #>> '{metadata,deletionTimestamp}') as deleting_since,
        coalesce(i.d -> 'labels', '{}') as labels,
        coalesce(b.d #> '{metadata,annotations}', '{}') as annotations,
        inspect.items(b.d #> '{metadata,finalizers}') as finalizers,
        inspect.items(b.d #> '{metadata,ownerReferences}') as owners,
        octet_length(o.body) + coalesce(octet_length(o.managed), 0) as bytes$c$;
    -- Of kinds with verdicts.
    verdicts constant text := $c$, inspect.items(b.d #> '{status,conditions}') as conditions$c$;
    k       record;
    place   text;
    barrier text;
    joins   text;
    what    text;
begin
    for k in select * from (values
        (1, 'namespaces', $c$, b.d #>> '{metadata,annotations,horchestra.io/uid-range}' as uid_range$c$),
        (2, 'nodes', $c$,
            inspect.condition(b.d, 'Ready') ->> 'status' as ready,
            inspect.condition(b.d, 'Ready') ->> 'reason' as ready_reason,
            inspect.moment(inspect.condition(b.d, 'Ready') ->> 'lastTransitionTime') as ready_since,
            coalesce(inspect.condition(b.d, 'Admitted') ->> 'status' = 'True', false) as admitted,
            coalesce(inspect.condition(b.d, 'Held') ->> 'status' = 'True', false) as held,
            coalesce(inspect.truth(b.d #>> '{spec,unschedulable}'), false) as unschedulable,
            inspect.cores(o.cpu) as cpu_capacity, o.memory as memory_capacity,
            inspect.cores(coalesce(a.cpu, 0)) as cpu_requested, coalesce(a.memory, 0) as memory_requested,
            coalesce(a.applications, 0) as applications,
            h.at as heartbeat_at, statement_timestamp() - h.at as silent_for,
            b.d #>> '{status,ip}' as ip, b.d #>> '{status,os}' as os,
            b.d #>> '{status,platform,arch}' as arch,
            inspect.items(b.d #> '{status,runtimes}') as runtimes,
            coalesce(inspect.truth(b.d #>> '{status,routedNetwork}'), false) as routed_network$c$ || verdicts),
        (3, 'applications', $c$,
            coalesce(o.phase, 'Pending') as phase, o.node, b.d #>> '{spec,image}' as image,
            b.d #>> '{spec,serviceName}' as service,
            coalesce(b.d #>> '{spec,lifecycle,restartPolicy}' = 'Never', false) as job,
            inspect.cores(o.cpu) as cpu, o.memory,
            inspect.quantity(b.d #>> '{spec,resources,requests,cpu}') as cpu_request,
            inspect.quantity(b.d #>> '{spec,resources,requests,memory}') as memory_request,
            inspect.quantity(b.d #>> '{spec,resources,limits,cpu}') as cpu_limit,
            inspect.quantity(b.d #>> '{spec,resources,limits,memory}') as memory_limit,
            b.d #>> '{status,message}' as message,
            inspect.condition(b.d, 'Ready') ->> 'status' as ready,
            inspect.condition(b.d, 'Ready') ->> 'reason' as ready_reason,
            inspect.condition(b.d, 'Scheduled') ->> 'status' as scheduled,
            inspect.condition(b.d, 'Scheduled') ->> 'reason' as scheduled_reason,
            inspect.moment(inspect.condition(b.d, 'Scheduled') ->> 'lastTransitionTime') as scheduled_since,
            inspect.whole(b.d #>> '{status,observedGeneration}') as observed_generation,
            b.d #>> '{status,address}' as address,
            inspect.whole(b.d #>> '{status,exitCode}') as exit_code,
            inspect.whole(b.d #>> '{status,attempts}') as attempts,
            inspect.moment(b.d #>> '{status,finishedAt}') as finished_at,
            inspect.whole(b.d #>> '{spec,placement,priority}') as priority,
            coalesce(inspect.truth(b.d #>> '{spec,frozen}'), false) as frozen,
            i.d #>> '{labels,horchestra.io/application-set}' as application_set,
            i.d #>> '{labels,horchestra.io/component}' as component,
            b.d -> 'spec' as spec$c$ || verdicts),
        (4, 'applicationsets', $c$,
            coalesce(o.phase, 'Progressing') as phase,
            inspect.whole(b.d #>> '{status,desired}') as desired, inspect.whole(b.d #>> '{status,current}') as current,
            inspect.whole(b.d #>> '{status,scheduled}') as scheduled,
            inspect.whole(b.d #>> '{status,running}') as running,
            coalesce(inspect.whole(b.d #>> '{status,updated}'), 0) as updated,
            coalesce(inspect.whole(b.d #>> '{status,available}'), 0) as available,
            inspect.whole(b.d #>> '{spec,rollout,maxUnavailable}') as max_unavailable,
            inspect.whole(b.d #>> '{spec,rollout,progressDeadlineSeconds}') as progress_deadline_seconds,
            coalesce(inspect.truth(b.d #>> '{spec,rollout,paused}'), false) as paused,
            coalesce(inspect.truth(b.d #>> '{spec,frozen}'), false) as frozen,
            inspect.moment(b.d #>> '{status,lastProgressTime}') as last_progress_at,
            inspect.condition(b.d, 'Applied') ->> 'status' as applied,
            inspect.condition(b.d, 'Progressing') ->> 'status' as progressing,
            -- The first verdict that is not as it should be, in the order in which a set gets on.
            (select v.verdict ->> 'type' from (select inspect.condition(b.d, t) as verdict, n from unnest(
                    array['Rendered', 'Applied', 'Initialized', 'Progressing', 'Available', 'Converged'])
                    with ordinality w(t, n)) v
                where v.verdict ->> 'status' = 'False' order by v.n limit 1) as waits_for,
            (select concat_ws(': ', v.verdict ->> 'reason', v.verdict ->> 'message')
                from (select inspect.condition(b.d, t) as verdict, n from unnest(
                    array['Rendered', 'Applied', 'Initialized', 'Progressing', 'Available', 'Converged'])
                    with ordinality w(t, n)) v
                where v.verdict ->> 'status' = 'False' order by v.n limit 1) as message,
            inspect.items(b.d #> '{status,children}') as children, b.d -> 'spec' as spec$c$ || verdicts),
        (5, 'services', $c$,
            b.d #>> '{spec,clusterIP}' as cluster_ip, inspect.items(b.d #> '{spec,ports}') as ports,
            (select count(*) from horchestra.edges e where e.relation = 4 and e.target_kind = 5
                and e.target_ns = o.ns and e.target_name = o.name) as members$c$),
        (6, 'persistentvolumes', $c$,
            inspect.quantity(b.d #>> '{spec,size}') as size, b.d #>> '{spec,node}' as node,
            coalesce(b.d #>> '{spec,reclaimPolicy}', 'Delete') as reclaim_policy,
            coalesce(inspect.truth(b.d #>> '{spec,shared}'), false) as shared, b.d #>> '{spec,mode}' as mode,
            (select count(*) from horchestra.edges e where e.relation = 1 and e.target_kind = 6
                and e.target_ns = o.ns and e.target_name = o.name) as mounted_by$c$),
        (7, 'secrets', $c$,
            b.d ->> 'type' as type,
            b.d #>> '{metadata,annotations,secrets.horchestra.io/store}' as store,
            (select s.key_id from horchestra.seals s where s.uid = o.uid) as key_id,
            -- As `contents` of the function.
            (select left(encode(s.digest, 'hex'), 16) from horchestra.seals s where s.uid = o.uid) as contents,
            (select count(*) from horchestra.edges e where e.relation in (2, 3) and e.target_kind = 7
                and e.target_ns = o.ns and e.target_name = o.name) as used_by$c$),
        (8, 'secretstores', $c$,
            b.d #>> '{spec,provider}' as provider, b.d #>> '{spec,server}' as server, b.d #>> '{spec,mount}' as mount,
            inspect.whole(b.d #>> '{spec,kvVersion}') as kv_version,
            coalesce(b.d #>> '{spec,auth,method}', 'cert') as auth_method, b.d #>> '{spec,auth,role}' as auth_role$c$),
        (9, 'roles', $c$, inspect.items(b.d #> '{spec,rules}') as rules$c$),
        (10, 'rolebindings', $c$, b.d #>> '{spec,roleRef,kind}' as role_kind, b.d #>> '{spec,roleRef,name}' as role,
            inspect.items(b.d #> '{spec,subjects}') as subjects$c$),
        (11, 'clusterroles', $c$, inspect.items(b.d #> '{spec,rules}') as rules$c$),
        (12, 'clusterrolebindings', $c$, b.d #>> '{spec,roleRef,kind}' as role_kind, b.d #>> '{spec,roleRef,name}' as role,
            inspect.items(b.d #> '{spec,subjects}') as subjects$c$),
        (13, 'certificatesigningrequests', $c$,
            coalesce(o.phase, 'Pending') as phase, b.d #>> '{spec,nodeName}' as node,
            b.d #>> '{metadata,annotations,certificates.horchestra.io/requester}' as requester,
            b.d #>> '{metadata,annotations,certificates.horchestra.io/requester-groups}' as requester_groups,
            b.d #>> '{status,reason}' as reason,
            coalesce(b.d #>> '{status,certificate}', '') <> '' as issued$c$ || verdicts),
        (14, 'events', $c$,
            b.d ->> 'type' as type, b.d ->> 'reason' as reason, b.d ->> 'message' as message,
            b.d #>> '{involvedObject,kind}' as involved_kind, b.d #>> '{involvedObject,namespace}' as involved_namespace,
            b.d #>> '{involvedObject,name}' as involved_name, b.d #>> '{involvedObject,uid}' as involved_uid,
            coalesce(inspect.whole(b.d #>> '{series,count}'), inspect.whole(b.d ->> 'count'), 1) as count,
            coalesce(inspect.moment(b.d ->> 'eventTime'), inspect.moment(b.d ->> 'firstTimestamp')) as first_seen,
            coalesce(inspect.moment(b.d #>> '{series,lastObservedTime}'), inspect.moment(b.d ->> 'lastTimestamp'),
                inspect.moment(b.d ->> 'eventTime')) as last_seen,
            coalesce(b.d ->> 'reportingComponent', b.d #>> '{source,component}') as reporter$c$)
    ) t(kind, plural, columns) loop
        place := case when k.kind in (1, 2, 11, 12, 13) then '' else ':o.ns as namespace, ' end;
        -- Views of Secrets hide what their rows have: no condition of a reader's may look at a row before they do.
        barrier := case when k.kind = 7 then 'with (security_barrier)' else '' end;
        -- Joins to what is unique by the node's name: left out where no column asks for them.
        joins := case when k.kind = 2 then 'left join horchestra.heartbeats h on h.node = o.name
            left join (select x.node, sum(x.cpu)::bigint as cpu, sum(x.memory)::bigint as memory, count(*) as applications
                from horchestra.objects x where x.kind = 3 and x.node is not null group by x.node) a on a.node = o.name'
            else '' end;
        execute format('create view inspect.%I %s as select %s%s%s
            from horchestra.objects o %s
            cross join lateral (select inspect.document(o.body) as d offset 0) b
            cross join lateral (select inspect.document(o.index) as d offset 0) i
            where o.kind = %s', k.plural, barrier, replace(place, ':o', 'o'), common, k.columns, joins, k.kind);
        continue when k.kind = 14;
        what := case when k.kind = 7 then
            -- Known as long as the change is in the log.
            '(select inspect.contents(e.body) from horchestra.events e where e.rv = h.rv and e.op <> 3) as contents'
        else
            'case when not h.deleted then inspect.differences((select inspect.document(p.body)
                from horchestra.history p where p.uid = k.uid and p.rv < h.rv order by p.rv desc limit 1),
                inspect.document(h.body)) end as changes'
        end;
        -- Versions are found by the uids that a name has or had, for which there are indexes.
        execute format($view$create view inspect.%I %s as
            select %s k.name, k.uid, h.rv as revision, h.generation, h.at as changed_at, h.who as username, h.verb,
                h.audit as audit_id, replace(h.trace::text, '-', '') as trace_id, h.deleted, %s
            from (select o.ns, o.name, o.uid from horchestra.objects o where o.kind = %s
                union select t.ns, t.name, t.uid from horchestra.tombstones t where t.kind = %5$s) k
            cross join lateral (
                select v.rv, v.generation, v.at, v.who, v.verb, v.audit, v.trace, v.body, false as deleted
                from horchestra.history v where v.uid = k.uid and v.kind = %5$s and v.ns = k.ns and v.name = k.name
                union all
                select t.rv, t.generation, t.at, t.who, t.verb, t.audit, t.trace, t.body, true
                from horchestra.tombstones t where t.uid = k.uid and t.kind = %5$s and t.ns = k.ns and t.name = k.name
            ) h$view$, k.plural || '_history', barrier, replace(place, ':o', 'k'), what, k.kind);
    end loop;
end $make$;

-- ---- across kinds ---------------------------------------------------------------------------------------------------

create view inspect.objects as
select inspect.kind_name(o.kind) as kind, o.ns as namespace, o.name, o.uid, o.rv as revision,
    o.core_rv as core_revision, o.generation, o.deleting, o.node, o.phase,
    octet_length(o.body) + coalesce(octet_length(o.managed), 0) as bytes
from horchestra.objects o;

-- (Readers may not call functions of `horchestra`, views or not.)
create view inspect.log as
select coalesce((select c.rv from horchestra.commits c order by c.rv desc limit 1), 0) as head, s.oldest, s.trimmed, s.epoch, s.born as made_at
from horchestra.state s;

-- The change log, statuses and Events included. `revision_at` says from which revision on it is later than a moment.
create view inspect.changes as
select e.rv as revision, e.at as changed_at,
    case e.op when 1 then 'ADDED' when 2 then 'MODIFIED' else 'DELETED' end as operation,
    inspect.kind_name(e.kind) as kind, e.ns as namespace, e.name, e.uid, e.generation, e.who as username, e.verb,
    e.audit as audit_id, replace(e.trace::text, '-', '') as trace_id,
    -- Nothing but the status was changed.
    e.core_rv <> e.rv as status_only, e.node, e.prev_node as previous_node, e.phase, e.prev_phase as previous_phase,
    case e.op when 2 then inspect.differences(inspect.document(coalesce(e.prev_body,
        (select p.body from horchestra.events p where p.rv = e.prev_rv))), inspect.document(e.body)) end as changes
from horchestra.events e;

-- Every change after the answer was made at that moment or later, by the database's clock. Goes down the log's key,
-- since times have no index.
create function inspect.revision_at(moment timestamptz) returns bigint
language plpgsql stable as $$
declare
    low   bigint;
    high  bigint;
    half  bigint;
    found record;
begin
    select l.oldest, l.head into low, high from inspect.log l;
    while low < high loop
        half := (low + high) / 2;
        select c.revision, c.changed_at into found from inspect.changes c
            where c.revision > half order by c.revision limit 1;
        if found.revision is null or found.changed_at >= moment then
            high := half;
        else
            low := found.revision;
        end if;
    end loop;
    return low;
end $$;

create view inspect.deletions as
select t.rv as revision, t.at as deleted_at, inspect.kind_name(t.kind) as kind, t.ns as namespace, t.name, t.uid,
    t.who as username, t.verb, t.audit as audit_id, replace(t.trace::text, '-', '') as trace_id
from horchestra.tombstones t;

-- References: of `name`, to `target_name`. Owners are named with their uid.
create view inspect.relations as
select case e.relation when 1 then 'mounts' when 2 then 'needs' when 3 then 'uses' when 4 then 'member of'
        when 5 then 'placed on' when 6 then 'owned by' when 7 then 'grants' else 'relation ' || e.relation end as relation,
    inspect.kind_name(o.kind) as kind, o.ns as namespace, o.name, o.uid,
    inspect.kind_name(e.target_kind) as target_kind, e.target_ns as target_namespace,
    case e.relation when 6 then split_part(e.target_name, '/', 1) else e.target_name end as target_name,
    case e.relation when 6 then split_part(e.target_name, '/', 2) end as target_uid
from horchestra.edges e join horchestra.objects o on o.uid = e.source;

-- Numbers, addresses and names that objects hold.
create view inspect.claims as
select c.space, c.value, c.shared, inspect.kind_name(o.kind) as kind, o.ns as namespace, o.name, c.owner as uid
from horchestra.claims c left join horchestra.objects o on o.uid = c.owner;

create view inspect.addresses as
select host(l.address) as address, o.ns as namespace, o.name, o.node, l.owner as uid, l.released_at
from horchestra.address_leases l left join horchestra.objects o on o.uid = l.owner and o.kind = 3;

-- ---- nodes, and what runs for them ----------------------------------------------------------------------------------

-- When the certificate ends that a session was opened with. For people: no guard reads this table.
alter table horchestra.session_presence add column certificate_ends timestamptz;

create view inspect.node_sessions as
select s.node, s.epoch, s.session, s.gateway, g.name as gateway_name, s.peer, s.certificate,
    p.certificate_ends as certificate_expires_at, s.opened_at,
    greatest(s.opened_at, p.last_seen) as last_seen, statement_timestamp() - greatest(s.opened_at, p.last_seen) as silent_for,
    coalesce(g.until > statement_timestamp(), false) as live
from horchestra.node_sessions s left join horchestra.gateways g on g.id = s.gateway
left join horchestra.session_presence p on p.node = s.node and p.session = s.session;

create view inspect.gateways as
select g.id, g.name, g.internal_address, g.until, g.until > statement_timestamp() as live,
    (select count(*) from horchestra.node_sessions s where s.gateway = g.id) as nodes
from horchestra.gateways g;

-- Holds in force; without a node: of all nodes but the released ones.
create view inspect.holds as
select nullif(h.node, '') as node, h.since, h.reason, h.message,
    case h.node when '' then (select count(*) from horchestra.push_releases r where r.hold = h.hold) end as released
from horchestra.push_holds h;

create view inspect.held_nodes as
select n.name as node, h.since, h.reason, h.message
from horchestra.objects n join horchestra.push_holds h on h.node = n.name or (h.node = '' and not exists
    (select 1 from horchestra.push_releases r where r.node = n.name and r.hold = h.hold))
where n.kind = 2;

-- What a node may hold, and what became of it; nothing known: neither placed nor deleted.
create view inspect.pushed as
select p.node, inspect.kind_name(p.kind) as kind, p.ns as namespace, p.name, p.uid, o.node as placed_on,
    (select max(t.at) from horchestra.tombstones t where t.uid = p.uid) as deleted_at
from horchestra.pushed p
left join horchestra.objects o on o.kind = p.kind and o.ns = p.ns and o.name = p.name and o.uid = p.uid;

create view inspect.token_forms as
select f.node, case when f.as_secrets then 'secret' else 'token' end as sent_as, f.chosen_at
from horchestra.token_forms f;

create view inspect.denied_certificates as
select nullif(d.name, '') as name, nullif(d.fingerprint, '') as fingerprint, d.begun_until, d.at as denied_at, d.reason
from horchestra.denied_certificates d;

-- What is asked for on each node, what it has, and what it last measured, unless that is too old to say anything.
create view inspect.usage as
select n.name as node, inspect.cores(n.cpu) as cpu_capacity, inspect.cores(coalesce(a.cpu, 0)) as cpu_requested,
    inspect.rate(m.sample) as cpu_used, n.memory as memory_capacity, coalesce(a.memory, 0) as memory_requested,
    inspect.whole(m.sample ->> 'memory') as memory_used, coalesce(a.applications, 0) as applications, m.sampled_at
from horchestra.objects n
left join (select o.node, sum(o.cpu)::bigint as cpu, sum(o.memory)::bigint as memory, count(*) as applications
    from horchestra.objects o where o.kind = 3 and o.node is not null group by o.node) a on a.node = n.name
left join lateral (select u.sample, s.at - inspect.whole(u.sample ->> 'age') * interval '1 millisecond' as sampled_at
    from horchestra.samples s cross join lateral (select inspect.document(s.body) -> 'node' as sample offset 0) u
    where s.node = n.name and s.at > statement_timestamp() - interval '2 minutes') m on true
where n.kind = 2;

create view inspect.application_usage as
select s.node, u.sample ->> 'ns' as namespace, u.sample ->> 'name' as name, u.sample ->> 'uid' as uid,
    inspect.rate(u.sample -> 'usage') as cpu_used, inspect.whole(u.sample #>> '{usage,memory}') as memory_used,
    inspect.whole(u.sample #>> '{usage,peak}') as memory_peak, inspect.whole(u.sample #>> '{usage,pids}') as pids,
    coalesce(inspect.whole(u.sample #>> '{usage,oom}'), 0) as oom_kills,
    s.at - inspect.whole(u.sample #>> '{usage,age}') * interval '1 millisecond' as sampled_at
from horchestra.samples s
cross join lateral jsonb_array_elements(inspect.items(inspect.document(s.body) -> 'apps')) u(sample)
where s.at > statement_timestamp() - interval '2 minutes';

-- Applications that do not run though they should, and why.
create view inspect.pending as
select a.namespace, a.name, a.phase, a.node, a.cpu, a.memory, a.created_at,
    case when a.node is null then coalesce(a.scheduled_reason, 'NotLookedAt') else coalesce(a.ready_reason, 'NotReported') end as reason,
    coalesce(a.message, a.conditions #>> '{0,message}') as message
from inspect.applications a
where a.phase = 'Pending' and not a.deleting;

-- Sets whose last change has not reached all children.
create view inspect.rollouts as
select s.namespace, s.name, s.phase, s.desired, s.updated, s.available, s.running, s.paused, s.frozen, s.waits_for,
    s.message, s.last_progress_at, s.progressing = 'False' as stuck
from inspect.applicationsets s
where not s.deleting and (s.phase <> 'Ready' or s.waits_for is not null);

-- ---- the control plane's own processes ------------------------------------------------------------------------------

-- Whoever runs says so now and then. Nothing depends on it, and rows of those who went without a word stay for a day.
create table horchestra.processes (
    -- Of workers the holder of their leases, of gateways their own.
    id         uuid primary key,
    program    text        not null,
    -- Where it is to be found: host and process.
    place      text        not null,
    version    text        not null,
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp(),
    -- Where it was then with reading the log, how many changes it had not seen, and since when.
    revision   bigint      not null,
    behind     bigint      not null,
    behind_for interval    not null
) with (fillfactor = 50);

create function horchestra.announce(id_ uuid, program_ text, place_ text, version_ text, revision_ bigint) returns void
language plpgsql volatile as $$
declare
    head_ bigint := horchestra.head();
    since timestamptz := case when head_ > revision_ then
        (select e.at from horchestra.events e where e.rv > revision_ order by e.rv limit 1) end;
begin
    insert into horchestra.processes as p (id, program, place, version, revision, behind, behind_for)
        values (id_, program_, place_, version_, revision_, greatest(head_ - revision_, 0),
            coalesce(greatest(clock_timestamp() - since, interval '0'), interval '0'))
        on conflict (id) do update set seen_at = clock_timestamp(), revision = excluded.revision,
            behind = excluded.behind, behind_for = excluded.behind_for;
    delete from horchestra.processes p where p.seen_at < clock_timestamp() - interval '1 day';
end $$;

create view inspect.processes as
select p.id, p.program, p.place, p.version, p.started_at, p.seen_at,
    p.seen_at > statement_timestamp() - interval '30 seconds' as live, p.revision, p.behind, p.behind_for,
    (select coalesce(array_agg(e.name order by e.name), '{}') from horchestra.leases l
        join horchestra.lease_epochs e using (name)
        where l.holder = p.id and e.held and l.until > statement_timestamp()) as leads,
    (select count(*) from horchestra.node_sessions s where s.gateway = p.id) as nodes
from horchestra.processes p;

create view inspect.leases as
select l.name, l.holder, p.place as holder_place, e.epoch, e.held, l.until,
    e.held and l.until > statement_timestamp() as live
from horchestra.leases l join horchestra.lease_epochs e using (name)
left join horchestra.processes p on p.id = l.holder;

create view inspect.settings as
select m.key as name, m.value from horchestra.settings s
cross join lateral (select inspect.document(s.body) as d offset 0) b
cross join lateral jsonb_each_text(case jsonb_typeof(b.d) when 'object' then b.d else '{}' end) m(key, value);

create view inspect.migrations as
select m.version, m.description, m.installed_on as migrated_at, m.success from horchestra.migrations m;

-- ---- the database itself --------------------------------------------------------------------------------------------

create view inspect.tables as
select c.relname::text as name, greatest(c.reltuples, 0)::bigint as rows_estimated,
    pg_relation_size(c.oid) as table_bytes, pg_indexes_size(c.oid) as index_bytes,
    pg_total_relation_size(c.oid) as total_bytes, s.n_dead_tup as dead_rows,
    greatest(s.last_vacuum, s.last_autovacuum) as vacuumed_at
from pg_class c left join pg_stat_all_tables s on s.relid = c.oid
where c.relnamespace = 'horchestra'::regnamespace and c.relkind = 'r';

create view inspect.partitions as
select c.relname::text as name, inspect.whole(b.ends[1]) as first_revision, inspect.whole(b.ends[2]) - 1 as last_revision,
    greatest(c.reltuples, 0)::bigint as rows_estimated, pg_total_relation_size(c.oid) as total_bytes,
    i.inhdetachpending as detach_pending
from pg_inherits i join pg_class c on c.oid = i.inhrelid
cross join lateral (select regexp_match(pg_get_expr(c.relpartbound, c.oid),
    $bounds$FROM \('([0-9]+)'\) TO \('([0-9]+)'\)$bounds$) as ends) b
where i.inhparent = 'horchestra.events'::regclass;

-- Sessions of this database, as far as its owner may see them, without what they say: their texts are nobody's business
-- here. A reader's own rights would not show that a transaction is open.
create function inspect.list_connections()
returns table (pid int, username text, application text, state text, transaction_since timestamptz, waits_for text,
    keeps_rows_since bigint)
language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select a.pid, a.usename::text, a.application_name, a.state, a.xact_start,
        a.wait_event_type || ': ' || a.wait_event, age(a.backend_xmin)::bigint
    from pg_stat_activity a where a.datname = current_database()
$$;
create view inspect.connections as
select c.pid, c.username, c.application, c.state, c.transaction_since,
    statement_timestamp() - c.transaction_since as transaction_for, c.waits_for,
    -- Transactions since the oldest one whose rows it still sees: what has changed since cannot be cleaned up.
    c.keeps_rows_since as snapshot_age
from inspect.list_connections() c;

-- One row: how things stand.
create view inspect.overview as
select l.head, l.head - l.oldest as revisions_kept, pg_database_size(current_database()) as database_bytes,
    n.nodes, n.nodes_ready, (select count(distinct h.node) from inspect.held_nodes h) as nodes_held,
    (select count(*) from inspect.node_sessions s where s.live) as sessions,
    a.applications, a.running, a.pending, a.failed,
    (select count(*) from inspect.processes p where p.live) as processes,
    (select max(c.transaction_for) from inspect.connections c) as oldest_transaction
from inspect.log l,
    (select count(*) as nodes, count(*) filter (where ready = 'True') as nodes_ready from inspect.nodes) n,
    (select count(*) as applications, count(*) filter (where phase = 'Running') as running,
        count(*) filter (where phase = 'Pending') as pending, count(*) filter (where phase = 'Failed') as failed
        from inspect.applications) a;

-- ---- who may do what ------------------------------------------------------------------------------------------------

-- Three roles (migrations/README.md says more): the owner of the schema, who migrates; `horchestra_runtime`, as which
-- processes can run; `horchestra_reader`, who sees `inspect` and nothing else. The last two cannot log in themselves.
--
-- A runtime role writes what the log is about (see below) through functions alone, which run as their owner. Their path
-- is fixed, so that nobody can slip them an operator.
do $$
declare
    f regprocedure;
begin
    for f in select p.oid::regprocedure from pg_proc p
        where p.pronamespace = 'horchestra'::regnamespace and p.proname = any ('{commit_batch, commit_one,
            commit_object, settle_nonce, ensure_partitions, begin_epoch, acquire_lease, release_lease, claim_session,
            release_session, reseal, engage_hold, release_hold, settle_home, show_loss, lease_addresses,
            adopt_addresses}'::name[])
    loop
        execute format('alter function %s security definer set search_path = pg_catalog, pg_temp', f);
    end loop;
end $$;

-- Makes the roles, if this user may, and gives each what is its own, in this database. Runs with every migration, and
-- may be run again at any time: when an administrator has made the roles, for instance.
create function horchestra.grant_roles() returns void
language plpgsql volatile as $$
declare
    role_ text;
    t     record;
begin
    foreach role_ in array array['horchestra_reader', 'horchestra_runtime'] loop
        if not exists (select 1 from pg_roles r where r.rolname = role_) then
            begin
                execute format('create role %I nologin', role_);
            exception
                when duplicate_object or unique_violation then
                    null; -- of another database of this server, this very moment
                when insufficient_privilege then
                    raise notice 'the role % is missing and this user may not create roles: let an administrator run '
                        '"create role % nologin", then run "select horchestra.grant_roles()" as the owner of the schema',
                        role_, role_;
            end;
        end if;
    end loop;
    revoke all on all functions in schema horchestra, inspect from public;
    if exists (select 1 from pg_roles r where r.rolname = 'horchestra_reader') then
        grant usage on schema inspect to horchestra_reader;
        grant select on all tables in schema inspect to horchestra_reader;
        grant execute on all functions in schema inspect to horchestra_reader;
    end if;
    if exists (select 1 from pg_roles r where r.rolname = 'horchestra_runtime') then
        grant usage on schema horchestra, inspect to horchestra_runtime;
        grant select on all tables in schema inspect to horchestra_runtime;
        grant execute on all functions in schema horchestra to horchestra_runtime;
        grant execute on all functions in schema inspect to horchestra_runtime;
        grant usage on all sequences in schema horchestra to horchestra_runtime;
        for t in select c.oid::regclass as name, c.relname = any ('{state, objects, events, commits, spent_nonces,
                history, tombstones, edges, claims, released_claims, seals, lease_epochs, node_sessions, push_holds,
                push_releases, losses, address_leases, address_ranges, migrations}'::name[]) as guarded
            from pg_class c where c.relnamespace = 'horchestra'::regnamespace and c.relkind in ('r', 'p')
                and not c.relispartition and c.relname !~ '^events_'
        loop
            execute format('grant %s on %s to horchestra_runtime',
                case when t.guarded then 'select' else 'select, insert, update, delete' end, t.name);
        end loop;
    end if;
end $$;
select horchestra.grant_roles();

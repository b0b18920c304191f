//! Statements about gateways, sessions and what comes from nodes: who is there, what they are sent, why it is held back.

use super::{Statement, keyed, whole};

pub const RENEW_GATEWAY: Statement = keyed(
    "renew_gateway",
    "with before as (select until from horchestra.gateways where id = $1), \
     renewed as (insert into horchestra.gateways as g (id, internal_address, until) \
     values ($1, $2, clock_timestamp() + $3::bigint * interval '1 microsecond') \
     on conflict (id) do update set internal_address = excluded.internal_address, until = excluded.until) \
     select coalesce((select until > clock_timestamp() from before), true)",
);
/// $1 gateway, $2 name, $3 application_name of all connections of its process; null: they cannot be seen.
pub const NAME_GATEWAY: Statement =
    keyed("name_gateway", "select horchestra.name_gateway($1::uuid, $2::text, $3::text)");
pub const RETIRE_GATEWAY: Statement =
    keyed("retire_gateway", "delete from horchestra.gateways where id = $1");

/// $1 id, $2 program, $3 place, $4 version, $5 revision.
pub const ANNOUNCE: Statement =
    keyed("announce", "select horchestra.announce($1::uuid, $2::text, $3::text, $4::text, $5::bigint)");
pub const WITHDRAW: Statement = keyed("withdraw", "delete from horchestra.processes where id = $1");

/// $1 nodes, $2 gateways, $3 peers, $4 certificates, $5 new sessions, $6 how long a silent one is spared. Answers
/// those that were granted, by their place; a node that stands there twice is judged twice.
pub const CLAIM_SESSIONS: Statement = keyed(
    "claim_sessions",
    "select t.at, c.epoch, c.session from unnest($1::text[], $2::uuid[], $3::text[], $4::text[], $5::uuid[]) \
     with ordinality t(node, gateway, peer, certificate, session, at), \
     lateral horchestra.claim_session(t.node, t.gateway, t.peer, t.certificate, t.session, \
     $6::bigint * interval '1 microsecond') c",
);
pub const RELEASE_SESSIONS: Statement = keyed(
    "release_sessions",
    "select horchestra.release_session(t.node, t.epoch, t.session) \
     from unnest($1::text[], $2::bigint[], $3::uuid[]) t(node, epoch, session)",
);
/// $1 nodes, $2 epochs, $3 sessions, $4 gateway, $5 ends of certificates. Answers the nodes whose session is another by
/// now.
pub const TOUCH_SESSIONS: Statement = keyed(
    "touch_sessions",
    "with t as materialized (select t.node, t.session, to_timestamp(t.ends / 1000000.0) as ends, s.node is not null as ours \
     from unnest($1::text[], $2::bigint[], $3::uuid[], $5::bigint[]) t(node, epoch, session, ends) \
     left join horchestra.node_sessions s on s.node = t.node and s.epoch = t.epoch \
     and s.session = t.session and s.gateway = $4), \
     seen as (insert into horchestra.session_presence as p (node, session, last_seen, certificate_ends) \
     select node, session, clock_timestamp(), ends from t where ours order by node \
     on conflict (node) do update set session = excluded.session, last_seen = excluded.last_seen, \
     certificate_ends = excluded.certificate_ends) \
     select node from t where not ours",
);
pub const SESSION_OF: Statement =
    keyed("session_of", concat!(session_query!(), " where s.node = $1 and g.until > clock_timestamp()"));
pub const SESSIONS: Statement = keyed("sessions", concat!(session_query!(), " order by s.node"));

pub const DENIED: Statement = keyed(
    "denied_certificates",
    "select name, fingerprint, (extract(epoch from begun_until) * 1000000)::bigint as until \
     from horchestra.denied_certificates order by name, fingerprint",
);
pub const DENY: Statement = keyed(
    "deny_certificates",
    "insert into horchestra.denied_certificates as d (name, fingerprint, begun_until, reason) \
     values ($1, $2, to_timestamp($3::bigint / 1000000.0), $4) on conflict (name, fingerprint) do update \
     set begun_until = greatest(d.begun_until, excluded.begun_until), reason = excluded.reason, \
     at = clock_timestamp()",
);
pub const ALLOW: Statement = keyed(
    "allow_certificates",
    "delete from horchestra.denied_certificates where (name = $1 and fingerprint = '') \
     or (name = '' and fingerprint = $1)",
);

/// $1 age in microseconds, $2 how many; so in the next three. Whoever claimed a node meanwhile holds another
/// session, which stays.
pub const END_STALE_SESSIONS: Statement = keyed(
    "end_stale_sessions",
    "select horchestra.release_session(x.node, x.epoch, x.session) from (select s.node, s.epoch, s.session \
     from horchestra.node_sessions s left join horchestra.gateways g on g.id = s.gateway \
     left join horchestra.session_presence p on p.node = s.node and p.session = s.session \
     where coalesce(g.until <= clock_timestamp(), true) \
     and greatest(s.opened_at, p.last_seen) < clock_timestamp() - $1::bigint * interval '1 microsecond' \
     order by s.node limit $2) x",
);
/// When sessions that ended were last heard of.
pub const PRUNE_SEEN: Statement = keyed(
    "prune_seen",
    "delete from horchestra.session_presence p using (select x.node, x.session \
     from horchestra.session_presence x \
     where x.last_seen < clock_timestamp() - $1::bigint * interval '1 microsecond' \
     and not exists (select 1 from horchestra.node_sessions s where s.node = x.node and s.session = x.session) \
     order by x.node limit $2) old where p.node = old.node and p.session = old.session",
);
pub const PRUNE_GATEWAYS: Statement = keyed(
    "prune_gateways",
    "delete from horchestra.gateways g using (select x.id from horchestra.gateways x \
     where x.until < clock_timestamp() - $1::bigint * interval '1 microsecond' order by x.id limit $2) old \
     where g.id = old.id and g.until < clock_timestamp() - $1::bigint * interval '1 microsecond'",
);
pub const PRUNE_HEARTBEATS: Statement = keyed(
    "prune_heartbeats",
    "delete from horchestra.heartbeats h using (select x.node from horchestra.heartbeats x \
     where x.at < clock_timestamp() - $1::bigint * interval '1 microsecond' \
     and not exists (select 1 from horchestra.objects o where o.kind = 2 and o.ns = '' and o.name = x.node) \
     order by x.node limit $2) old \
     where h.node = old.node and h.at < clock_timestamp() - $1::bigint * interval '1 microsecond'",
);

/// $1 nodes, $2 cpu, $3 memory.
pub const RECORD_HEARTBEATS: Statement = keyed(
    "record_heartbeats",
    "insert into horchestra.heartbeats as h (node, at, allocated_cpu, allocated_memory) \
     select node, clock_timestamp(), cpu, memory \
     from unnest($1::text[], $2::bigint[], $3::bigint[]) t(node, cpu, memory) order by node \
     on conflict (node) do update set at = excluded.at, allocated_cpu = excluded.allocated_cpu, \
     allocated_memory = excluded.allocated_memory",
);
/// $1 nodes, $2 epochs, $3 sessions, $4 CPU, $5 memory. Answers the nodes whose session is another by now.
pub const RECORD_BEATS: Statement = keyed(
    "record_beats",
    "with t as materialized (select t.*, s.node is not null as ours \
     from unnest($1::text[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[]) \
     t(node, epoch, session, cpu, memory) \
     left join horchestra.node_sessions s on s.node = t.node and s.epoch = t.epoch and s.session = t.session), \
     seen as (insert into horchestra.session_presence as p (node, session, last_seen) \
     select node, session, clock_timestamp() from t where ours order by node \
     on conflict (node) do update set session = excluded.session, last_seen = excluded.last_seen), \
     heard as (insert into horchestra.heartbeats as h (node, at, allocated_cpu, allocated_memory) \
     select node, clock_timestamp(), cpu, memory from t where ours order by node \
     on conflict (node) do update set at = excluded.at, allocated_cpu = excluded.allocated_cpu, \
     allocated_memory = excluded.allocated_memory) \
     select node from t where not ours",
);
/// A term that ends much later than any would is none: the clock was set back.
pub const HEARTBEATS: Statement = keyed(
    "heartbeats",
    "select node, allocated_cpu, allocated_memory, (extract(epoch from at) * 1000000)::bigint as at, \
     greatest(0, (extract(epoch from clock_timestamp() - at) * 1000000)::bigint) as age, \
     (extract(epoch from statement_timestamp()) * 1000000)::bigint as now, \
     (select (extract(epoch from min(g.since)) * 1000000)::bigint from horchestra.gateways g \
     where g.until > statement_timestamp() and g.until <= statement_timestamp() + interval '10 minutes') \
     as served_since from horchestra.heartbeats order by node",
);

/// $1 nodes.
pub const PUSH_RECORDS: Statement = keyed(
    "push_records",
    "select r.node, r.revision, p.kind, p.uid, p.ns, p.name from horchestra.push_records r \
     left join horchestra.pushed p on p.node = r.node where r.node = any ($1::text[])",
);
/// One element per node: $1 nodes, $2 epochs, $3 sessions, $4 revisions; per thing to add: $5 nodes, $6 kinds,
/// $7 uids, $8 namespaces, $9 names; per thing to remove: $10 nodes, $11 kinds, $12 uids. Answers the nodes whose
/// session is another by now. Must not remove and add the same.
pub const RECORD_PUSHES: Statement = keyed(
    "record_pushes",
    "with s as materialized (select t.node, t.revision, n.node is not null as ours \
     from unnest($1::text[], $2::bigint[], $3::uuid[], $4::bigint[]) t(node, epoch, session, revision) \
     left join horchestra.node_sessions n on n.node = t.node and n.epoch = t.epoch and n.session = t.session), \
     kept as (insert into horchestra.push_records as r (node, revision, at) \
     select node, revision, clock_timestamp() from s where ours order by node \
     on conflict (node) do update set revision = excluded.revision, at = excluded.at), \
     added as (insert into horchestra.pushed (node, kind, uid, ns, name) \
     select a.node, a.kind, a.uid, a.ns, a.name \
     from unnest($5::text[], $6::smallint[], $7::uuid[], $8::text[], $9::text[]) a(node, kind, uid, ns, name) \
     join s on s.node = a.node where s.ours order by a.node, a.kind, a.uid \
     on conflict (node, kind, uid) do nothing), \
     removed as (delete from horchestra.pushed p \
     using (select d.node, d.kind, d.uid from unnest($10::text[], $11::smallint[], $12::uuid[]) d(node, kind, uid) \
     join s on s.node = d.node where s.ours) d where p.node = d.node and p.kind = d.kind and p.uid = d.uid) \
     select node from s where not ours",
);
pub const HOLDS: Statement = keyed(
    "holds",
    "select h.node, h.hold, (extract(epoch from h.since) * 1000000)::bigint as since, h.reason, h.message, \
     false as released from horchestra.push_holds h union all \
     select r.node, r.hold, 0::bigint, '', '', true from horchestra.push_releases r",
);
/// $1 node (empty: all), $2 reason, $3 message.
pub const ENGAGE_HOLD: Statement =
    keyed("engage_hold", "select horchestra.engage_hold($1::text, $2::text, $3::text)");
/// $1 node (null: everything).
pub const RELEASE_HOLD: Statement = whole("release_hold", "select horchestra.release_hold($1::text)");
/// $1 epoch, $2 system and $3 database that were known, $4 up to which revision, $5 the epoch found, $6 whether to
/// begin another, $7 reason, $8 message.
pub const SHOW_LOSS: Statement = keyed(
    "show_loss",
    "select horchestra.show_loss($1::uuid, $2::text, $3::text, $4::bigint, $5::uuid, $6::boolean, $7::text, \
     $8::text)",
);
pub const BORN: Statement =
    keyed("born", "select (extract(epoch from s.born) * 1000000)::bigint from horchestra.state s");
/// $1 whether the caller vouches, $2 whether it is patient.
pub const SETTLE_HOME: Statement =
    keyed("settle_home", "select horchestra.settle_home($1::boolean, $2::boolean)");
pub const TOKEN_FORM: Statement =
    keyed("token_form", "select as_secrets, salt from horchestra.token_forms where node = $1");
pub const CHOOSE_TOKEN_FORM: Statement = keyed(
    "choose_token_form",
    "select as_secrets, salt from horchestra.choose_token_form($1::text, $2::boolean, $3::boolean)",
);
/// $1 nodes, $2 epochs, $3 sessions, $4 documents.
pub const RECORD_SAMPLES: Statement = keyed(
    "record_samples",
    "insert into horchestra.samples as h (node, at, body) select t.node, clock_timestamp(), t.body \
     from unnest($1::text[], $2::bigint[], $3::uuid[], $4::bytea[]) t(node, epoch, session, body) \
     join horchestra.node_sessions s on s.node = t.node and s.epoch = t.epoch and s.session = t.session \
     order by t.node on conflict (node) do update set at = excluded.at, body = excluded.body",
);
/// $1 nodes, $2 microseconds.
pub const SAMPLES: Statement = keyed(
    "samples",
    "select node, greatest(0, (extract(epoch from clock_timestamp() - at) * 1000000)::bigint) as age, body \
     from horchestra.samples where node = any ($1::text[]) \
     and at >= clock_timestamp() - $2::bigint * interval '1 microsecond'",
);
/// $1 age in microseconds, $2 how many.
pub const PRUNE_SAMPLES: Statement = keyed(
    "prune_samples",
    "delete from horchestra.samples h using (select x.node from horchestra.samples x \
     where x.at < clock_timestamp() - $1::bigint * interval '1 microsecond' order by x.node limit $2) old \
     where h.node = old.node and h.at < clock_timestamp() - $1::bigint * interval '1 microsecond'",
);

//! The write path's client side: a batch as columns, and what comes back.

use std::sync::atomic::Ordering;

use horchestra_core::kind::{Key, Kind};
use sqlx::Row;
use sqlx::postgres::PgRow;
use tokio::time::timeout;
use uuid::Uuid;

use super::lanes::CALL_LIMIT;
use super::{PostgresBackend, encode, errors, segments, statements};
use crate::backend::{BackendError, Done, Fingerprint};
use crate::types::{Class, Committed, Draft, Guard, Item, Op, Refusal, Revision};

/// How many spans of the log are made beyond the one in use.
const SPANS_AHEAD: i32 = 3;
/// A call for more partitions goes out when less than this is left (two spans).
const HEADROOM: Revision = 2 * 262_144;

/// Operation codes of `commit_batch`.
mod op {
    pub const CREATE: i16 = 1;
    pub const UPDATE: i16 = 2;
    pub const STATUS: i16 = 3;
    pub const DELETE: i16 = 4;
    pub const CLAIM: i16 = 5;
    pub const RELEASE: i16 = 6;
}

/// Guard codes of `guard_holds`.
mod guard {
    pub const EXISTS: i16 = 1;
    pub const UNCHANGED: i16 = 2;
    pub const NAMESPACE_EMPTY: i16 = 3;
    pub const EDGES_AT_MOST: i16 = 4;
    pub const CAPACITY: i16 = 5;
    pub const SESSION_IS: i16 = 6;
    pub const LEASE_IS: i16 = 7;
    pub const EVENTS_AT_MOST: i16 = 8;
    pub const UNCLAIMED: i16 = 9;
}

/// Why an item was refused, as `commit_batch` says it.
mod reason {
    pub const EXISTS: i16 = 1;
    pub const NOT_FOUND: i16 = 2;
    pub const CONFLICT: i16 = 3;
    pub const CLAIM_TAKEN: i16 = 4;
    pub const GUARD: i16 = 5;
}

/// The arguments of `commit_batch`: one list per column. `*_ops`, `*_guards`, `*_edges` say how many
/// elements there are up to the end of the item or operation.
#[derive(Default)]
struct Columns<'a> {
    segments: Vec<i32>,
    item_ops: Vec<i32>,
    item_guards: Vec<i32>,
    item_who: Vec<&'a str>,
    item_verb: Vec<&'a str>,
    item_audit: Vec<Uuid>,
    item_trace: Vec<Option<Uuid>>,
    /// Of traces that are recorded: what goes on with them.
    item_span: Vec<Option<i64>>,
    op_item: Vec<i32>,
    op_code: Vec<i16>,
    op_kind: Vec<i16>,
    op_ns: Vec<&'a str>,
    op_name: Vec<&'a str>,
    op_uid: Vec<Uuid>,
    op_expect: Vec<i64>,
    op_generation: Vec<i64>,
    op_flag: Vec<bool>,
    op_node: Vec<Option<&'a str>>,
    op_phase: Vec<Option<&'a str>>,
    op_cpu: Vec<i64>,
    op_memory: Vec<i64>,
    op_index: Vec<Option<Vec<u8>>>,
    op_managed: Vec<Option<&'a [u8]>>,
    op_body: Vec<Option<&'a [u8]>>,
    op_edge_hash: Vec<i64>,
    op_edges: Vec<i32>,
    guard_item: Vec<i32>,
    guard_code: Vec<i16>,
    guard_kind: Vec<i16>,
    guard_ns: Vec<&'a str>,
    guard_name: Vec<&'a str>,
    guard_relation: Vec<i16>,
    guard_number: Vec<i64>,
    guard_id: Vec<Option<Uuid>>,
    edge_op: Vec<i32>,
    edge_relation: Vec<i16>,
    edge_kind: Vec<i16>,
    edge_ns: Vec<&'a str>,
    edge_name: Vec<&'a str>,
}

fn count<T>(list: &[T]) -> i32 {
    i32::try_from(list.len()).unwrap_or(i32::MAX)
}

/// An operation about no stored draft.
struct Bare<'a> {
    code: i16,
    kind: i16,
    ns: &'a str,
    name: &'a str,
    uid: Uuid,
    expect: Revision,
    flag: bool,
}

impl<'a> Columns<'a> {
    fn of(items: &'a [Item]) -> Columns<'a> {
        let mut columns = Columns {
            segments: segments::segments(items).into_iter().map(|end| end as i32).collect(),
            ..Columns::default()
        };
        for item in items {
            columns.item(item);
        }
        columns
    }

    fn item(&mut self, item: &'a Item) {
        let number = count(&self.item_ops) + 1;
        for op in &item.ops {
            self.op_item.push(number);
            self.op(op);
        }
        for guard in &item.guards {
            self.guard_item.push(number);
            self.guard(guard);
        }
        self.item_ops.push(count(&self.op_item));
        self.item_guards.push(count(&self.guard_item));
        self.item_who.push(&item.who.user);
        self.item_verb.push(&item.who.verb);
        self.item_audit.push(item.who.audit_id);
        self.item_trace.push(item.who.trace.map(|trace| Uuid::from_bytes(trace.id)));
        let span = item.who.trace.and_then(|trace| trace.span);
        self.item_span.push(span.map(|span| span.get().cast_signed()));
    }

    fn op(&mut self, op: &'a Op) {
        match op {
            Op::Create(draft) => self.draft(op::CREATE, draft, 0),
            Op::Update { draft, expect, class: Class::Core } => self.draft(op::UPDATE, draft, *expect),
            Op::Update { draft, expect, class: Class::Status } => self.draft(op::STATUS, draft, *expect),
            Op::Delete { key, expect } => self.bare(Bare {
                code: op::DELETE,
                kind: key.kind.number(),
                ns: &key.namespace,
                name: &key.name,
                uid: Uuid::nil(),
                expect: *expect,
                flag: false,
            }),
            Op::Claim { space, value, owner, shared } => self.bare(Bare {
                code: op::CLAIM,
                kind: 0,
                ns: space,
                name: value,
                uid: *owner,
                expect: 0,
                flag: *shared,
            }),
            Op::Release { space, owner } => self.bare(Bare {
                code: op::RELEASE,
                kind: 0,
                ns: space,
                name: "",
                uid: *owner,
                expect: 0,
                flag: false,
            }),
        }
    }

    fn draft(&mut self, code: i16, draft: &'a Draft, expect: Revision) {
        let number = count(&self.op_item);
        self.op_code.push(code);
        self.op_kind.push(draft.key.kind.number());
        self.op_ns.push(&draft.key.namespace);
        self.op_name.push(&draft.key.name);
        self.op_uid.push(draft.uid);
        self.op_expect.push(expect);
        self.op_generation.push(draft.generation);
        self.op_flag.push(draft.deleting);
        self.op_node.push(draft.columns.node.as_deref());
        self.op_phase.push(draft.columns.phase.as_deref());
        self.op_cpu.push(draft.columns.cpu);
        self.op_memory.push(draft.columns.memory);
        self.op_index.push(Some(encode::index(&draft.index)));
        self.op_managed.push(draft.managed.as_deref());
        self.op_body.push(Some(&draft.body));
        let (edges, digest) = encode::edges(&draft.edges);
        self.op_edge_hash.push(digest);
        for edge in edges {
            self.edge_op.push(number);
            self.edge_relation.push(edge.relation as i16);
            self.edge_kind.push(edge.target.kind.number());
            self.edge_ns.push(&edge.target.namespace);
            self.edge_name.push(&edge.target.name);
        }
        self.op_edges.push(count(&self.edge_op));
    }

    fn bare(&mut self, op: Bare<'a>) {
        self.op_code.push(op.code);
        self.op_kind.push(op.kind);
        self.op_ns.push(op.ns);
        self.op_name.push(op.name);
        self.op_uid.push(op.uid);
        self.op_expect.push(op.expect);
        self.op_generation.push(0);
        self.op_flag.push(op.flag);
        self.op_node.push(None);
        self.op_phase.push(None);
        self.op_cpu.push(0);
        self.op_memory.push(0);
        self.op_index.push(None);
        self.op_managed.push(None);
        self.op_body.push(None);
        self.op_edge_hash.push(0);
        self.op_edges.push(count(&self.edge_op));
    }

    fn guard(&mut self, guard: &'a Guard) {
        let (code, relation, number, id) = match guard {
            Guard::Exists(_) => (guard::EXISTS, 0, 0, None),
            Guard::Unchanged(_, revision) => (guard::UNCHANGED, 0, *revision, None),
            Guard::NamespaceEmpty(_) => (guard::NAMESPACE_EMPTY, 0, 0, None),
            Guard::EventsAtMost { limit, .. } => (guard::EVENTS_AT_MOST, 0, *limit, None),
            Guard::Unclaimed { owner, .. } => (guard::UNCLAIMED, 0, 0, Some(*owner)),
            Guard::NoEdge { relation, .. } => (guard::EDGES_AT_MOST, *relation as i16, 0, None),
            Guard::EdgesAtMost { relation, limit, .. } => {
                (guard::EDGES_AT_MOST, *relation as i16, *limit, None)
            }
            Guard::Capacity { zero_is_unbounded, .. } => {
                (guard::CAPACITY, 0, i64::from(*zero_is_unbounded), None)
            }
            Guard::SessionIs { epoch, session, .. } => (guard::SESSION_IS, 0, *epoch, Some(*session)),
            Guard::LeaseIs { epoch, .. } => (guard::LEASE_IS, 0, *epoch, None),
        };
        let (kind, ns, name) = match guard {
            Guard::Exists(key)
            | Guard::Unchanged(key, _)
            | Guard::NoEdge { target: key, .. }
            | Guard::EdgesAtMost { target: key, .. } => {
                (key.kind.number(), key.namespace.as_str(), key.name.as_str())
            }
            Guard::NamespaceEmpty(name) | Guard::EventsAtMost { namespace: name, .. } => {
                (0, "", name.as_str())
            }
            Guard::Capacity { node, .. } | Guard::SessionIs { node, .. } => (0, "", node.as_str()),
            Guard::LeaseIs { name, .. } => (0, "", name.as_str()),
            Guard::Unclaimed { space, value, .. } => (0, space.as_str(), value.as_str()),
        };
        self.guard_code.push(code);
        self.guard_kind.push(kind);
        self.guard_ns.push(ns);
        self.guard_name.push(name);
        self.guard_relation.push(relation);
        self.guard_number.push(number);
        self.guard_id.push(id);
    }
}

impl PostgresBackend {
    pub(super) async fn commit_batch(&self, batch: &[Item], nonce: Uuid) -> Result<Done, BackendError> {
        let before = self.newest.load(Ordering::Relaxed);
        // A caller may also stop waiting, so it is noted before anything is sent.
        self.open.lock().insert(nonce, before);
        let answer = match self.send(batch, nonce).await {
            Err(error) if errors::lacks_partition(&error) => {
                self.ensure_partitions(before).await?;
                self.send(batch, nonce).await
            }
            sent => sent,
        };
        let (done, newest) = self.written(answer).inspect_err(|error| {
            if !matches!(error, BackendError::Unknown(_)) {
                self.open.lock().remove(&nonce);
            }
        })?;
        self.open.lock().remove(&nonce);
        self.newest.fetch_max(newest, Ordering::Relaxed);
        self.make_room(newest);
        Ok(done)
    }

    async fn send(&self, batch: &[Item], nonce: Uuid) -> Result<(Done, Revision), sqlx::Error> {
        match batch {
            [item] if is_plain(item) => match self.send_one(item, nonce).await {
                Ok(row) => return read_one(item, &row),
                Err(error) if errors::is_refused_later(&error) => {}
                Err(error) => return Err(error),
            },
            _ => {}
        }
        let row = self.send_batch(batch, nonce).await?;
        read_done(batch, &row)
    }

    async fn send_one(&self, item: &Item, nonce: Uuid) -> Result<PgRow, sqlx::Error> {
        let c = Columns::of(std::slice::from_ref(item));
        let span = c.item_span[0];
        let statement =
            if span.is_some() { statements::COMMIT_OBJECT_TRACED } else { statements::COMMIT_OBJECT };
        let query = sqlx::query(statement.sql)
            .bind(nonce)
            .bind(&item.who.user)
            .bind(&item.who.verb)
            .bind(item.who.audit_id)
            .bind(c.item_trace[0])
            .bind(c.op_code[0])
            .bind(c.op_kind[0])
            .bind(c.op_ns[0])
            .bind(c.op_name[0])
            .bind(c.op_uid[0])
            .bind(c.op_expect[0])
            .bind(c.op_generation[0])
            .bind(c.op_flag[0])
            .bind(c.op_node[0])
            .bind(c.op_phase[0])
            .bind(c.op_cpu[0])
            .bind(c.op_memory[0])
            .bind(c.op_index[0].as_deref())
            .bind(c.op_managed[0])
            .bind(c.op_body[0])
            .bind(c.op_edge_hash[0])
            .bind(c.guard_code)
            .bind(c.guard_kind)
            .bind(c.guard_ns)
            .bind(c.guard_name)
            .bind(c.guard_relation)
            .bind(c.guard_number)
            .bind(c.guard_id)
            .bind(c.edge_relation)
            .bind(c.edge_kind)
            .bind(c.edge_ns)
            .bind(c.edge_name)
            .bind(&c.op_code[1..])
            .bind(&c.op_ns[1..])
            .bind(&c.op_name[1..])
            .bind(&c.op_uid[1..])
            .bind(&c.op_flag[1..]);
        let query = if span.is_some() { query.bind(span) } else { query };
        let mut lane = self.writer.lane().await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let call = self.observed(statement, query.fetch_one(&mut *lane));
        let outcome = timeout(CALL_LIMIT, call).await;
        lane.end(outcome)
    }

    async fn send_batch(&self, batch: &[Item], nonce: Uuid) -> Result<PgRow, sqlx::Error> {
        let c = Columns::of(batch);
        let spans = Some(c.item_span).filter(|spans| spans.iter().any(Option::is_some));
        let statement = if spans.is_some() { statements::COMMIT_TRACED } else { statements::COMMIT };
        let query = sqlx::query(statement.sql)
            .bind(nonce)
            .bind(c.segments)
            .bind(c.item_ops)
            .bind(c.item_guards)
            .bind(c.item_who)
            .bind(c.item_verb)
            .bind(c.item_audit)
            .bind(c.item_trace)
            .bind(c.op_item)
            .bind(c.op_code)
            .bind(c.op_kind)
            .bind(c.op_ns)
            .bind(c.op_name)
            .bind(c.op_uid)
            .bind(c.op_expect)
            .bind(c.op_generation)
            .bind(c.op_flag)
            .bind(c.op_node)
            .bind(c.op_phase)
            .bind(c.op_cpu)
            .bind(c.op_memory)
            .bind(c.op_index)
            .bind(c.op_managed)
            .bind(c.op_body)
            .bind(c.op_edge_hash)
            .bind(c.op_edges)
            .bind(c.guard_item)
            .bind(c.guard_code)
            .bind(c.guard_kind)
            .bind(c.guard_ns)
            .bind(c.guard_name)
            .bind(c.guard_relation)
            .bind(c.guard_number)
            .bind(c.guard_id)
            .bind(c.edge_op)
            .bind(c.edge_relation)
            .bind(c.edge_kind)
            .bind(c.edge_ns)
            .bind(c.edge_name);
        let query = if spans.is_some() { query.bind(spans) } else { query };
        let mut lane = self.writer.lane().await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let call = self.observed(statement, query.fetch_one(&mut *lane));
        let outcome = timeout(CALL_LIMIT, call).await;
        lane.end(outcome)
    }

    pub(super) async fn settle_nonce(
        &self,
        nonce: Uuid,
    ) -> Result<Option<Vec<Option<Committed>>>, BackendError> {
        let since = self.open.lock().get(&nonce).copied().unwrap_or(0);
        let query = sqlx::query(statements::SETTLE.sql).bind(nonce).bind(since);
        let row = self.change_one(statements::SETTLE, query).await?;
        self.open.lock().remove(&nonce);
        read_settled(&row).map_err(errors::of_read)
    }

    /// Makes partitions in the background when they get few, so that no commit ever waits for one.
    fn make_room(&self, newest: Revision) {
        let made = self.partitioned.load(Ordering::Relaxed);
        if newest + HEADROOM <= made {
            return;
        }
        // Claims the work for this process; put back if it fails.
        if self.partitioned.compare_exchange(made, i64::MAX, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let lanes = self.general.clone();
        let partitioned = std::sync::Arc::clone(&self.partitioned);
        self.tasks.spawn(async move {
            let make = async || {
                let mut lane = lanes.lane().await?;
                let query = sqlx::query_scalar::<_, i64>(statements::ENSURE_PARTITIONS.sql);
                let call = query.bind(newest).bind(SPANS_AHEAD).fetch_one(&mut *lane);
                let outcome = timeout(CALL_LIMIT, call).await;
                lane.end(outcome)
            };
            let made_to = make().await;
            if let Err(error) = &made_to {
                tracing::warn!(%error, "could not make partitions of the change log ahead");
            }
            partitioned.store(made_to.unwrap_or(0), Ordering::Relaxed);
        });
    }

    pub(super) async fn ensure_partitions(&self, at: Revision) -> Result<Revision, BackendError> {
        let at = at.max(self.read_head().await?.revision);
        let query = sqlx::query(statements::ENSURE_PARTITIONS.sql).bind(at).bind(SPANS_AHEAD);
        let row = self.change_one(statements::ENSURE_PARTITIONS, query).await?;
        let made_to: i64 = row.try_get(0).map_err(errors::of_read)?;
        self.partitioned.store(made_to, Ordering::Relaxed);
        Ok(made_to)
    }
}

fn read_done(batch: &[Item], row: &PgRow) -> Result<(Done, Revision), sqlx::Error> {
    let revisions: Vec<i64> = row.try_get("revisions")?;
    let refused: Vec<i32> = row.try_get("refused_item")?;
    let mut newest = 0;
    let mut items = Vec::with_capacity(batch.len());
    let mut rest = revisions.as_slice();
    for item in batch {
        let (own, after) = rest.split_at_checked(item.ops.len()).ok_or(sqlx::Error::RowNotFound)?;
        rest = after;
        newest = own.iter().copied().fold(newest, i64::max);
        items.push(Ok(Committed { revisions: own.to_vec() }));
    }
    if !refused.is_empty() {
        let code: Vec<i16> = row.try_get("refused_code")?;
        let at: Vec<i32> = row.try_get("refused_at")?;
        let head: Vec<i64> = row.try_get("refused_head")?;
        for (((number, code), at), head) in refused.iter().zip(code).zip(at).zip(head) {
            let number = usize::try_from(number - 1).unwrap_or(usize::MAX);
            let at = usize::try_from(at - 1).unwrap_or(usize::MAX);
            let (Some(item), Some(result)) = (batch.get(number), items.get_mut(number)) else {
                return Err(sqlx::Error::RowNotFound);
            };
            *result = Err(refusal(item, code, at, head).ok_or(sqlx::Error::RowNotFound)?);
        }
    }
    Ok((Done { items, anchor: anchor(row, newest)? }, newest))
}

fn read_one(item: &Item, row: &PgRow) -> Result<(Done, Revision), sqlx::Error> {
    let code: i16 = row.try_get("refused")?;
    let revision: Revision = row.try_get("revision")?;
    let result = if code == 0 {
        let mut revisions = vec![0; item.ops.len()];
        revisions[0] = revision;
        Ok(Committed { revisions })
    } else {
        let at = usize::try_from(row.try_get::<i32, _>("refused_at")? - 1).unwrap_or(usize::MAX);
        Err(refusal(item, code, at, row.try_get("refused_head")?).ok_or(sqlx::Error::RowNotFound)?)
    };
    Ok((Done { items: vec![result], anchor: anchor(row, revision)? }, revision.max(0)))
}

/// The row before the first new one; nothing if nothing was added.
fn anchor(row: &PgRow, newest: Revision) -> Result<Option<Fingerprint>, sqlx::Error> {
    if newest <= 0 {
        return Ok(None);
    }
    let Some(name) = row.try_get::<Option<String>, _>("anchor_name")? else { return Ok(None) };
    let Some(kind) = Kind::from_number(row.try_get("anchor_kind")?) else { return Ok(None) };
    let key = Key { kind, namespace: row.try_get("anchor_ns")?, name };
    let (uid, audit) = (row.try_get("anchor_uid")?, row.try_get("anchor_audit")?);
    Ok(Some(Fingerprint::of(row.try_get("anchor_rv")?, &key, uid, audit)))
}

/// Whether `commit_object` can take it: one operation and what it claims or gives back, and no guard that is judged
/// after it.
fn is_plain(item: &Item) -> bool {
    let along = |op: &Op| matches!(op, Op::Claim { .. } | Op::Release { .. });
    !item.ops.is_empty()
        && item.ops.iter().skip(1).all(along)
        && !item.guards.iter().any(|guard| matches!(guard, Guard::Capacity { .. }))
}

fn read_settled(row: &PgRow) -> Result<Option<Vec<Option<Committed>>>, sqlx::Error> {
    let Some(revisions) = row.try_get::<Option<Vec<i64>>, _>("revisions")? else { return Ok(None) };
    let ends: Vec<i32> = row.try_get("items")?;
    let mut start = 0;
    let mut items = Vec::with_capacity(ends.len());
    for end in ends {
        let end = usize::try_from(end).unwrap_or(0);
        let own = revisions.get(start..end).ok_or(sqlx::Error::RowNotFound)?;
        items.push((!own.contains(&-1)).then(|| Committed { revisions: own.to_vec() }));
        start = end;
    }
    Ok(Some(items))
}

fn refusal(item: &Item, code: i16, at: usize, head: Revision) -> Option<Refusal> {
    if code == reason::GUARD {
        return Some(Refusal::Guard { index: at, guard: item.guards.get(at)?.clone() });
    }
    let op = item.ops.get(at)?;
    let key = || op.key().cloned();
    Some(match (code, op) {
        (reason::EXISTS, _) => Refusal::AlreadyExists(key()?),
        (reason::NOT_FOUND, _) => Refusal::NotFound(key()?),
        (reason::CONFLICT, _) => Refusal::Conflict { key: key()?, head },
        (reason::CLAIM_TAKEN, Op::Claim { space, value, .. }) => {
            Refusal::ClaimTaken { space: space.clone(), value: value.clone() }
        }
        _ => return None,
    })
}

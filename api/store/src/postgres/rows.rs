//! Rows of the database as the store's types.

use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use horchestra_trace::Trace;
use sqlx::Row;
use sqlx::error::BoxDynError;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::encode;
use crate::backend::{ClaimRow, Fingerprint, Head, HistoryRow, Identity, LogRow};
use crate::types::{Attribution, Change, ChangeKind, Columns, Draft, Entry, Index, Revision};

type Result<T> = std::result::Result<T, sqlx::Error>;

fn odd(what: impl Into<BoxDynError>) -> sqlx::Error {
    sqlx::Error::Decode(what.into())
}

fn kind(number: i16) -> Result<Kind> {
    Kind::from_number(number).ok_or_else(|| odd(format!("kind number {number} is not known")))
}

fn key(row: &PgRow) -> Result<Key> {
    Ok(Key { kind: kind(row.try_get("kind")?)?, namespace: row.try_get("ns")?, name: row.try_get("name")? })
}

fn bytes(row: &PgRow, column: &str) -> Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.try_get::<&[u8], _>(column)?))
}

fn managed(row: &PgRow) -> Result<Option<Bytes>> {
    Ok(row.try_get::<Option<&[u8]>, _>("managed")?.map(Bytes::copy_from_slice))
}

fn index(stored: &[u8]) -> Result<Index> {
    encode::read_index(stored).map_err(odd)
}

/// An entry from the columns that `objects`, `events` and the undo query share. A deletion moves both
/// revisions.
pub fn entry(row: &PgRow) -> Result<Entry> {
    let draft = Draft {
        key: key(row)?,
        uid: row.try_get("uid")?,
        generation: row.try_get("generation")?,
        deleting: row.try_get("deleting")?,
        body: bytes(row, "body")?,
        managed: managed(row)?,
        index: index(row.try_get("index")?)?,
        columns: Columns {
            node: row.try_get("node")?,
            phase: row.try_get("phase")?,
            cpu: row.try_get("cpu")?,
            memory: row.try_get("memory")?,
        },
        edges: Vec::new(),
    };
    Ok(Entry::new(draft, row.try_get("rv")?, row.try_get("core_rv")?))
}

pub fn attribution(row: &PgRow) -> Result<Attribution> {
    Ok(Attribution {
        user: row.try_get("who")?,
        verb: row.try_get("verb")?,
        audit_id: row.try_get("audit")?,
        trace: row.try_get::<Option<Uuid>, _>("trace")?.map(|id| Trace::unrecorded(id.into_bytes())),
    })
}

pub fn log_row(row: &PgRow) -> Result<LogRow> {
    let entry = Arc::new(entry(row)?);
    let revision = entry.revision;
    let kind = match row.try_get::<i16, _>("op")? {
        1 => ChangeKind::Added,
        2 => ChangeKind::Modified,
        3 => ChangeKind::Deleted,
        other => return Err(odd(format!("operation {other} is not known"))),
    };
    let (previous, previous_columns) = match kind {
        ChangeKind::Added => (None, None),
        // The state before a deletion is the state it shows.
        ChangeKind::Deleted => (Some(Arc::clone(&entry.index)), Some(Arc::clone(&entry.columns))),
        ChangeKind::Modified => {
            let columns = Columns {
                node: row.try_get("prev_node")?,
                phase: row.try_get("prev_phase")?,
                cpu: row.try_get("prev_cpu")?,
                memory: row.try_get("prev_memory")?,
            };
            (Some(Arc::new(index(row.try_get("prev_index")?)?)), Some(Arc::new(columns)))
        }
    };
    let span = row.try_get::<Option<i64>, _>("span")?.and_then(|span| NonZeroU64::new(span.cast_unsigned()));
    let mut who = attribution(row)?;
    who.trace = who.trace.map(|trace| Trace { span, ..trace });
    Ok(LogRow {
        change: Change { kind, revision, entry, previous, previous_columns, before: None },
        previous_revision: row.try_get("prev_rv")?,
        who,
        at: row.try_get("at")?,
    })
}

pub fn head(row: &PgRow) -> Result<Head> {
    Ok(Head {
        revision: row.try_get("head")?,
        oldest: row.try_get("oldest")?,
        identity: Identity {
            system: row.try_get("system")?,
            database: row.try_get("database")?,
            epoch: row.try_get("epoch")?,
        },
    })
}

/// The row that the statement joined as its anchor, if there is one.
pub fn anchor(row: &PgRow) -> Result<Option<Fingerprint>> {
    let Some(revision) = row.try_get::<Option<Revision>, _>("anchor_rv")? else { return Ok(None) };
    let key = Key {
        kind: kind(row.try_get("anchor_kind")?)?,
        namespace: row.try_get("anchor_ns")?,
        name: row.try_get("anchor_name")?,
    };
    Ok(Some(Fingerprint::of(revision, &key, row.try_get("anchor_uid")?, row.try_get("anchor_audit")?)))
}

pub fn claim(row: &PgRow) -> Result<ClaimRow> {
    Ok(ClaimRow {
        space: row.try_get("space")?,
        value: row.try_get("value")?,
        owner: row.try_get("owner")?,
        shared: row.try_get("shared")?,
    })
}

pub fn history(row: &PgRow) -> Result<HistoryRow> {
    Ok(HistoryRow {
        key: key(row)?,
        uid: row.try_get("uid")?,
        revision: row.try_get("rv")?,
        generation: row.try_get("generation")?,
        deleted: row.try_get("deleted")?,
        body: bytes(row, "body")?,
        who: attribution(row)?,
        at: row.try_get("at")?,
    })
}

//! Sealed bodies: listing them, and putting others in their place.

use bytes::Bytes;
use horchestra_core::kind::{Key, Kind};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{PostgresBackend, errors, statements};
use crate::backend::BackendError;
use crate::sealing::{KeyUse, Place, Resealed, SealedBody, SealedStretch, check_resealed};
use crate::types::Revision;

/// Revisions of the log that one statement looks at: it has no index by kind.
const STRETCH: Revision = 10_000;

impl PostgresBackend {
    pub(super) async fn read_sealed_heads(
        &self,
        kind: Kind,
        after: (&str, &str),
        limit: usize,
    ) -> Result<Vec<SealedBody>, BackendError> {
        let query = sqlx::query(statements::SEALED_HEADS.sql)
            .bind(kind.number())
            .bind(after.0)
            .bind(after.1)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.read(statements::SEALED_HEADS, query).await?;
        let heads = rows.iter().map(|row| body(row, kind, Place::Head, "uid", "body"));
        let heads: Result<Vec<Option<SealedBody>>, sqlx::Error> = heads.collect();
        Ok(heads.map_err(errors::of_read)?.into_iter().flatten().collect())
    }

    pub(super) async fn read_sealed_log(
        &self,
        kind: Kind,
        after: Revision,
        limit: usize,
    ) -> Result<SealedStretch, BackendError> {
        let head = self.read_head().await?;
        let from = after.max(head.oldest);
        let to = head.revision.min(from.saturating_add(STRETCH)).max(from);
        let query = sqlx::query(statements::SEALED_LOG.sql)
            .bind(kind.number())
            .bind(from)
            .bind(to)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.read(statements::SEALED_LOG, query).await?;
        let decode = || {
            let mut bodies = Vec::with_capacity(rows.len());
            for row in &rows {
                bodies.extend(body(row, kind, Place::Log, "uid", "body")?);
                bodies.extend(body(row, kind, Place::Before, "prev_uid", "prev_body")?);
            }
            let upto = match rows.last() {
                Some(last) if rows.len() >= limit => last.try_get("rv")?,
                _ => to,
            };
            Ok(SealedStretch { bodies, upto })
        };
        decode().map_err(errors::of_read)
    }

    pub(super) async fn replace_seals(&self, bodies: &[Resealed]) -> Result<usize, BackendError> {
        bodies.iter().try_for_each(check_resealed).map_err(BackendError::Rejected)?;
        let column = |of: fn(&Resealed) -> &[u8]| bodies.iter().map(of).collect::<Vec<&[u8]>>();
        let query = sqlx::query(statements::RESEAL.sql)
            .bind(bodies.iter().map(|body| body.old.place as i16).collect::<Vec<_>>())
            .bind(bodies.iter().map(|body| body.old.key.namespace.as_str()).collect::<Vec<_>>())
            .bind(bodies.iter().map(|body| body.old.key.name.as_str()).collect::<Vec<_>>())
            .bind(bodies.iter().map(|body| body.old.revision).collect::<Vec<_>>())
            .bind(column(|body| &body.old.body))
            .bind(column(|body| &body.body));
        let row = self.change_one(statements::RESEAL, query).await?;
        let done: i32 = row.try_get(0).map_err(errors::of_read)?;
        Ok(usize::try_from(done).unwrap_or(0))
    }

    pub(super) async fn read_key_use(&self) -> Result<Vec<KeyUse>, BackendError> {
        let rows = self.read(statements::KEY_USE, sqlx::query(statements::KEY_USE.sql)).await?;
        let decode = |row: &PgRow| {
            let objects: i64 = row.try_get("objects")?;
            Ok(KeyUse { key_id: row.try_get("key_id")?, objects: u64::try_from(objects).unwrap_or(0) })
        };
        rows.iter().map(decode).collect::<Result<_, sqlx::Error>>().map_err(errors::of_read)
    }
}

/// The body in these columns; `None` where there is none.
fn body(
    row: &PgRow,
    kind: Kind,
    place: Place,
    uid: &str,
    body: &str,
) -> Result<Option<SealedBody>, sqlx::Error> {
    let Some(bytes) = row.try_get::<Option<&[u8]>, _>(body)? else { return Ok(None) };
    let key = Key { kind, namespace: row.try_get("ns")?, name: row.try_get("name")? };
    let uid: Uuid = row.try_get(uid)?;
    let revision = row.try_get("rv")?;
    Ok(Some(SealedBody { place, revision, key, uid, body: Bytes::copy_from_slice(bytes) }))
}

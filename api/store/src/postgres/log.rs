//! Reading: the head, the log, whole kinds, and the past.

use std::sync::Arc;

use futures::TryStreamExt;
use horchestra_core::kind::{Key, Kind};
use sqlx::Row;
use tokio::time::timeout;
use uuid::Uuid;

use super::lanes::LOAD_LIMIT;
use super::{PostgresBackend, errors, rows, statements};
use crate::backend::{
    BackendError, Changes, ClaimRow, Head, HistoryOf, HistoryRow, Loaded, OwnedClaim, Undone,
};
use crate::types::Revision;

impl PostgresBackend {
    pub(super) async fn read_head(&self) -> Result<Head, BackendError> {
        let found = self.read(statements::HEAD, sqlx::query(statements::HEAD.sql)).await?;
        let row = found.first().ok_or_else(no_state)?;
        rows::head(row).map_err(errors::of_read)
    }

    pub(super) async fn read_changes(&self, after: Revision, limit: usize) -> Result<Changes, BackendError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        // A partition that goes away between planning and reading can leave a hole; the next look knows the
        // new oldest revision.
        for attempt in 0.. {
            let query = sqlx::query(statements::CHANGES.sql).bind(after).bind(limit);
            let found = self.read(statements::CHANGES, query).await?;
            let first = found.first().ok_or_else(no_state)?;
            let decode = || {
                let head = rows::head(first)?;
                let anchor = rows::anchor(first)?;
                let mut list = Vec::with_capacity(found.len());
                for row in &found {
                    if row.try_get::<Option<i64>, _>("rv")?.is_some() {
                        list.push(rows::log_row(row)?);
                    }
                }
                Ok(Changes { anchor, rows: list, head })
            };
            let changes = decode().map_err(errors::of_read)?;
            // A hole that stays is for the reader to notice: it loads everything anew.
            if attempt >= 2 || is_contiguous(&changes, after) {
                return Ok(changes);
            }
        }
        Err(no_state())
    }

    pub(super) async fn load_kinds(&self, kinds: &[Kind]) -> Result<Loaded, BackendError> {
        let numbers: Vec<i16> = kinds.iter().map(|kind| kind.number()).collect();
        let mut lane = self.general.lane().await.map_err(errors::of_connect)?;
        let load = async {
            let mut tx =
                sqlx::Connection::begin_with(&mut *lane, "begin isolation level repeatable read read only")
                    .await?;
            sqlx::query(statements::LOAD_TIMEOUT).execute(&mut *tx).await?;
            let head = rows::head(&sqlx::query(statements::HEAD.sql).fetch_one(&mut *tx).await?)?;
            let anchor = sqlx::query(statements::ANCHOR.sql)
                .bind(head.revision)
                .fetch_optional(&mut *tx)
                .await?
                .map_or(Ok(None), |row| rows::anchor(&row))?
                .filter(|_| head.revision > head.oldest);
            let mut entries = Vec::new();
            let mut stream = sqlx::query(statements::LOAD.sql).bind(numbers).fetch(&mut *tx);
            while let Some(row) = stream.try_next().await? {
                entries.push(Arc::new(rows::entry(&row)?));
            }
            drop(stream);
            tx.commit().await?;
            Ok(Loaded { head, anchor, entries })
        };
        let outcome = timeout(LOAD_LIMIT, self.observed(statements::LOAD, load)).await;
        lane.end(outcome).map_err(errors::of_read)
    }

    pub(super) async fn undo_changes(
        &self,
        kind: Kind,
        from: Revision,
        to: Revision,
    ) -> Result<Option<Undone>, BackendError> {
        let query = sqlx::query(statements::UNDO.sql).bind(kind.number()).bind(to).bind(from);
        let found = self.read(statements::UNDO, query).await?;
        // Asked afterwards: what was whole then was whole while it was read.
        if to < self.read_head().await?.oldest {
            return Ok(None);
        }
        let decode = |row: &sqlx::postgres::PgRow| {
            let key = Key { kind, namespace: row.try_get("ns")?, name: row.try_get("name")? };
            if row.try_get::<i64, _>("rv")? == 0 {
                return Ok((key, None));
            }
            Ok((key, Some(Arc::new(rows::entry(row)?))))
        };
        let undone: Undone =
            found.iter().map(decode).collect::<Result<_, sqlx::Error>>().map_err(errors::of_read)?;
        Ok(Some(undone))
    }

    pub(super) async fn read_history(&self, of: HistoryOf) -> Result<Vec<HistoryRow>, BackendError> {
        let found = match &of {
            HistoryOf::Uid(uid) => {
                let query = sqlx::query(statements::HISTORY_OF_UID.sql).bind(uid);
                self.read(statements::HISTORY_OF_UID, query).await?
            }
            HistoryOf::Key(key) => {
                let query = sqlx::query(statements::HISTORY_OF_KEY.sql)
                    .bind(key.kind.number())
                    .bind(&key.namespace)
                    .bind(&key.name);
                self.read(statements::HISTORY_OF_KEY, query).await?
            }
        };
        found.iter().map(rows::history).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn read_tombstones(&self, uids: &[Uuid]) -> Result<Vec<HistoryRow>, BackendError> {
        let query = sqlx::query(statements::TOMBSTONES.sql).bind(uids);
        let found = self.read(statements::TOMBSTONES, query).await?;
        found.iter().map(rows::history).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn read_all_claims(
        &self,
        after: Option<&ClaimRow>,
        limit: usize,
    ) -> Result<Vec<OwnedClaim>, BackendError> {
        let (space, value, owner) = after
            .map_or(("", "", Uuid::nil()), |claim| (claim.space.as_str(), claim.value.as_str(), claim.owner));
        let query = sqlx::query(statements::ALL_CLAIMS.sql)
            .bind(space)
            .bind(value)
            .bind(owner)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let found = self.read(statements::ALL_CLAIMS, query).await?;
        let decode =
            |row| Ok(OwnedClaim { claim: rows::claim(row)?, owner_deleted: row.try_get("owner_deleted")? });
        found.iter().map(decode).collect::<Result<_, sqlx::Error>>().map_err(errors::of_read)
    }
}

fn no_state() -> BackendError {
    BackendError::Unavailable("the schema has not been migrated".into())
}

fn is_contiguous(changes: &Changes, after: Revision) -> bool {
    let mut expected = after.max(changes.head.oldest);
    let mut rows = changes.rows.iter();
    let whole = rows.all(|row| {
        expected += 1;
        row.change.revision == expected
    });
    // Nothing although there is something: the partition in between is gone.
    whole && !(changes.rows.is_empty() && expected < changes.head.revision)
}

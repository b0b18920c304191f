//! Upkeep of the log: partitions ahead, and the end of old ones.
//!
//! A partition is dropped when its newest row is older than the retention and it does not hold the head.
//! `oldest` is raised before anything goes, so a reader either still finds all rows or is told that they are
//! gone. Detaching is done concurrently (it waits for readers without stopping anybody); if it is
//! interrupted, the next round finishes it.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Row};
use tokio::time::timeout;

use super::connection::Bound;
use super::lanes::CALL_LIMIT;
use super::statements::Statement;
use super::{PostgresBackend, errors, statements};
use crate::backend::{BackendError, Retention, Upkeep};
use crate::types::Revision;

const SPAN: Revision = 262_144;
/// Revisions whose objects are trimmed in one statement.
const STRETCH: Revision = 10_000;
/// Tombstones that one statement ends.
const TOMBSTONES: u64 = 1_000;
/// Outcomes, or spans, that one statement ends.
const OUTCOMES: u64 = 100_000;
/// Partitions that a round takes out of the log, and statements of each sort of trimming in it: the lease of the
/// loop is looked at again between rounds, and its other work has its turn.
const PARTITIONS: usize = 16;
const TRIMMINGS: usize = 32;

/// A partition of the log: the n-th span of revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Partition {
    number: i64,
    /// Its detaching was interrupted.
    pending: bool,
}

impl Partition {
    fn of(name: &str, pending: bool) -> Option<Partition> {
        Some(Partition { number: name.strip_prefix("events_")?.parse().ok()?, pending })
    }

    fn name(self) -> String {
        format!("horchestra.events_{}", self.number)
    }

    fn start(self) -> Revision {
        self.number * SPAN
    }

    fn end(self) -> Revision {
        self.start() + SPAN
    }
}

fn rows_as_usize(rows: u64) -> usize {
    usize::try_from(rows).unwrap_or(usize::MAX)
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl PostgresBackend {
    pub(super) async fn maintain_log(&self, retention: Retention) -> Result<Upkeep, BackendError> {
        let mut done = Upkeep::default();
        let head = self.read_head().await?;
        self.ensure_partitions(head.revision).await?;
        // A snapshot that somebody keeps open makes detaching wait until it is given up: the next round goes on
        // with it, and the rest of the upkeep does not depend on it.
        if let Err(error) = self.detach_old(head.revision, retention.log, &mut done).await {
            tracing::warn!(%error, "old partitions of the change log stay for now");
        }
        done.oldest = self.read_head().await?.oldest;
        self.drop_detached(done.oldest).await?;
        self.trim(retention, &mut done).await?;
        done.headroom = self.headroom().await?;
        Ok(done)
    }

    async fn detach_old(&self, head: Revision, age: Duration, done: &mut Upkeep) -> Result<(), BackendError> {
        for partition in self.partitions().await?.into_iter().filter(|partition| partition.pending) {
            self.alter(format!(
                "alter table horchestra.events detach partition {} finalize",
                partition.name()
            ))
            .await?;
        }
        for partition in self.partitions().await? {
            if partition.end() > head || !self.is_older(partition, age).await? {
                break;
            }
            if done.partitions == PARTITIONS {
                done.unfinished = true;
                break;
            }
            let query = sqlx::query(statements::RAISE_OLDEST.sql).bind(partition.end() - 1);
            self.change(statements::RAISE_OLDEST, query).await?;
            self.alter(format!(
                "alter table horchestra.events detach partition {} concurrently",
                partition.name()
            ))
            .await?;
            done.partitions += 1;
        }
        Ok(())
    }

    /// How many more revisions the log has room for.
    pub async fn headroom(&self) -> Result<Revision, BackendError> {
        let head = self.read_head().await?.revision;
        let mut end = head + 1;
        for partition in self.partitions().await? {
            if !partition.pending && (partition.start()..partition.end()).contains(&end) {
                end = partition.end();
            }
        }
        Ok(end - head - 1)
    }

    /// Lowest first.
    async fn partitions(&self) -> Result<Vec<Partition>, BackendError> {
        let rows = self.read(statements::PARTITIONS, sqlx::query(statements::PARTITIONS.sql)).await?;
        let mut partitions = Vec::with_capacity(rows.len());
        for row in rows {
            let name: String = row.try_get("name").map_err(errors::of_read)?;
            let pending = row.try_get("pending").map_err(errors::of_read)?;
            partitions.extend(Partition::of(&name, pending));
        }
        partitions.sort();
        Ok(partitions)
    }

    /// Whether everything in the partition is older than `age`. An empty one below the head holds what was
    /// never written, and counts as old.
    async fn is_older(&self, partition: Partition, age: Duration) -> Result<bool, BackendError> {
        let query = sqlx::query(statements::NEWEST_AGE.sql).bind(partition.start()).bind(partition.end());
        let rows = self.read(statements::NEWEST_AGE, query).await?;
        let Some(row) = rows.first() else { return Ok(true) };
        Ok(row.try_get::<i64, _>(0).map_err(errors::of_read)? > micros(age))
    }

    async fn drop_detached(&self, oldest: Revision) -> Result<(), BackendError> {
        let query = sqlx::query(statements::DETACHED_PARTITIONS.sql);
        for row in self.read(statements::DETACHED_PARTITIONS, query).await? {
            let name: String = row.try_get("name").map_err(errors::of_read)?;
            if let Some(partition) = Partition::of(&name, false)
                && partition.end() - 1 <= oldest
            {
                self.alter(format!("drop table if exists {}", partition.name())).await?;
            }
        }
        Ok(())
    }

    async fn trim(&self, retention: Retention, done: &mut Upkeep) -> Result<(), BackendError> {
        self.trim_history(i64::try_from(retention.versions).unwrap_or(i64::MAX).max(1), done).await?;
        let age = micros(retention.tombstones);
        let query = sqlx::query(statements::TRIM_PUSH_RECORDS.sql).bind(age);
        self.change(statements::TRIM_PUSH_RECORDS, query).await?;
        let tombstones = statements::TRIM_TOMBSTONES;
        let (ended, more) =
            self.in_stretches(tombstones, || sqlx::query(tombstones.sql).bind(age), TOMBSTONES).await?;
        done.tombstones = ended;
        done.unfinished |= more;
        let outcomes = statements::TRIM_COMMITS;
        let (ended, more) = self.in_stretches(outcomes, || sqlx::query(outcomes.sql), OUTCOMES).await?;
        done.outcomes = ended;
        done.unfinished |= more;
        let (spans, oldest) = (statements::TRIM_SPANS, done.oldest);
        let (_, more) = self.in_stretches(spans, || sqlx::query(spans.sql).bind(oldest), OUTCOMES).await?;
        done.unfinished |= more;
        self.change(statements::TRIM_NONCES, sqlx::query(statements::TRIM_NONCES.sql)).await?;
        self.change(statements::TRIM_RELEASED, sqlx::query(statements::TRIM_RELEASED.sql)).await?;
        Ok(())
    }

    /// Repeats a statement that removes at most `stretch` rows until there are no more; answers how many it
    /// removed, and whether there may be more.
    async fn in_stretches<'q>(
        &self,
        statement: Statement,
        query: impl Fn() -> Bound<'q>,
        stretch: u64,
    ) -> Result<(usize, bool), BackendError> {
        let mut removed = 0;
        for _ in 0..TRIMMINGS {
            let rows = self.change(statement, query()).await?.rows_affected();
            removed += rows_as_usize(rows);
            if rows < stretch {
                return Ok((removed, false));
            }
        }
        Ok((removed, true))
    }

    /// Only objects that changed since the last time can have a version too many: the log says which.
    async fn trim_history(&self, versions: i64, done: &mut Upkeep) -> Result<(), BackendError> {
        let head = self.read_head().await?.revision;
        let rows = self.read(statements::TRIMMED, sqlx::query(statements::TRIMMED.sql)).await?;
        let mut from: Revision = match rows.first() {
            Some(row) => row.try_get(0).map_err(errors::of_read)?,
            None => return Ok(()),
        };
        for _ in 0..TRIMMINGS {
            if from >= head {
                return Ok(());
            }
            let to = head.min(from + STRETCH);
            let query = sqlx::query(statements::TRIM_HISTORY.sql).bind(from).bind(to).bind(versions);
            done.versions +=
                rows_as_usize(self.change(statements::TRIM_HISTORY, query).await?.rows_affected());
            let query = sqlx::query(statements::RAISE_TRIMMED.sql).bind(to);
            self.change(statements::RAISE_TRIMMED, query).await?;
            from = to;
        }
        done.unfinished |= from < head;
        Ok(())
    }

    /// Runs a change of the schema, outside of any transaction block. Its text is made of numbers and
    /// constants only.
    async fn alter(&self, sql: String) -> Result<(), BackendError> {
        let mut lane = self.general.lane().await.map_err(errors::of_connect)?;
        let outcome = timeout(CALL_LIMIT, sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *lane)).await;
        self.written(lane.end(outcome))?;
        Ok(())
    }
}

//! Records of pushes, and holds. See [`crate::pushes`] for what they are for.

use horchestra_core::kind::{Key, Kind};
use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{PostgresBackend, errors, statements};
use crate::backend::BackendError;
use crate::pushes::{Hold, Holding, Holds, Loss, PushChange, PushRecord};

impl PostgresBackend {
    pub(super) async fn read_push_records(
        &self,
        nodes: &[String],
    ) -> Result<(Vec<PushRecord>, Holds), BackendError> {
        let query = sqlx::query(statements::PUSH_RECORDS.sql).bind(nodes);
        let rows = self.read(statements::PUSH_RECORDS, query).await?;
        let mut records = vec![PushRecord::default(); nodes.len()];
        let mut fill = || {
            for row in &rows {
                let node: &str = row.try_get("node")?;
                let Some(at) = nodes.iter().position(|asked| asked == node) else { continue };
                records[at].revision = Some(row.try_get("revision")?);
                records[at].holdings.extend(holding(row)?);
            }
            Ok(())
        };
        fill().map_err(errors::of_read)?;
        // Read last: a hold that was engaged meanwhile counts.
        Ok((records, self.read_holds().await?))
    }

    pub(super) async fn write_pushes(&self, changes: &[PushChange]) -> Result<Vec<String>, BackendError> {
        let nodes: Vec<&str> = changes.iter().map(|change| change.node.as_str()).collect();
        let epochs: Vec<i64> = changes.iter().map(|change| change.grant.epoch).collect();
        let sessions: Vec<Uuid> = changes.iter().map(|change| change.grant.session).collect();
        let revisions: Vec<i64> = changes.iter().map(|change| change.revision).collect();
        let each = |pick: fn(&PushChange) -> &[Holding]| {
            changes.iter().flat_map(move |change| pick(change).iter().map(move |held| (change, held)))
        };
        let added = || each(|change| &change.add);
        let removed = || each(|change| &change.remove);
        let query = sqlx::query(statements::RECORD_PUSHES.sql)
            .bind(nodes)
            .bind(epochs)
            .bind(sessions)
            .bind(revisions)
            .bind(added().map(|(change, _)| change.node.as_str()).collect::<Vec<_>>())
            .bind(added().map(|(_, held)| held.key.kind.number()).collect::<Vec<_>>())
            .bind(added().map(|(_, held)| held.uid).collect::<Vec<_>>())
            .bind(added().map(|(_, held)| held.key.namespace.as_str()).collect::<Vec<_>>())
            .bind(added().map(|(_, held)| held.key.name.as_str()).collect::<Vec<_>>())
            .bind(removed().map(|(change, _)| change.node.as_str()).collect::<Vec<_>>())
            .bind(removed().map(|(_, held)| held.key.kind.number()).collect::<Vec<_>>())
            .bind(removed().map(|(_, held)| held.uid).collect::<Vec<_>>());
        let rows = self.change_some(statements::RECORD_PUSHES, query).await?;
        rows.iter().map(|row| row.try_get("node")).collect::<Result<_, _>>().map_err(errors::of_read)
    }

    pub(super) async fn read_holds(&self) -> Result<Holds, BackendError> {
        let rows = self.read(statements::HOLDS, sqlx::query(statements::HOLDS.sql)).await?;
        let mut holds = Holds::default();
        let mut fill = || {
            for row in &rows {
                let node: String = row.try_get("node")?;
                if row.try_get("released")? {
                    holds.released.insert(node);
                } else if node.is_empty() {
                    holds.cluster = Some(hold(row)?);
                } else {
                    holds.nodes.insert(node, hold(row)?);
                }
            }
            Ok(())
        };
        fill().map_err(errors::of_read)?;
        Ok(holds)
    }

    pub(super) async fn write_hold(
        &self,
        node: Option<&str>,
        reason: &str,
        message: &str,
    ) -> Result<(), BackendError> {
        let query =
            sqlx::query(statements::ENGAGE_HOLD.sql).bind(node.unwrap_or("")).bind(reason).bind(message);
        self.change(statements::ENGAGE_HOLD, query).await.map(drop)
    }

    pub(super) async fn end_hold(&self, node: Option<&str>) -> Result<bool, BackendError> {
        let query = sqlx::query(statements::RELEASE_HOLD.sql).bind(node);
        let row = self.change_one(statements::RELEASE_HOLD, query).await?;
        row.try_get(0).map_err(errors::of_read)
    }

    pub(super) async fn read_birth(&self) -> Result<i64, BackendError> {
        let rows = self.read(statements::BORN, sqlx::query(statements::BORN.sql)).await?;
        rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(errors::of_read)
    }

    pub(super) async fn look_home(&self, vouches: bool, patient: bool) -> Result<bool, BackendError> {
        let query = sqlx::query(statements::SETTLE_HOME.sql).bind(vouches).bind(patient);
        let row = self.change_one(statements::SETTLE_HOME, query).await?;
        row.try_get(0).map_err(errors::of_read)
    }

    pub(super) async fn write_loss(&self, loss: &Loss) -> Result<(), BackendError> {
        let query = sqlx::query(statements::SHOW_LOSS.sql)
            .bind(loss.known.epoch)
            .bind(&loss.known.system)
            .bind(&loss.known.database)
            .bind(loss.revision)
            .bind(loss.found.epoch)
            .bind(loss.begins)
            .bind(loss.reason())
            .bind(loss.message());
        self.change(statements::SHOW_LOSS, query).await.map(drop)
    }
}

/// Nothing where a record is empty, or of a kind that this version does not know.
fn holding(row: &PgRow) -> Result<Option<Holding>, sqlx::Error> {
    let Some(kind) = row.try_get::<Option<i16>, _>("kind")?.and_then(Kind::from_number) else {
        return Ok(None);
    };
    let key = Key { kind, namespace: row.try_get("ns")?, name: row.try_get("name")? };
    Ok(Some(Holding { key, uid: row.try_get("uid")? }))
}

fn hold(row: &PgRow) -> Result<Hold, sqlx::Error> {
    Ok(Hold {
        id: row.try_get("hold")?,
        since: row.try_get("since")?,
        reason: row.try_get("reason")?,
        message: row.try_get("message")?,
    })
}

//! Reading which migrations have run; see the crate's module `schema`.

use sqlx::Row;

use super::statements::{MIGRATED, SCHEMA};
use super::{PostgresBackend, errors, migrate};
use crate::backend::BackendError;
use crate::schema::Schema;

impl PostgresBackend {
    pub(super) async fn read_schema(&self) -> Result<Schema, BackendError> {
        let known = migrate::newest();
        let never = Schema { newest: None, needed: 0, known };
        let rows = self.read(MIGRATED, sqlx::query(MIGRATED.sql)).await?;
        let there = rows.first().map_or(Ok(false), |row| row.try_get(0)).map_err(errors::of_read)?;
        if !there {
            return Ok(never);
        }
        let rows = self.read(SCHEMA, sqlx::query(SCHEMA.sql)).await?;
        rows.first().map_or(Ok(never), |row| of_row(row, known)).map_err(errors::of_read)
    }
}

/// Of a row of [`SCHEMA`].
pub(super) fn of_row(row: &sqlx::postgres::PgRow, known: i64) -> Result<Schema, sqlx::Error> {
    let newest: i64 = row.try_get("newest")?;
    Ok(Schema { newest: (newest > 0).then_some(newest), needed: row.try_get("needed")?, known })
}

//! Running statements of the catalogue outside the write path.

use sqlx::postgres::{PgArguments, PgQueryResult, PgRow, Postgres};
use sqlx::query::Query;

use super::statements::Statement;
use super::{PostgresBackend, errors};
use crate::backend::BackendError;

pub(super) type Bound<'q> = Query<'q, Postgres, PgArguments>;

impl PostgresBackend {
    pub(super) async fn read(
        &self,
        statement: Statement,
        query: Bound<'_>,
    ) -> Result<Vec<PgRow>, BackendError> {
        let mut connection = self.general.acquire().await.map_err(errors::of_connect)?;
        self.observed(statement, query.fetch_all(&mut *connection)).await.map_err(errors::of_read)
    }

    /// Runs a statement that changes something.
    pub(super) async fn change(
        &self,
        statement: Statement,
        query: Bound<'_>,
    ) -> Result<PgQueryResult, BackendError> {
        let mut connection = self.general.acquire().await.map_err(errors::of_connect)?;
        self.observed(statement, query.execute(&mut *connection)).await.map_err(errors::of_change)
    }

    /// As [`PostgresBackend::change`], for the rows that come back.
    pub(super) async fn change_some(
        &self,
        statement: Statement,
        query: Bound<'_>,
    ) -> Result<Vec<PgRow>, BackendError> {
        let mut connection = self.general.acquire().await.map_err(errors::of_connect)?;
        self.observed(statement, query.fetch_all(&mut *connection)).await.map_err(errors::of_change)
    }

    /// As [`PostgresBackend::change`], for the one row that comes back.
    pub(super) async fn change_one(
        &self,
        statement: Statement,
        query: Bound<'_>,
    ) -> Result<PgRow, BackendError> {
        let mut connection = self.general.acquire().await.map_err(errors::of_connect)?;
        self.observed(statement, query.fetch_one(&mut *connection)).await.map_err(errors::of_change)
    }
}

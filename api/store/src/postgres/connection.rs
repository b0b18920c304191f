//! Running statements of the catalogue outside the write path.

use sqlx::postgres::{PgArguments, PgQueryResult, PgRow, Postgres};
use sqlx::query::Query;
use tokio::time::timeout;

use super::lanes::CALL_LIMIT;
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
        let mut lane = self.general.lane().await.map_err(errors::of_connect)?;
        let outcome = timeout(CALL_LIMIT, self.observed(statement, query.fetch_all(&mut *lane))).await;
        lane.end(outcome).map_err(errors::of_read)
    }

    /// Runs a statement that changes something.
    pub(super) async fn change(
        &self,
        statement: Statement,
        query: Bound<'_>,
    ) -> Result<PgQueryResult, BackendError> {
        let mut lane = self.general.lane().await.map_err(errors::of_connect)?;
        let outcome = timeout(CALL_LIMIT, self.observed(statement, query.execute(&mut *lane))).await;
        self.written(lane.end(outcome))
    }

    /// As [`PostgresBackend::change_some`], for a term that must not run out because everybody reads: on the connections
    /// of the writer, of which a commit takes one.
    pub(super) async fn prolong(
        &self,
        statement: Statement,
        query: Bound<'_>,
    ) -> Result<Vec<PgRow>, BackendError> {
        let mut lane = self.writer.lane().await.map_err(errors::of_connect)?;
        let outcome = timeout(CALL_LIMIT, self.observed(statement, query.fetch_all(&mut *lane))).await;
        self.written(lane.end(outcome))
    }

    /// As [`PostgresBackend::change`], for the rows that come back.
    pub(super) async fn change_some(
        &self,
        statement: Statement,
        query: Bound<'_>,
    ) -> Result<Vec<PgRow>, BackendError> {
        let mut lane = self.general.lane().await.map_err(errors::of_connect)?;
        let outcome = timeout(CALL_LIMIT, self.observed(statement, query.fetch_all(&mut *lane))).await;
        self.written(lane.end(outcome))
    }

    /// As [`PostgresBackend::change`], for the one row that comes back.
    pub(super) async fn change_one(
        &self,
        statement: Statement,
        query: Bound<'_>,
    ) -> Result<PgRow, BackendError> {
        let mut lane = self.general.lane().await.map_err(errors::of_connect)?;
        let outcome = timeout(CALL_LIMIT, self.observed(statement, query.fetch_one(&mut *lane))).await;
        self.written(lane.end(outcome))
    }
}

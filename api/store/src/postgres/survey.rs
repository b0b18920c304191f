//! Reading what the server knows of itself; see the crate's module `survey`.

use sqlx::Row;

use super::statements::SURVEY;
use super::{PostgresBackend, errors};
use crate::backend::BackendError;
use crate::survey::Survey;

impl PostgresBackend {
    pub(super) async fn read_survey(&self) -> Result<Survey, BackendError> {
        let rows = self.read(SURVEY, sqlx::query(SURVEY.sql)).await?;
        let decoded =
            rows.iter().map(|row| Ok((row.try_get("what")?, row.try_get("of")?, row.try_get("value")?)));
        Ok(Survey { rows: decoded.collect::<Result<_, _>>().map_err(errors::of_read)? })
    }
}

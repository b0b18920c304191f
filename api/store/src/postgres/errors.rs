//! Which failure of the driver means what.

use sqlx::Error;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use super::between::{self, MIXED_UP};
use crate::backend::{BackendError, Unwritable};

/// The schema could not be brought up to date, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("the database URL is malformed: write it as postgres://user@host:5432/database")]
    Url(#[source] Error),
    #[error(
        "the database cannot be reached: see whether PostgreSQL runs, may be reached from here, and knows the user \
         and the database"
    )]
    Connect(#[source] Error),
    #[error(
        "this user may not change the schema: migrate as the owner of the database, or as who has migrated before"
    )]
    Forbidden(#[source] Error),
    #[error(
        "a migration waits for a transaction that does not end. Nothing was changed. Find it (select pid, \
         application_name, xact_start, state from pg_stat_activity order by xact_start), let it finish or end it \
         with pg_terminate_backend(pid), and migrate again"
    )]
    Busy(#[source] Error),
    #[error(
        "migration {0} has run in this database in another form than this program has it: this is no released \
         version, or was built from changed files. Use a released one"
    )]
    Changed(i64),
    #[error(
        "the database is reached through a pooler that lends connections for single transactions, over which nobody can \
         make sure that no two migrate at once: name the database itself with --database-url"
    )]
    Pooled,
    #[error("a migration failed and was taken back; the ones before it stay. What runs can go on")]
    Run(#[source] sqlx::migrate::MigrateError),
    #[error("the first objects could not be stored: migrate again")]
    Seed(#[source] BackendError),
    #[error("a statement of the migration failed: migrate again, it goes on where it was")]
    Statement(#[source] Error),
}

impl MigrateError {
    pub(super) fn of_run(error: sqlx::migrate::MigrateError) -> MigrateError {
        use sqlx::migrate::MigrateError::{Execute, ExecuteMigration, VersionMismatch};
        match error {
            VersionMismatch(number) => MigrateError::Changed(number),
            Execute(error) | ExecuteMigration(error, _) if code(&error).as_deref() == Some("55P03") => {
                MigrateError::Busy(error)
            }
            Execute(error) | ExecuteMigration(error, _) if code(&error).as_deref() == Some("42501") => {
                MigrateError::Forbidden(error)
            }
            error => MigrateError::Run(error),
        }
    }
}

/// Whether a server that is there takes no writes, and why.
pub(super) fn unwritable(error: &Error) -> Option<Unwritable> {
    match code(error)?.as_str() {
        "25006" => Some(Unwritable::ReadOnly),
        "53100" => Some(Unwritable::Full),
        _ => None,
    }
}

fn code(error: &Error) -> Option<String> {
    error.as_database_error()?.code().map(|code| code.into_owned())
}

/// Whether nothing more comes on the session. Poolers say so as well as servers, as when they have lost theirs in the
/// middle of a statement.
pub(super) fn ends_session(error: &PgDatabaseError) -> bool {
    matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic) || error.code().starts_with("57P")
}

/// Raised by `commit_batch` for a nonce that was settled.
const GIVEN_UP: &str = "HZ002";

/// Raised by `commit_object` when an operation after the first is refused; nothing is stored.
const REFUSED_LATER: &str = "HZ004";

/// `commit_object` cannot say why the item is refused.
pub fn is_refused_later(error: &Error) -> bool {
    matches!(error, Error::Database(database) if database.code().as_deref() == Some(REFUSED_LATER))
}

/// The log has no partition for the next revision. There is no constraint of ours on the log's tables that
/// a well-formed write could break, so the code is unmistakable.
pub fn lacks_partition(error: &Error) -> bool {
    matches!(error, Error::Database(database) if database.code().as_deref() == Some("23514"))
}

/// A read failed: nothing can have changed.
pub fn of_read(error: Error) -> BackendError {
    match &error {
        Error::Database(database)
            if blames_input(database.code().as_deref().unwrap_or("")) && !between::is_mix_up(&error) =>
        {
            BackendError::Rejected(error.to_string())
        }
        Error::Database(_) if between::is_mix_up(&error) => mixed_up(&error),
        _ => BackendError::Unavailable(error.to_string()),
    }
}

/// It is said before anything is run.
fn mixed_up(error: &Error) -> BackendError {
    BackendError::Unavailable(format!("{error}: {MIXED_UP}"))
}

/// No connection was to be had: nothing was sent.
pub fn of_connect(error: Error) -> BackendError {
    BackendError::Unavailable(error.to_string())
}

/// A statement that changes something failed after it was (or may have been) sent.
pub fn of_change(error: Error) -> BackendError {
    match &error {
        Error::Database(database) => {
            let code = database.code();
            let code = code.as_deref().unwrap_or("");
            if code == GIVEN_UP {
                BackendError::Rejected(error.to_string())
            } else if database.try_downcast_ref().is_some_and(ends_session) {
                // Whether before or after the commit cannot be told.
                BackendError::Unknown(error.to_string())
            } else if between::is_mix_up(&error) {
                mixed_up(&error)
            } else if blames_input(code) {
                BackendError::Rejected(error.to_string())
            } else {
                BackendError::Unavailable(error.to_string())
            }
        }
        Error::PoolTimedOut | Error::PoolClosed | Error::Configuration(_) => {
            BackendError::Unavailable(error.to_string())
        }
        Error::Encode(_) | Error::ColumnDecode { .. } | Error::Decode(_) | Error::ColumnNotFound(_) => {
            BackendError::Rejected(error.to_string())
        }
        _ => BackendError::Unknown(error.to_string()),
    }
}

/// Whether the same statement would fail again, whatever the state of the server. Not so: connection (08),
/// resources (53), intervention and timeouts (57), the system (58), rollbacks (40), locks (55), a standby
/// (25), a configuration file (F0).
fn blames_input(code: &str) -> bool {
    !["08", "53", "57", "58", "40", "55", "25", "F0", "28", "3D"].iter().any(|class| code.starts_with(class))
}

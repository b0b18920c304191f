//! Whether a program and the schema of its database fit each other.
//!
//! Migrations go ahead of programs: an update migrates first, and then replaces one process after the other. So a
//! program works on a schema that is newer than the one it was written for, until a migration takes away what it uses.
//! Such a migration says in its name which one a program has to know (`contract_<number>_…`), and the database
//! remembers that name; a program that is older than that does not start. A program never works on an older schema.

/// What a database has, and what this program knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema {
    /// Number of the newest migration that has run; `None`: none has.
    pub newest: Option<i64>,
    /// Number of the migration that programs have to know here.
    pub needed: i64,
    /// Number of the newest one that this program knows.
    pub known: i64,
}

/// Why a program cannot work on a schema, and what to do: said alike by a process that does not start and by whoever
/// looks things over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", self.found(), self.advice())]
pub enum SchemaFault {
    Never,
    Older { newest: i64, known: i64 },
    TooNew { needed: i64, known: i64 },
}

impl SchemaFault {
    /// How it is.
    pub fn found(&self) -> String {
        match self {
            SchemaFault::Never => "this database was never migrated".to_owned(),
            SchemaFault::Older { newest, known } => {
                format!("the database has migrations up to {newest}, and this program needs {known}")
            }
            SchemaFault::TooNew { needed, known } => format!(
                "this program is too old for the database, which needs programs that know migration {needed}; this one \
                 knows {known}"
            ),
        }
    }

    /// What to do about it.
    pub const fn advice(&self) -> &'static str {
        match self {
            SchemaFault::Never => {
                "run `horchestra-api migrate` as the owner of the database, and start this again"
            }
            SchemaFault::Older { .. } => {
                "run `horchestra-api migrate` of this version as the owner of the schema, and start this again; what \
                 runs can go on meanwhile"
            }
            SchemaFault::TooNew { .. } => {
                "install the version that the other processes have (`horchestra-api check` lists them)"
            }
        }
    }
}

impl Schema {
    /// What keeps this program from working here.
    pub fn fault(&self) -> Option<SchemaFault> {
        let Schema { newest, needed, known } = *self;
        match newest {
            None => Some(SchemaFault::Never),
            Some(newest) if newest < known => Some(SchemaFault::Older { newest, known }),
            Some(_) if needed > known => Some(SchemaFault::TooNew { needed, known }),
            Some(_) => None,
        }
    }

    /// Whether migrations have run that this program does not know, and can do with.
    pub fn is_ahead(&self) -> bool {
        self.fault().is_none() && self.newest > Some(self.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_works_on_its_own_schema_and_on_newer_ones_that_spare_it() {
        let schema = |newest, needed| Schema { newest, needed, known: 15 };
        for (newest, needed, fault, ahead) in [
            (Some(15), 0, None, false),
            (Some(17), 0, None, true),
            (Some(17), 15, None, true),
            (Some(17), 16, Some(SchemaFault::TooNew { needed: 16, known: 15 }), false),
            (Some(14), 0, Some(SchemaFault::Older { newest: 14, known: 15 }), false),
            (None, 0, Some(SchemaFault::Never), false),
        ] {
            let schema = schema(newest, needed);
            assert_eq!((schema.fault(), schema.is_ahead()), (fault, ahead), "{schema:?}");
        }
    }
}

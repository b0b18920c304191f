//! What the database says of itself, for whoever exports it: sizes, room, and what holds it up.
//!
//! One statement reads all of it. It looks at the catalogue and at statistics only, so it costs the same however much
//! is stored; still, once in some seconds by one process is enough, since every process would be told the same.
//!
//! Transactions of other roles are seen only by a role that may see them (`grant pg_read_all_stats`); prepared ones
//! are seen by everybody.

use crate::readings::{ByLabel, Titled};

/// A family of numbers: how its rows are called in the statement's answer, and how it is shown.
struct Family {
    row: &'static str,
    name: &'static str,
    help: &'static str,
    /// Of which there is a number each.
    label: Option<&'static str>,
}

const fn one(row: &'static str, name: &'static str, help: &'static str) -> Family {
    Family { row, name, help, label: None }
}

const fn each(row: &'static str, label: &'static str, name: &'static str, help: &'static str) -> Family {
    Family { row, name, help, label: Some(label) }
}

const FAMILIES: &[Family] = &[
    each("table_bytes", "table", "database_table_bytes", "Size of a table with its indexes"),
    each("table_rows", "table", "database_table_rows", "Rows of a table, as the server estimates them"),
    each(
        "table_dead_rows",
        "table",
        "database_table_dead_rows",
        "Rows of a table that wait for vacuum, as the server estimates them",
    ),
    each("lease_held", "lease", "database_lease_held", "Whether somebody's term of the lease runs"),
    one("partitions", "database_log_partitions", "Partitions of the change log"),
    one(
        "notifications",
        "database_notification_queue_ratio",
        "How full the server's queue of notifications is; at 1 writes fail",
    ),
    one(
        "oldest_transaction",
        "database_oldest_transaction_seconds",
        "Age of the oldest open or prepared transaction that this role may see",
    ),
    one("lock_waits", "database_lock_waits", "Sessions that wait for a lock"),
    one("connections", "database_connections", "Connections to the database, of anybody"),
    one("connections_limit", "database_connections_limit", "Connections that the server allows in all"),
    one(
        "transaction_age",
        "database_transaction_age",
        "Transactions since the oldest that is not frozen; the server stops at two thousand million",
    ),
];

/// An answer: (what, of which, number).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Survey {
    pub rows: Vec<(String, String, f64)>,
}

impl Survey {
    /// Whether any lease was ever taken.
    pub fn knows_leases(&self) -> bool {
        self.rows.iter().any(|(what, _, _)| what == "lease_held")
    }

    /// What there is one number of.
    pub fn gauges(&self) -> Vec<Titled<f64>> {
        let single = FAMILIES.iter().filter(|family| family.label.is_none());
        single
            .filter_map(|family| {
                let (_, _, value) = self.rows.iter().find(|(what, _, _)| what == family.row)?;
                Some((family.name, family.help, *value))
            })
            .collect()
    }

    /// What there is a number of for each table or lease.
    pub fn gauges_by(&self) -> Vec<Titled<ByLabel>> {
        let several = FAMILIES.iter().filter_map(|family| Some((family, family.label?)));
        several
            .map(|(family, label)| {
                let rows = self.rows.iter().filter(|(what, _, _)| what == family.row);
                let values = rows.map(|(_, of, value)| (of.clone(), *value)).collect();
                (family.name, family.help, (label, values))
            })
            .collect()
    }
}

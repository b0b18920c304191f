//! What a database is asked, as it counts itself.

use std::collections::HashMap;

use anyhow::Result;
use sqlx::postgres::PgConnection;

/// Counts by statement, for a server that was started with it ([`super::super::server`]).
const BY_TEXT: &str = "select query, sum(calls)::bigint from pg_stat_statements \
    where dbid = (select oid from pg_database where datname = current_database()) \
    and query not like '%pg_stat_statements%' group by query";
/// Counts transactions, for others. What other sessions did a moment ago may be missing.
const TRANSACTIONS: &str = "select 'transactions', (xact_commit + xact_rollback)::bigint from pg_stat_database \
    where datname = current_database()";

/// The longest text that is shown of a statement.
const SHOWN: usize = 60;

/// Counts of a database.
pub struct Counts {
    connection: PgConnection,
    query: &'static str,
}

/// How often each statement was run.
pub type Calls = HashMap<String, i64>;

impl Counts {
    pub async fn of(mut connection: PgConnection) -> Counts {
        let extension = "create extension if not exists pg_stat_statements";
        let there = sqlx::raw_sql(extension).execute(&mut connection).await.is_ok()
            && sqlx::raw_sql(BY_TEXT).execute(&mut connection).await.is_ok();
        let query = if there { BY_TEXT } else { TRANSACTIONS };
        Counts { connection, query }
    }

    /// What is counted.
    pub fn what(&self) -> &'static str {
        if self.query == BY_TEXT { "pg_stat_statements" } else { "transactions of pg_stat_database" }
    }

    pub async fn calls(&mut self) -> Result<Calls> {
        let rows: Vec<(String, i64)> = sqlx::query_as(self.query).fetch_all(&mut self.connection).await?;
        Ok(rows.into_iter().collect())
    }
}

/// Calls a second of every statement that is run more often than it was, or the other way round.
pub struct Rates(Vec<(String, f64)>);

impl Rates {
    /// Between two counts so many seconds apart.
    pub fn between(before: &Calls, after: &Calls, seconds: f64) -> Rates {
        #[allow(clippy::cast_precision_loss)]
        let rate = |(text, calls): (&String, &i64)| {
            (text.clone(), (calls - before.get(text).copied().unwrap_or(0)) as f64 / seconds)
        };
        Rates(after.iter().map(rate).collect())
    }

    /// What is left without those.
    pub fn without(&self, base: &Rates) -> Rates {
        let base: HashMap<&str, f64> = base.0.iter().map(|(text, rate)| (text.as_str(), *rate)).collect();
        let more =
            |(text, rate): &(String, f64)| (text.clone(), rate - base.get(text.as_str()).unwrap_or(&0.0));
        Rates(self.0.iter().map(more).collect())
    }

    pub fn sum(&self) -> f64 {
        self.0.iter().map(|(_, rate)| rate).sum()
    }

    /// The largest ones, for people.
    pub fn largest(&self, count: usize) -> Vec<String> {
        let mut rates: Vec<&(String, f64)> = self.0.iter().filter(|(_, rate)| rate.abs() >= 0.01).collect();
        rates.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
        let shown =
            |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN).collect();
        let line = |(text, rate): &&(String, f64)| {
            let text: String = shown(text);
            format!("{rate:+.2}/s {text}")
        };
        rates.iter().take(count).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fleet_adds_is_what_was_not_there_before() {
        let calls = |of: &[(&str, i64)]| {
            of.iter().map(|(text, calls)| ((*text).to_owned(), *calls)).collect::<Calls>()
        };
        let base = Rates::between(&calls(&[("poll", 10)]), &calls(&[("poll", 30)]), 10.0);
        let rates = Rates::between(
            &calls(&[("poll", 30), ("beat  it", 5)]),
            &calls(&[("poll", 50), ("beat  it", 15)]),
            10.0,
        );
        let more = rates.without(&base);
        assert!((more.sum() - 1.0).abs() < 1e-9);
        assert_eq!(more.largest(9), ["+1.00/s beat it"]);
    }
}

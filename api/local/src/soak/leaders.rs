//! Who leads what.
//!
//! The lease rows say which terms there are; which process holds one it says itself, in its metrics: it is the one
//! that leads the loop in that very epoch.

use std::collections::BTreeMap;

use anyhow::Result;
use sqlx::postgres::PgConnection;

use super::site::{Metrics, Site};

/// Every loop of the product.
pub const LOOPS: [&str; 6] =
    ["scheduler", "applicationset", "garbage-collection", "node-lifecycle", "node-csr", "compaction"];

const TERMS: &str = "select name, l.epoch from horchestra.leases l join horchestra.lease_epochs e using (name) \
    where e.held and e.epoch = l.epoch and l.until > clock_timestamp()";

/// Loops that are led, with the epochs of their terms.
pub async fn terms(database: &mut PgConnection) -> Result<BTreeMap<String, i64>> {
    let rows: Vec<(String, i64)> = sqlx::query_as(TERMS).fetch_all(database).await?;
    Ok(rows.into_iter().collect())
}

/// The process that leads a loop in this epoch, if it can be asked.
pub async fn leader(site: &Site, reconciler: &str, epoch: i64) -> Option<String> {
    for process in Site::workers() {
        if let Some(metrics) = site.metrics(&process).await
            && leads(&metrics, reconciler, epoch)
        {
            return Some(process);
        }
    }
    None
}

/// What a process leads of these terms.
pub async fn led_by(site: &Site, process: &str, terms: &BTreeMap<String, i64>) -> Vec<String> {
    let Some(metrics) = site.metrics(process).await else { return Vec::new() };
    let led = terms.iter().filter(|(name, epoch)| leads(&metrics, name, **epoch));
    led.map(|(name, _)| name.clone()).collect()
}

/// Passes that went well, of the process that leads the loop in this epoch.
pub async fn passes(site: &Site, reconciler: &str, epoch: i64) -> Option<i64> {
    let process = leader(site, reconciler, epoch).await?;
    let name = format!("horchestra_loop_passes_total{{reconciler=\"{reconciler}\",outcome=\"ok\"}}");
    site.metrics(&process).await?.get(&name)
}

fn leads(metrics: &Metrics, reconciler: &str, epoch: i64) -> bool {
    let gauge = |name: &str| metrics.get(&format!("horchestra_loop_{name}{{reconciler=\"{reconciler}\"}}"));
    gauge("leading") == Some(1) && gauge("epoch") == Some(epoch)
}

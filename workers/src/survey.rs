//! What the database says of itself, on the metrics page of every worker.
//!
//! Workers ask because there are few of them and none of them serves anybody. Each asks for itself, whoever leads what:
//! the numbers are then there as long as one worker is. An answer that was not renewed for long is not shown any more.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use horchestra_runtime::Metrics;
use horchestra_runtime::metrics::Readings;
use horchestra_store::{Store, Survey};
use rand::Rng;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// The time between two questions, about.
const EVERY: Duration = Duration::from_secs(20);
/// Before the first one: by then this process has asked for its leases.
const FIRST: Duration = Duration::from_secs(2);
/// How long an answer says anything.
const SHOWN: Duration = Duration::from_secs(90);

#[derive(Clone, Default)]
struct Latest(Arc<ArcSwapOption<(Instant, Survey)>>);

impl Latest {
    fn readings(&self) -> Readings {
        let latest = self.0.load();
        let Some((_, survey)) = latest.as_deref().filter(|(at, _)| at.elapsed() < SHOWN) else {
            return Readings::default();
        };
        Readings { gauges: survey.gauges(), gauges_by: survey.gauges_by(), ..Readings::default() }
    }
}

/// Shows what the database says, and asks it again and again until `stop`.
pub fn follow(store: Store, metrics: &Metrics, stop: CancellationToken) -> impl Future<Output = ()> + use<> {
    let latest = Latest::default();
    let shown = latest.clone();
    metrics.readings(move || shown.readings());
    async move {
        let mut pause = FIRST;
        // Until the first leases of a new cluster have been taken it asks again soon.
        let soon = Instant::now() + SHOWN;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
            }
            pause = EVERY.mul_f64(rand::rng().random_range(0.8..1.2));
            match store.survey().await {
                Ok(survey) => {
                    if !survey.knows_leases() && Instant::now() < soon {
                        pause = FIRST;
                    }
                    latest.0.store(Some(Arc::new((Instant::now(), survey))));
                }
                Err(error) => tracing::debug!(%error, "the database does not tell of itself"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_old_answer_is_not_shown() {
        let latest = Latest::default();
        assert!(latest.readings().gauges.is_empty());
        let rows = vec![
            ("partitions".to_owned(), String::new(), 3.0),
            ("table_bytes".to_owned(), "events".to_owned(), 8192.0),
            ("something new".to_owned(), String::new(), 1.0),
        ];
        latest.0.store(Some(Arc::new((Instant::now(), Survey { rows }))));
        let shown = latest.readings();
        let gauges: Vec<_> = shown.gauges.iter().map(|(name, _, value)| (*name, *value)).collect();
        assert_eq!(gauges, [("database_log_partitions", 3.0)]);
        let (name, _, by_table) = &shown.gauges_by[0];
        assert_eq!(
            (*name, by_table),
            ("database_table_bytes", &("table", vec![("events".to_owned(), 8192.0)]))
        );
        sleep(SHOWN).await;
        assert!(latest.readings().gauges.is_empty() && latest.readings().gauges_by.is_empty());
    }
}

//! Files that may be replaced while a process uses them.

use std::error::Error;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Runs `reload` at every `interval` until `stopping`. It says whether the files had changed; on an error it
/// goes on with what it had. A failure is logged when it starts, not at every look.
pub async fn follow<E: Error, F: Future<Output = Result<bool, E>>>(
    interval: Duration,
    stopping: CancellationToken,
    what: &str,
    reload: impl Fn() -> F,
) {
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_failure = String::new();
    while stopping.run_until_cancelled(ticks.tick()).await.is_some() {
        match reload().await {
            Ok(false) => last_failure.clear(),
            Ok(true) => {
                last_failure.clear();
                tracing::info!(what, "new files are in use");
            }
            Err(error) => {
                let failure = error.to_string();
                if failure != last_failure {
                    tracing::error!(
                        what,
                        %error,
                        cause = error.source().map(tracing::field::display),
                        "changed files cannot be used, the previous ones stay in use"
                    );
                    last_failure = failure;
                }
            }
        }
    }
}

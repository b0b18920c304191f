//! What loops find of nodes, stored many at a time: a fleet that comes back has thousands of verdicts, and one that waits
//! for the others is out of date.

use futures::StreamExt as _;
use futures::stream;
use horchestra_service::DoorError;

use super::{PassError, PassReport};

/// Verdicts that are written at the same time.
const TOGETHER: usize = 64;

/// Stores a verdict about each of these nodes by `write` and counts what became of it. One that is refused is left to
/// the next pass; once another process leads, the pass is over.
pub async fn store_verdicts<V, W>(
    verdicts: impl IntoIterator<Item = (String, V), IntoIter: Send>,
    write: impl Fn(String, V) -> W,
    report: &mut PassReport,
) -> Result<(), PassError>
where
    W: Future<Output = Result<(), DoorError>>,
{
    let writes = verdicts.into_iter().map(|(node, verdict)| {
        let written = write(node.clone(), verdict);
        async move { (node, written.await) }
    });
    let mut written = std::pin::pin!(stream::iter(writes).buffer_unordered(TOGETHER));
    while let Some((node, outcome)) = written.next().await {
        match outcome {
            Ok(()) => report.writes += 1,
            Err(DoorError::Fenced) => return Err(PassError::Deposed),
            Err(error) => {
                report.refused += 1;
                tracing::warn!(node, %error, "a verdict was not stored; trying again");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn many_are_on_their_way_at_once_and_each_is_counted() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let write = async |node: &str| {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            if node.ends_with('7') { Err(DoorError::Changed) } else { Ok(()) }
        };
        let mut report = PassReport::default();
        let verdicts = (0..1000).map(|number| (format!("node-{number}"), ()));
        let write = &write;
        store_verdicts(verdicts, |node, ()| async move { write(&node).await }, &mut report).await.unwrap();
        assert_eq!((report.writes, report.refused), (900, 100));
        assert_eq!(most.into_inner(), TOGETHER);
    }

    #[tokio::test]
    async fn who_no_longer_leads_stops() {
        let asked = AtomicUsize::new(0);
        let write = |_, ()| {
            asked.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Err(DoorError::Fenced))
        };
        let verdicts = (0..1000).map(|number| (format!("node-{number}"), ()));
        let stored = store_verdicts(verdicts, write, &mut PassReport::default()).await;
        assert!(matches!(stored, Err(PassError::Deposed)));
        assert!(asked.into_inner() <= TOGETHER);
    }
}

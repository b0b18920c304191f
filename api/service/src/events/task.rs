//! The task behind a [`super::Recorder`]: from the queue, through the correlator, to the store.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use horchestra_core::kind::Key;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::correlate::Correlator;
use super::{EventRecord, Fate, Observation, Observer};
use crate::request::DoorError;
use crate::service::Service;

/// Observations that are taken from the queue at a time.
const INTAKE: usize = 256;
/// Events that wait to be written, at most.
const WAITING: usize = 2048;
/// Events that are written at the same time.
const WRITES: usize = 8;
/// Pause after a write that could not be made, growing up to the second.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// What is older is not written any more.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long what waits is still written after the process was asked to end.
const FAREWELL: Duration = Duration::from_secs(2);

pub(super) struct Task {
    service: Service,
    instance: Arc<str>,
    observer: Observer,
    queue: mpsc::Receiver<Observation>,
    correlator: Correlator,
    /// By the Event that it goes to; with since when it waits.
    waiting: HashMap<Key, (EventRecord, Instant)>,
    pause: Duration,
    /// Nothing is written before.
    not_before: Instant,
}

impl Task {
    pub(super) fn new(
        service: Service,
        instance: Arc<str>,
        observer: Observer,
        queue: mpsc::Receiver<Observation>,
    ) -> Task {
        Task {
            service,
            instance,
            observer,
            queue,
            correlator: Correlator::default(),
            waiting: HashMap::new(),
            pause: FIRST_PAUSE,
            not_before: Instant::now(),
        }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut observed = Vec::with_capacity(INTAKE);
        loop {
            let came = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                came = self.queue.recv_many(&mut observed, INTAKE) => came,
                () = sleep_until(self.not_before), if !self.waiting.is_empty() => 0,
            };
            if came == 0 && self.queue.is_closed() {
                // Nobody is left who could observe anything.
                break;
            }
            self.take_in(observed.drain(..));
            if Instant::now() >= self.not_before {
                self.write().await;
            }
        }
        self.queue.close();
        let farewell = timeout(FAREWELL, async {
            while self.queue.recv_many(&mut observed, INTAKE).await > 0 {
                self.take_in(observed.drain(..));
            }
            self.write().await;
        });
        let _ = farewell.await;
        let left: u32 = self.waiting.values().map(|(record, _)| record.count).sum();
        if left > 0 {
            (self.observer)(Fate::Unavailable, u64::from(left));
        }
    }

    fn take_in(&mut self, observed: impl Iterator<Item = Observation>) {
        let now = Instant::now();
        for observation in observed {
            let Some(record) = self.correlator.take(observation, &self.instance, now) else {
                (self.observer)(Fate::OverBudget, 1);
                continue;
            };
            let key = record.key();
            let full = self.waiting.len() >= WAITING;
            match self.waiting.entry(key) {
                Entry::Occupied(mut waits) => merge(&mut waits.get_mut().0, record),
                Entry::Vacant(_) if full => (self.observer)(Fate::QueueFull, 1),
                Entry::Vacant(place) => {
                    place.insert((record, now));
                }
            }
        }
    }

    /// Writes what waits; what cannot be written now waits on.
    async fn write(&mut self) {
        let batch: Vec<_> = self.waiting.drain().collect();
        if batch.is_empty() {
            return;
        }
        let service = &self.service;
        let outcomes: Vec<_> = stream::iter(batch)
            .map(|(key, (record, since))| async move {
                let outcome = service.record_event(&record).await;
                (key, record, since, outcome)
            })
            .buffer_unordered(WRITES)
            .collect()
            .await;
        let mut later = false;
        for (key, record, since, outcome) in outcomes {
            let count = u64::from(record.count);
            match outcome {
                Ok(_) => (self.observer)(Fate::Written, count),
                Err(DoorError::Unavailable(_) | DoorError::Changed) if since.elapsed() < PATIENCE => {
                    later = true;
                    self.waiting.insert(key, (record, since));
                }
                Err(DoorError::Unavailable(_)) => (self.observer)(Fate::Unavailable, count),
                Err(error) => {
                    tracing::debug!(event = %key, %error, "an Event was not taken");
                    (self.observer)(Fate::Refused, count);
                }
            }
        }
        if later {
            self.not_before = Instant::now() + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        } else {
            self.pause = FIRST_PAUSE;
        }
    }
}

/// Counts another observation of the same thing in.
fn merge(waits: &mut EventRecord, more: EventRecord) {
    waits.count = waits.count.saturating_add(more.count);
    waits.first = waits.first.min(more.first);
    if more.last >= waits.last {
        waits.last = more.last;
        waits.message = more.message;
    }
}

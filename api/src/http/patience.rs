//! Requests that are worth waiting for.
//!
//! A node's agent that asks for its next certificate and is told "not now" gives up for ten minutes, and its
//! present certificate may not last that long. So where the answer to such a request would be 429 or 503 it is
//! parked instead, and tried again until it succeeds or [`WAIT`] has passed; then the client reads the refusal. At
//! most [`PARKED`] requests wait at a time, so that no crowd of them can hold the server's memory; one more is
//! refused at once like any other.

use std::sync::Arc;
use std::time::Duration;

use horchestra_core::kind::Kind;
use horchestra_core::status::Status;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::route::{Route, Verb};

/// How many requests wait at a time.
pub const PARKED: usize = 64;
/// How long one waits.
const WAIT: Duration = Duration::from_secs(30);
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(250);

/// The places for waiting requests.
#[derive(Clone, Debug)]
pub struct Parking(Arc<Semaphore>);

impl Default for Parking {
    fn default() -> Parking {
        Parking(Arc::new(Semaphore::new(PARKED)))
    }
}

/// How one request waits.
#[derive(Debug)]
pub struct Patience {
    parking: Parking,
    until: Instant,
    place: Option<OwnedSemaphorePermit>,
}

impl Parking {
    /// How many requests are waiting.
    pub fn waiting(&self) -> usize {
        PARKED.saturating_sub(self.0.available_permits())
    }

    /// `None`: the request is not worth waiting for.
    pub fn patience(&self, route: &Route, verb: Option<Verb>) -> Option<Patience> {
        let kind = Kind::CertificateSigningRequest;
        let asks = matches!(route, Route::Collection { kind: asked, .. } if *asked == kind)
            && verb == Some(Verb::Create);
        asks.then(|| Patience { parking: self.clone(), until: Instant::now() + WAIT, place: None })
    }
}

impl Patience {
    /// Waits before another try. False: this refusal is the answer.
    pub async fn outlasts(&mut self, refusal: &Status) -> bool {
        if !matches!(refusal.code(), 429 | 503) || Instant::now() + AGAIN >= self.until {
            return false;
        }
        if self.place.is_none() {
            let Ok(place) = Arc::clone(&self.parking.0).try_acquire_owned() else { return false };
            self.place = Some(place);
        }
        tokio::time::sleep(AGAIN).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asking() -> Route {
        Route::Collection { kind: Kind::CertificateSigningRequest, namespace: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_half_a_minute_at_most() {
        let parking = Parking::default();
        let mut patience = parking.patience(&asking(), Some(Verb::Create)).unwrap();
        let began = Instant::now();
        let busy = Status::too_many_requests("busy", 1);
        let mut tries = 0;
        while patience.outlasts(&busy).await {
            tries += 1;
        }
        let waited = began.elapsed();
        assert!(tries > 60 && waited > WAIT - AGAIN * 2 && waited <= WAIT, "{tries} {waited:?}");
        assert!(!patience.outlasts(&Status::no_such_route()).await, "that will not change");
    }

    #[tokio::test(start_paused = true)]
    async fn one_more_than_there_is_room_for_is_refused_at_once() {
        let parking = Parking::default();
        let away = Status::unavailable("no database", 1);
        let mut waiting = Vec::new();
        for _ in 0..PARKED {
            let mut patience = parking.patience(&asking(), Some(Verb::Create)).unwrap();
            assert!(patience.outlasts(&away).await);
            waiting.push(patience);
        }
        let mut late = parking.patience(&asking(), Some(Verb::Create)).unwrap();
        assert!(!late.outlasts(&away).await);
        assert!(waiting[0].outlasts(&away).await, "whoever has a place keeps it");
        waiting.pop();
        assert!(late.outlasts(&away).await);
    }

    #[test]
    fn only_new_certificate_requests_are_worth_it() {
        let parking = Parking::default();
        let nodes = Route::Collection { kind: Kind::Node, namespace: None };
        for (route, verb, worth) in [
            (asking(), Verb::Create, true),
            (asking(), Verb::List, false),
            (asking(), Verb::DeleteCollection, false),
            (nodes, Verb::Create, false),
        ] {
            assert_eq!(parking.patience(&route, Some(verb)).is_some(), worth, "{route:?} {verb:?}");
        }
    }
}

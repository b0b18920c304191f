//! `/metrics`: the page of the fleet, for Prometheus.

use std::sync::Arc;

use horchestra_core::status::Status;
use http::HeaderValue;
use tokio::time::Instant;

use crate::app::App;
use crate::fleet::{Fleet, Place};
use crate::http::Call;
use crate::http::negotiate;
use crate::http::paged::{self, Pieces};
use crate::http::respond::Answer;

pub async fn serve(app: &Arc<App>, call: &Call) -> Result<Answer, Status> {
    negotiate::accept_text(&call.headers)?;
    let scrape = app.fleets().enter()?;
    let fleet = app.fleets().now(app.service().store(), app.usage()).await?;
    let page = Page { fleet, place: Place::default(), now: Instant::now() };
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    Ok(paged::answer(app, call, text, scrape, page))
}

/// How far a page is.
struct Page {
    fleet: Arc<Fleet>,
    place: Place,
    now: Instant,
}

impl Pieces for Page {
    fn write(&mut self, text: &mut String, size: usize) -> bool {
        self.fleet.write(text, size, &mut self.place, self.now)
    }
}

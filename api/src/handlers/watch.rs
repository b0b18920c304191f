//! Watches: one JSON object per line, for as long as the client wants, the server lives and the credential
//! is good.
//!
//! What a client can rely on: frames come in the order of their revisions; the stream ends at a frame
//! boundary, also when the server goes away (then with a last bookmark, when bookmarks were asked for), so
//! a watch from the last revision seen continues exactly; and 410 comes as a frame, never as silence.
//!
//! A task per watch moves events from its cursor into a channel of a few chunks. The cursor holds no events,
//! so a slow client costs a position in the ring and those few chunks; when it takes none of them for
//! as long as [`App::patience`] says, the watch is given up and counted. What was queued can still be read, up to a frame's end,
//! so even that client could go on from the last revision it saw.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use horchestra_core::status::Status;
use horchestra_service::{Contents, Watch, WatchEvent, WatchRequest};
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::options;
use crate::access::Permit;
use crate::app::App;
use crate::frames::{FrameKey, FrameType, frame};
use crate::http::Call;
use crate::http::negotiate::{Offer, Shape};
use crate::http::respond::{Answer, Cut};
use crate::metrics::Metrics;
use crate::render::{self, Form, View};

/// Chunks between the watch and the connection.
const CHUNKS: usize = 4;

/// From this size on a chunk is sent even if more frames are ready.
const CHUNK: usize = 64 * 1024;

/// Without `timeoutSeconds` a watch ends after a random time from this range, so that the watches of a
/// fleet do not all come back at once. Seconds.
const LIFETIME: std::ops::Range<u64> = 300..600;

/// The watch that the parameters ask for.
pub fn request(call: &Call, view: View) -> Result<WatchRequest, Status> {
    let text = |name: &str| call.query.get(name).filter(|value| !value.is_empty()).map(str::to_owned);
    Ok(WatchRequest {
        kind: view.kind(),
        namespace: call.route.namespace().map(str::to_owned),
        label_selector: call.query.text("labelSelector").to_owned(),
        field_selector: view.field_selector(call.query.text("fieldSelector"))?,
        resource_version: text("resourceVersion"),
        resource_version_match: text("resourceVersionMatch"),
        send_initial_events: options::send_initial_events(&call.query),
        allow_bookmarks: call.query.flag("allowWatchBookmarks"),
        contents: Contents::Opened,
    })
}

/// How long the stream may last.
fn lifetime(call: &Call) -> Result<Duration, Status> {
    let asked = call.query.integer("timeoutSeconds")?;
    let own = || Duration::from_secs(rand::random_range(LIFETIME));
    let life = match asked {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds.unsigned_abs().min(86_400)),
        _ => own(),
    };
    // The general limit on requests counts for a watch only when the client named one.
    let life = match call.query.get("timeout") {
        None | Some("" | "0" | "0s") => life,
        Some(_) => life.min(call.query.timeout(Duration::from_secs(86_400))?),
    };
    Ok(life.min(call.known.left()))
}

pub async fn serve(app: &Arc<App>, call: &Call, view: View) -> Result<Answer, Status> {
    if call.permit != Permit::Full {
        return Err(Status::forbidden(view.kind(), "", "a watch needs access to everything it shows"));
    }
    let (_, form) = super::resources::form(call, Offer::WATCH)?;
    let lifetime = lifetime(call)?;
    let request = WatchRequest { contents: form.contents(), ..request(call, view)? };
    let bookmarks = request.allow_bookmarks;
    let watch = app.service().watch(request).await?;

    let (sender, receiver) = mpsc::channel(CHUNKS);
    let feed = Feed { app: Arc::clone(app), view, form, bookmarks, sender, buffer: BytesMut::new() };
    let place = call.take_place();
    let counted = app.metrics().watcher(view.plural());
    app.tasks().spawn(async move {
        let _held = (place, counted);
        feed.run(watch, Instant::now() + lifetime).await;
    });

    let body = StreamBody::new(ReceiverStream::new(receiver));
    let mut answer = Response::new(body.boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    Ok(answer)
}

/// The task behind one watch.
struct Feed {
    app: Arc<App>,
    view: View,
    form: Form,
    bookmarks: bool,
    sender: mpsc::Sender<Result<Frame<Bytes>, Cut>>,
    buffer: BytesMut,
}

/// The client is gone, or was given up.
struct Gone;

impl Feed {
    async fn run(mut self, mut watch: Watch, deadline: Instant) {
        let drain = self.app.draining().clone();
        loop {
            let event = tokio::select! {
                biased;
                () = self.sender.closed() => return,
                () = drain.cancelled() => {
                    self.last_words(&watch).await;
                    return;
                }
                () = tokio::time::sleep_until(deadline) => {
                    self.last_words(&watch).await;
                    return;
                }
                event = watch.next() => event,
            };
            let mut next = event;
            // What else is there already goes into the same chunk.
            loop {
                let Some(event) = next else {
                    let _ = self.flush().await;
                    return;
                };
                let last = matches!(event, WatchEvent::Failed(_));
                self.append(event);
                if last {
                    let _ = self.flush().await;
                    return;
                }
                if self.buffer.len() >= CHUNK {
                    break;
                }
                match watch.ready() {
                    Some(more) => next = Some(more),
                    None => break,
                }
            }
            if self.flush().await.is_err() {
                return;
            }
        }
    }

    /// Ends the stream where the next one can go on.
    async fn last_words(&mut self, watch: &Watch) {
        if self.bookmarks
            && let Some(revision) = watch.progress()
        {
            self.append(WatchEvent::Bookmark { revision, initial_events_end: false });
        }
        let _ = self.flush().await;
    }

    fn append(&mut self, event: WatchEvent) {
        let (kind, entry) = match event {
            WatchEvent::Added(entry) => (FrameType::Added, entry),
            WatchEvent::Modified(entry) => (FrameType::Modified, entry),
            WatchEvent::Deleted(entry) => (FrameType::Deleted, entry),
            WatchEvent::Bookmark { revision, initial_events_end } => {
                let object = render::bookmark(self.view, self.form, revision, initial_events_end);
                self.buffer.extend_from_slice(&frame(FrameType::Bookmark, &object));
                return;
            }
            WatchEvent::Failed(status) => {
                self.fail(&status);
                return;
            }
        };
        let key = FrameKey {
            era: self.app.service().store().era(),
            uid: entry.uid,
            revision: entry.revision,
            kind,
            form: self.form,
            alias: self.view.alias(),
            second: match self.form.shape {
                Shape::Table(_) => jiff::Timestamp::now().as_second(),
                _ => 0,
            },
        };
        let make = || render::one(self.view, self.form, &entry).map(|object| frame(kind, &object));
        // What was opened is in this process for as long as it is being sent.
        let made = if entry.key.kind.is_sealed() && self.form.contents() == Contents::Opened {
            make().map(|frame| (frame, false))
        } else {
            self.app.frames().get(key, make)
        };
        match made {
            Ok((frame, shared)) => {
                self.metrics().frame(shared);
                self.buffer.extend_from_slice(&frame);
            }
            Err(status) => self.fail(&status),
        }
    }

    fn fail(&mut self, status: &Status) {
        self.buffer.extend_from_slice(&frame(FrameType::Error, status.to_value().to_string().as_bytes()));
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = Frame::data(self.buffer.split().freeze());
        match tokio::time::timeout(self.app.patience(), self.sender.send(Ok(chunk))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Gone),
            Err(_) => {
                self.metrics().slow_watcher(self.view.plural());
                tracing::info!(
                    resource = self.view.plural(),
                    "a watch was given up: its client stopped reading"
                );
                Err(Gone)
            }
        }
    }

    fn metrics(&self) -> &Metrics {
        self.app.metrics()
    }
}

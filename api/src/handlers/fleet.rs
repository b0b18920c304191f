//! `/metrics`: the page of the fleet, for Prometheus.
//!
//! A task per scrape writes the page into a channel of a few chunks, compressed where the client takes that, no
//! faster than the client reads. A page that is not taken within [`LIMIT`] is torn, so that nobody takes a part of it
//! for the whole.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use horchestra_core::status::Status;
use http::{HeaderValue, Method, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use crate::app::App;
use crate::fleet::{Fleet, Place};
use crate::http::Call;
use crate::http::negotiate;
use crate::http::respond::{Answer, Cut};

/// Of the text of a page, at a time.
const CHUNK: usize = 64 * 1024;
/// Chunks between the page and the connection.
const CHUNKS: usize = 4;
/// How long a client may take over a page.
const LIMIT: Duration = Duration::from_secs(60);

type Sender = mpsc::Sender<Result<Frame<Bytes>, Cut>>;

pub async fn serve(app: &Arc<App>, call: &Call) -> Result<Answer, Status> {
    negotiate::accept_text(&call.headers)?;
    let scrape = app.fleets().enter()?;
    let fleet = app.fleets().now(app.service().store(), app.usage()).await?;
    let gzip = negotiate::accepts_gzip(&call.headers);
    // One place is kept for the end of a page that nobody takes.
    let (sender, receiver) = mpsc::channel(CHUNKS + 1);
    if call.method != Method::HEAD {
        let held = (scrape, call.take_place());
        let limit = LIMIT.min(call.known.left());
        let output = if gzip { Output::Gzip(encoder()) } else { Output::Plain };
        app.tasks().spawn(async move {
            let _held = held;
            feed(&fleet, output, sender, limit).await;
        });
    }
    let mut answer = Response::new(StreamBody::new(ReceiverStream::new(receiver)).boxed_unsync());
    let headers = answer.headers_mut();
    headers
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    if gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(answer)
}

/// Sends the whole page, or tears it.
async fn feed(fleet: &Fleet, output: Output, sender: Sender, limit: Duration) {
    let Ok(end) = sender.clone().try_reserve_owned() else { return };
    if tokio::time::timeout(limit, output.page(fleet, &sender)).await.is_err() {
        tracing::info!("a page of metrics was given up: its client reads too slowly");
        end.send(Err(Cut("the page was not taken in time")));
    }
}

fn encoder() -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::with_capacity(CHUNK), Compression::fast())
}

/// The form that a page is sent in.
enum Output {
    Plain,
    Gzip(GzEncoder<Vec<u8>>),
}

impl Output {
    /// Sends the page as far as the client is there to take it.
    async fn page(mut self, fleet: &Fleet, sender: &Sender) {
        let (mut place, now) = (Place::default(), Instant::now());
        let mut more = true;
        while more {
            let mut text = String::with_capacity(CHUNK + 512);
            more = fleet.write(&mut text, CHUNK, &mut place, now);
            let Some(chunk) = self.encoded(text, !more) else {
                let _ = sender.send(Err(Cut("the page could not be compressed"))).await;
                return;
            };
            if !chunk.is_empty() && sender.send(Ok(Frame::data(chunk))).await.is_err() {
                return;
            }
        }
    }

    /// What there is to send once this text was added.
    fn encoded(&mut self, text: String, last: bool) -> Option<Bytes> {
        let Output::Gzip(encoder) = self else { return Some(text.into()) };
        encoder.write_all(text.as_bytes()).ok()?;
        if last {
            encoder.try_finish().ok()?;
        }
        Some(std::mem::take(encoder.get_mut()).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    /// Time stands still but for what waits.
    #[tokio::test(start_paused = true)]
    async fn a_page_that_is_not_taken_is_torn() {
        let fleet = Fleet::of_size(20_000);
        let (sender, receiver) = mpsc::channel(CHUNKS + 1);
        feed(&fleet, Output::Plain, sender, LIMIT).await;
        assert_eq!(receiver.len(), CHUNKS + 1, "nobody reads: no more than there is room for, and the end");
        for (read, whole) in [(usize::MAX, true), (1, false)] {
            let (sender, mut receiver): (Sender, _) = mpsc::channel(CHUNKS + 1);
            let (mut bytes, mut torn) = (0, false);
            let reading = async {
                let mut chunks = 0;
                while let Some(chunk) = receiver.recv().await {
                    match chunk {
                        Ok(frame) => bytes += frame.into_data().unwrap().len(),
                        Err(_) => torn = true,
                    }
                    chunks += 1;
                    if chunks == read {
                        tokio::time::sleep(LIMIT * 2).await;
                    }
                }
            };
            tokio::join!(feed(&fleet, Output::Plain, sender, LIMIT), reading);
            assert_eq!((torn, bytes > 10_000_000), (!whole, whole), "{read}: {bytes}");
        }
    }

    #[test]
    fn what_is_compressed_in_pieces_is_one_whole() {
        let text: String = (0..50_000).map(|number| format!("line {number}\n")).collect();
        let mut output = Output::Gzip(encoder());
        let mut squeezed = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(CHUNK));
            squeezed.extend(output.encoded(piece.to_owned(), after.is_empty()).unwrap());
            rest = after;
        }
        let mut plain = String::new();
        flate2::read::GzDecoder::new(squeezed.as_slice()).read_to_string(&mut plain).unwrap();
        assert!(plain == text && squeezed.len() < text.len() / 2);
        assert_eq!(Output::Plain.encoded("a".into(), true).unwrap(), "a");
    }
}

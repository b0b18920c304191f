//! Answers that grow with the fleet: written a piece at a time, compressed where the client takes that, no faster than it
//! reads, and never in memory as a whole. One that is not taken within [`LIMIT`] is torn, so that nobody takes a part of
//! it for the whole.

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderValue, Method, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::Call;
use super::negotiate;
use super::respond::{Answer, Cut};
use crate::app::App;

/// Of the text, at a time.
const CHUNK: usize = 64 * 1024;
/// Chunks between the text and the connection.
const CHUNKS: usize = 4;
/// How long a client may take over an answer.
const LIMIT: Duration = Duration::from_secs(60);

type Sender = mpsc::Sender<Result<Frame<Bytes>, Cut>>;

/// Something that is written in pieces.
pub trait Pieces: Send + 'static {
    /// Appends the next piece to `text`, at least `size` bytes of it where there is so much. False: that was the end.
    fn write(&mut self, text: &mut String, size: usize) -> bool;
}

/// The answer. `held` is let go when it has been sent.
pub fn answer(
    app: &App,
    call: &Call,
    content_type: HeaderValue,
    held: impl Send + 'static,
    pieces: impl Pieces,
) -> Answer {
    let gzip = negotiate::accepts_gzip(&call.headers);
    // One place is kept for the end of an answer that nobody takes.
    let (sender, receiver) = mpsc::channel(CHUNKS + 1);
    if call.method != Method::HEAD {
        let held = (held, call.take_place());
        let limit = LIMIT.min(call.known.left());
        let output = if gzip { Output::Gzip(encoder()) } else { Output::Plain };
        app.tasks().spawn(async move {
            let _held = held;
            feed(pieces, output, sender, limit).await;
        });
    }
    let mut answer = Response::new(StreamBody::new(ReceiverStream::new(receiver)).boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    if gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    answer
}

/// Sends everything, or tears it.
async fn feed(pieces: impl Pieces, output: Output, sender: Sender, limit: Duration) {
    let Ok(end) = sender.clone().try_reserve_owned() else { return };
    if tokio::time::timeout(limit, output.send(pieces, &sender)).await.is_err() {
        tracing::info!("an answer was given up: its client reads too slowly");
        end.send(Err(Cut("the answer was not taken in time")));
    }
}

fn encoder() -> GzEncoder<Vec<u8>> {
    GzEncoder::new(Vec::with_capacity(CHUNK), Compression::fast())
}

/// The form that an answer is sent in.
enum Output {
    Plain,
    Gzip(GzEncoder<Vec<u8>>),
}

impl Output {
    /// Sends the pieces as far as the client is there to take them.
    async fn send(mut self, mut pieces: impl Pieces, sender: &Sender) {
        let mut more = true;
        while more {
            let mut text = String::with_capacity(CHUNK + 512);
            more = pieces.write(&mut text, CHUNK);
            let Some(chunk) = self.encoded(text, !more) else {
                let _ = sender.send(Err(Cut("the answer could not be compressed"))).await;
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

    /// So many lines.
    struct Lines(usize);

    impl Pieces for Lines {
        fn write(&mut self, text: &mut String, size: usize) -> bool {
            while self.0 > 0 && text.len() < size {
                text.push_str(
                    "a line of a hundred bytes, or nearly so, which is what one of them usually has in it\n",
                );
                self.0 -= 1;
            }
            self.0 > 0
        }
    }

    /// Time stands still but for what waits.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_is_torn() {
        let (sender, receiver) = mpsc::channel(CHUNKS + 1);
        feed(Lines(200_000), Output::Plain, sender, LIMIT).await;
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
            tokio::join!(feed(Lines(200_000), Output::Plain, sender, LIMIT), reading);
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

//! Logs as nodes send them: `pods/<name>/log`, the output of an Application, and `nodes/<name>/log`, what the agent
//! of a node has written itself.
//!
//! Order of checks: parameters (400), the object and whether the caller may read it (404), its node
//! (400), the caller's streams (429), the node's session (503). The answer is plain text, a chunk at a time,
//! never buffered beyond a few chunks: the next message is taken from the gateway only when the connection has
//! room, so a slow reader slows the node's reader instead of filling memory. Silence never ends a stream.
//!
//! A log that ends because it is over ends the answer. One that ends for any other reason (the node's session
//! went, this replica goes, its reader took nothing for too long) is cut with a line that says so, so that a client
//! never takes a torn log for a whole one. It counts as torn until somebody has said that it is over.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use horchestra_core::kind::Kind;
use horchestra_core::status::Status;
use horchestra_proto::relay::v1::LogResponse;
use horchestra_service::At;
use http::{HeaderValue, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::alias::find_pod;
use super::resources;
use crate::app::App;
use crate::http::Call;
use crate::http::negotiate;
use crate::http::query::Query;
use crate::http::respond::{self, Answer, Cut};
use crate::relay::{Source, Wanted};

/// Streams of one caller, and of this replica.
const OF_CALLER: usize = 8;
const OF_REPLICA: usize = 256;

/// How long the head of the answer waits for the node's first word, so that a refusal by the node can still
/// be an error instead of a cut.
const FIRST_WORD: Duration = Duration::from_millis(500);

/// A first line that comes this late is no backlog.
const BACKLOG: Duration = Duration::from_secs(2);

const CHUNKS: usize = 4;

/// Tearing a stream throws away what was not written yet, so what stands before the tear gets this long.
const FLUSH: Duration = Duration::from_millis(250);

/// Open streams by caller.
#[derive(Default)]
pub struct LogSlots {
    open: Mutex<HashMap<String, usize>>,
}

/// One stream's place.
pub struct LogSlot {
    slots: Arc<LogSlots>,
    caller: String,
}

impl LogSlots {
    /// A place, or 429 (the caller has enough) or 503 (the replica has).
    pub fn enter(self: &Arc<Self>, caller: &str) -> Result<LogSlot, Status> {
        let mut open = self.open.lock();
        if open.get(caller).copied().unwrap_or(0) >= OF_CALLER {
            return Err(Status::too_many_requests(
                format!("you have {OF_CALLER} log streams open already"),
                1,
            ));
        }
        if open.values().sum::<usize>() >= OF_REPLICA {
            return Err(Status::unavailable("too many log streams are open on this server", 1));
        }
        *open.entry(caller.to_owned()).or_default() += 1;
        Ok(LogSlot { slots: Arc::clone(self), caller: caller.to_owned() })
    }
}

impl Drop for LogSlot {
    fn drop(&mut self) {
        let mut open = self.slots.open.lock();
        if let Some(count) = open.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.caller);
            }
        }
    }
}

/// What a client may ask of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parameters {
    follow: bool,
    tail: Option<i64>,
    limit: Option<u64>,
    container: Option<String>,
}

fn parameters(query: &Query) -> Result<Parameters, Status> {
    let cannot = |name: &str, why: &str| Status::bad_request(format!("{name}: {why}"));
    let text = |name: &str| query.get(name).filter(|value| !value.is_empty());
    let tail = query.integer("tailLines")?;
    if tail.is_some_and(|tail| tail < 0) {
        return Err(cannot("tailLines", "must not be negative"));
    }
    let limit = query.integer("limitBytes")?;
    if limit.is_some_and(|limit| limit < 1) {
        return Err(cannot("limitBytes", "must be greater than 0"));
    }
    if query.flag("previous") {
        return Err(cannot("previous", "logs of earlier runs are not kept apart"));
    }
    if query.flag("timestamps") {
        return Err(cannot("timestamps", "nodes send lines without their time"));
    }
    for name in ["sinceSeconds", "sinceTime"] {
        if text(name).is_some() {
            return Err(cannot(name, "logs cannot be cut by time, use tailLines"));
        }
    }
    if let Some(stream) = text("stream").filter(|stream| *stream != "All") {
        return Err(cannot("stream", &format!("{stream:?}: output and errors are one stream")));
    }
    Ok(Parameters {
        follow: query.flag("follow"),
        tail,
        limit: limit.map(i64::unsigned_abs),
        container: text("container").map(str::to_owned),
    })
}

pub async fn serve(app: &Arc<App>, call: &Call) -> Result<Answer, Status> {
    negotiate::accept_text(&call.headers)?;
    let parameters = parameters(&call.query)?;
    let entry = find_pod(app, call, At::Fresh).await?;
    if let Some(container) = parameters.container.as_deref().filter(|name| *name != entry.key.name) {
        return Err(Status::bad_request(format!(
            "container {container:?} is not valid for pod {}: its only container is {:?}",
            entry.key.name, entry.key.name
        )));
    }
    let Some(node) = entry.columns.node.clone().filter(|node| !node.is_empty()) else {
        return Err(Status::bad_request(format!(
            "application \"{}\" is not placed on a node yet",
            entry.key.name
        )));
    };
    if parameters.tail == Some(0) && !parameters.follow {
        return Ok(respond::text(StatusCode::OK, Bytes::new()));
    }
    let source = Source::AppUid(entry.uid.as_hyphenated().to_string());
    stream(app, call, parameters, node, source).await
}

/// What the agent of a node has written, wherever it keeps that; never the log of the whole machine.
pub async fn serve_node(app: &Arc<App>, call: &Call) -> Result<Answer, Status> {
    negotiate::accept_text(&call.headers)?;
    let parameters = parameters(&call.query)?;
    let name = call.route.name();
    if parameters.container.is_some() {
        return Err(Status::bad_request(format!("container: the agent of node \"{name}\" has none")));
    }
    app.service().get(&resources::key(Kind::Node, None, name), At::Fresh).await?;
    if parameters.tail == Some(0) && !parameters.follow {
        return Ok(respond::text(StatusCode::OK, Bytes::new()));
    }
    stream(app, call, parameters, name.to_owned(), Source::NodeUnit(true)).await
}

async fn stream(
    app: &Arc<App>,
    call: &Call,
    parameters: Parameters,
    node: String,
    source: Source,
) -> Result<Answer, Status> {
    let relay = app.relay().ok_or_else(|| Status::unavailable("this server cannot read logs", 60))?;
    let slot = app.log_slots().enter(&call.known.name())?;
    let wanted = Wanted {
        node: node.clone(),
        source,
        follow: parameters.follow,
        // The node protocol cannot ask for no backlog.
        tail_lines: parameters.tail.map(|tail| tail.max(1)),
        caller: call.known.name().to_string(),
        audit_id: call.audit.as_str().to_owned(),
    };
    let mut source = relay.open(&wanted).await?;
    let first = match tokio::time::timeout(FIRST_WORD, source.message()).await {
        Err(_) => None,
        Ok(Ok(Some(message))) if message.data.is_empty() && !message.error.is_empty() => {
            return Err(Status::unavailable(format!("node \"{node}\": {}", message.error), 2));
        }
        Ok(Ok(Some(message))) => Some(message),
        Ok(Ok(None)) => return Ok(respond::text(StatusCode::OK, Bytes::new())),
        Ok(Err(_)) => return Err(Status::unavailable(format!("node \"{node}\" is not connected"), 2)),
    };

    let (sender, receiver) = mpsc::channel(CHUNKS);
    let end = Arc::new(OnceLock::new());
    let body = body(receiver, Arc::clone(&end));
    let copy = Copy {
        sender: sender.clone(),
        patience: app.patience(),
        left: parameters.limit,
        skip: parameters.tail == Some(0),
        began: tokio::time::Instant::now(),
    };
    let left = call.known.left();
    let held = (call.take_place(), slot, app.metrics().log_stream());
    let draining = app.draining().clone();
    app.tasks().spawn(async move {
        let _held = held;
        let came = tokio::select! {
            biased;
            () = sender.closed() => return,
            () = draining.cancelled() => End::Cut("the server is shutting down"),
            () = tokio::time::sleep(left) => End::Cut("the credential has expired"),
            came = copy.run(first, source) => came,
        };
        // Before the last sender goes: that is when it is looked at.
        let _ = end.set(came);
    });
    let mut answer = http::Response::new(StreamBody::new(body).boxed_unsync());
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    Ok(answer)
}

/// How a log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// There is no more of it, or no more was wanted.
    Over,
    /// For this reason.
    Cut(&'static str),
}

/// What a client is sent: the chunks, and unless the log is over, a line that says why there are no more, and an error.
/// That takes no room among the chunks, so it comes however long the client has not been reading.
fn body(
    chunks: mpsc::Receiver<Bytes>,
    end: Arc<OnceLock<End>>,
) -> impl Stream<Item = Result<Frame<Bytes>, Cut>> + Send + 'static {
    let torn = stream::once(async move { end.get().copied() }).flat_map(|end| {
        let why = match end {
            Some(End::Over) => return stream::empty().boxed(),
            Some(End::Cut(why)) => why,
            None => "this server could not go on",
        };
        let line = Bytes::from(format!("\nerror: the log was cut: {why}\n"));
        let tear = async move {
            tokio::time::sleep(FLUSH).await;
            Err(Cut(why))
        };
        stream::iter([Ok(Frame::data(line))]).chain(stream::once(tear)).boxed()
    });
    ReceiverStream::new(chunks).map(|chunk| Ok(Frame::data(chunk))).chain(torn)
}

/// Moves one log.
struct Copy {
    sender: mpsc::Sender<Bytes>,
    patience: Duration,
    /// Bytes that may still be sent.
    left: Option<u64>,
    /// The first line is backlog that nobody wanted.
    skip: bool,
    began: tokio::time::Instant,
}

impl Copy {
    async fn run(mut self, first: Option<LogResponse>, mut source: Streaming<LogResponse>) -> End {
        let mut next = first;
        loop {
            let message = match next.take() {
                Some(message) => message,
                None => match source.message().await {
                    Ok(Some(message)) => message,
                    Ok(None) => return End::Over,
                    Err(status) => {
                        tracing::debug!(code = ?status.code(), message = status.message(), "a log broke off");
                        return End::Cut("the node's session ended");
                    }
                },
            };
            if let Err(end) = self.pass_on(message).await {
                return end;
            }
        }
    }

    /// An error is the end.
    async fn pass_on(&mut self, message: LogResponse) -> Result<(), End> {
        if message.dropped_chunks > 0 {
            let line = format!("\n[{} pieces of the log were dropped here]\n", message.dropped_chunks);
            self.send(Bytes::from(line)).await?;
        }
        self.send(message.data).await?;
        if !message.error.is_empty() {
            self.send(Bytes::from(format!("\nerror: {}\n", message.error))).await?;
            return Err(End::Cut("the node could not go on"));
        }
        Ok(())
    }

    /// An error is the end.
    async fn send(&mut self, mut data: Bytes) -> Result<(), End> {
        if self.skip && !data.is_empty() {
            if self.began.elapsed() > BACKLOG {
                self.skip = false;
            } else if let Some(end) = data.iter().position(|byte| *byte == b'\n') {
                self.skip = false;
                data = data.slice(end + 1..);
            } else {
                return Ok(());
            }
        }
        if data.is_empty() {
            return Ok(());
        }
        let mut over = false;
        if let Some(left) = &mut self.left {
            let take = data.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
            data.truncate(take);
            *left -= take as u64;
            over = *left == 0;
        }
        match tokio::time::timeout(self.patience, self.sender.send(data)).await {
            Ok(Ok(())) if over => Err(End::Over),
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Cut("its reader went away")),
            Err(_) => {
                tracing::info!("a log was given up: its client stopped reading");
                Err(End::Cut("it was not read for too long"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_parameters_that_nobody_can_serve_are_refused() {
        let read = |raw: &str| parameters(&Query::parse(Some(raw)));
        let plain = read("container=web&follow=true&tailLines=5&insecureSkipTLSVerifyBackend=true").unwrap();
        assert_eq!(
            plain,
            Parameters { follow: true, tail: Some(5), limit: None, container: Some("web".into()) }
        );
        assert_eq!(read("tailLines=0&previous=false&timestamps=false").unwrap().tail, Some(0));
        for raw in [
            "tailLines=abc",
            "tailLines=-1",
            "tailLines=99999999999999999999",
            "limitBytes=0",
            "previous=true",
            "timestamps=true",
            "sinceSeconds=10",
            "sinceTime=2024-01-01T00:00:00Z",
            "stream=Stdout",
        ] {
            assert_eq!(read(raw).unwrap_err().code(), 400, "{raw}");
        }
    }

    #[test]
    fn a_caller_has_eight_streams_and_gives_them_back() {
        let slots = Arc::new(LogSlots::default());
        let mut open: Vec<_> = (0..OF_CALLER).map(|_| slots.enter("a").unwrap()).collect();
        let refused = slots.enter("a").err().unwrap();
        assert_eq!((refused.code(), refused.details.retry_after_seconds), (429, Some(1)));
        let other = slots.enter("b").unwrap();
        open.pop();
        assert!(slots.enter("a").is_ok());
        drop((open, other));
        assert!(slots.open.lock().is_empty());
    }

    /// What its client gets once it reads, and whether that ends in order.
    async fn read(receiver: mpsc::Receiver<Bytes>, end: Option<End>) -> (String, bool) {
        let said = Arc::new(OnceLock::new());
        if let Some(end) = end {
            said.set(end).unwrap();
        }
        let frames: Vec<_> = body(receiver, said).collect().await;
        let whole = frames.iter().all(Result::is_ok);
        let text = frames.into_iter().flatten().filter_map(|frame| frame.into_data().ok());
        (text.map(|data| String::from_utf8_lossy(&data).into_owned()).collect(), whole)
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_whose_client_stops_reading_is_torn_with_a_word_when_it_reads_on() {
        let (sender, receiver) = mpsc::channel(CHUNKS);
        let patience = Duration::from_secs(10);
        let began = tokio::time::Instant::now();
        let mut copy = Copy { sender, patience, left: None, skip: false, began };
        let line = |number: usize| LogResponse {
            data: Bytes::from(format!("{number}\n")),
            error: String::new(),
            dropped_chunks: 0,
        };
        let mut sent = 0;
        let end = loop {
            match copy.pass_on(line(sent)).await {
                Ok(()) => sent += 1,
                Err(end) => break end,
            }
        };
        assert_eq!(sent, CHUNKS);
        assert!(began.elapsed() >= patience);
        drop(copy);
        let (text, whole) = read(receiver, Some(end)).await;
        assert_eq!(text, "0\n1\n2\n3\n\nerror: the log was cut: it was not read for too long\n");
        assert!(!whole);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_log_that_is_known_to_be_over_ends_in_order() {
        for (end, whole) in
            [(Some(End::Over), true), (Some(End::Cut("the node's session ended")), false), (None, false)]
        {
            let (sender, receiver) = mpsc::channel(CHUNKS);
            let began = tokio::time::Instant::now();
            let patience = Duration::from_secs(10);
            let mut copy = Copy { sender, patience, left: Some(5), skip: false, began };
            assert_eq!(copy.send(Bytes::from_static(b"one\n")).await, Ok(()));
            assert_eq!(copy.send(Bytes::from_static(b"two\n")).await, Err(End::Over), "no more was wanted");
            drop(copy);
            let read = read(receiver, end).await;
            assert_eq!((read.0.starts_with("one\nt"), read.1), (true, whole), "{end:?}: {}", read.0);
            assert_eq!(read.0.contains("\nerror: the log was cut: "), !whole, "{end:?}: {}", read.0);
        }
    }
}

//! Logs over the stream, from the node's side.

use std::collections::BTreeSet;

use futures::StreamExt;
use horchestra_nodegate::logs::{BUFFER_CHUNKS, End, LogReader, OpenError, Piece, Read, Source};
use horchestra_proto::node::v1::{LogChunk, LogRequest};
use horchestra_testkit::eventually;
use serde_json::json;
use uuid::Uuid;

use super::client::Node;
use super::stage::Stage;
use crate::world::SOON;

/// As an agent cuts it.
const CHUNK: usize = 8192;

fn chunk(id: &str, data: &[u8]) -> LogChunk {
    LogChunk { id: id.to_owned(), data: data.to_vec().into(), ..LogChunk::default() }
}

fn eof(id: &str) -> LogChunk {
    LogChunk { eof: true, ..chunk(id, b"") }
}

/// Asks for a log as the relay does; the node hears of it.
async fn open(stage: &Stage, node: &mut Node, source: Source, tail: i64) -> (LogReader, LogRequest) {
    let gate = &stage.gateway.gateway.gate;
    let session = gate.sessions.get(&node.name).unwrap();
    let (reader, request) = tokio::join!(gate.open_log(&session, source, true, tail), node.log_request());
    (reader.unwrap(), request)
}

fn app() -> Source {
    Source::Application(Uuid::from_u128(7))
}

/// All that comes, and how it ends.
async fn read(reader: LogReader) -> (Vec<u8>, u64, End) {
    let (mut data, mut dropped, mut end) = (Vec::new(), 0, None);
    let mut reads = std::pin::pin!(reader);
    while let Some(read) = reads.next().await {
        match read {
            Read::Piece(Piece { data: more, dropped: before }) => {
                data.extend_from_slice(&more);
                dropped += before;
            }
            Read::End(how, before) => {
                dropped += before;
                end = Some(how);
            }
        }
    }
    (data, dropped, end.expect("an end"))
}

#[tokio::test]
async fn a_log_is_asked_for_by_uid_and_comes_in_order_to_its_end() {
    let stage = Stage::new().await;
    let mut node = stage.dial("n1").await;
    let (one, first) = open(&stage, &mut node, app(), 12).await;
    let (two, second) = open(&stage, &mut node, Source::NodeUnit, -3).await;
    assert_eq!((first.app.as_str(), first.node_unit), ("00000000-0000-0000-0000-000000000007", false));
    assert_eq!((first.follow, first.tail_lines), (true, 12));
    assert_eq!((second.app.as_str(), second.node_unit, second.tail_lines), ("", true, 0));
    assert_ne!(first.id, second.id);
    node.chunk(chunk("of nobody", b"lost")).await;
    for number in 0..10 {
        node.chunk(chunk(&first.id, format!("one {number}\n").as_bytes())).await;
        node.chunk(chunk(&second.id, format!("two {number}\n").as_bytes())).await;
    }
    node.chunk(eof(&first.id)).await;
    // Data on the last one counts.
    node.chunk(LogChunk { eof: true, ..chunk(&second.id, b"the end\n") }).await;
    let expected = |word: &str| (0..10).map(|number| format!("{word} {number}\n")).collect::<String>();
    assert_eq!(read(one).await, (expected("one").into_bytes(), 0, End::Eof));
    assert_eq!(read(two).await, ((expected("two") + "the end\n").into_bytes(), 0, End::Eof));
    // After its end nothing more belongs to it.
    node.chunk(chunk(&first.id, b"late")).await;
    eventually(SOON, async || stage.gateway.gateway.gate.logs.open() == 0).await;
    node.hears_nothing().await;
}

#[tokio::test]
async fn why_a_log_cannot_be_opened_is_its_end() {
    let stage = Stage::new().await;
    let mut node = stage.dial("n1").await;
    // As agents say it, and without the mark that it is the end.
    for eof in [true, false] {
        let (reader, request) = open(&stage, &mut node, app(), 0).await;
        node.chunk(LogChunk { eof, error: "no journal here".to_owned(), ..chunk(&request.id, b"") }).await;
        assert_eq!(read(reader).await, (vec![], 0, End::NodeError("no journal here".to_owned())));
    }
    // A unit that nobody knows: the end, and nothing before it.
    let (reader, request) = open(&stage, &mut node, app(), 0).await;
    node.chunk(eof(&request.id)).await;
    assert_eq!(read(reader).await, (vec![], 0, End::Eof));
}

#[tokio::test]
async fn a_reader_that_leaves_cancels_its_log_and_frees_its_place_once() {
    let stage = Stage::with(|settings| settings.log_streams = 2).await;
    let mut node = stage.dial("n1").await;
    let (first, request) = open(&stage, &mut node, app(), 0).await;
    let (_second, _) = open(&stage, &mut node, app(), 0).await;
    let gate = &stage.gateway.gateway.gate;
    let session = gate.sessions.get("n1").unwrap();
    assert_eq!(gate.open_log(&session, app(), true, 0).await.err(), Some(OpenError::Full));
    drop(first);
    assert_eq!(node.log_cancel().await, request.id);
    // Agents close it all the same, and what was on its way comes late.
    node.chunk(chunk(&request.id, b"late")).await;
    node.chunk(eof(&request.id)).await;
    stage.heard(&node).await;
    assert_eq!(gate.logs.open(), 1);
    let (_third, _) = open(&stage, &mut node, app(), 0).await;
    assert_eq!(gate.logs.open(), 2);
}

#[tokio::test]
async fn the_end_of_the_stream_ends_its_logs() {
    let stage = Stage::new().await;
    let mut node = stage.dial("n1").await;
    let (reader, request) = open(&stage, &mut node, app(), 0).await;
    node.chunk(chunk(&request.id, b"last words")).await;
    stage.heard(&node).await;
    node.vanish();
    assert_eq!(read(reader).await, (b"last words".to_vec(), 0, End::Disconnected));
    assert_eq!(stage.gateway.gateway.gate.logs.open(), 0);
}

#[tokio::test]
async fn a_reader_that_stands_still_loses_its_own_lines() {
    let stage = Stage::new().await;
    let mut node = stage.dial("n1").await;
    let (reader, request) = open(&stage, &mut node, app(), 0).await;
    let line = vec![b'x'; CHUNK];
    for _ in 0..200 {
        node.chunk(chunk(&request.id, &line)).await;
    }
    stage.heard(&node).await;
    node.chunk(eof(&request.id)).await;
    stage.heard(&node).await;
    let (data, dropped, end) = read(reader).await;
    assert_eq!((data.len(), dropped, end), (BUFFER_CHUNKS * CHUNK, 200 - BUFFER_CHUNKS as u64, End::Eof));
}

#[tokio::test]
async fn a_node_is_read_with_every_reader_and_the_database_standing_still() {
    let stage = Stage::new().await;
    let mut node = stage.serving("n1", &[("web", json!({}))]).await;
    let bystander = stage.serving("n2", &[]).await;
    let mut readers = Vec::new();
    let mut ids = Vec::new();
    for _ in 0..256 {
        let (reader, request) = open(&stage, &mut node, app(), 0).await;
        readers.push(reader);
        ids.push(request.id);
    }
    let different: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(different.len(), ids.len(), "of two of one id an agent could cancel but one");
    let gate = &stage.gateway.gateway.gate;
    let session = gate.sessions.get("n1").unwrap();
    assert_eq!(gate.open_log(&session, app(), true, 0).await.err(), Some(OpenError::Full), "one more");
    stage.gateway.backend().set_stalled(true);
    // As much as fills every buffer, and some more; in between what an agent has to say.
    let line = vec![b'x'; CHUNK];
    for round in 0..80 {
        for id in ids.iter().take(if round < 70 { 32 } else { 256 }) {
            node.chunk(chunk(id, &line)).await;
        }
        node.pass([super::client::report(crate::world::NAMESPACE, "web", "Running", 1)]).await;
        node.beat().await;
        bystander.beat().await;
    }
    assert!(gate.metrics.log_chunks_dropped.get() > 0, "some buffers are full");
    stage.gateway.backend().set_stalled(false);
    stage.until_phase("web", "Running").await;
    for node in [&node, &bystander] {
        stage.heard(node).await;
    }
    assert!(node.is_open().await);
    drop(readers);
    eventually(SOON, async || gate.logs.open() == 0).await;
}

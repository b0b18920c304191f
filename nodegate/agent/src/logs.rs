//! Logs of workloads: written in bounded files, read from any point, followed.
//!
//! A log is two files, the current one and the one before; when the current one is
//! full it takes the other's place. Readers follow across that change: they
//! finish the file that they hold before they open the next.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use horchestra_proto::LOG_CHUNK_BYTES;
use horchestra_proto::node::v1::node_message::Body as Up;
use horchestra_proto::node::v1::{LogChunk, LogRequest, NodeMessage};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::units::simulated::SimulatedLog;
use crate::units::{LogSource, Units, now_unix_nano};

/// Size at which a file makes place for the next.
const FILE_BYTES: u64 = 8 << 20;
/// How often a follower looks for more.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);
/// Where a follower starts that did not say.
const FOLLOW_LINES: u64 = 10;

/// Name of the file before this one.
fn previous(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".previous");
    name.into()
}

/// The writing end of a log.
pub struct LogFile {
    path: PathBuf,
    file: File,
    size: u64,
    limit: u64,
}

impl LogFile {
    /// Continues the log in this file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::with_limit(path, FILE_BYTES)
    }

    fn with_limit(path: &Path, limit: u64) -> io::Result<Self> {
        let file = append(path)?;
        let size = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, size, limit })
    }

    /// Adds output.
    pub fn write(&mut self, output: &[u8]) -> io::Result<()> {
        if self.size >= self.limit {
            fs::rename(&self.path, previous(&self.path))?;
            self.file = append(&self.path)?;
            self.size = 0;
        }
        self.file.write_all(output)?;
        self.size += output.len() as u64;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// The reading end.
struct LogReader {
    path: PathBuf,
    /// What is still to be read, in order.
    files: Vec<File>,
}

impl LogReader {
    /// Starts at the last `lines` lines; `None` = at the beginning.
    fn open(path: &Path, lines: Option<u64>) -> io::Result<Self> {
        let mut files = Vec::new();
        let mut wanted = lines;
        // Current first: a rotation in between then shows lines twice, not never.
        for path in [path, &previous(path)] {
            let mut file = match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            if let Some(lines) = wanted {
                let found = seek_to_last_lines(&mut file, lines)?;
                wanted = Some(lines - found.min(lines));
            }
            files.insert(0, file);
            if wanted == Some(0) {
                break;
            }
        }
        Ok(Self { path: path.to_owned(), files })
    }

    /// The next piece; empty when there is nothing more for now.
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(file) = self.files.first_mut() else {
                match File::open(&self.path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
                    opened => self.files.push(opened?),
                }
                continue;
            };
            let length = file.read(piece)?;
            if length > 0 {
                return Ok(length);
            }
            // At the end of the file that was current. Is it still?
            let held = file.metadata()?;
            if self.files.len() > 1 {
                self.files.remove(0);
                continue;
            }
            match fs::metadata(&self.path) {
                Ok(named) if named.ino() != held.ino() => {
                    // One more look: it may have grown before it was replaced.
                    let length = self.files[0].read(piece)?;
                    if length > 0 {
                        return Ok(length);
                    }
                    self.files.clear();
                }
                _ => return Ok(0),
            }
        }
    }
}

/// Moves to where the last lines begin; says how many there are from there on. A
/// line without a break at its end counts.
fn seek_to_last_lines(file: &mut File, lines: u64) -> io::Result<u64> {
    let end = file.metadata()?.len();
    let mut found = 0;
    let mut at = end;
    let mut block = vec![0; 64 * 1024];
    while at > 0 {
        let length = at.min(block.len() as u64);
        at -= length;
        file.seek(SeekFrom::Start(at))?;
        let piece = &mut block[..usize::try_from(length).unwrap_or(0)];
        file.read_exact(piece)?;
        for (index, byte) in piece.iter().enumerate().rev() {
            let after = at + index as u64 + 1;
            if *byte == b'\n' && after < end {
                found += 1;
                if found == lines {
                    file.seek(SeekFrom::Start(after))?;
                    return Ok(found);
                }
            }
        }
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(if end > 0 { found + 1 } else { 0 })
}

/// Answers one request for a log: pieces of it, then an empty last one.
pub async fn serve(
    request: LogRequest,
    units: &Units,
    own_log: Option<&Path>,
    out: &mpsc::Sender<NodeMessage>,
    cancel: &CancellationToken,
) {
    let id = request.id.as_str();
    let error = match find(&request, units, own_log) {
        Ok(None) => String::new(),
        Ok(Some(source)) => {
            // The outer future is dropped when the session ends; nothing is sent then.
            let served = cancel.run_until_cancelled(async {
                match source {
                    LogSource::File(path) => from_file(&request, &path, units, out).await,
                    LogSource::Simulated(log) => simulated(&request, &log, units, out).await,
                }
            });
            match served.await {
                Some(Err(error)) => error.to_string(),
                Some(Ok(())) | None => String::new(),
            }
        }
        Err(error) => error,
    };
    let last = LogChunk { id: id.to_owned(), data: Bytes::new(), eof: true, error };
    let _ = out.send(Up::LogChunk(last).into()).await;
}

/// Where the log is; `None` when nothing is known of such a unit.
fn find(request: &LogRequest, units: &Units, own_log: Option<&Path>) -> Result<Option<LogSource>, String> {
    if request.node_unit {
        let path = own_log.ok_or("the agent does not run under a unit")?;
        return Ok(Some(LogSource::File(path.to_owned())));
    }
    Ok(Uuid::parse_str(&request.app).ok().and_then(|uid| units.log(uid)))
}

fn is_held(request: &LogRequest, units: &Units) -> bool {
    request.node_unit || Uuid::parse_str(&request.app).is_ok_and(|uid| units.holds(uid))
}

/// Lines from the end to begin with; `None` = everything.
fn first_lines(request: &LogRequest) -> Option<u64> {
    match u64::try_from(request.tail_lines) {
        Ok(lines) if lines > 0 => Some(lines),
        _ if request.follow => Some(FOLLOW_LINES),
        _ => None,
    }
}

async fn from_file(
    request: &LogRequest,
    path: &Path,
    units: &Units,
    out: &mpsc::Sender<NodeMessage>,
) -> io::Result<()> {
    let mut reader = LogReader::open(path, first_lines(request))?;
    let mut piece = vec![0; LOG_CHUNK_BYTES];
    loop {
        // Asked before reading, so that the last words of a unit are read.
        let held = is_held(request, units);
        match reader.read(&mut piece) {
            Ok(0) if request.follow && held => sleep(FOLLOW_INTERVAL).await,
            Ok(0) => return Ok(()),
            Ok(length) => send(request, Bytes::copy_from_slice(&piece[..length]), out).await,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

async fn simulated(
    request: &LogRequest,
    log: &SimulatedLog,
    units: &Units,
    out: &mpsc::Sender<NodeMessage>,
) -> io::Result<()> {
    let mut next = match first_lines(request) {
        Some(lines) => log.lines_at(now_unix_nano()).saturating_sub(lines),
        None => 0,
    };
    loop {
        let held = is_held(request, units);
        let end = log.lines_at(now_unix_nano());
        let mut piece = String::new();
        while next < end {
            let line = log.line(next);
            next += 1;
            if piece.len() + line.len() > LOG_CHUNK_BYTES {
                send(request, std::mem::take(&mut piece).into(), out).await;
            }
            piece.push_str(&line);
        }
        if !piece.is_empty() {
            send(request, piece.into(), out).await;
        }
        if !request.follow || !held {
            return Ok(());
        }
        sleep(FOLLOW_INTERVAL).await;
    }
}

async fn send(request: &LogRequest, data: Bytes, out: &mpsc::Sender<NodeMessage>) {
    let chunk = LogChunk { id: request.id.clone(), data, eof: false, error: String::new() };
    let _ = out.send(Up::LogChunk(chunk).into()).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(reader: &mut LogReader) -> String {
        let mut all = Vec::new();
        let mut piece = [0; 7];
        loop {
            match reader.read(&mut piece).expect("reads") {
                0 => return String::from_utf8(all).expect("text"),
                length => all.extend(&piece[..length]),
            }
        }
    }

    #[test]
    fn the_last_lines() {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut log = LogFile::with_limit(&scratch.path().join("log"), 12).expect("a log");
        log.write(b"one\ntwo\nthree\n").expect("writes");
        log.write(b"four\nfi").expect("writes");
        for (lines, expected) in [
            (None, "one\ntwo\nthree\nfour\nfi"),
            (Some(1), "fi"),
            (Some(2), "four\nfi"),
            (Some(3), "three\nfour\nfi"),
            (Some(5), "one\ntwo\nthree\nfour\nfi"),
            (Some(9), "one\ntwo\nthree\nfour\nfi"),
        ] {
            let mut reader = LogReader::open(&scratch.path().join("log"), lines).expect("opens");
            assert_eq!(read_all(&mut reader), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_reader_loses_nothing_when_the_file_is_replaced() {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut log = LogFile::with_limit(&scratch.path().join("log"), 4).expect("a log");
        let mut reader = LogReader::open(&scratch.path().join("log"), None).expect("opens");
        let mut seen = String::new();
        for number in 0..50 {
            log.write(format!("{number}\n").as_bytes()).expect("writes");
            seen += &read_all(&mut reader);
        }
        assert_eq!(seen, (0..50).map(|number| format!("{number}\n")).collect::<String>());
        let size: u64 = fs::read_dir(scratch.path())
            .expect("lists")
            .map(|entry| entry.expect("an entry").metadata().expect("a size").len())
            .sum();
        assert!(size <= 16, "{size} bytes are kept");
    }

    #[test]
    fn no_log_is_an_empty_log() {
        let scratch = tempfile::tempdir().expect("a directory");
        let mut reader = LogReader::open(&scratch.path().join("log"), Some(3)).expect("opens");
        assert_eq!(read_all(&mut reader), "");
    }
}

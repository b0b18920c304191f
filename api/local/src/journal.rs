//! What simulated nodes have written down of themselves (`horchestra-agent fleet --journal`).

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;
use uuid::Uuid;

/// Why a unit was stopped for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stopped {
    Deleting,
    Unwanted,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "event", rename_all = "camelCase")]
pub enum Event {
    /// A heartbeat was about to be sent.
    Beat,
    Received {
        uid: Uuid,
        generation: i64,
    },
    Stopped {
        uid: Uuid,
        why: Stopped,
    },
    VolumeGone {
        volume: String,
        kept: bool,
    },
    Reported {
        uid: Uuid,
        phase: String,
        generation: i64,
        address: String,
    },
}

/// Something that happened on a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Line {
    /// Microseconds since the epoch.
    pub at: i64,
    pub node: String,
    #[serde(flatten)]
    pub event: Event,
}

/// Reads a journal as it grows.
pub struct Reader {
    path: PathBuf,
    read: u64,
}

impl Reader {
    /// From its beginning.
    pub fn new(path: impl Into<PathBuf>) -> Reader {
        Reader { path: path.into(), read: 0 }
    }

    /// Passes over what is there already.
    pub fn skip_to_end(&mut self) {
        self.read = std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
    }

    /// Whole lines that were added since the last call.
    pub fn news(&mut self) -> Result<Vec<Line>> {
        news(&self.path, &mut self.read).with_context(|| format!("reading {}", self.path.display()))
    }
}

fn news(path: &Path, read: &mut u64) -> Result<Vec<Line>> {
    let mut file = BufReader::new(File::open(path)?);
    file.seek(SeekFrom::Start(*read))?;
    let (mut lines, mut text) = (Vec::new(), String::new());
    loop {
        text.clear();
        let length = file.read_line(&mut text)?;
        if !text.ends_with('\n') {
            return Ok(lines);
        }
        lines.push(serde_json::from_str(&text).with_context(|| format!("line {text:?}"))?);
        *read += length as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use horchestra_testkit::TempDir;

    use super::*;

    #[test]
    fn half_a_line_is_read_when_it_is_whole() {
        let home = TempDir::new().unwrap();
        let path = home.path().join("journal");
        let mut file = File::create(&path).unwrap();
        let uid = Uuid::from_u128(3);
        let whole = format!(
            "{{\"at\":7,\"node\":\"n1\",\"event\":\"stopped\",\"uid\":\"{uid}\",\"why\":\"unwanted\"}}\n"
        );
        let mut reader = Reader::new(&path);
        write!(file, "{whole}{{\"at\":8,").unwrap();
        let expected =
            Line { at: 7, node: "n1".to_owned(), event: Event::Stopped { uid, why: Stopped::Unwanted } };
        assert_eq!(reader.news().unwrap(), [expected]);
        assert_eq!(reader.news().unwrap(), []);
        writeln!(file, "\"node\":\"n2\",\"event\":\"received\",\"uid\":\"{uid}\",\"generation\":2}}")
            .unwrap();
        assert_eq!(reader.news().unwrap()[0].event, Event::Received { uid, generation: 2 });
        reader.skip_to_end();
        assert_eq!(reader.news().unwrap(), []);
    }
}

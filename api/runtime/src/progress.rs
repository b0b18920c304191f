//! How far something that takes its time has come, for somebody who waits at a terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// No line is drawn more often than this.
const PAUSE: Duration = Duration::from_millis(200);

/// One line on standard error that is drawn again and again, and wiped away in the end. Where standard error is no
/// terminal nothing is written at all.
pub struct Progress {
    label: String,
    began: Instant,
    out: Option<Mutex<Drawn>>,
}

struct Drawn {
    out: Box<dyn Write + Send>,
    at: Option<Instant>,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Progress").field("label", &self.label).finish_non_exhaustive()
    }
}

impl Progress {
    /// Draws the first line.
    pub fn new(label: impl Into<String>) -> Progress {
        let error = std::io::stderr();
        let out: Option<Box<dyn Write + Send>> =
            if error.is_terminal() { Some(Box::new(error)) } else { None };
        Progress::on(label, out)
    }

    fn on(label: impl Into<String>, out: Option<Box<dyn Write + Send>>) -> Progress {
        let out = out.map(|out| Mutex::new(Drawn { out, at: None }));
        let progress = Progress { label: label.into(), began: Instant::now(), out };
        progress.draw("…");
        progress
    }

    /// So much is done of so much; `of` is 0 where nobody knows.
    pub fn at(&self, done: u64, of: u64) {
        let mut text = String::new();
        let _ = match of {
            0 => write!(text, "{done}"),
            _ => write!(text, "{done} of {of} ({} %)", done.min(of) * 100 / of),
        };
        self.draw(&text);
    }

    fn draw(&self, text: &str) {
        let Some(drawn) = &self.out else { return };
        let mut drawn = drawn.lock();
        let now = Instant::now();
        if drawn.at.is_some_and(|at| now.duration_since(at) < PAUSE) {
            return;
        }
        drawn.at = Some(now);
        let elapsed = now.duration_since(self.began).as_secs();
        // Whoever waits sees it or does not: nothing hangs on it.
        let _ = write!(drawn.out, "\r\x1b[K{}: {text}, {elapsed} s", self.label);
        let _ = drawn.out.flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(drawn) = &self.out {
            let mut drawn = drawn.lock();
            let _ = write!(drawn.out, "\r\x1b[K");
            let _ = drawn.out.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_drawn_now_and_then_and_wiped_away() {
        let screen = Screen::default();
        let progress = Progress::on("sealing", Some(Box::new(screen.clone())));
        let drawn = |screen: &Screen| String::from_utf8(screen.0.lock().clone()).unwrap();
        assert!(drawn(&screen).ends_with("sealing: …, 0 s"));
        progress.at(1, 3);
        assert!(drawn(&screen).ends_with("sealing: …, 0 s"), "too soon");
        progress.out.as_ref().unwrap().lock().at = None;
        progress.at(2, 3);
        assert!(drawn(&screen).ends_with("\r\x1b[Ksealing: 2 of 3 (66 %), 0 s"));
        progress.out.as_ref().unwrap().lock().at = None;
        progress.at(7, 0);
        assert!(drawn(&screen).ends_with("\r\x1b[Ksealing: 7, 0 s"));
        drop(progress);
        assert!(drawn(&screen).ends_with("\r\x1b[K"));
        Progress::on("nobody looks", None).at(1, 2);
    }
}

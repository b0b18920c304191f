//! What `/proc` says of processes.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// CPU time in `/proc` counts in hundredths of a second on Linux, whatever the
/// kernel's own tick is.
pub const USEC_PER_TICK: i64 = 10_000;

/// A process that cannot be mistaken for a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// When it started, in ticks since boot.
    pub start: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Option<Self> {
        stat(pid).map(|stat| Self { pid, start: stat.start })
    }

    /// It exists and has not ended.
    pub fn is_alive(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.start == self.start && !stat.is_over())
    }
}

/// The part of `/proc/<pid>/stat` that is of use here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// R, S, D, T, Z, …
    pub state: u8,
    /// Parent.
    pub parent: i32,
    /// Session.
    pub session: i32,
    /// CPU ticks of its own.
    pub ticks: i64,
    /// CPU ticks of children that it has waited for.
    pub reaped_ticks: i64,
    /// Threads.
    pub threads: i64,
    /// Start, in ticks since boot.
    pub start: u64,
    /// Resident pages.
    pub pages: i64,
}

impl Stat {
    /// Ended, perhaps not yet waited for.
    pub fn is_over(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Reads one process; `None` when it is gone.
pub fn stat(pid: i32) -> Option<Stat> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name of a process is free text in parentheses, so fields are counted from
/// the last closing one.
fn parse(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<i64>().ok();
    Some(Stat {
        state: fields.first()?.bytes().next()?,
        parent: i32::try_from(number(1)?).ok()?,
        session: i32::try_from(number(3)?).ok()?,
        ticks: number(11)? + number(12)?,
        reaped_ticks: number(13)? + number(14)?,
        threads: number(17)?,
        start: u64::try_from(number(19)?).ok()?,
        pages: number(21)?,
    })
}

/// All processes, by number.
pub fn all() -> HashMap<i32, Stat> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .collect()
}

/// Everything below a process, without itself and without what has ended.
pub fn descendants(of: i32) -> Vec<(i32, Stat)> {
    let all = all();
    let is_below = |mut pid: i32| {
        // A cycle cannot be, but a snapshot taken piece by piece may show one.
        for _ in 0..all.len() {
            match all.get(&pid) {
                Some(stat) if stat.parent == of => return true,
                Some(stat) if stat.parent > 1 => pid = stat.parent,
                _ => return false,
            }
        }
        false
    };
    all.iter()
        .filter(|(pid, stat)| **pid != of && !stat.is_over() && is_below(**pid))
        .map(|(pid, stat)| (*pid, *stat))
        .collect()
}

/// Whether a process is held still: it is stopped, or waits for a child to begin (vfork), which nothing can stop,
/// and the child is.
pub fn is_held_still(pid: i32) -> bool {
    match stat(pid).map(|stat| stat.state) {
        Some(b'T') => true,
        Some(b'D') => all().values().any(|child| child.parent == pid && child.state == b'T'),
        _ => false,
    }
}

/// Processes with this variable in their environment, and those of the session that
/// this leader began. The leader may be gone: its number is not given to another
/// process while its session has members. If another process leads that session, it
/// is not the one that is meant, and its members are left alone.
pub fn marked(variable: &str, leader: Option<ProcessId>) -> Vec<i32> {
    let all = all();
    let session = leader
        .filter(|leader| all.get(&leader.pid).is_none_or(|stat| stat.start == leader.start))
        .map(|leader| leader.pid);
    let has_variable = |pid: i32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes()))
    };
    all.iter()
        .filter(|(pid, stat)| !stat.is_over() && (session == Some(stat.session) || has_variable(**pid)))
        .map(|(pid, _)| *pid)
        .collect()
}

/// Changes with every boot, so that ticks since boot mean something.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let text = "42 (a) b (c) S 7 42 40 0 -1 4194560 1 2 3 4 50 60 70 80 20 0 9 0 12345 1000 33 18446744073709551615";
        let stat = parse(text).expect("parses");
        assert_eq!(
            stat,
            Stat {
                state: b'S',
                parent: 7,
                session: 40,
                ticks: 110,
                reaped_ticks: 150,
                threads: 9,
                start: 12345,
                pages: 33,
            }
        );
        assert_eq!(parse("42 (short) S 7"), None);
    }

    #[test]
    fn this_process_is_alive_and_another_start_is_another_process() {
        let me = ProcessId::of(std::process::id().cast_signed()).expect("it runs");
        assert!(me.is_alive());
        assert!(!ProcessId { start: me.start + 1, ..me }.is_alive());
    }

    #[test]
    fn a_session_of_another_leader_is_left_alone() {
        let me = std::process::id().cast_signed();
        let session = stat(me).expect("it runs").session;
        let leader = ProcessId::of(session);
        if let Some(leader) = leader {
            assert!(marked("NO=SUCH", Some(leader)).contains(&me));
            let reused = ProcessId { start: leader.start + 1, ..leader };
            assert!(!marked("NO=SUCH", Some(reused)).contains(&me));
        }
        assert!(!marked("NO=SUCH", None).contains(&me));
    }
}

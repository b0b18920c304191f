//! Usage: what nodes measure of themselves and of the workloads on them.
//!
//! A measurement ([`Sample`]) has counters that only grow while a workload runs, and gauges. A rate of CPU comes
//! out of two of them, so of each thing the newest sample is kept together with the counter and the time of an
//! earlier one ([`Measured`]). Node clocks are nobody's but the node's: two samples of one node are compared with
//! each other, and how old a sample is goes by when it was received.
//!
//! What is relied on: there is a rate only where it means something. A counter that went back (the workload was
//! started again), a clock that stood still or went back, samples less than a second or more than ten minutes
//! apart, more CPU than any machine has: no rate, until two samples fit together again. Nothing here divides by
//! zero or overflows, whatever was sent.
//!
//! [`row`] is the form in which the samples of a node are stored, [`shown`] the form in which clients see them, beside
//! [`named`] of a stored object.

pub mod named;
pub mod row;
pub mod shown;

use std::time::Duration;

/// How long after it was received a sample says anything.
pub const FRESH: Duration = Duration::from_secs(120);

/// Two samples this close are one; the later counts.
const SHORTEST_WINDOW: i64 = 1_000_000_000;
/// A rate over a longer time says nothing about now.
const LONGEST_WINDOW: i64 = 600 * 1_000_000_000;
/// How far a node's clock may be off, either way, before it is brought to that.
const CLOCK_TOLERANCE: i64 = LONGEST_WINDOW;
/// Cores of the largest believable machine. What a node says that it has may be less than it has, so that is no
/// bound.
const CORES_CEILING: i128 = 4096;
/// Memory of the largest believable machine: 64 TiB.
const MEMORY_CEILING: i64 = 1 << 46;
/// Linux gives out no more process numbers.
const PIDS_CEILING: i64 = 1 << 22;

/// What was counted and measured at one moment. Of a node, `memory_peak_bytes` is all the memory that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub cpu_usec: i64,
    pub cpu_throttled_usec: i64,
    pub memory_bytes: i64,
    pub memory_peak_bytes: i64,
    pub pids: i64,
    pub oom_kills: i64,
    /// Nanoseconds since the epoch by the node's clock; 0: not known.
    pub at: i64,
}

impl Sample {
    /// The sample as it is believed, if it is: nothing is negative or larger than can be. A clock that is far off
    /// is brought nearer to `received`, in nanoseconds since the epoch.
    pub fn believed(mut self, received: i64) -> Option<Sample> {
        let counters = [self.cpu_usec, self.cpu_throttled_usec, self.oom_kills];
        let gauges = [
            (self.memory_bytes, MEMORY_CEILING),
            (self.memory_peak_bytes, MEMORY_CEILING),
            (self.pids, PIDS_CEILING),
        ];
        let holds = counters.iter().all(|value| *value >= 0)
            && gauges.iter().all(|(value, ceiling)| (0..=*ceiling).contains(value));
        if self.at != 0 {
            let earliest = received.saturating_sub(CLOCK_TOLERANCE);
            self.at = self.at.clamp(earliest, received.saturating_add(CLOCK_TOLERANCE));
        }
        holds.then_some(self)
    }
}

/// The earlier of two samples, as far as rates need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    pub cpu_usec: i64,
    pub at: i64,
}

impl Before {
    fn of(sample: &Sample) -> Before {
        Before { cpu_usec: sample.cpu_usec, at: sample.at }
    }
}

/// The newest sample of a thing, and what an earlier one has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    pub now: Sample,
    pub before: Option<Before>,
}

/// How fast CPU time is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Thousandths of a core.
    pub milli_cpu: i64,
    /// Over which time.
    pub window: Duration,
}

impl Measured {
    pub fn first(sample: Sample) -> Measured {
        Measured { now: sample, before: None }
    }

    /// Another sample of the same thing has come.
    pub fn take(&mut self, next: Sample) {
        if next.at.saturating_sub(self.now.at).unsigned_abs() >= SHORTEST_WINDOW.unsigned_abs() {
            self.before = Some(Before::of(&self.now));
        }
        self.now = next;
    }

    /// What was measured earlier turns up, from whoever kept it: the rate need not wait for another sample.
    pub fn recall(&mut self, earlier: &Measured) {
        if self.before.is_none() {
            let mut joined = *earlier;
            joined.take(self.now);
            self.before = joined.before;
        }
    }

    /// The rate, where there is one.
    pub fn rate(&self) -> Option<Rate> {
        let before = self.before.filter(|before| before.at != 0 && self.now.at != 0)?;
        let window = self.now.at.checked_sub(before.at)?;
        let used = self.now.cpu_usec.checked_sub(before.cpu_usec).filter(|used| *used >= 0)?;
        if !(SHORTEST_WINDOW..=LONGEST_WINDOW).contains(&window) {
            return None;
        }
        // Microseconds of CPU per nanosecond of time: a thousandth of a core is one in a million.
        let milli_cpu = i128::from(used) * 1_000_000 / i128::from(window);
        let milli_cpu =
            i64::try_from(milli_cpu).ok().filter(|milli| i128::from(*milli) <= CORES_CEILING * 1000)?;
        Some(Rate { milli_cpu, window: Duration::from_nanos(window.unsigned_abs()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;
    /// Some moment of a node's clock.
    const T: i64 = 1_700_000_000 * SECOND;

    fn at(seconds: f64, cpu_usec: i64) -> Sample {
        let offset = Duration::from_secs_f64(seconds).as_nanos();
        Sample { cpu_usec, at: T + i64::try_from(offset).unwrap(), ..Sample::default() }
    }

    fn after(samples: &[Sample]) -> Measured {
        let mut measured = Measured::first(samples[0]);
        samples[1..].iter().for_each(|sample| measured.take(*sample));
        measured
    }

    #[test]
    fn a_rate_needs_two_samples_that_fit_together() {
        let millis =
            |samples: &[Sample]| after(samples).rate().map(|rate| (rate.milli_cpu, rate.window.as_millis()));
        for (what, samples, expected) in [
            ("one sample", vec![at(0.0, 5)], None),
            ("two samples", vec![at(0.0, 0), at(15.0, 3_000_000)], Some((200, 15_000))),
            ("nothing used", vec![at(0.0, 9), at(5.0, 9)], Some((0, 5_000))),
            ("started again", vec![at(0.0, 9_000_000), at(15.0, 10)], None),
            (
                "and measured again since",
                vec![at(0.0, 9_000_000), at(15.0, 10), at(30.0, 1_500_010)],
                Some((100, 15_000)),
            ),
            ("one moment", vec![at(0.0, 0), at(0.0, 7)], None),
            ("a nanosecond apart", vec![at(0.0, 0), Sample { at: T + 1, ..at(0.0, 7) }], None),
            (
                "the later of two that are close counts",
                vec![at(0.0, 0), at(10.0, 1_000_000), at(10.5, 2_100_000)],
                Some((200, 10_500)),
            ),
            ("a clock that went back", vec![at(60.0, 0), at(0.0, 7)], None),
            (
                "and goes on from there",
                vec![at(60.0, 0), at(0.0, 7), at(5.0, 5_000_007)],
                Some((1000, 5_000)),
            ),
            ("too long ago", vec![at(0.0, 0), at(601.0, 7)], None),
            ("no machine has as many cores", vec![at(0.0, 0), at(1.0, 4097 * 1_000_000)], None),
            ("the largest machine", vec![at(0.0, 0), at(1.0, 4096 * 1_000_000)], Some((4_096_000, 1_000))),
            ("no time is known", vec![Sample::default(), Sample { cpu_usec: 5, ..Sample::default() }], None),
            ("one time is known", vec![Sample::default(), at(0.0, 5)], None),
            (
                "the ends of the scale",
                vec![
                    Sample { cpu_usec: i64::MIN, at: i64::MIN, ..Sample::default() },
                    Sample { cpu_usec: i64::MAX, at: i64::MAX, ..Sample::default() },
                ],
                None,
            ),
        ] {
            assert_eq!(millis(&samples), expected, "{what}");
        }
    }

    #[test]
    fn what_cannot_be_is_not_believed() {
        let fine = Sample {
            cpu_usec: 1,
            cpu_throttled_usec: 2,
            memory_bytes: 1 << 46,
            memory_peak_bytes: 1 << 46,
            pids: 1 << 22,
            oom_kills: 3,
            at: T,
        };
        assert_eq!(fine.believed(T), Some(fine));
        assert_eq!(Sample::default().believed(T), Some(Sample::default()), "no time is no lie");
        for (what, wrong) in [
            ("CPU", Sample { cpu_usec: -1, ..fine }),
            ("throttled", Sample { cpu_throttled_usec: -1, ..fine }),
            ("memory", Sample { memory_bytes: -1, ..fine }),
            ("too much memory", Sample { memory_bytes: (1 << 46) + 1, ..fine }),
            ("peak", Sample { memory_peak_bytes: i64::MIN, ..fine }),
            ("too high a peak", Sample { memory_peak_bytes: i64::MAX, ..fine }),
            ("processes", Sample { pids: -1, ..fine }),
            ("too many processes", Sample { pids: (1 << 22) + 1, ..fine }),
            ("kills", Sample { oom_kills: -1, ..fine }),
        ] {
            assert_eq!(wrong.believed(T), None, "{what}");
        }
        for (clock, believed) in [
            (T - 599 * SECOND, T - 599 * SECOND),
            (T - 3600 * SECOND, T - 600 * SECOND),
            (T + 3600 * SECOND, T + 600 * SECOND),
            (i64::MIN, T - 600 * SECOND),
            (i64::MAX, T + 600 * SECOND),
        ] {
            assert_eq!(
                Sample { at: clock, ..fine }.believed(T).map(|sample| sample.at),
                Some(believed),
                "{clock}"
            );
        }
    }

    #[test]
    fn what_somebody_else_measured_before_serves_as_the_earlier_sample() {
        let earlier = after(&[at(0.0, 0), at(15.0, 1_000_000)]);
        for (what, newest, expected) in [
            ("a later sample", at(30.0, 4_000_000), Some(200)),
            ("the same one", at(15.0, 1_000_000), Some(66)),
            ("the workload was started again", at(30.0, 5), None),
        ] {
            let mut measured = Measured::first(newest);
            measured.recall(&earlier);
            assert_eq!(measured.now, newest, "{what}");
            assert_eq!(measured.rate().map(|rate| rate.milli_cpu), expected, "{what}");
        }
        let mut own = after(&[at(20.0, 0), at(30.0, 10_000_000)]);
        own.recall(&earlier);
        assert_eq!(own.rate().map(|rate| rate.milli_cpu), Some(1000), "two of its own are better");
    }
}

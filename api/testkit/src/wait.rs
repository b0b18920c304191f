//! Level-triggered waits: look at the state until it is as wanted, fail at a deadline.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// What a look at the state can yield: `bool`, `Option` or `Result`.
pub trait Probe {
    type Value;

    /// The value when the state is as wanted, otherwise a word on what is still missing.
    fn settle(self) -> Result<Self::Value, String>;
}

impl Probe for bool {
    type Value = ();

    fn settle(self) -> Result<(), String> {
        if self { Ok(()) } else { Err("still false".to_owned()) }
    }
}

impl<T> Probe for Option<T> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.ok_or_else(|| "still nothing".to_owned())
    }
}

impl<T, E: Debug> Probe for Result<T, E> {
    type Value = T;

    fn settle(self) -> Result<T, String> {
        self.map_err(|error| format!("{error:?}"))
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Calls `look` until it yields what is wanted and returns that.
///
/// # Panics
///
/// When `deadline` has passed; the message carries what the last look said.
#[track_caller]
pub fn eventually<P: Probe>(
    deadline: Duration,
    mut look: impl AsyncFnMut() -> P,
) -> impl Future<Output = P::Value> {
    let caller = std::panic::Location::caller();
    async move {
        let started = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            match look().await.settle() {
                Ok(value) => return value,
                Err(missing) if started.elapsed() >= deadline => {
                    panic!("not so within {deadline:?} at {caller}: {missing}")
                }
                Err(_) => tokio::time::sleep(pause).await,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// [`eventually`] for code without a runtime.
///
/// # Panics
///
/// When `deadline` has passed.
#[track_caller]
pub fn eventually_blocking<P: Probe>(deadline: Duration, mut look: impl FnMut() -> P) -> P::Value {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        match look().settle() {
            Ok(value) => return value,
            Err(missing) if started.elapsed() >= deadline => panic!("not so within {deadline:?}: {missing}"),
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

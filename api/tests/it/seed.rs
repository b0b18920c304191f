//! The random numbers of a test, and how to have the same ones again.
//!
//! The seed is the same in every run unless `HORCHESTRA_TEST_SEED` names another; `random` draws one, and the run
//! prints it. The order in which concurrent requests
//! take turns is the scheduler's, so a seed repeats what is asked, not when.

use rand::SeedableRng;
use rand::rngs::StdRng;

/// Any number will do; a build that fails can be run again with the same.
const USUAL: u64 = 15_531_008_917_863_996_406;

pub struct Seed(u64);

impl Seed {
    /// The seed from the environment, or the usual one.
    // A test has no arguments.
    #[allow(clippy::print_stderr, clippy::disallowed_methods)]
    pub fn of(test: &str) -> Seed {
        let given = std::env::var("HORCHESTRA_TEST_SEED").ok();
        let seed = match given.as_deref() {
            None => USUAL,
            Some("random") => rand::random(),
            Some(text) => text.parse().expect("the seed is a whole number, or random"),
        };
        eprintln!("{test}: HORCHESTRA_TEST_SEED={seed}");
        Seed(seed)
    }

    /// Random numbers for one task of the test, the same ones however the tasks take turns.
    pub fn lane(&self, number: u64) -> StdRng {
        StdRng::seed_from_u64(self.0 ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

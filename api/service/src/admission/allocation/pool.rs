//! The numbers of one space: which are held, which are set aside, and the lowest that is neither.
//!
//! What is asked for all the time is the lowest free number, of thousands that are held. So the numbers from the
//! first candidate on are parted at a frontier: below it every number is held or stands in a list of gaps, above
//! it nobody has looked yet. The frontier moves up only, once over every number, so a choice costs the
//! gaps that are set aside or at rest at the moment and a step.
//!
//! A number that was let go may be put to rest: it is given out again only after a while, or when nothing else is left.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

use tokio::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Pool {
    /// How many hold a number.
    holders: HashMap<u128, u32>,
    aside: HashSet<u128>,
    /// Until when.
    resting: HashMap<u128, Instant>,
    /// The first candidate, as last asked for.
    first: u128,
    /// Every number from the first to before this one is held or a gap.
    frontier: u128,
    gaps: BTreeSet<u128>,
}

impl Pool {
    /// Somebody more holds the number.
    pub fn hold(&mut self, number: u128) {
        *self.holders.entry(number).or_default() += 1;
        self.gaps.remove(&number);
        self.resting.remove(&number);
    }

    /// Nobody is given the number before then, unless nothing else is left.
    pub fn rest(&mut self, number: u128, until: Instant) {
        if !self.is_held(number) {
            self.resting.insert(number, until);
        }
    }

    /// Somebody holds the number no more.
    pub fn let_go(&mut self, number: u128) {
        let Some(holders) = self.holders.get_mut(&number) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.holders.remove(&number);
            if (self.first..self.frontier).contains(&number) {
                self.gaps.insert(number);
            }
        }
    }

    pub fn is_held(&self, number: u128) -> bool {
        self.holders.contains_key(&number)
    }

    pub fn holds_nothing(&self) -> bool {
        self.holders.is_empty() && self.aside.is_empty() && self.resting.is_empty()
    }

    /// Nobody holds anything; what is set aside stays so.
    pub fn forget(&mut self) {
        self.holders.clear();
        self.begin(self.first);
    }

    /// Sets aside the lowest number of the range that is neither held nor set aside nor at rest, or else the one that
    /// has been at rest for longest.
    pub fn choose(&mut self, range: &RangeInclusive<u128>, now: Instant) -> Option<u128> {
        self.resting.retain(|_, until| *until > now);
        if self.first != *range.start() {
            self.begin(*range.start());
        }
        let gap = self.gaps.iter().copied().find(|number| self.is_ready(*number) && number <= range.end());
        let number = match gap.or_else(|| self.advance(*range.end())) {
            Some(number) => number,
            None => {
                let free = |number: &u128| self.gaps.contains(number) && !self.aside.contains(number);
                let at_rest =
                    self.resting.iter().filter(|(number, _)| range.contains(number) && free(number));
                *at_rest.min_by_key(|(number, until)| (**until, **number))?.0
            }
        };
        (number <= *range.end()).then(|| {
            self.aside.insert(number);
            number
        })
    }

    pub fn give_back(&mut self, number: u128) {
        self.aside.remove(&number);
    }

    fn is_ready(&self, number: u128) -> bool {
        !self.aside.contains(&number) && !self.resting.contains_key(&number)
    }

    fn begin(&mut self, first: u128) {
        self.first = first;
        self.frontier = first;
        self.gaps.clear();
    }

    /// Moves the frontier over the next number that is neither held nor set aside.
    fn advance(&mut self, last: u128) -> Option<u128> {
        while self.frontier <= last {
            let number = self.frontier;
            // The last number that there is stays out.
            self.frontier = number.checked_add(1)?;
            if !self.is_held(number) {
                self.gaps.insert(number);
                if self.is_ready(number) {
                    return Some(number);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Hold(u128),
        LetGo(u128),
        Choose(RangeInclusive<u128>),
        GiveBack(usize),
        Forget,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Mostly one range; a network of one address has none to give out.
        let nothing = RangeInclusive::new(9, 8);
        let range = prop_oneof![3 => Just(3..=12), 1 => Just(3..=5), 1 => Just(5..=8), 1 => Just(nothing)];
        let step = prop_oneof![
            4 => (0u128..16).prop_map(Step::Hold),
            4 => (0u128..16).prop_map(Step::LetGo),
            8 => range.prop_map(Step::Choose),
            4 => (0usize..8).prop_map(Step::GiveBack),
            1 => Just(Step::Forget),
        ];
        vec(step, 0..80)
    }

    #[test]
    fn what_was_let_go_rests_for_a_while_or_until_nothing_else_is_left() {
        let (mut pool, start) = (Pool::default(), Instant::now());
        let after = |seconds| start + std::time::Duration::from_secs(seconds);
        (1..=4).for_each(|number| pool.hold(number));
        for (number, until) in [(3, 20), (2, 30)] {
            pool.let_go(number);
            pool.rest(number, after(until));
        }
        pool.rest(4, after(90));
        assert_eq!(pool.choose(&(1..=5), after(10)), Some(5));
        assert_eq!(pool.choose(&(1..=5), after(10)), Some(3), "the first to have rested");
        pool.give_back(3);
        assert_eq!(pool.choose(&(1..=5), after(25)), Some(3));
        assert_eq!(pool.choose(&(1..=5), after(25)), Some(2));
        assert_eq!(pool.choose(&(1..=5), after(100)), None);
        pool.give_back(2);
        pool.hold(2);
        pool.let_go(2);
        assert_eq!(
            pool.choose(&(1..=5), after(25)),
            Some(2),
            "who had it since was not asked to let it rest"
        );
    }

    proptest! {
        #[test]
        fn the_lowest_free_number_is_chosen(steps in steps()) {
            let mut pool = Pool::default();
            let (mut held, mut aside) = (Vec::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Hold(number) => {
                        pool.hold(number);
                        held.push(number);
                    }
                    Step::LetGo(number) => {
                        pool.let_go(number);
                        if let Some(at) = held.iter().position(|it| *it == number) {
                            held.remove(at);
                        }
                    }
                    Step::Choose(range) => {
                        let lowest = range.clone().find(|it| !held.contains(it) && !aside.contains(it));
                        prop_assert_eq!(pool.choose(&range, Instant::now()), lowest);
                        aside.extend(lowest);
                    }
                    Step::GiveBack(at) => {
                        if at < aside.len() {
                            pool.give_back(aside.remove(at));
                        }
                    }
                    Step::Forget => {
                        pool.forget();
                        held.clear();
                    }
                }
                prop_assert!((0..16).all(|number| pool.is_held(number) == held.contains(&number)));
                prop_assert_eq!(pool.holds_nothing(), held.is_empty() && aside.is_empty());
            }
        }
    }
}

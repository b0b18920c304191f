//! The numbers of one space: which are held, which are set aside, and the lowest that is neither.
//!
//! What is asked for all the time is the lowest free number, of thousands that are held. So the numbers from the
//! first candidate on are parted at a frontier: below it every number is held or stands in a list of gaps, above
//! it nobody has looked yet. The frontier moves up only, once over every number, so a choice costs the
//! gaps that are set aside at the moment and a step.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

#[derive(Debug, Default)]
pub(super) struct Pool {
    /// How many hold a number.
    holders: HashMap<u128, u32>,
    aside: HashSet<u128>,
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
        self.holders.is_empty() && self.aside.is_empty()
    }

    /// Nobody holds anything; what is set aside stays so.
    pub fn forget(&mut self) {
        self.holders.clear();
        self.begin(self.first);
    }

    /// Sets aside the lowest number of the range that is neither held nor set aside.
    pub fn choose(&mut self, range: &RangeInclusive<u128>) -> Option<u128> {
        if self.first != *range.start() {
            self.begin(*range.start());
        }
        let gap = self.gaps.iter().copied().find(|number| !self.aside.contains(number));
        let number = match gap {
            Some(gap) => gap,
            None => self.advance(*range.end())?,
        };
        (number <= *range.end()).then(|| {
            self.aside.insert(number);
            number
        })
    }

    pub fn give_back(&mut self, number: u128) {
        self.aside.remove(&number);
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
                if !self.aside.contains(&number) {
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
                        prop_assert_eq!(pool.choose(&range), lowest);
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

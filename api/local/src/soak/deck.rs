//! In which order things happen: every kind once, as they are listed, then again and again in another order.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;

pub struct Deck<F> {
    all: Vec<F>,
    /// Those that are still to come, the next one last.
    left: Vec<F>,
}

impl<F: Copy> Deck<F> {
    pub fn new(all: Vec<F>) -> Deck<F> {
        let left = all.iter().rev().copied().collect();
        Deck { all, left }
    }

    pub fn draw(&mut self, random: &mut StdRng) -> F {
        loop {
            if let Some(next) = self.left.pop() {
                return next;
            }
            self.left.clone_from(&self.all);
            self.left.shuffle(random);
        }
    }
}

//! Figures, each beside what it may be at most.

use crate::bench::report::Section;

/// One figure and its bound.
pub struct Figure {
    pub name: String,
    pub unit: &'static str,
    pub value: f64,
    pub bound: f64,
    /// Further facts.
    pub notes: Vec<String>,
}

impl Figure {
    fn is_within(&self) -> bool {
        self.value <= self.bound
    }

    pub fn section(&self) -> Section {
        Section {
            name: self.name.clone(),
            unit: self.unit,
            comparison: "the bound".into(),
            ours: vec![self.value],
            theirs: vec![self.bound],
            aim: "at most the bound".into(),
            notes: self.notes.clone(),
        }
    }
}

/// All of them in one table.
pub fn table(figures: &[Figure]) -> String {
    let width = figures.iter().map(|figure| figure.name.chars().count()).max().unwrap_or(0);
    let lines = figures.iter().map(|figure| {
        let Figure { name, unit, value, bound, .. } = figure;
        let verdict = if figure.is_within() { "within" } else { "OVER" };
        format!("  {name:width$}  {value:>9.2}  of at most {bound:>9.2} {unit:<12} {verdict}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Names of those that are over.
pub fn over(figures: &[Figure]) -> Vec<String> {
    figures.iter().filter(|figure| !figure.is_within()).map(|figure| figure.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_or_not_known_is_said() {
        let figure = |name: &str, value| Figure {
            name: name.to_owned(),
            unit: "s",
            value,
            bound: 2.0,
            notes: Vec::new(),
        };
        let figures = [figure("a", 2.0), figure("long", 2.1), figure("b", f64::NAN)];
        assert_eq!(over(&figures), ["long", "b"]);
        let table = table(&figures);
        assert_eq!(table.lines().filter(|line| line.ends_with("OVER")).count(), 2, "{table}");
    }
}

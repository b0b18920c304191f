//! What was measured, as JSON and for people.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::say;

/// Where and with what the measurements were made.
#[derive(Debug, Serialize)]
pub struct Environment {
    pub postgres: String,
    pub settings: Vec<(String, String)>,
    pub revision: String,
    pub kernel: String,
    pub cores: usize,
    pub profile: &'static str,
}

/// One workload: pairs of arms.
#[derive(Debug, Serialize)]
pub struct Section {
    pub name: String,
    /// What the numbers are, e.g. `writes/s`.
    pub unit: &'static str,
    pub comparison: String,
    pub ours: Vec<f64>,
    pub theirs: Vec<f64>,
    /// What the ratio has to be to meet the aim, in words; empty where there is none.
    pub aim: String,
    /// Further facts: CPU, batch sizes, percentiles.
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Summary {
    ours: f64,
    theirs: f64,
    /// Median, smallest and largest of the pairs' ratios (ours to theirs).
    ratio: (f64, f64, f64),
    /// How far apart the comparison's own runs are, as a share of their median.
    spread: f64,
}

impl Section {
    fn summary(&self) -> Summary {
        let ratios: Vec<f64> =
            self.ours.iter().zip(&self.theirs).map(|(ours, theirs)| ours / theirs).collect();
        let (low, high) = range(&self.theirs);
        let theirs = median(&self.theirs);
        let (least, most) = range(&ratios);
        Summary {
            ours: median(&self.ours),
            theirs,
            ratio: (median(&ratios), least, most),
            spread: (high - low) / theirs,
        }
    }
}

/// The middle value (of two middle ones, their mean); NaN for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

fn range(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(*v), high.max(*v)))
}

/// The value below which the share lies. `values` must be sorted.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let last = values.len() - 1;
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let at = (last as f64 * share).round() as usize;
    values[at.min(last)]
}

#[derive(Debug, Serialize)]
pub struct Report {
    environment: Environment,
    sections: Vec<Section>,
}

impl Report {
    pub fn new(environment: Environment) -> Report {
        Report { environment, sections: Vec::new() }
    }

    pub fn add(&mut self, section: Section) {
        let Summary { ours, theirs, ratio, spread } = section.summary();
        say(&format!(
            "{}: ours {ours:.1}, {} {theirs:.1} {}: ratio {:.2} ({:.2} to {:.2}), spread {:.0} %",
            section.name,
            section.comparison,
            section.unit,
            ratio.0,
            ratio.1,
            ratio.2,
            spread * 100.0
        ));
        for note in &section.notes {
            say(&format!("    {note}"));
        }
        self.sections.push(section);
    }

    /// Writes `bench.json` and `bench.md` into the folder.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let json = serde_json::to_vec_pretty(self)?;
        fs::write(folder.join("bench.json"), json).context("cannot write the report")?;
        fs::write(folder.join("bench.md"), self.markdown()).context("cannot write the report")?;
        say(&format!("the report is in {}", folder.display()));
        Ok(())
    }

    fn markdown(&self) -> String {
        let mut out = String::from("# Measurements\n\n");
        let Environment { postgres, settings, revision, kernel, cores, profile } = &self.environment;
        let _ =
            writeln!(out, "- {postgres}\n- revision {revision}, {profile} build\n- {kernel}, {cores} cores");
        for (name, value) in settings {
            let _ = writeln!(out, "- {name} = {value}");
        }
        out.push_str("\n| workload | unit | ours | comparison | | ratio (min to max) | aim | spread |\n");
        out.push_str("|---|---|---|---|---|---|---|---|\n");
        for section in &self.sections {
            let Summary { ours, theirs, ratio, spread } = section.summary();
            // A comparison that scatters this much says nothing.
            let doubt = if spread > 0.15 { " (does not count)" } else { "" };
            let _ = writeln!(
                out,
                "| {} | {} | {ours:.1} | {theirs:.1} | {} | {:.2} ({:.2} to {:.2}) | {} | {:.0} %{doubt} |",
                section.name,
                section.unit,
                section.comparison,
                ratio.0,
                ratio.1,
                ratio.2,
                section.aim,
                spread * 100.0,
            );
        }
        for section in self.sections.iter().filter(|section| !section.notes.is_empty()) {
            let _ = writeln!(out, "\n{}:", section.name);
            for note in &section.notes {
                let _ = writeln!(out, "- {note}");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles() {
        assert!(median(&[]).is_nan());
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        let sorted: Vec<f64> = (0..=100).map(f64::from).collect();
        assert!((percentile(&sorted, 0.99) - 99.0).abs() < 1e-9);
        assert!(percentile(&[], 0.5).is_nan());
    }
}

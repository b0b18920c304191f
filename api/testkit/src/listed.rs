//! For lists of rules that name the tests which show them: what tests there are.

use std::collections::BTreeSet;
use std::path::Path;

/// The names of the tests in a source file that run: an attribute after that of the test could keep it from running,
/// so such a test is left out.
///
/// # Panics
///
/// When the file cannot be read.
pub fn tests_of(file: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut tests = BTreeSet::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if !line.starts_with("#[tokio::test") && line != "#[test]" {
            continue;
        }
        let next = lines.next().unwrap_or_default();
        let declared = next.strip_prefix("async ").unwrap_or(next).strip_prefix("fn ");
        // An attribute between the two could keep the test from running.
        if let Some(name) = declared.and_then(|rest| rest.split('(').next()) {
            tests.insert(name.to_owned());
        }
    }
    tests
}

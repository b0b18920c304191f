//! Which of two versions of an API group is preferred: stable before beta before alpha, among those the
//! higher number first, and what is no version of that form last, in byte order.

use std::cmp::{Ordering, Reverse};

/// How far a version is: `v2` is stable, `v2beta1` the first beta of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Maturity {
    Stable,
    Beta,
    Alpha,
}

/// Preferred first.
pub fn by_preference(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

fn parse(version: &str) -> Option<(Maturity, Reverse<u32>, Reverse<u32>)> {
    let rest = version.strip_prefix('v')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (major, rest) = rest.split_at(end);
    let (maturity, minor) = match rest {
        "" => (Maturity::Stable, "0"),
        _ => match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
            (Some(minor), _) => (Maturity::Beta, minor),
            (_, Some(minor)) => (Maturity::Alpha, minor),
            _ => return None,
        },
    };
    let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?;
    Some((maturity, Reverse(number(major)?), Reverse(number(minor)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_before_beta_before_alpha() {
        let mut versions = [
            "v1alpha1",
            "v1",
            "v2beta1",
            "foo10",
            "v2",
            "v11beta2",
            "v10",
            "v11alpha2",
            "foo1",
            "v2beta2",
            "v",
        ];
        versions.sort_by(|a, b| by_preference(a, b));
        assert_eq!(
            versions,
            [
                "v10",
                "v2",
                "v1",
                "v11beta2",
                "v2beta2",
                "v2beta1",
                "v11alpha2",
                "v1alpha1",
                "foo1",
                "foo10",
                "v"
            ]
        );
    }
}

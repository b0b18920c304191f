//! Why an Application waits, in words.

/// The message when there is no node at all.
pub const NO_NODE: &str = "no node is registered";

/// The message when every node was rejected: each reason with the number of nodes that have it, the most frequent
/// first and equal counts in byte order, so that the same cluster gives the same text.
pub fn no_feasible_node<'a>(
    considered: usize,
    reasons: impl IntoIterator<Item = (&'a str, usize)>,
) -> String {
    if considered == 0 {
        return NO_NODE.to_owned();
    }
    let named = |(reason, count): (&'a str, usize)| {
        (if reason.is_empty() { "rejected without a reason" } else { reason }, count)
    };
    let mut counts: Vec<(&str, usize)> = reasons.into_iter().map(named).collect();
    counts.sort_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.cmp(b)));
    let listed: Vec<String> = counts.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    format!("0/{considered} nodes are available: {}", listed.join(", "))
}

/// The message when a plugin refused before any node was looked at, or could not score.
pub fn not_schedulable(why: &str) -> String {
    format!("not schedulable: {why}")
}

/// The message when a node was chosen and the placement still failed.
pub fn not_placed(node: &str, why: &str) -> String {
    format!("not placed on {node}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_grouped_and_ordered() {
        assert_eq!(no_feasible_node(3, [("y", 1), ("x", 2)]), "0/3 nodes are available: 2 x, 1 y");
        assert_eq!(no_feasible_node(2, [("b", 1), ("a", 1)]), "0/2 nodes are available: 1 a, 1 b");
        assert_eq!(no_feasible_node(0, []), NO_NODE);
        assert!(no_feasible_node(1, [("", 1)]).contains("without a reason"));
    }
}

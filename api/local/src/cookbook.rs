//! The queries of the SQL cookbook, as `migrations/README.md` has them.

const README: &str = include_str!("../../../migrations/README.md");

/// Every query with the name that its block is marked with, in order.
pub fn queries() -> Vec<(&'static str, &'static str)> {
    let blocks = README.split("```sql").skip(1);
    blocks
        .filter_map(|rest| rest.split("```").next()?.split_once('\n'))
        .map(|(name, query)| (name.trim(), query.trim().trim_end_matches(';')))
        .collect()
}

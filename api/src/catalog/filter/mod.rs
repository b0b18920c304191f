//! Expressions that choose among the items of an answer, in the language that Consul's clients know.
//!
//! ```text
//! ServiceName == "web" and "component=front" in ServiceTags
//! Service.Meta.team != ops or not (Service.Tags is empty)
//! Service.Meta["example.com/team"] matches "^o(ps|ther)$"
//! ```
//!
//! An expression is read once, against the shape of what it chooses from. A selector that does not exist there and
//! an operator that does not go with it are errors then, not silent misses later. The time that reading and choosing
//! take is bounded by the length of the expression (regular expressions included, which never backtrack).

mod parse;
mod shape;
mod token;

use regex::Regex;
use serde_json::Value;

pub use shape::{CHECK, ENTRY, HEALTH, NODE, SERVICE, Shape};

/// A filter.
#[derive(Debug)]
pub struct Filter(Expression);

#[derive(Debug)]
enum Expression {
    All(Vec<Expression>),
    Any(Vec<Expression>),
    Not(Box<Expression>),
    Match { path: Vec<String>, test: Test },
}

#[derive(Debug)]
enum Test {
    Is(String),
    IsNumber(i64),
    /// A part of a text, an item of a list or a key of a map.
    Contains(String),
    Empty,
    Matches(Regex),
}

impl Filter {
    /// Reads an expression over items of this shape. The error says what is wrong with it.
    pub fn parse(text: &str, shape: Shape) -> Result<Filter, String> {
        parse::parse(text, shape).map(Filter)
    }

    /// Whether the item is chosen.
    pub fn chooses(&self, item: &Value) -> bool {
        holds(&self.0, item)
    }
}

fn holds(expression: &Expression, item: &Value) -> bool {
    match expression {
        Expression::All(parts) => parts.iter().all(|part| holds(part, item)),
        Expression::Any(parts) => parts.iter().any(|part| holds(part, item)),
        Expression::Not(inner) => !holds(inner, item),
        Expression::Match { path, test } => {
            let found = path.iter().try_fold(item, |value, member| value.get(member));
            passes(found.unwrap_or(&Value::Null), test)
        }
    }
}

/// What is not there is empty, and neither is nor contains nor matches anything.
fn passes(value: &Value, test: &Test) -> bool {
    match (test, value) {
        (Test::Is(text), Value::String(value)) => value == text,
        (Test::IsNumber(number), value) => value.as_i64() == Some(*number),
        (Test::Contains(text), Value::String(value)) => value.contains(text.as_str()),
        (Test::Contains(text), Value::Array(values)) => values.iter().any(|value| value == text),
        (Test::Contains(text), Value::Object(values)) => values.contains_key(text),
        (Test::Empty, Value::Null) => true,
        (Test::Empty, Value::String(value)) => value.is_empty(),
        (Test::Empty, Value::Array(values)) => values.is_empty(),
        (Test::Empty, Value::Object(values)) => values.is_empty(),
        (Test::Matches(pattern), Value::String(value)) => pattern.is_match(value),
        _ => false,
    }
}

#[cfg(test)]
mod tests;

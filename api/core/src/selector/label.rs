//! Label selectors: `app=web,tier in (a,b),!canary,weight>3`.

use std::fmt;

use super::Values;
use crate::metadata::{label_value_fault, qualified_name_fault};
use crate::status::Status;

/// Longest accepted selector, in bytes.
const MAX_LENGTH: usize = 64 * 1024;

/// Requirements that must all hold. The empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

/// One requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    /// Sorted, without repetitions.
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `=`, `==` and `in`.
    In,
    /// `!=` and `notin`: also when there is no such label.
    NotIn,
    Exists,
    DoesNotExist,
    /// Both are whole numbers and the label's is the larger one.
    Greater,
    Less,
}

impl LabelSelector {
    /// 400 with the reason when the text is no selector.
    pub fn parse(text: &str) -> Result<LabelSelector, Status> {
        Parser::parse(text)
            .map_err(|why| Status::bad_request(format!("unable to parse the label selector: {why}")))
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    pub fn matches<V: Values + ?Sized>(&self, labels: &V) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels.value(&requirement.key)))
    }
}

impl Requirement {
    /// Judges the value of the label, `None` when there is no such label.
    pub fn matches(&self, value: Option<&str>) -> bool {
        let listed = |value: &str| self.values.iter().any(|listed| listed == value);
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Greater => self.compare(value, |label, bound| label > bound),
            Operator::Less => self.compare(value, |label, bound| label < bound),
        }
    }

    fn compare(&self, value: Option<&str>, holds: fn(i64, i64) -> bool) -> bool {
        let label = value.and_then(|value| value.parse::<i64>().ok());
        let bound = self.values.first().and_then(|bound| bound.parse::<i64>().ok());
        matches!((label, bound), (Some(label), Some(bound)) if holds(label, bound))
    }
}

impl fmt::Display for LabelSelector {
    /// A selector that means the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            let Requirement { key, operator, values } = requirement;
            match operator {
                Operator::In => write!(f, "{key} in ({})", values.join(","))?,
                Operator::NotIn => write!(f, "{key} notin ({})", values.join(","))?,
                Operator::Exists => f.write_str(key)?,
                Operator::DoesNotExist => write!(f, "!{key}")?,
                Operator::Greater => write!(f, "{key}>{}", values.join(","))?,
                Operator::Less => write!(f, "{key}<{}", values.join(","))?,
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Symbol(&'static str),
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(text) => write!(f, "'{text}'"),
            Token::Symbol(text) => write!(f, "'{text}'"),
            Token::End => f.write_str("the end"),
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
}

const SYMBOLS: [&str; 9] = ["!=", "==", "!", "=", "(", ")", ",", ">", "<"];

impl<'a> Parser<'a> {
    fn parse(text: &'a str) -> Result<LabelSelector, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("it is longer than {MAX_LENGTH} bytes"));
        }
        let mut parser = Parser { rest: text };
        let mut requirements = Vec::new();
        if parser.peek() == Token::End {
            return Ok(LabelSelector::default());
        }
        loop {
            requirements.push(parser.requirement()?);
            match parser.next() {
                Token::End => return Ok(LabelSelector { requirements }),
                Token::Symbol(",") => {}
                other => return Err(format!("found {other}, expected ',' or the end")),
            }
        }
    }

    fn peek(&self) -> Token<'a> {
        Parser { rest: self.rest }.next()
    }

    fn next(&mut self) -> Token<'a> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        if self.rest.is_empty() {
            return Token::End;
        }
        for symbol in SYMBOLS {
            if let Some(rest) = self.rest.strip_prefix(symbol) {
                self.rest = rest;
                return Token::Symbol(symbol);
            }
        }
        let boundary = |c: char| c.is_ascii_whitespace() || "!=(),><".contains(c);
        let (word, rest) = self.rest.split_at(self.rest.find(boundary).unwrap_or(self.rest.len()));
        self.rest = rest;
        Token::Word(word)
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek() == Token::Symbol("!");
        if absent {
            self.next();
        }
        let key = match self.next() {
            Token::Word(word) => word,
            other => return Err(format!("found {other}, expected a label key")),
        };
        if let Some(fault) = qualified_name_fault(key) {
            return Err(format!("key {key:?} {fault}"));
        }
        let done = matches!(self.peek(), Token::End | Token::Symbol(","));
        let (operator, mut values) = if absent {
            (Operator::DoesNotExist, Vec::new())
        } else if done {
            (Operator::Exists, Vec::new())
        } else {
            match self.next() {
                Token::Symbol("=" | "==") => (Operator::In, vec![self.single()?]),
                Token::Symbol("!=") => (Operator::NotIn, vec![self.single()?]),
                Token::Symbol(">") => (Operator::Greater, vec![self.single()?]),
                Token::Symbol("<") => (Operator::Less, vec![self.single()?]),
                Token::Word("in") => (Operator::In, self.list()?),
                Token::Word("notin") => (Operator::NotIn, self.list()?),
                other => return Err(format!("found {other}, expected one of in, notin, =, ==, !=, >, <")),
            }
        };
        for value in &values {
            if matches!(operator, Operator::Greater | Operator::Less) {
                value.parse::<i64>().map_err(|_| format!("{value:?} is not a whole number"))?;
            } else if let Some(fault) = label_value_fault(value) {
                return Err(format!("value {value:?} {fault}"));
            }
        }
        values.sort_unstable();
        values.dedup();
        Ok(Requirement { key: key.to_owned(), operator, values })
    }

    /// The value after `=`; nothing there means the empty value.
    fn single(&mut self) -> Result<String, String> {
        match self.peek() {
            Token::End | Token::Symbol(",") => Ok(String::new()),
            Token::Word(word) => {
                self.next();
                Ok(word.to_owned())
            }
            other => Err(format!("found {other}, expected a value")),
        }
    }

    /// `(a, b)`; nothing between two commas means the empty value.
    fn list(&mut self) -> Result<Vec<String>, String> {
        match self.next() {
            Token::Symbol("(") => {}
            other => return Err(format!("found {other}, expected '('")),
        }
        let mut values = Vec::new();
        loop {
            match self.peek() {
                Token::Word(word) => {
                    self.next();
                    values.push(word.to_owned());
                }
                _ => values.push(String::new()),
            }
            match self.next() {
                Token::Symbol(",") => {}
                Token::Symbol(")") => return Ok(values),
                other => return Err(format!("found {other}, expected ',' or ')'")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels() -> Vec<(&'static str, &'static str)> {
        vec![("app", "web"), ("empty", ""), ("example.com/tier", "front"), ("in", "x"), ("weight", "5")]
    }

    #[test]
    fn selectors_that_match() {
        for text in [
            "",
            "  ",
            "app",
            "app=web",
            "app==web",
            "app = web",
            "app!=db",
            "other!=x",
            "app in (web,db)",
            "app in ( web )",
            "app notin (db)",
            "other notin (a,b)",
            "!other",
            "! other",
            "empty=",
            "empty",
            "empty in ()",
            "empty in (a,)",
            "example.com/tier=front,app=web",
            "weight>4",
            "weight<6",
            "weight>4,weight<6",
            "in=x",
            "in in (x)",
            "app,!other",
            "app in (in,web)",
            "empty=,app=web",
        ] {
            assert!(LabelSelector::parse(text).unwrap().matches(&labels()), "{text}");
        }
    }

    #[test]
    fn selectors_that_do_not_match() {
        for text in [
            "app=db",
            "app!=web",
            "other",
            "!app",
            "app in (a,b)",
            "app notin (web)",
            "weight>5",
            "app>1",
            "other=",
            "app=",
            "other>1",
        ] {
            assert!(!LabelSelector::parse(text).unwrap().matches(&labels()), "{text}");
        }
    }

    #[test]
    fn texts_that_are_no_selector() {
        let long = format!("a={}", "x".repeat(64));
        for text in [
            "=", "a=b,", ",a=b", "a in", "a in (", "a in (b", "a in b", "a b", "a=b c", "!", "!a=b", "a===b",
            "a>x", "a/b/c=d", "a=(b)", "()", "a,,b", "a=!b", "-a", "a=-b", &long,
        ] {
            let status = LabelSelector::parse(text).unwrap_err();
            assert_eq!(status.code(), 400, "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_printed_form_means_the_same(text in "[ab!=<>,() ]{0,12}|(a|b)( in | notin )\\((a|b|,){0,3}\\)") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                prop_assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap(), selector);
            }
        }

        #[test]
        fn never_panics(text in "\\PC{0,30}") {
            let _ = LabelSelector::parse(&text);
        }
    }
}

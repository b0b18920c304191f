//! From words to an expression.

use regex::RegexBuilder;

use super::shape::Shape;
use super::token::{Token, tokens};
use super::{Expression, Test};

/// The longest expression, in bytes.
const LONGEST: usize = 8 << 10;
/// How deep `not` and parentheses go.
const DEEPEST: usize = 32;
/// Bytes that a compiled regular expression may take.
const PATTERN: usize = 1 << 20;

/// Words that are operators and never values.
const KEYWORDS: [&str; 8] = ["and", "or", "not", "in", "contains", "is", "empty", "matches"];

pub(super) fn parse(text: &str, shape: Shape) -> Result<Expression, String> {
    if text.len() > LONGEST {
        return Err(format!("the expression is longer than {LONGEST} bytes"));
    }
    let mut parser = Parser { tokens: tokens(text)?, at: 0, shape };
    let expression = parser.any(0)?;
    match parser.tokens.get(parser.at) {
        None => Ok(expression),
        Some(token) => Err(format!("{} is not expected there", token.shown())),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    shape: Shape,
}

/// What stands on one side of an operator.
enum Side {
    Path(Vec<String>),
    Value(String),
}

impl Parser {
    fn peek(&self, ahead: usize) -> Option<&Token> {
        self.tokens.get(self.at + ahead)
    }

    fn word(&self, ahead: usize) -> &str {
        match self.peek(ahead) {
            Some(Token::Word(word)) => word,
            _ => "",
        }
    }

    /// Takes these words if they come next.
    fn takes(&mut self, words: &[&str]) -> bool {
        let next = words.iter().enumerate().all(|(ahead, word)| self.word(ahead) == *word);
        if next {
            self.at += words.len();
        }
        next
    }

    fn take(&mut self, token: &Token) -> bool {
        let next = self.peek(0) == Some(token);
        self.at += usize::from(next);
        next
    }

    fn any(&mut self, depth: usize) -> Result<Expression, String> {
        let mut parts = vec![self.all(depth)?];
        while self.takes(&["or"]) {
            parts.push(self.all(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Any(parts) })
    }

    fn all(&mut self, depth: usize) -> Result<Expression, String> {
        let mut parts = vec![self.one(depth)?];
        while self.takes(&["and"]) {
            parts.push(self.one(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) })
    }

    fn one(&mut self, depth: usize) -> Result<Expression, String> {
        if depth > DEEPEST {
            return Err(format!("more than {DEEPEST} parentheses within each other"));
        }
        if self.takes(&["not"]) {
            return Ok(Expression::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.take(&Token::Open) {
            let inner = self.any(depth + 1)?;
            return match self.take(&Token::Close) {
                true => Ok(inner),
                false => Err("a parenthesis is not closed".to_owned()),
            };
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expression, String> {
        let left = self.side()?;
        if self.takes(&["in"]) {
            return self.contains(left);
        }
        if self.takes(&["not", "in"]) {
            return self.contains(left).map(negated);
        }
        let Side::Path(path) = left else {
            return Err("a value is followed by `in` or `not in`, and nothing else".to_owned());
        };
        let shape = self.shape_of(&path)?;
        if self.take(&Token::Equal) {
            let test = equality(&path, shape, self.value()?)?;
            return Ok(Expression::Match { path, test });
        }
        if self.take(&Token::NotEqual) {
            let test = equality(&path, shape, self.value()?)?;
            return Ok(negated(Expression::Match { path, test }));
        }
        if self.takes(&["is", "empty"]) {
            return emptiness(path, shape);
        }
        if self.takes(&["is", "not", "empty"]) {
            return emptiness(path, shape).map(negated);
        }
        let not = self.takes(&["not"]);
        let found = if self.takes(&["contains"]) {
            containment(path, shape, self.value()?)?
        } else if self.takes(&["matches"]) {
            pattern(path, shape, &self.value()?)?
        } else {
            let after = path.join(".");
            return Err(match self.peek(0) {
                Some(token) => format!("{} after {after} is no operator", token.shown()),
                None => format!("there is nothing after {after}"),
            });
        };
        Ok(if not { negated(found) } else { found })
    }

    fn contains(&mut self, value: Side) -> Result<Expression, String> {
        let value = match value {
            Side::Value(value) => value,
            Side::Path(path) => path.join("."),
        };
        let Side::Path(path) = self.side()? else { return Err("`in` is followed by a selector".to_owned()) };
        let shape = self.shape_of(&path)?;
        containment(path, shape, value)
    }

    /// A value in quotation marks, or a path, which may turn out to be a value without.
    fn side(&mut self) -> Result<Side, String> {
        match self.peek(0).cloned() {
            Some(Token::Text(text)) => {
                self.at += 1;
                Ok(Side::Value(text))
            }
            Some(Token::Word(word)) if !KEYWORDS.contains(&word.as_str()) => self.path().map(Side::Path),
            Some(token) => Err(format!("{} is not expected there", token.shown())),
            None => Err("the expression ends too early".to_owned()),
        }
    }

    fn path(&mut self) -> Result<Vec<String>, String> {
        let mut path = vec![self.name()?];
        loop {
            if self.take(&Token::Dot) {
                path.push(self.name()?);
            } else if self.take(&Token::OpenIndex) {
                let Some(Token::Text(key)) = self.peek(0).cloned() else {
                    return Err("[ is followed by a text in quotation marks".to_owned());
                };
                self.at += 1;
                if !self.take(&Token::CloseIndex) {
                    return Err("[ is not closed".to_owned());
                }
                path.push(key);
            } else {
                return Ok(path);
            }
        }
    }

    fn name(&mut self) -> Result<String, String> {
        match self.peek(0).cloned() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            Some(token) => Err(format!("{} is no name", token.shown())),
            None => Err("the expression ends too early".to_owned()),
        }
    }

    fn value(&mut self) -> Result<String, String> {
        match self.side()? {
            Side::Value(value) => Ok(value),
            Side::Path(path) => Ok(path.join(".")),
        }
    }

    fn shape_of(&self, path: &[String]) -> Result<Shape, String> {
        self.shape.at(path).ok_or_else(|| {
            format!("there is no {} to choose by; there are {}", path.join("."), self.shape.names())
        })
    }
}

fn negated(expression: Expression) -> Expression {
    Expression::Not(Box::new(expression))
}

fn mismatch(path: &[String], operator: &str) -> String {
    format!("{} is nothing that {operator} can be asked of", path.join("."))
}

fn equality(path: &[String], shape: Shape, value: String) -> Result<Test, String> {
    match shape {
        Shape::Text => Ok(Test::Is(value)),
        Shape::Number => {
            value.parse().map(Test::IsNumber).map_err(|_| format!("{value:?} is no whole number"))
        }
        _ => Err(mismatch(path, "== or !=")),
    }
}

fn containment(path: Vec<String>, shape: Shape, value: String) -> Result<Expression, String> {
    match shape {
        Shape::Text | Shape::Texts | Shape::Map => {
            Ok(Expression::Match { path, test: Test::Contains(value) })
        }
        _ => Err(mismatch(&path, "in or contains")),
    }
}

fn emptiness(path: Vec<String>, shape: Shape) -> Result<Expression, String> {
    match shape {
        Shape::Number | Shape::Members(_) => Err(mismatch(&path, "is empty")),
        _ => Ok(Expression::Match { path, test: Test::Empty }),
    }
}

fn pattern(path: Vec<String>, shape: Shape, text: &str) -> Result<Expression, String> {
    if shape != Shape::Text {
        return Err(mismatch(&path, "matches"));
    }
    let pattern = RegexBuilder::new(text).size_limit(PATTERN).build();
    let pattern = pattern.map_err(|_| format!("{text:?} is no regular expression, or too large a one"))?;
    Ok(Expression::Match { path, test: Test::Matches(pattern) })
}

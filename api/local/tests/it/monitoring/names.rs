//! The names in the expressions of rules and dashboards, and those on pages of metrics.

use std::collections::{BTreeMap, BTreeSet};

/// Metrics with the names of their labels.
#[derive(Debug, Default)]
pub struct Catalogue(BTreeMap<String, BTreeSet<String>>);

/// What every scraped series gets.
const SCRAPED: [&str; 2] = ["job", "instance"];

impl Catalogue {
    /// Adds the samples of a page.
    pub fn add(&mut self, page: &str) {
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let name: String = line.chars().take_while(|c| is_word(*c)).collect();
            let labels = self.0.entry(name.clone()).or_default();
            if let Some(rest) = line[name.len()..].strip_prefix('{') {
                labels.extend(Tokens::of(rest.rsplit_once('}').unwrap_or((rest, "")).0).filter_map(word));
            }
        }
    }

    /// What an expression, with the labels that texts beside it show, names but no page has.
    pub fn missing(&self, expression: &str, shown: &[String]) -> Vec<String> {
        let used = Used::of(expression);
        let mut known: BTreeSet<&str> = SCRAPED.into();
        let mut missing = Vec::new();
        for (metric, matched) in &used.metrics {
            let Some(labels) = self.0.get(metric).or_else(|| (metric == "up").then_some(&EMPTY)) else {
                missing.push(metric.clone());
                continue;
            };
            known.extend(labels.iter().map(String::as_str));
            let unknown =
                matched.iter().filter(|it| !labels.contains(*it) && !SCRAPED.contains(&it.as_str()));
            missing.extend(unknown.map(|label| format!("{metric}{{{label}}}")));
        }
        let others = used.grouped.iter().chain(shown).filter(|label| !known.contains(label.as_str()));
        missing.extend(others.map(|label| format!("label {label}")));
        missing
    }
}

static EMPTY: BTreeSet<String> = BTreeSet::new();

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

fn word(token: Token) -> Option<String> {
    match token {
        Token::Word(word) => Some(word),
        Token::Mark(_) => None,
    }
}

#[derive(Debug, PartialEq)]
enum Token {
    Word(String),
    Mark(char),
}

/// Words and marks; strings, numbers and ranges are passed over.
struct Tokens<'a>(std::iter::Peekable<std::str::Chars<'a>>);

impl<'a> Tokens<'a> {
    fn of(text: &'a str) -> Tokens<'a> {
        Tokens(text.chars().peekable())
    }

    fn pass_over(&mut self, end: char) {
        while let Some(c) = self.0.next() {
            match c {
                '\\' => {
                    self.0.next();
                }
                _ if c == end => return,
                _ => {}
            }
        }
    }
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        loop {
            match self.0.next()? {
                '"' => self.pass_over('"'),
                '[' => self.pass_over(']'),
                c if is_word(c) => {
                    let mut word = String::from(c);
                    while let Some(c) = self.0.next_if(|c| is_word(*c) || *c == '.') {
                        word.push(c);
                    }
                    if !c.is_ascii_digit() {
                        return Some(Token::Word(word));
                    }
                }
                c if c.is_whitespace() => {}
                c => return Some(Token::Mark(c)),
            }
        }
    }
}

/// What an expression of PromQL names.
#[derive(Debug, Default)]
struct Used {
    /// Metrics, with the labels that are matched.
    metrics: Vec<(String, Vec<String>)>,
    /// Labels that are grouped or joined by.
    grouped: Vec<String>,
}

const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
const OPERATORS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];

impl Used {
    fn of(expression: &str) -> Used {
        let mut used = Used::default();
        let mut tokens = Tokens::of(expression).peekable();
        while let Some(token) = tokens.next() {
            let Token::Word(name) = token else { continue };
            if OPERATORS.contains(&name.as_str()) {
                continue;
            }
            match tokens.peek() {
                Some(Token::Mark('(')) if GROUPING.contains(&name.as_str()) => {
                    used.grouped
                        .extend(tokens.by_ref().take_while(|it| *it != Token::Mark(')')).filter_map(word));
                }
                // A function.
                Some(Token::Mark('(')) => {}
                Some(Token::Word(next)) if GROUPING.contains(&next.as_str()) => {}
                Some(Token::Mark('{')) => {
                    let matched = tokens.by_ref().take_while(|it| *it != Token::Mark('}')).filter_map(word);
                    used.metrics.push((name, matched.collect()));
                }
                _ => used.metrics.push((name, Vec::new())),
            }
        }
        used
    }
}

/// The labels that a text shows: what follows `opening` up to `closing`.
pub fn shown_labels(text: &str, opening: &str, closing: char) -> Vec<String> {
    let pieces = text.split(opening).skip(1);
    pieces.map(|piece| piece.split([closing, ' ']).next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn names_are_found_and_missed() {
    let mut catalogue = Catalogue::default();
    catalogue.add(
        "# TYPE a counter\na_total{x=\"1\",y=\"} b{z\"} 1\na_total{x=\"2\"} 3\nb 7\nc_bucket{le=\"0.1\"} 1\n",
    );
    for (expression, shown, missing) in [
        ("sum by (x) (rate(a_total{y=~\"p.*\"}[5m])) / 1e6", vec!["x"], vec![]),
        ("sum(rate(a_total[5m])) by (y) > 0.5 and on (job) b == 1 or vector(0)", vec![], vec![]),
        (
            "histogram_quantile(0.99, sum by (le, job) (rate(c_bucket[$__rate_interval])))",
            vec!["job"],
            vec![],
        ),
        ("max_over_time(sum(d)[1h:1m])", vec![], vec!["d"]),
        ("a_total{z=\"q\", x!=\"y\"}", vec![], vec!["a_total{z}"]),
        ("sum by (q) (b)", vec!["r"], vec!["label q", "label r"]),
        ("up{job=\"x\"} == 0", vec!["instance"], vec![]),
    ] {
        let shown: Vec<String> = shown.into_iter().map(str::to_owned).collect();
        assert_eq!(catalogue.missing(expression, &shown), missing, "{expression}");
    }
    assert_eq!(shown_labels("{{ $labels.a }} and {{ $labels.b_c }}.", "$labels.", '}'), ["a", "b_c"]);
    assert_eq!(shown_labels("{{job}} {{x}}", "{{", '}'), ["job", "x"]);
}

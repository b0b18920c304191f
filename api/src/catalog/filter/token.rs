//! Words and signs.

/// A word or sign of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// A bare word: a keyword, a name or a number.
    Word(String),
    /// A text in quotation marks or backquotes.
    Text(String),
    Open,
    Close,
    OpenIndex,
    CloseIndex,
    Dot,
    Equal,
    NotEqual,
}

impl Token {
    /// As it is written, for people.
    pub fn shown(&self) -> String {
        match self {
            Token::Word(word) => word.clone(),
            Token::Text(text) => format!("{text:?}"),
            Token::Open => "(".to_owned(),
            Token::Close => ")".to_owned(),
            Token::OpenIndex => "[".to_owned(),
            Token::CloseIndex => "]".to_owned(),
            Token::Dot => ".".to_owned(),
            Token::Equal => "==".to_owned(),
            Token::NotEqual => "!=".to_owned(),
        }
    }
}

/// Takes a text apart.
pub fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '[' => (Token::OpenIndex, 1),
            ']' => (Token::CloseIndex, 1),
            '.' => (Token::Dot, 1),
            '=' if rest.starts_with("==") => (Token::Equal, 2),
            '!' if rest.starts_with("!=") => (Token::NotEqual, 2),
            '"' => quoted(rest)?,
            '`' => {
                let end = rest[1..].find('`').ok_or("a text that begins with ` does not end")?;
                (Token::Text(rest[1..=end].to_owned()), end + 2)
            }
            _ if is_word(first) => {
                let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
                (Token::Word(rest[..end].to_owned()), end)
            }
            other => return Err(format!("{other:?} has no meaning here")),
        };
        found.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(found)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | ':')
}

/// A text in quotation marks, and how many bytes it takes.
fn quoted(rest: &str) -> Result<(Token, usize), String> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((Token::Text(text), at + 1)),
            '\\' => match chars.next() {
                Some((_, c @ ('"' | '\\'))) => text.push(c),
                Some((_, 'n')) => text.push('\n'),
                Some((_, 't')) => text.push('\t'),
                Some((_, 'r')) => text.push('\r'),
                // Most often a regular expression, which is better off in backquotes.
                Some((_, other)) => return Err(format!("\\{other} is no escape; write the text in `…`")),
                None => break,
            },
            c => text.push(c),
        }
    }
    Err("a text that begins with \" does not end".to_owned())
}

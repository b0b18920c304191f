//! Field selectors: `metadata.name=web,status.phase!=Running`.

use std::fmt;

use super::Values;
use crate::registry::KindSpec;
use crate::status::Status;

/// Terms that must all hold. The empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

/// What one field has to be, or must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub field: String,
    pub equal: bool,
    pub value: String,
}

impl FieldSelector {
    /// For objects of this kind. 400 when the text is no selector or names a field that cannot be selected
    /// by.
    pub fn parse(text: &str, spec: &KindSpec) -> Result<FieldSelector, Status> {
        FieldSelector::parse_with(text, &|field| spec.is_selectable(field))
    }

    /// In the words of another kind: `stored` answers the terms that stand for one, and `None` for a field that
    /// cannot be selected by.
    pub fn parse_reworded(
        text: &str,
        stored: &dyn Fn(&Term) -> Option<Vec<Term>>,
    ) -> Result<FieldSelector, Status> {
        let mut terms = Vec::new();
        for term in FieldSelector::parse_with(text, &|_| true)?.terms {
            let stored = stored(&term).ok_or_else(|| unsupported(&term.field))?;
            terms.extend(stored);
        }
        Ok(FieldSelector { terms })
    }

    /// For objects whose selectable fields are not those of a kind.
    pub fn parse_with(text: &str, selectable: &dyn Fn(&str) -> bool) -> Result<FieldSelector, Status> {
        let mut terms = Vec::new();
        for part in split_terms(text).into_iter().filter(|part| !part.is_empty()) {
            let term = term(part)
                .map_err(|why| Status::bad_request(format!("invalid field selector {text:?}: {why}")))?;
            if !selectable(&term.field) {
                return Err(unsupported(&term.field));
            }
            terms.push(term);
        }
        Ok(FieldSelector { terms })
    }

    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The value that the selector demands of a field, if it demands one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|term| term.equal && term.field == field).map(|term| term.value.as_str())
    }

    /// A field that is missing counts as empty.
    pub fn matches<V: Values + ?Sized>(&self, fields: &V) -> bool {
        self.terms.iter().all(|term| (fields.value(&term.field).unwrap_or("") == term.value) == term.equal)
    }
}

fn unsupported(field: &str) -> Status {
    Status::bad_request(format!("field label not supported: {field:?}"))
}

impl fmt::Display for FieldSelector {
    /// A selector that means the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if term.equal { "=" } else { "!=" };
            write!(f, "{comma}{}{operator}", term.field)?;
            for c in term.value.chars() {
                if matches!(c, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// Splits at commas that no backslash stands before.
fn split_terms(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn term(text: &str) -> Result<Term, String> {
    let at = text
        .find(['=', '!'])
        .filter(|at| ["!=", "==", "="].iter().any(|operator| text[*at..].starts_with(operator)));
    let Some(at) = at else { return Err(format!("can't understand {text:?}")) };
    let (field, rest) = text.split_at(at);
    let (equal, value) = match rest.strip_prefix("!=") {
        Some(value) => (false, value),
        None => (true, rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')).unwrap_or(rest)),
    };
    Ok(Term { field: field.trim().to_owned(), equal, value: unescape(value)? })
}

fn unescape(text: &str) -> Result<String, String> {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => value.push(c),
                _ => return Err(format!("invalid escape sequence in {text:?}")),
            },
            '=' | ',' => return Err(format!("unescaped {c:?} in value {text:?}")),
            c => value.push(c),
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use crate::registry;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<FieldSelector, Status> {
        FieldSelector::parse(text, registry::spec(Kind::Application).unwrap())
    }

    #[test]
    fn fields_are_compared_as_texts() {
        let fields = vec![("metadata.name", "web"), ("metadata.namespace", "d"), ("status.phase", "a,b=c\\")];
        for text in [
            "",
            "metadata.name=web",
            "metadata.name==web,metadata.namespace=d",
            "metadata.name!=x",
            "status.phase=a\\,b\\=c\\\\",
            "spec.placement.nodeName=",
            "metadata.name=web,",
            ",",
        ] {
            assert!(parse(text).unwrap().matches(&fields), "{text}");
        }
        for text in ["metadata.name=x", "metadata.name!=web", "spec.placement.nodeName!="] {
            assert!(!parse(text).unwrap().matches(&fields), "{text}");
        }
        assert_eq!(parse("metadata.name=web").unwrap().exact("metadata.name"), Some("web"));
        assert_eq!(parse("metadata.name!=web").unwrap().exact("metadata.name"), None);
    }

    #[test]
    fn unknown_fields_and_broken_texts_are_refused() {
        for text in [
            "spec.image=x",
            "spec.unschedulable=true",
            "metadata.labels=x",
            "metadata.name",
            "x",
            "metadata.name=a=b",
            "metadata.name=a\\x",
            "metadata.name=a\\",
            "=x",
            "metadata.name>x",
        ] {
            assert_eq!(parse(text).unwrap_err().code(), 400, "{text}");
        }
        let node = registry::spec(Kind::Node).unwrap();
        assert!(FieldSelector::parse("spec.unschedulable=true", node).is_ok());
        assert!(FieldSelector::parse("metadata.namespace=x", node).is_err());
    }

    proptest! {
        #[test]
        fn the_printed_form_means_the_same(value in "[a,=\\\\ !]{0,8}", equal in any::<bool>()) {
            let selector = FieldSelector { terms: vec![Term { field: "metadata.name".into(), equal, value }] };
            prop_assert_eq!(parse(&selector.to_string()).unwrap(), selector);
        }

        #[test]
        fn never_panics(text in "\\PC{0,30}") {
            let _ = parse(&text);
        }
    }
}

//! Where in a document something is wrong.

use std::fmt;

/// One step from a container to a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    Member(&'a str),
    Index(usize),
}

/// A place in a document, as a chain on the stack: walking costs no allocation until somebody asks for the
/// text.
///
/// The text is dotted, list positions in brackets: `spec.volumes[0].mountPath`. A member below the root
/// that consists of digits only reads like a position (`data[0]`).
#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Option<Step<'a>>,
}

impl<'a> Path<'a> {
    pub const ROOT: Path<'static> = Path { parent: None, step: None };

    pub fn member(&'a self, name: &'a str) -> Path<'a> {
        Path { parent: Some(self), step: Some(Step::Member(name)) }
    }

    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), step: Some(Step::Index(index)) }
    }

    fn is_root(&self) -> bool {
        self.step.is_none()
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = match self.parent {
            Some(parent) => {
                parent.fmt(f)?;
                parent.is_root()
            }
            None => true,
        };
        match self.step {
            Some(step) => write_step(f, step, first),
            None => Ok(()),
        }
    }
}

/// Appends one step to a path's text; `first` for the step below the root.
pub(crate) fn write_step(f: &mut impl fmt::Write, step: Step<'_>, first: bool) -> fmt::Result {
    match step {
        Step::Index(index) => write!(f, "[{index}]"),
        Step::Member(name) if !first && !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()) => {
            write!(f, "[{name}]")
        }
        Step::Member(name) if first => f.write_str(name),
        Step::Member(name) => write!(f, ".{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_like_field_references() {
        let root = Path::ROOT;
        let spec = root.member("spec");
        let volumes = spec.member("volumes");
        let first = volumes.index(0);
        assert_eq!(first.member("mountPath").to_string(), "spec.volumes[0].mountPath");
        assert_eq!(root.member("data").member("0").to_string(), "data[0]");
        assert_eq!(root.member("0").to_string(), "0");
        assert_eq!(root.index(3).to_string(), "[3]");
        assert_eq!(root.to_string(), "");
    }
}

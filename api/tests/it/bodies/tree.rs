//! A document that need not be one: scalars and member names are kept as they are written, so that it can say
//! what no value can (a member twice, half of a surrogate pair, a number beyond every type, a YAML anchor).

use std::fmt::Write as _;

use serde_json::Value;

#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// The text of one scalar, quotes included.
    Scalar(String),
    List(Vec<Tree>),
    /// Names are written with their quotes.
    Map(Vec<(String, Tree)>),
}

impl Tree {
    pub fn text(text: &str) -> Tree {
        Tree::Scalar(quoted(text))
    }

    pub fn null() -> Tree {
        Tree::Scalar("null".to_owned())
    }

    pub fn of(value: &Value) -> Tree {
        match value {
            Value::Array(items) => Tree::List(items.iter().map(Tree::of).collect()),
            Value::Object(members) => {
                Tree::Map(members.iter().map(|(name, value)| (quoted(name), Tree::of(value))).collect())
            }
            scalar => Tree::Scalar(scalar.to_string()),
        }
    }

    /// In flow style, which is JSON where the scalars are.
    pub fn write(&self, out: &mut String) {
        match self {
            Tree::Scalar(text) => out.push_str(text),
            Tree::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    item.write(out);
                }
                out.push(']');
            }
            Tree::Map(members) => {
                out.push('{');
                for (at, (name, value)) in members.iter().enumerate() {
                    let _ = write!(out, "{}{name}: ", if at > 0 { ", " } else { "" });
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    /// Places in the document, itself included.
    pub fn size(&self) -> usize {
        1 + match self {
            Tree::Scalar(_) => 0,
            Tree::List(items) => items.iter().map(Tree::size).sum(),
            Tree::Map(members) => members.iter().map(|(_, value)| value.size()).sum(),
        }
    }

    /// The place with this number, counted from the top.
    pub fn place(&mut self, number: usize) -> Option<&mut Tree> {
        fn seek<'a>(tree: &'a mut Tree, left: &mut usize) -> Option<&'a mut Tree> {
            if *left == 0 {
                return Some(tree);
            }
            *left -= 1;
            match tree {
                Tree::Scalar(_) => None,
                Tree::List(items) => items.iter_mut().find_map(|item| seek(item, left)),
                Tree::Map(members) => members.iter_mut().find_map(|(_, value)| seek(value, left)),
            }
        }
        seek(self, &mut { number })
    }

    /// The member of a map.
    pub fn member(&mut self, name: &str) -> Option<&mut Tree> {
        let Tree::Map(members) = self else { return None };
        members.iter_mut().find(|(member, _)| *member == quoted(name)).map(|(_, value)| value)
    }

    /// Sets the member of a map.
    pub fn set(&mut self, name: &str, value: Tree) {
        if let Some(member) = self.member(name) {
            *member = value;
        } else if let Tree::Map(members) = self {
            members.push((quoted(name), value));
        }
    }
}

pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

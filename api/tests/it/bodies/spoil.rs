//! What goes wrong with documents.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::tree::{Tree, quoted};

/// Scalars as they are written in JSON, some of which are none.
const SCALARS: &[&str] = &[
    "null",
    "true",
    "0",
    "-0",
    "-1",
    "1.5",
    "1e400",
    "-1e-400",
    "1e3",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551616",
    "123456789012345678901234567890123456789",
    r#""""#,
    r#"" ""#,
    r#""\u0000""#,
    r#""a\u0000b""#,
    r#""\ud800""#,
    r#""\udc00\ud800""#,
    r#""\ud83d\ude00""#,
    r#""\uffff""#,
    r#""\u202e\u200b""#,
    "\"\u{1F4A5}\"",
    r#""line\nbreak\r\t""#,
    r#""../../etc/passwd""#,
    r#""a/b""#,
    r#""a,b=c""#,
    r#""UPPER""#,
    r#""name\u017fpace""#,
    r#""*""#,
    r#""$(id)""#,
    r#""%s%n""#,
    r#""-1""#,
    r#""1e999999999""#,
    r#""1e-999999999""#,
    r#""1Ki""#,
    r#""-5m""#,
    r#""0.0000000001""#,
    r#""99999999999999999999Ei""#,
    r#""0x10""#,
    r#""0400""#,
    r#""==""#,
    r#""aGk""#,
    r#""2026-01-02T03:04:05Z""#,
    r#""9999-99-99T99:99:99Z""#,
    r#""0000-01-01T00:00:00Z""#,
    r#""99999-01-01T00:00:00+99:99""#,
    r#""::ffff:10.0.0.1""#,
    r#""127.0.0.1""#,
    r#""fe80::1%eth0""#,
    r#""10.243.0.0/16""#,
    r#""00000000-0000-0000-0000-000000000000""#,
    r#""@name""#,
    r#""@uid""#,
    r#""@revision""#,
    r#""default""#,
    r#""rack-a""#,
    r#""cart-database""#,
    r#""horchestra.io/v1""#,
    r#""Application""#,
    r#""horchestra.io/node-teardown""#,
    r#""orphan""#,
];

/// Scalars that mean something in YAML alone.
const YAML_SCALARS: &[&str] = &[
    "*a",
    "&a [*a]",
    "&a {x: 1}",
    "&a x",
    "~",
    "yes",
    "0400",
    "0o17",
    "0b11",
    "1_000",
    ".inf",
    "-.INF",
    ".nan",
    "1e3",
    "2026-11-30",
    "!!int \"7\"",
    "!!str 7",
    "!!binary aGk=",
    "!!float x",
    "!!set {a, b}",
    "!own thing",
    "!<tag:yaml.org,2002:str> 1",
    "\"\\x00\"",
    "\"\\ud800\"",
    "\"\\U0010ffff\"",
    "'it''s'",
    "? x",
    "[a: b]",
    "{a, b: }",
    "|",
    ">-",
    "%TAG",
    "@x",
    "`x`",
    "\u{feff}x",
];

const NAMES: &[&str] = &[
    r#""""#,
    r#""\u0000""#,
    r#""__proto__""#,
    r#""$ref""#,
    r#""a.b[0]""#,
    r#""a/b~c""#,
    r#""Spec""#,
    r#""spec ""#,
    r#""name\u017fpace""#,
    r#""\ud800""#,
    r#""f:spec""#,
    r#""k:{\"name\":\"a\"}""#,
    r#""status""#,
    r#""metadata""#,
    r#""spec""#,
    r#""data""#,
    r#""stringData""#,
    r#""items""#,
    r#""managedFields""#,
    r#""ownerReferences""#,
    r#""finalizers""#,
    r#""labels""#,
    r#""annotations""#,
    r#""generateName""#,
    r#""deletionTimestamp""#,
    r#""creationTimestamp""#,
    r#""resourceVersion""#,
    r#""uid""#,
    r#""apiVersion""#,
    r#""kind""#,
    r#""frozen""#,
    r#""clusterIP""#,
    r#""horchestra.io/uid-range""#,
    r#""horchestra.io/application-set""#,
    r#""secrets.horchestra.io/path""#,
    r#""<<""#,
];

pub struct Spoil<'a> {
    pub random: &'a mut StdRng,
    pub yaml: bool,
}

impl Spoil<'_> {
    /// Changes a few places of a document.
    pub fn some(&mut self, tree: &mut Tree) {
        for _ in 0..self.random.random_range(1..4) {
            self.once(tree);
        }
    }

    fn once(&mut self, tree: &mut Tree) {
        let size = tree.size();
        let other = {
            let at = self.random.random_range(0..size);
            tree.place(at).map(|place| place.clone())
        };
        let at = self.random.random_range(0..size);
        let how = self.random.random_range(0..14);
        let Some(place) = tree.place(at) else { return };
        match (how, place) {
            (0..=3, place) => *place = self.scalar(),
            (4, place) => *place = self.container(),
            (5, place) => *place = other.unwrap_or(Tree::null()),
            (6, place) => {
                let inner = std::mem::replace(place, Tree::null());
                *place = Tree::List(vec![inner]);
            }
            (7 | 8, Tree::Map(members)) => {
                let name = self.name();
                let value = match self.random.random_range(0..3) {
                    0 => self.container(),
                    1 => other.unwrap_or(Tree::null()),
                    _ => self.scalar(),
                };
                members.push((name, value));
            }
            (9, Tree::Map(members)) if !members.is_empty() => {
                let (name, value) = members.choose(self.random).unwrap().clone();
                let value = if self.random.random_bool(0.5) { self.scalar() } else { value };
                members.push((name, value));
            }
            (10 | 11, Tree::Map(members)) if !members.is_empty() => {
                let at = self.random.random_range(0..members.len());
                if self.random.random_bool(0.7) {
                    members.remove(at);
                } else {
                    members[at].0 = self.name();
                }
            }
            (7..=11, Tree::List(items)) if !items.is_empty() => {
                let at = self.random.random_range(0..items.len());
                match self.random.random_range(0..3) {
                    0 => drop(items.remove(at)),
                    1 => items.push(items[at].clone()),
                    _ => {
                        let item = items[at].clone();
                        items.extend(std::iter::repeat_n(item, [3, 70, 300][at % 3]));
                    }
                }
            }
            (_, place @ Tree::Scalar(_)) => *place = self.scalar(),
            (_, place) => *place = if self.random.random_bool(0.5) { Tree::null() } else { self.container() },
        }
    }

    pub fn scalar(&mut self) -> Tree {
        let scalars = if self.yaml && self.random.random_bool(0.4) { YAML_SCALARS } else { SCALARS };
        match self.random.random_range(0..40) {
            0 => Tree::text(&"x".repeat(*[64, 300, 70_000].choose(self.random).unwrap())),
            1 => Tree::Scalar("9".repeat(*[40, 400, 5000].choose(self.random).unwrap())),
            2 => Tree::text(&"\u{1F4A5}".repeat(300)),
            _ => Tree::Scalar((*scalars.choose(self.random).unwrap()).to_owned()),
        }
    }

    fn name(&mut self) -> String {
        match self.random.random_range(0..12) {
            0 => quoted(&"k".repeat(*[64, 400, 70_000].choose(self.random).unwrap())),
            _ => (*NAMES.choose(self.random).unwrap()).to_owned(),
        }
    }

    fn container(&mut self) -> Tree {
        let nested = |depth: usize, list: bool| {
            (0..depth).fold(Tree::null(), |inner, _| {
                if list { Tree::List(vec![inner]) } else { Tree::Map(vec![(quoted("a"), inner)]) }
            })
        };
        match self.random.random_range(0..8) {
            0 | 1 => Tree::List(Vec::new()),
            2 | 3 => Tree::Map(Vec::new()),
            4 => Tree::List(vec![Tree::null(), self.scalar(), self.scalar()]),
            5 => {
                let depth = *[30, 90, 200].choose(self.random).unwrap();
                nested(depth, self.random.random_bool(0.5))
            }
            6 => Tree::Map((0..300).map(|at| (quoted(&format!("k{at}")), Tree::text("v"))).collect()),
            _ => Tree::Map(vec![(self.name(), self.scalar()), (self.name(), self.scalar())]),
        }
    }
}

/// Bytes that make trouble wherever they stand.
const TOKENS: &[&[u8]] = &[
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\"",
    b"\\",
    b"\\u",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"1e",
    b"- ",
    b"&a ",
    b"*a",
    b"<<: *a\n",
    b"\n---\n",
    b"\n...\n",
    b"\t",
    b"\r\n",
    b"# ",
    b"? ",
    b"!!map ",
    b"%YAML 1.1\n---\n",
    b"NaN",
    b"'",
    b"|\n ",
    b"\x1f\x8b\x08",
];

/// Changes the text of a document.
pub fn bytes(random: &mut StdRng, text: &mut Vec<u8>) {
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..=text.len());
        let end = (at + random.random_range(0..20)).min(text.len());
        match random.random_range(0..6) {
            0 => text.truncate(at),
            1 => drop(text.drain(at..end)),
            2 => {
                let piece: Vec<u8> = text[at..end].to_vec();
                text.splice(at..at, piece);
            }
            3 => {
                let noise: Vec<u8> = (0..random.random_range(1..8)).map(|_| random.random()).collect();
                text.splice(at..at, noise);
            }
            _ => {
                text.splice(at..at, TOKENS.choose(random).unwrap().iter().copied());
            }
        }
    }
}

//! Documents that a schema allows, more or less.

use horchestra_core::schema::{ObjectShape, Schema, Shape, StringCheck, StringShape};
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::tree::Tree;

/// Texts that make sense for members of this name.
const KNOWN: &[(&str, &[&str])] = &[
    ("name", &["web", "cart", "cart-database", "cart-state", "a-1", "@name"]),
    ("namespace", &["shop", "default"]),
    ("image", &["nginx:1"]),
    ("mountPath", &["/data", "/etc/x", "/tmp"]),
    ("path", &["user", "sub/user", "kv/x"]),
    ("key", &["password", "username", "*", "zone"]),
    ("prefix", &["PG_"]),
    ("mode", &["0750", "sameNode", "0400"]),
    ("server", &["https://bao.shop.example:8200"]),
    ("nodeName", &["rack-a"]),
    ("serviceName", &["cart"]),
    ("clusterIP", &["10.9.8.7", "10.9.8.8", "127.0.0.1"]),
    ("verbs", &["get", "list", "*", "create"]),
    ("apiGroups", &["horchestra.io", "", "*"]),
    ("resources", &["applications", "secrets", "applications/status"]),
    ("nonResourceURLs", &["/metrics", "*"]),
    ("topologyKey", &["zone"]),
    ("audience", &["vault"]),
    ("apiVersion", &["horchestra.io/v1", "v1"]),
    ("uid", &["@uid", "1b671a64-40d5-491e-99b0-da01ff1f3341"]),
    ("resourceVersion", &["@revision", "1"]),
    ("finalizers", &["example.com/hold"]),
    ("reportingController", &["example.com/tester"]),
    ("command", &["/bin/x"]),
    ("mount", &["kv"]),
];

/// Deeper than every schema.
const DEEP: usize = 12;

pub struct Grow<'a> {
    pub random: &'a mut StdRng,
    /// How likely a member is that need not be there.
    pub fill: f64,
}

impl Grow<'_> {
    /// A value for the member `name` of this schema.
    pub fn value(&mut self, schema: &Schema, name: &str, depth: usize) -> Tree {
        match &schema.shape {
            _ if depth > DEEP => Tree::null(),
            Shape::Anything | Shape::FreeForm => self.anything(depth),
            Shape::Object(object) => self.object(object, depth),
            Shape::Map(values) => {
                let count = self.random.random_range(0..4);
                let member = |it: &mut Self, at| {
                    let key = if it.random.random_bool(0.8) { format!("k{at}") } else { "@name".to_owned() };
                    (super::tree::quoted(&key), it.value(values, "", depth + 1))
                };
                Tree::Map((0..count).map(|at| member(self, at)).collect())
            }
            Shape::Array { items, .. } => {
                let count = self.random.random_range(0..4);
                Tree::List((0..count).map(|_| self.value(items, name, depth + 1)).collect())
            }
            Shape::String(string) => self.string(string, name),
            Shape::Integer { minimum, maximum, .. } => {
                let small = (*minimum).max(0).saturating_add(self.random.random_range(0..9)).min(*maximum);
                let chosen = [small, small, small, *minimum, *maximum];
                Tree::Scalar(chosen[self.random.random_range(0..chosen.len())].to_string())
            }
            Shape::Number => Tree::Scalar("1.5".to_owned()),
            Shape::Boolean => Tree::Scalar(self.random.random_bool(0.5).to_string()),
        }
    }

    fn object(&mut self, object: &ObjectShape, depth: usize) -> Tree {
        let mut members = Vec::new();
        for property in &object.properties {
            if property.required || self.random.random_bool(self.fill) {
                let value = self.value(&property.schema, &property.name, depth + 1);
                members.push((super::tree::quoted(&property.name), value));
            }
        }
        Tree::Map(members)
    }

    fn string(&mut self, shape: &StringShape, name: &str) -> Tree {
        let choose = |random: &mut StdRng, texts: &[&str]| Tree::text(texts.choose(random).unwrap());
        if let Some(value) = shape.values.choose(self.random) {
            return Tree::text(value);
        }
        let fitting: &[&str] = match shape.check {
            Some(StringCheck::Quantity) => &["100m", "1Gi", "1", "0", "1e3", "0.5", "64Mi"],
            Some(StringCheck::Time) => &["2026-01-02T03:04:05Z"],
            Some(StringCheck::MicroTime) => &["2026-01-02T03:04:05.000006Z"],
            Some(StringCheck::Base64) => &["aGVsbG8=", ""],
            None => KNOWN.iter().find(|(known, _)| *known == name).map_or(&["word", "x"], |(_, texts)| texts),
        };
        choose(self.random, fitting)
    }

    fn anything(&mut self, depth: usize) -> Tree {
        match self.random.random_range(0..5) {
            0 => Tree::text("x"),
            1 => Tree::Scalar("7".to_owned()),
            2 => Tree::null(),
            3 if depth < DEEP => Tree::List(vec![self.anything(depth + 1)]),
            _ if depth < DEEP => Tree::Map(vec![(super::tree::quoted("a"), self.anything(depth + 1))]),
            _ => Tree::text(""),
        }
    }
}

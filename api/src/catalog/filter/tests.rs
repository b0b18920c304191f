//! What expressions choose, and what is wrong with others.

use serde_json::{Value, json};

use super::*;

fn item() -> Value {
    json!({
        "Node": {"ID": "7d", "Node": "node-1", "Address": "10.0.0.7", "Datacenter": "horchestra"},
        "Service": {
            "ID": "web-0-tcp",
            "Service": "web",
            "Tags": ["component=front", "namespace=default"],
            "Address": "10.0.0.7",
            "Port": 8080,
            "Meta": {"team": "ops", "example.com/tier": "a \"b\"", "none": ""},
        },
        "Checks": [{"Status": "passing"}],
    })
}

#[test]
fn expressions_choose_what_they_say() {
    for (text, chosen) in [
        (r#"Service.Service == "web""#, true),
        ("Service.Service == web", true),
        ("Service.Service==web", true),
        ("Service.Service != web", false),
        ("Service.Service == db", false),
        ("Service.Port == 8080", true),
        (r#"Service.Port == "8080""#, true),
        ("Service.Port != 80", true),
        ("Node.Address == 10.0.0.7", true),
        ("Node.Address == `10.0.0.7`", true),
        (r#""component=front" in Service.Tags"#, true),
        (r#"Service.Tags contains "component=front""#, true),
        (r#""component" in Service.Tags"#, false),
        (r#""component=front" not in Service.Tags"#, false),
        (r#"Service.Tags not contains "x""#, true),
        ("Service.Tags is empty", false),
        ("Service.Tags is not empty", true),
        ("Checks is empty", false),
        ("team in Service.Meta", true),
        ("Service.Meta contains team", true),
        ("Service.Meta is not empty", true),
        ("Service.Meta.team == ops", true),
        (r#"Service.Meta["team"] == "ops""#, true),
        (r#"Service.Meta["example.com/tier"] == "a \"b\"""#, true),
        (r#"Service.Meta["example.com/tier"] contains "b""#, true),
        ("Service.Meta.none is empty", true),
        // What is not there.
        ("Service.Meta.other == ops", false),
        ("Service.Meta.other != ops", true),
        ("Service.Meta.other is empty", true),
        ("Service.Meta.other contains x", false),
        ("Service.Meta.other not matches x", true),
        ("Service.ID matches `^web-[0-9]+-`", true),
        ("Service.ID matches `^tcp`", false),
        ("Service.ID not matches `^tcp`", true),
        (r#"Service.ID matches "^web-\\d""#, true),
        // `and` binds more tightly than `or`, `not` more than both.
        ("Service.Service == db and Service.Port == 1 or Node.Node == node-1", true),
        ("Service.Service == db and (Service.Port == 1 or Node.Node == node-1)", false),
        ("Node.Node == node-1 or Service.Service == db and Service.Port == 1", true),
        ("not Service.Service == db and Node.Node == node-1", true),
        ("not (Service.Service == web and Node.Node == node-1)", false),
        ("not not Service.Service == web", true),
        ("((Service.Service == web))", true),
        ("  Service . Service  ==  web  ", true),
    ] {
        let filter = Filter::parse(text, HEALTH).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(filter.chooses(&item()), chosen, "{text}");
    }
}

#[test]
fn what_cannot_be_understood_is_refused_with_a_reason() {
    let deep = format!("{}Node.Node == a{}", "(".repeat(100), ")".repeat(100));
    let denied = format!("{}Node.Node == a", "not ".repeat(100));
    let long = format!("Node.Node == {}", "a".repeat(9000));
    let large = "Node.Node matches `(((a{99}){99}){99}){99}`";
    for (text, why) in [
        ("Service.Nonsense == x", "there is no Service.Nonsense"),
        ("Nonsense == x", "there are Node, Service, Checks"),
        ("Service.Meta.a.b == x", "there is no Service.Meta.a.b"),
        ("Service.Service", "nothing after"),
        ("Service.Service = x", "has no meaning"),
        ("Service.Service == ", "ends too early"),
        ("Service.Service is", "is no operator"),
        ("Service.Service like x", "is no operator"),
        ("Service.Tags == x", "== or !="),
        ("Service.Tags matches x", "matches"),
        ("Service.Port contains 8", "in or contains"),
        ("Service.Port is empty", "is empty"),
        ("Service.Port == many", "no whole number"),
        ("Service == x", "== or !="),
        ("Service is empty", "is empty"),
        ("Checks.Status == critical", "there is no Checks.Status"),
        (r#""web" == Service.Service"#, "followed by `in`"),
        (r#""web" in "web""#, "followed by a selector"),
        ("Service.Service == web and", "ends too early"),
        ("and", "not expected"),
        ("(Service.Service == web", "not closed"),
        ("Service.Service == web)", "not expected"),
        ("Service.Service == web Node.Node == a", "not expected"),
        (r#"Service.Meta["team" == x"#, "not closed"),
        ("Service.Meta[team] == x", "quotation marks"),
        (r#"Service.Service == "web"#, "does not end"),
        ("Service.Service == `web", "does not end"),
        (r#"Service.ID matches "\d""#, "no escape"),
        ("Service.ID matches `(`", "no regular expression"),
        (large, "too large"),
        (&deep, "parentheses"),
        (&denied, "parentheses"),
        (&long, "longer than"),
        ("Service.Service == web & x", "has no meaning"),
    ] {
        let refused = Filter::parse(text, HEALTH).expect_err(text);
        assert!(refused.contains(why), "{text}: {refused}");
    }
}

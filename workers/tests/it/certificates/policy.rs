//! What is decided about a request, and for how long it is kept.

use horchestra_workers::certificates::policy::{Decision, Rules, decide, is_renewal};
use serde_json::{Value, json};

use super::support::{object, request, tampered, typed};

/// What is expected: signed for this name, held or denied with these words in the reason.
enum Outcome {
    Signed(&'static str),
    Held(&'static [&'static str]),
    Denied(&'static [&'static str]),
}

use Outcome::{Denied, Held, Signed};

const ON: Rules = Rules { automatic: true, signer: true };
const OFF: Rules = Rules { automatic: false, signer: true };
const UNSIGNED: Rules = Rules { automatic: true, signer: false };

/// A request made by somebody in these groups.
fn made_by(requester: &str, groups: &str, pem: &str) -> Value {
    let mut object = object("r", pem);
    object["metadata"]["annotations"] = json!({
        "certificates.horchestra.io/requester": requester,
        "certificates.horchestra.io/requester-groups": groups,
    });
    object
}

fn approved(mut object: Value) -> Value {
    object["status"] = json!({"phase": "Pending", "conditions": [{"type": "Approved", "status": "True"}]});
    object
}

const NODE: &str = "system:nodes,system:authenticated";
const MASTER: &str = "system:masters,system:authenticated";

#[test]
fn each_request_is_signed_held_or_denied() {
    let node = request("node-1");
    let own = || made_by("node-1", NODE, &node);
    let nobodys = {
        let mut object = object("r", &node);
        object["metadata"]["annotations"] = json!({"certificates.horchestra.io/requester-groups": NODE});
        object
    };
    let garbage = |text: &str| made_by("node-1", NODE, text);
    let cases: Vec<(&str, Value, Rules, Outcome)> = vec![
        ("a node's own, the gate on", own(), ON, Signed("node-1")),
        ("a node's own, the gate off", own(), OFF, Held(&["AutoNodeCertRotation", "approve it"])),
        ("a node's own, nobody signs", own(), UNSIGNED, Held(&["nothing to sign with", "pki sign"])),
        ("another node's name", made_by("node-a", NODE, &request("node-b")), ON, Held(&["node-a", "node-b"])),
        ("made by an operator", made_by("admin", MASTER, &node), ON, Held(&["admin", "not a node"])),
        ("made by one who bears a node's name", made_by("node-1", MASTER, &node), ON, Held(&["not a node"])),
        (
            "a group that only begins like it",
            made_by("node-1", "system:nodes-x", &node),
            ON,
            Held(&["not a node"]),
        ),
        ("made by nobody", nobodys, ON, Held(&["who made it"])),
        ("made by nobody, in no group", object("r", &node), ON, Held(&["who made it"])),
        ("names nobody", made_by("", NODE, &request("")), ON, Held(&["names nobody"])),
        ("no node's name", made_by("Node", NODE, &request("Node")), ON, Held(&["no node can have"])),
        (
            "a group for a name",
            made_by("system:masters", NODE, &request("system:masters")),
            ON,
            Held(&["no node can have"]),
        ),
        ("approved, the gate off", approved(own()), OFF, Signed("node-1")),
        ("approved, made by an operator", approved(made_by("admin", MASTER, &node)), OFF, Signed("node-1")),
        ("approved, nobody signs", approved(own()), UNSIGNED, Held(&["nothing to sign with"])),
        (
            "approved, no node's name",
            approved(made_by("admin", MASTER, &request("Node"))),
            ON,
            Held(&["no node can have"]),
        ),
        ("no PEM", garbage("hello"), ON, Denied(&["PEM"])),
        ("another block", garbage(&node.replace("CERTIFICATE REQUEST", "CERTIFICATE")), ON, Denied(&["PEM"])),
        (
            "no request inside",
            garbage("-----BEGIN CERTIFICATE REQUEST-----\naGVsbG8=\n-----END CERTIFICATE REQUEST-----\n"),
            ON,
            Denied(&["PKCS #10"]),
        ),
        ("changed after it was signed", garbage(&tampered()), ON, Denied(&["not signed with the key"])),
        ("changed, and approved", approved(garbage(&tampered())), ON, Denied(&["not signed with the key"])),
    ];
    for (what, object, rules, expected) in cases {
        let decision = decide(&typed(object), rules);
        let (said, words) = match (&decision, expected) {
            (Decision::Sign(asked), Signed(name)) => {
                assert_eq!(asked.common_name, name, "{what}");
                continue;
            }
            (Decision::Hold(said), Held(words)) | (Decision::Deny(said), Denied(words)) => (said, words),
            _ => panic!("{what}: {decision:?}"),
        };
        for word in words {
            assert!(said.contains(word), "{what}: no {word:?} in {said:?}");
        }
    }
}

#[test]
fn groups_that_a_request_lists_play_no_part() {
    let mut object = made_by("node-1", MASTER, &request("node-1"));
    object["spec"]["groups"] = json!(["system:nodes"]);
    assert!(matches!(decide(&typed(object), ON), Decision::Hold(_)));
}

#[test]
fn a_renewal_is_a_node_that_asks_for_its_own_name() {
    for (what, object, renewal) in [
        ("a node for itself", made_by("node-1", NODE, &request("node-1")), true),
        ("a node for another", made_by("node-1", NODE, &request("node-2")), false),
        ("an operator", made_by("node-1", MASTER, &request("node-1")), false),
        ("nobody", object("r", &request("node-1")), false),
        ("nonsense", made_by("node-1", NODE, "hello"), false),
    ] {
        assert_eq!(is_renewal(&typed(object)), renewal, "{what}");
    }
}

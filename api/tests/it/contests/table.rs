//! Every rule about several objects, what keeps it when two requests come at once, and the contests that show it.
//!
//! A guard is checked, and a claim taken, in the transaction that stores the write, under the lock that orders all
//! writes: whoever comes second is planned again on what is there by then. Rules that are kept by something else
//! say by what.
//!
//! Judged on what the replica knows, without a guard, are: whether the author of a workload may read the Secret or
//! the Service that it names (to have been allowed a moment ago is enough), and whether the address of a Service
//! is that of a node. A node is never turned away for its address, so a clash can come about in any case; a Service
//! that is made in the very moment in which a node first reports that address is let in as well.

use super::{loops, owners, placements, rules};

/// A rule that two requests could break.
struct Kept {
    rule: &'static str,
    by: &'static str,
    contests: &'static [&'static str],
}

const fn kept(rule: &'static str, by: &'static str, contests: &'static [&'static str]) -> Kept {
    Kept { rule, by, contests }
}

const TABLE: &[Kept] = &[
    kept("a name is one object's", "the key of a create", &["one-name"]),
    kept(
        "nothing is in a Namespace that is not there, and one that holds something stays",
        "Exists(namespace); NamespaceEmpty",
        &["full-namespace", "full-namespace-store"],
    ),
    kept("a placement names a node that is there", "Exists(node)", &["pinned-node"]),
    kept(
        "a volume that is not shared has one user, be it there or not",
        "Unchanged(volume) and NoEdge(mounts)",
        &["volume-absent", "volume-alone"],
    ),
    kept("a volume with several users stays shared", "EdgesAtMost(mounts, 1)", &["volume-unshared"]),
    kept("a volume that is mounted stays", "NoEdge(mounts)", &["volume-deleted"]),
    kept(
        "a Secret that is needed is there, and one that is named stays",
        "Exists(secret); NoEdge(secret), NoEdge(secret-optional)",
        &["secret-needed", "secret-optional"],
    ),
    kept("an immutable Secret keeps its values", "the revision of an update", &["secret-immutable"]),
    kept("a Service with members stays", "Exists(service); NoEdge(service)", &["service-joined"]),
    kept(
        "what is placed on a node fits",
        "Capacity(node), over the whole batch",
        &["capacity-pins", "capacity-growth", "placements-of-one-node", "pin-and-placement"],
    ),
    kept(
        "an Application is placed once, and stays there whoever edits it",
        "the revision of the placement; the core revision of an edit",
        &["placed-twice", "edit-and-placement", "child-update-and-placement"],
    ),
    kept(
        "the volumes of what is placed are where it is, and made once",
        "Unchanged(volume), on the placement",
        &["volume-moved-and-placement", "volume-made-and-placement", "volume-deleted-and-placement"],
    ),
    kept(
        "nothing is made for a set that is not as it was looked at",
        "Unchanged(set) on every write about a child",
        &["child-and-deleted-set", "child-and-edited-set"],
    ),
    kept(
        "a child that is let go of is not brought back",
        "the revision of an update",
        &["released-and-deleted"],
    ),
    kept(
        "nothing is collected that somebody owns by then",
        "the revision of a collection",
        &["collected-and-adopted"],
    ),
    kept(
        "a name is made anew for the next owner, not taken over",
        "the key of a create, and the owner's uid",
        &["namesake"],
    ),
    kept(
        "an address is one Service's",
        "a claim of service-address",
        &["address-declared", "address-chosen", "address-chosen-and-declared"],
    ),
    kept(
        "no Service takes the name of a node in the catalog (a node is never turned away)",
        "Unchanged(node, absent)",
        &["name-of-node"],
    ),
    kept("blocks of user ids do not overlap", "a claim of a range", &["block-chosen", "block-declared"]),
    kept(
        "a user id that was chosen is one Application's",
        "a claim of run-as-user in the namespace",
        &["id-chosen", "id-chosen-and-named"],
    ),
    kept("an object is deleted as it was seen, or not", "the revision of a delete", &["deleted-as-seen"]),
    kept("the last hold is let go once, and that erases", "the revision of an update", &["last-finalizer"]),
    kept(
        "what is placed is held until its node has let go",
        "the revision of the placement and of the delete",
        &["placement-and-deletion"],
    ),
    kept("a rollback keeps what doors own", "the revision of an update", &["rollback"]),
    kept(
        "nobody hands out what they do not hold at that moment",
        "Unchanged(binding), Unchanged(role) of all that the author's rights come from, and of the role that is bound",
        &[
            "grant-while-binding-goes",
            "grant-while-role-shrinks",
            "grant-while-role-grows",
            "grant-everywhere",
        ],
    ),
    kept("who no longer leads writes nothing", "LeaseIs, on every write of a loop", &["leaders"]),
    kept(
        "who no longer holds a node's session writes nothing",
        "SessionIs, on every write for a node",
        &["sessions"],
    ),
];

#[test]
fn every_rule_has_its_contests_and_every_contest_its_rule() {
    let mut named: Vec<&str> = TABLE.iter().flat_map(|kept| kept.contests).copied().collect();
    let mut there: Vec<&str> = rules::RULES
        .iter()
        .map(|rule| rule.name)
        .chain(loops::CONTESTS)
        .chain(placements::CONTESTS)
        .chain(owners::CONTESTS)
        .collect();
    named.sort_unstable();
    there.sort_unstable();
    assert_eq!(named, there);
    for Kept { rule, by, contests } in TABLE {
        assert!(!by.is_empty() && !contests.is_empty(), "{rule}");
    }
}

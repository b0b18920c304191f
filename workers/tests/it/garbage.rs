//! What is left over when something was deleted: dependents under every policy, on both databases.

mod faults;
mod rest;
mod sets;
mod world;

use horchestra_core::kind::Kind;
use horchestra_service::Propagation::{self, Background, Foreground, Orphan};
use serde_json::json;

use world::{Ref, on_both};

/// One row: what there is, what is deleted how, what is left.
struct Case {
    name: &'static str,
    objects: &'static [(&'static str, &'static [(&'static str, Ref)])],
    delete: &'static [(&'static str, Propagation)],
    /// Who is left, and by whom it is owned.
    left: &'static [(&'static str, &'static [&'static str])],
}

const CASES: &[Case] = &[
    Case {
        name: "background",
        objects: &[("p", &[]), ("a", &[("p", Ref::Plain)]), ("b", &[("p", Ref::Blocks)]), ("c", &[])],
        delete: &[("p", Background)],
        left: &[("c", &[])],
    },
    Case {
        name: "foreground",
        objects: &[("p", &[]), ("a", &[("p", Ref::Blocks)]), ("b", &[("p", Ref::Plain)])],
        delete: &[("p", Foreground)],
        left: &[],
    },
    Case {
        name: "orphan",
        objects: &[("p", &[]), ("a", &[("p", Ref::Blocks)]), ("b", &[("p", Ref::Plain)])],
        delete: &[("p", Orphan)],
        left: &[("a", &[]), ("b", &[])],
    },
    Case {
        name: "orphan leaves what is below as it is",
        objects: &[("p", &[]), ("a", &[("p", Ref::Plain)]), ("b", &[("a", Ref::Plain)])],
        delete: &[("p", Orphan)],
        left: &[("a", &[]), ("b", &["a"])],
    },
    Case {
        name: "grandchildren in the background",
        objects: &[
            ("p", &[]),
            ("a", &[("p", Ref::Plain)]),
            ("b", &[("a", Ref::Plain)]),
            ("c", &[("b", Ref::Plain)]),
        ],
        delete: &[("p", Background)],
        left: &[],
    },
    Case {
        name: "grandchildren in the foreground",
        objects: &[
            ("p", &[]),
            ("a", &[("p", Ref::Blocks)]),
            ("b", &[("a", Ref::Blocks)]),
            ("c", &[("b", Ref::Blocks)]),
        ],
        delete: &[("p", Foreground)],
        left: &[],
    },
    Case {
        name: "of two owners one is deleted",
        objects: &[("p", &[]), ("q", &[]), ("a", &[("p", Ref::Plain), ("q", Ref::Plain)])],
        delete: &[("p", Background)],
        left: &[("a", &["q"]), ("q", &[])],
    },
    Case {
        name: "of two owners one is deleted in the foreground",
        objects: &[("p", &[]), ("q", &[]), ("a", &[("p", Ref::Blocks), ("q", Ref::Plain)])],
        delete: &[("p", Foreground)],
        left: &[("a", &["q"]), ("q", &[])],
    },
    Case {
        name: "of two owners both are deleted",
        objects: &[("p", &[]), ("q", &[]), ("a", &[("p", Ref::Plain), ("q", Ref::Plain)])],
        delete: &[("p", Background), ("q", Background)],
        left: &[],
    },
    Case {
        name: "of two owners one leaves it and one is deleted",
        objects: &[("p", &[]), ("q", &[]), ("a", &[("p", Ref::Plain), ("q", Ref::Plain)])],
        delete: &[("p", Orphan), ("q", Background)],
        left: &[],
    },
    Case {
        name: "a circle in the foreground",
        objects: &[("a", &[("c", Ref::Blocks)]), ("b", &[("a", Ref::Blocks)]), ("c", &[("b", Ref::Blocks)])],
        delete: &[("a", Foreground)],
        left: &[],
    },
    Case {
        name: "a circle in the background",
        objects: &[("a", &[("c", Ref::Plain)]), ("b", &[("a", Ref::Plain)]), ("c", &[("b", Ref::Plain)])],
        delete: &[("a", Background)],
        left: &[],
    },
    Case {
        name: "a circle with an owner of its own",
        objects: &[
            ("p", &[]),
            ("a", &[("b", Ref::Blocks), ("p", Ref::Blocks)]),
            ("b", &[("a", Ref::Blocks)]),
        ],
        delete: &[("p", Foreground)],
        left: &[("a", &["b"]), ("b", &["a"])],
    },
    Case {
        name: "its own owner",
        objects: &[("a", &[("a", Ref::Blocks)])],
        delete: &[("a", Foreground)],
        left: &[],
    },
    Case {
        name: "an owner that nobody has ever seen",
        objects: &[("a", &[("ghost", Ref::NeverSeen)])],
        delete: &[],
        left: &[("a", &["ghost"])],
    },
    Case {
        name: "a deleted owner beside one that nobody has ever seen",
        objects: &[("p", &[]), ("a", &[("p", Ref::Plain), ("ghost", Ref::NeverSeen)])],
        delete: &[("p", Background)],
        left: &[("a", &["ghost"])],
    },
    Case {
        name: "an owner of another name with that uid",
        objects: &[("p", &[]), ("a", &[("p", Ref::OtherName)])],
        delete: &[("p", Foreground)],
        left: &[("a", &["other"])],
    },
    Case {
        name: "an owner of another kind with that uid",
        objects: &[("p", &[]), ("a", &[("p", Ref::OtherKind)])],
        delete: &[("p", Orphan)],
        left: &[("a", &["p"])],
    },
    Case {
        name: "an owner in another namespace",
        objects: &[("elsewhere", &[]), ("a", &[("elsewhere", Ref::Blocks)])],
        delete: &[("elsewhere", Background)],
        left: &[("a", &["elsewhere"])],
    },
    Case {
        name: "a reference that is not whole",
        objects: &[("p", &[]), ("a", &[("p", Ref::NotWhole)])],
        delete: &[("p", Background)],
        left: &[("a", &["p"])],
    },
    Case {
        name: "a kind of somebody else",
        objects: &[("p", &[]), ("a", &[("p", Ref::Foreign)])],
        delete: &[("p", Background)],
        left: &[("a", &["p"])],
    },
];

#[tokio::test]
async fn dependents_go_or_stay_as_they_are_asked_to() {
    on_both(async |world| {
        for (number, case) in CASES.iter().enumerate() {
            let namespaces = world.namespaces(number).await;
            world.make(&namespaces, case.objects).await;
            for (name, policy) in case.delete {
                world.delete(&namespaces.key(name), *policy).await;
            }
            world.settle().await;
            let expected: Vec<(String, Vec<String>)> = case
                .left
                .iter()
                .map(|(name, owners)| ((*name).to_owned(), owners.iter().map(|o| (*o).to_owned()).collect()))
                .collect();
            assert_eq!(world.left(&namespaces).await, expected, "{}", case.name);
        }
    })
    .await;
}

#[tokio::test]
async fn nothing_is_written_twice_and_nothing_without_need() {
    on_both(async |world| {
        let namespaces = world.namespaces(0).await;
        let objects: &[_] = &[
            ("p", &[][..]),
            ("a", &[("p", Ref::Blocks)][..]),
            ("b", &[("p", Ref::Plain), ("ghost", Ref::NeverSeen)][..]),
        ];
        world.make(&namespaces, objects).await;
        assert_eq!(world.settle().await, 0, "live owners");
        let gone = world.delete(&namespaces.key("p"), Foreground).await;
        assert!(!gone.erased);
        // `a` is deleted, `b` loses a reference, `p` is let go.
        assert_eq!(world.settle().await, 3);
        assert_eq!(world.settle().await, 0);
    })
    .await;
}

#[tokio::test]
async fn an_owner_waits_for_what_is_held_and_takes_newcomers_along() {
    on_both(async |world| {
        let namespaces = world.namespaces(0).await;
        world.make(&namespaces, &[("p", &[]), ("a", &[("p", Ref::Blocks)])]).await;
        let (p, a) = (namespaces.key("p"), namespaces.key("a"));
        world.merge(&a, json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
        world.delete(&p, Foreground).await;
        world.settle().await;
        let waiting = world.get(&p).await.unwrap();
        assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]));
        let held = world.get(&a).await.unwrap();
        assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held}");

        world.make(&namespaces, &[("late", &[("p", Ref::Plain)])]).await;
        world.settle().await;
        assert!(world.get(&namespaces.key("late")).await.is_none(), "it came after the deletion");
        assert!(world.get(&p).await.is_some());

        world.merge(&a, json!({"metadata": {"finalizers": null}})).await;
        world.settle().await;
        assert!(world.left(&namespaces).await.is_empty());
    })
    .await;
}

#[tokio::test]
async fn dependents_of_what_is_long_gone_go_as_well() {
    on_both(async |world| {
        let namespaces = world.namespaces(0).await;
        world.make(&namespaces, &[("p", &[])]).await;
        let uid = world.uid(&namespaces.key("p")).await;
        assert!(world.delete(&namespaces.key("p"), Background).await.erased);
        world.settle().await;
        let reference =
            json!([{"apiVersion": "horchestra.io/v1", "kind": "PersistentVolume", "name": "p", "uid": uid}]);
        let late = json!({"metadata": {"name": "late", "ownerReferences": reference}, "spec": {}});
        world.create(Kind::PersistentVolume, &namespaces.own, late).await;
        world.make(&namespaces, &[("p", &[])]).await;
        world.settle().await;
        let left = world.left(&namespaces).await;
        assert_eq!(left, [("p".to_owned(), vec![])], "a later object of the name is no owner");
    })
    .await;
}

#[tokio::test]
async fn owners_of_every_kind_have_dependents_of_every_kind() {
    on_both(async |world| {
        let namespaces = world.namespaces(0).await;
        let owners = [
            (Kind::Node, json!({"metadata": {"name": "n"}, "spec": {}})),
            (Kind::Service, json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}]}})),
            (Kind::Secret, json!({"metadata": {"name": "x"}, "data": {"a": "YQ=="}})),
            (Kind::Application, json!({"metadata": {"name": "app"}, "spec": {"image": "x"}})),
            (Kind::Role, json!({"metadata": {"name": "r"}, "spec": {"rules": []}})),
            (Kind::ClusterRole, json!({"metadata": {"name": "cr"}, "spec": {"rules": []}})),
        ];
        let dependents = [
            (Kind::Service, json!({"metadata": {"name": "ds"}, "spec": {"ports": [{"port": 1}]}})),
            (Kind::Secret, json!({"metadata": {"name": "dx"}, "data": {"a": "YQ=="}})),
            (Kind::Application, json!({"metadata": {"name": "dapp"}, "spec": {"image": "x"}})),
            (Kind::Role, json!({"metadata": {"name": "dr"}, "spec": {"rules": []}})),
        ];
        for policy in [Background, Foreground, Orphan] {
            for (kind, owner) in &owners {
                let owner = world.create(*kind, &namespaces.own, owner.clone()).await;
                let reference = world::reference(&owner.key, &owner.uid.to_string());
                let mut made = Vec::new();
                for (kind, dependent) in &dependents {
                    let mut dependent = dependent.clone();
                    dependent["metadata"]["ownerReferences"] = json!([reference]);
                    made.push(world.create(*kind, &namespaces.own, dependent).await.key.clone());
                }
                world.delete(&owner.key, policy).await;
                world.settle().await;
                assert!(world.get(&owner.key).await.is_none(), "{kind} {policy:?}");
                for key in made {
                    let left = world.get(&key).await;
                    assert_eq!(left.is_some(), policy == Orphan, "{kind} {policy:?} {key}");
                    if let Some(left) = left {
                        assert!(left["metadata"].get("ownerReferences").is_none(), "{left}");
                        world.delete(&key, Background).await;
                    }
                }
            }
        }
    })
    .await;
}

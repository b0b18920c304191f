//! Every query of the cookbook, run by a reader on a database with one of everything in it.

use std::collections::BTreeSet;

use super::world::World;
use super::{reader, rows};

/// What each query, by its name, has to give at least: so many rows, and these texts in them.
const EXPECTED: &[(&str, usize, &[&str])] = &[
    (
        "glance",
        1,
        &["\"nodes\": 1", "\"nodes_held\": 1", "\"sessions\": 1", "\"failed\": 1", "\"processes\": 2"],
    ),
    ("processes", 2, &["horchestra-workers", "here/17", "[\"scheduler\"]", "\"live\": true", "\"nodes\": 1"]),
    ("versions", 2, &["0.1.0"]),
    ("leaders", 1, &["scheduler", "here/17"]),
    ("log", 1, &["\"oldest\": 0"]),
    ("settings", 1, &["nodeReadyTimeoutMs", "45000"]),
    ("migrations", 14, &["inspect"]),
    ("applications", 4, &["cart", "web:2", "rack-a", "Running", "Pending"]),
    ("on-node", 3, &["web", "0.25", "67108864"]),
    ("images", 4, &["registry.shop.example/cart:3.1"]),
    ("labelled", 1, &["cart"]),
    ("pending", 1, &["Unschedulable", "no node has room"]),
    ("failed", 1, &["worn", "it would not start", "\"exit_code\": 3"]),
    ("namespaces", 1, &["shop"]),
    ("volumes", 1, &["cart-state", "8589934592", "Retain", "\"mounted_by\": 1"]),
    ("lonely-services", 1, &["lonely"]),
    ("addresses", 1, &["10.244.0.1", "web"]),
    ("user-ids", 1, &["cart"]),
    ("warnings", 1, &["no node has room", "\"count\": 3"]),
    ("rollouts", 1, &["search", "\"stuck\": true", "DeadlineExceeded: nothing for 60 s", "\"updated\": 1"]),
    ("children", 0, &[]),
    ("not-ready", 1, &["rack-a", "Silent"]),
    ("silent", 1, &["rack-a"]),
    ("held", 1, &["rack-a", "a rehearsal"]),
    ("holds", 1, &["a rehearsal", "\"released\": 0"]),
    ("cordoned", 1, &["rack-a"]),
    (
        "full",
        1,
        &["\"cpu_requested\": 0.75", "\"cpu_capacity\": 4", "\"cpu_used\": 1.000", "\"memory_used\": 123456"],
    ),
    ("hungry", 1, &["web", "123456"]),
    ("sessions", 1, &["gate-0", "192.0.2.7:4711", "\"live\": true"]),
    ("gateways", 1, &["gate-0", "\"nodes\": 1"]),
    ("pushed", 1, &["web", "\"placed_on\": \"rack-a\""]),
    ("token-forms", 1, &["secret"]),
    (
        "history",
        2,
        &["olga", "\"spec.image\": [\"registry.shop.example/web:1\", \"registry.shop.example/web:2\"]"],
    ),
    ("audit", 20, &["olga", "patch"]),
    ("lately", 20, &["olga", "spec.image"]),
    ("moves", 3, &["\"previous_node\": null", "rack-a"]),
    ("writers", 1, &["olga"]),
    ("rate", 1, &["minute"]),
    ("deletions", 1, &["lonely-volume", "olga"]),
    ("hanging", 1, &["old", "horchestra.io/node-teardown"]),
    ("owned", 1, &["lonely"]),
    ("users-of-secret", 1, &["needs", "cart"]),
    ("keys", 1, &["\"secrets\": 3"]),
    ("contents", 2, &["olga", "contents"]),
    ("grants", 2, &["fleet-viewer", "storefront", "everywhere"]),
    ("requests", 1, &["node-a-renewal", "olga", "Pending"]),
    ("expiring", 1, &["rack-a"]),
    ("denied", 1, &["node-9", "its disk was stolen"]),
    ("space", 10, &["objects", "events_0", "history"]),
    ("partitions", 3, &["events_0", "\"first_revision\": 0", "\"last_revision\": 262143"]),
    ("largest", 20, &["Secret", "planted"]),
    ("kinds", 14, &["Application", "Event"]),
    ("transactions", 1, &["transaction_for", "idle in transaction"]),
    ("forgotten", 0, &[]),
    ("connections", 1, &["connections"]),
];

#[tokio::test]
async fn every_query_of_the_cookbook_answers_a_reader() {
    let blocks = horchestra_local::cookbook::queries();
    let named: BTreeSet<&str> = blocks.iter().map(|(name, _)| *name).collect();
    assert_eq!(named.len(), blocks.len(), "a name twice");
    assert_eq!(
        named,
        EXPECTED.iter().map(|(name, ..)| *name).collect(),
        "queries, and what they have to give"
    );

    let world = World::new().await;
    let mut reader = reader(&world).await;
    let mut missing = Vec::new();
    for (name, least, texts) in EXPECTED {
        let (_, query) = blocks.iter().find(|(other, _)| other == name).expect("it is there");
        assert!(!query.contains("horchestra."), "{name} reads a base table");
        let rows = rows(&mut reader, query).await;
        let all = rows.join("\n");
        missing.extend(
            texts.iter().filter(|text| !all.contains(**text)).map(|text| format!("{name}: {text} in {all}")),
        );
        if rows.len() < *least {
            missing.push(format!("{name}: {} rows", rows.len()));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n\n"));
}

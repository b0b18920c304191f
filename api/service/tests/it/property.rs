//! Whatever is done, what a client knows from a list and the watch from its revision is what is stored.

use std::collections::BTreeMap;

use horchestra_core::kind::{Key, Kind};
use horchestra_service::{ListRequest, WatchEvent, WatchRequest};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::*;

#[derive(Clone, Debug)]
enum Step {
    Create { name: u8, label: u8 },
    Label { name: u8, label: u8 },
    Image { name: u8, image: u8 },
    Status { name: u8, phase: u8 },
    Hold { name: u8, held: bool },
    Delete { name: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..4_u8;
    let value = 0..3_u8;
    prop_oneof![
        3 => (name.clone(), value.clone()).prop_map(|(name, label)| Step::Create { name, label }),
        3 => (name.clone(), value.clone()).prop_map(|(name, label)| Step::Label { name, label }),
        1 => (name.clone(), value.clone()).prop_map(|(name, image)| Step::Image { name, image }),
        2 => (name.clone(), value).prop_map(|(name, phase)| Step::Status { name, phase }),
        1 => (name.clone(), any::<bool>()).prop_map(|(name, held)| Step::Hold { name, held }),
        2 => name.prop_map(|name| Step::Delete { name }),
    ]
}

fn key(name: u8) -> Key {
    app(&format!("a{name}"))
}

/// Does a step; that it fails (no such object, …) is fine.
async fn run(world: &World, step: &Step) {
    let _ = match step {
        Step::Create { name, label } => {
            let metadata = json!({"name": key(*name).name, "labels": {"l": label.to_string()}});
            world.create(json!({"metadata": metadata, "spec": {"image": "x"}})).await.map(|_| ())
        }
        Step::Label { name, label } => {
            let patch = json!({"metadata": {"labels": {"l": label.to_string()}}});
            world.merge(&key(*name), patch).await.map(|_| ())
        }
        Step::Image { name, image } => {
            let patch = json!({"spec": {"image": format!("i{image}")}});
            world.merge(&key(*name), patch).await.map(|_| ())
        }
        Step::Status { name, phase } => {
            let phase = ["Pending", "Running", "Failed"][usize::from(*phase)];
            let body = json!({"metadata": {"name": key(*name).name}, "status": {"phase": phase}});
            world.put_status(&key(*name), &body).await.map(|_| ())
        }
        Step::Hold { name, held } => {
            let finalizers = if *held { json!(["example.com/hold"]) } else { json!([]) };
            world.merge(&key(*name), json!({"metadata": {"finalizers": finalizers}})).await.map(|_| ())
        }
        Step::Delete { name } => world.delete(&key(*name)).await.map(|_| ()),
    };
}

type Known = BTreeMap<String, Value>;

async fn listed(world: &World, selector: &str, fields: &str) -> (Known, i64) {
    let request = ListRequest {
        label_selector: selector.to_owned(),
        field_selector: fields.to_owned(),
        ..ListRequest::of(Kind::Application)
    };
    let listing = world.list(request).await.unwrap();
    let known = listing.entries.iter().map(|entry| (entry.key.name.clone(), tree(entry))).collect();
    (known, listing.revision)
}

async fn agree(steps: &[Step], before: usize, selector: &str, fields: &str) {
    let world = World::new().await;
    let (first, later) = steps.split_at(before.min(steps.len()));
    for step in first {
        run(&world, step).await;
    }
    let (mut known, from) = listed(&world, selector, fields).await;
    let request = WatchRequest {
        label_selector: selector.to_owned(),
        field_selector: fields.to_owned(),
        resource_version: Some(from.to_string()),
        ..WatchRequest::of(Kind::Application)
    };
    let mut watch = world.service.watch(request).await.unwrap();
    for step in later {
        run(&world, step).await;
    }
    // An object that every selector of this test selects marks the end.
    let end = json!({"metadata": {"name": "end", "labels": {"l": "1"}}, "spec": {"image": "x"}});
    let end = world.create(end).await.unwrap().entry;
    let mut last = from;
    loop {
        let event = next(&mut watch).await;
        let (entry, added) = match &event {
            WatchEvent::Added(entry) => (entry, Some(true)),
            WatchEvent::Modified(entry) => (entry, Some(false)),
            WatchEvent::Deleted(entry) => (entry, None),
            other => panic!("{}", short(other)),
        };
        assert!(entry.revision > last, "revisions grow: {}", short(&event));
        last = entry.revision;
        let before = match added {
            Some(_) => known.insert(entry.key.name.clone(), tree(entry)),
            None => known.remove(&entry.key.name),
        };
        assert_eq!(before.is_none(), added == Some(true), "{}", short(&event));
        if entry.key.name == "end" {
            assert_eq!(entry.revision, end.revision);
            break;
        }
    }
    assert_eq!(known, listed(&world, selector, fields).await.0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_list_and_the_watch_from_it_agree(
        steps in prop::collection::vec(step(), 1..40),
        before in 0..20_usize,
        selection in prop::sample::select(vec![("", ""), ("l=1", ""), ("l in (1,2)", ""), ("", "status.phase!=Running")]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(agree(&steps, before, selection.0, selection.1));
    }
}

use horchestra_core::kind::Kind;
use horchestra_service::{At, ListRequest, Service, ServiceConfig};
use serde_json::json;

use crate::support::*;

/// Applications a0…a9 in `default` and b0…b4 in `other`, every second one labelled `side=even`.
async fn populated() -> World {
    let world = World::new().await;
    for at in 0..15 {
        let (name, namespace) =
            if at < 10 { (format!("a{at}"), "default") } else { (format!("b{}", at - 10), "other") };
        let side = if at % 2 == 0 { "even" } else { "odd" };
        let object = json!({"metadata": {"name": name, "namespace": namespace, "labels": {"side": side}}, "spec": {"image": "x"}});
        world.create(object).await.unwrap();
    }
    world
}

fn all() -> ListRequest {
    ListRequest::of(Kind::Application)
}

#[tokio::test]
async fn what_a_listing_holds() {
    let world = populated().await;
    let expected = |from: &[(&str, i32)]| -> Vec<String> {
        from.iter().flat_map(|(prefix, count)| (0..*count).map(move |at| format!("{prefix}{at}"))).collect()
    };
    for (what, request, wanted) in [
        ("everything, by namespace and name", all(), expected(&[("a", 10), ("b", 5)])),
        ("a namespace", ListRequest { namespace: Some("other".into()), ..all() }, expected(&[("b", 5)])),
        ("no such namespace", ListRequest { namespace: Some("nope".into()), ..all() }, vec![]),
        (
            "a label",
            ListRequest { label_selector: "side=even".into(), namespace: Some("other".into()), ..all() },
            vec!["b0".into(), "b2".into(), "b4".into()],
        ),
        ("a set of labels", ListRequest { label_selector: "side notin (even,odd)".into(), ..all() }, vec![]),
        ("a name", ListRequest { field_selector: "metadata.name=a3".into(), ..all() }, vec!["a3".into()]),
        (
            "a name in its namespace",
            ListRequest {
                field_selector: "metadata.name=a3".into(),
                namespace: Some("default".into()),
                ..all()
            },
            vec!["a3".into()],
        ),
        (
            "a name in another namespace",
            ListRequest {
                field_selector: "metadata.name=a3".into(),
                namespace: Some("other".into()),
                ..all()
            },
            vec![],
        ),
        (
            "name and label",
            ListRequest {
                field_selector: "metadata.name=a3".into(),
                label_selector: "side=even".into(),
                ..all()
            },
            vec![],
        ),
        (
            "a phase that nobody has",
            ListRequest { field_selector: "status.phase!=Pending".into(), ..all() },
            vec![],
        ),
    ] {
        let listing = world.list(request).await.unwrap();
        assert_eq!(names(&listing), wanted, "{what}");
        assert!(listing.continue_token.is_none() && listing.remaining.is_none(), "{what}");
    }
    let empty = World::new().await.list(all()).await.unwrap();
    assert!(empty.entries.is_empty() && empty.revision > 0);
}

#[tokio::test]
async fn bad_parameters_are_refused() {
    let world = populated().await;
    for (what, request, code) in [
        ("a bad label selector", ListRequest { label_selector: "a in (".into(), ..all() }, 400),
        ("a bad field selector", ListRequest { field_selector: "x".into(), ..all() }, 400),
        ("an unknown field", ListRequest { field_selector: "spec.image=x".into(), ..all() }, 400),
        ("a bad revision", ListRequest { resource_version: Some("x".into()), ..all() }, 400),
        (
            "a bad match",
            ListRequest {
                resource_version: Some("1".into()),
                resource_version_match: Some("Newest".into()),
                ..all()
            },
            422,
        ),
        (
            "a match without revision",
            ListRequest { resource_version_match: Some("Exact".into()), ..all() },
            422,
        ),
        ("initial events", ListRequest { send_initial_events: Some(true), ..all() }, 422),
        ("a bad token", ListRequest { continue_token: Some("x".into()), ..all() }, 400),
    ] {
        assert_eq!(world.list(request).await.unwrap_err().code(), code, "{what}");
    }
}

#[tokio::test]
async fn pages_are_of_one_moment_on_any_replica() {
    let world = populated().await;
    let other = world.replica().await;
    let first = world.list(ListRequest { limit: Some(4), ..all() }).await.unwrap();
    assert_eq!(names(&first), ["a0", "a1", "a2", "a3"]);
    assert_eq!(first.remaining, Some(11));
    // What happens in between does not show.
    world.delete(&app("a5")).await.unwrap();
    world.create(application("a4x")).await.unwrap();
    world.merge(&app("a6"), json!({"metadata": {"labels": {"side": "other"}}})).await.unwrap();
    let mut seen: Vec<String> = names(&first).into_iter().map(str::to_owned).collect();
    let mut token = first.continue_token.clone();
    let mut page = 0;
    while let Some(continue_token) = token {
        page += 1;
        let request = ListRequest { limit: Some(4), continue_token: Some(continue_token), ..all() };
        let service = if page % 2 == 0 { &world.service } else { &other };
        let listing = service.list(request).await.unwrap();
        assert_eq!(listing.revision, first.revision, "page {page}");
        for entry in &listing.entries {
            seen.push(entry.key.name.clone());
            if entry.key.name == "a6" {
                assert_eq!(entry.index.label("side"), Some("even"));
            }
        }
        assert_eq!(listing.remaining.is_some(), listing.continue_token.is_some());
        token = listing.continue_token;
    }
    let wanted: Vec<String> =
        (0..10).map(|at| format!("a{at}")).chain((0..5).map(|at| format!("b{at}"))).collect();
    assert_eq!(seen, wanted);
}

#[tokio::test]
async fn pages_with_selectors_say_whether_there_is_more_but_not_how_much() {
    let world = populated().await;
    let request = ListRequest { limit: Some(4), label_selector: "side=even".into(), ..all() };
    let first = world.list(request.clone()).await.unwrap();
    assert_eq!(names(&first), ["a0", "a2", "a4", "a6"]);
    assert!(first.continue_token.is_some() && first.remaining.is_none());
    let second = world.list(ListRequest { continue_token: first.continue_token, ..request }).await.unwrap();
    assert_eq!(names(&second), ["a8", "b0", "b2", "b4"]);
    assert!(second.continue_token.is_none(), "an exactly full last page is the last");
}

#[tokio::test]
async fn a_listing_whose_moment_is_gone_can_go_on_with_the_current_state() {
    let world = populated().await;
    let first = world.list(ListRequest { limit: Some(4), ..all() }).await.unwrap();
    world.create(application("a4x")).await.unwrap();
    let head = world.service.store().fresh().await.unwrap().revision();
    world.database.compact(head);
    // A replica that has nothing in memory of that moment.
    let fresh = world.replica().await;
    let request = ListRequest { limit: Some(4), continue_token: first.continue_token, ..all() };
    let status = fresh.list(request.clone()).await.unwrap_err();
    assert_eq!(status.code(), 410, "{status}");
    let token = status.continue_token.expect("a token to go on with");
    let second = fresh.list(ListRequest { continue_token: Some(token), ..request.clone() }).await.unwrap();
    assert_eq!(names(&second), ["a4", "a4x", "a5", "a6"]);
    assert!(second.revision > first.revision);
    let third = fresh.list(ListRequest { continue_token: second.continue_token, ..request }).await.unwrap();
    assert_eq!(third.revision, second.revision, "from there on of one moment again");
}

#[tokio::test]
async fn tokens_have_their_time() {
    let world = populated().await;
    let config = ServiceConfig { continue_ttl: std::time::Duration::ZERO, ..ServiceConfig::default() };
    let hasty = Service::new(world.service.store().clone(), config);
    let first = hasty.list(ListRequest { limit: Some(4), ..all() }).await.unwrap();
    let request = ListRequest { limit: Some(4), continue_token: first.continue_token, ..all() };
    let deadline = tokio::time::Instant::now() + DEADLINE;
    // The token is over once the clock has moved on from the millisecond that it was made in.
    loop {
        match hasty.list(request.clone()).await {
            Err(status) => {
                assert_eq!(status.code(), 410);
                assert!(status.continue_token.is_some());
                break;
            }
            Ok(_) => assert!(tokio::time::Instant::now() < deadline, "the token never ends"),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn revisions_of_listings() {
    let world = populated().await;
    let before = world.list(all()).await.unwrap();
    world.delete(&app("a0")).await.unwrap();
    let now = world.list(all()).await.unwrap();
    assert!(now.revision > before.revision);
    let at = |revision: i64, matching: Option<&str>| {
        world.list(ListRequest {
            resource_version: Some(revision.to_string()),
            resource_version_match: matching.map(str::to_owned),
            ..all()
        })
    };
    let exact = at(before.revision, Some("Exact")).await.unwrap();
    assert_eq!((exact.revision, exact.entries.len()), (before.revision, 15));
    for listing in
        [at(before.revision, None).await, at(before.revision, Some("NotOlderThan")).await, at(0, None).await]
    {
        let listing = listing.unwrap();
        assert_eq!((listing.revision, listing.entries.len()), (now.revision, 14));
    }
    for matching in [None, Some("NotOlderThan"), Some("Exact")] {
        let status = at(now.revision + 1000, matching).await.unwrap_err();
        assert_eq!(status.code(), 504, "{matching:?}");
        assert_eq!(status.details.causes[0].reason, "ResourceVersionTooLarge");
    }
    world.database.compact(now.revision);
    let fresh = world.replica().await;
    let request = ListRequest {
        resource_version: Some(before.revision.to_string()),
        resource_version_match: Some("Exact".into()),
        ..all()
    };
    assert_eq!(fresh.list(request).await.unwrap_err().code(), 410);
}

#[tokio::test]
async fn a_read_sees_what_was_acknowledged_on_another_replica() {
    let world = World::new().await;
    let other = world.replica().await;
    for at in 0..200 {
        let name = format!("a{at}");
        world.create(application(&name)).await.unwrap();
        assert!(other.get(&app(&name), At::Fresh).await.is_ok(), "{name}");
        let written = world.merge(&app(&name), json!({"spec": {"image": "y"}})).await.unwrap();
        assert_eq!(other.list(all()).await.unwrap().entries.len(), at + 1);
        let seen = other.get(&app(&name), At::NotOlderThan(written.entry.revision)).await.unwrap();
        assert_eq!(seen.revision, written.entry.revision);
    }
}

use super::*;

#[test]
fn what_a_manager_names_no_longer_goes_unless_somebody_else_set_it() {
    let mut story = Story::new();
    story.apply("a", json!({"flat": {"x": 1, "y": 1}, "list": [{"name": "A", "value": 1}, {"name": "B"}]}));
    story.apply("b", json!({"flat": {"y": 1, "z": 1}, "list": [{"name": "A"}]}));
    story.apply("a", json!({"set": ["p"]}));
    assert_eq!(*story.spec(), json!({"flat": {"y": 1, "z": 1}, "list": [{"name": "A"}], "set": ["p"]}));
    story.apply("b", json!({}));
    assert_eq!(*story.spec(), json!({"set": ["p"]}), "emptied containers go as well");
}

#[test]
fn a_required_container_stays() {
    let mut story = Story::new();
    story.try_apply("a", &with(json!({"flat": {"x": 1}})), false).unwrap();
    let nothing = object(json!({"apiVersion": "t/v1", "kind": "Sample", "metadata": {"name": "o"}}));
    story.try_apply("a", &nothing, false).unwrap();
    assert_eq!(*story.spec(), json!({}));
}

#[test]
fn what_nobody_set_goes_with_the_container_that_an_apply_made() {
    let mut story = Story::new();
    story.apply("a", json!({"ports": [{"port": 80}], "flat": {}}));
    // Defaults are filled in after an apply and belong to nobody.
    let filled = json!({"ports": [{"port": 80, "protocol": "TCP"}], "flat": {"z": 3}});
    story.live = Some(with(filled.clone()));
    story.apply("a", json!({"ports": [{"port": 80}], "flat": {}}));
    assert_eq!(*story.spec(), filled, "and are no reason for another object");
    story.apply("a", json!({"atomic": [1]}));
    assert_eq!(*story.spec(), json!({"atomic": [1]}));
}

#[test]
fn a_field_of_somebody_else_keeps_the_item_that_it_is_in() {
    let mut story = Story::new();
    story.apply("a", json!({"list": [{"name": "A", "value": 1}, {"name": "B", "value": 1}]}));
    story.update("edit", json!({"list": [{"name": "A", "value": 2}, {"name": "B", "value": 1}]}));
    story.apply("a", json!({"set": ["p"]}));
    assert_eq!(*story.spec(), json!({"list": [{"name": "A", "value": 2}], "set": ["p"]}));
}

#[test]
fn conflicts_name_managers_and_fields_and_change_nothing() {
    let mut story = Story::new();
    story.apply(
        "a",
        json!({"flat": {"x": 1}, "list": [{"name": "A", "value": 1}], "atomic": [1], "whole": {"x": 1}, "open": {"k": {"d": 1}}}),
    );
    story.update(
        "edit",
        json!({"flat": {"x": 1, "y": 1}, "list": [{"name": "A", "value": 1}], "atomic": [1], "whole": {"x": 1}, "open": {"k": {"d": 1}}}),
    );
    let before = story.clone();
    assert_eq!(
        story.conflicts(
            "b",
            json!({"flat": {"x": 2, "y": 2, "z": 2}, "list": [{"name": "A", "value": 2}], "atomic": [2], "whole": {"y": 1},
                "open": {"k": {"d": 2, "e": 1}}})
        ),
        [
            "a .spec.atomic",
            "a .spec.flat.x",
            "a .spec.list[name=\"A\"].value",
            "a .spec.open.k.d",
            "a .spec.whole",
            "edit .spec.flat.y"
        ]
    );
    assert_eq!((&before.live, &before.managed), (&story.live, &story.managed));
    story.apply("b", json!({"flat": {"x": 1, "z": 2}}));
    assert_eq!(
        story.owned(&applier("b")),
        json!({"f:flat": {"f:x": {}, "f:z": {}}}),
        "same values are shared"
    );
    assert_eq!(story.managed.fields(&applier("a")), before.managed.fields(&applier("a")));
}

#[test]
fn force_takes_over() {
    let mut story = Story::new();
    story.apply("a", json!({"flat": {"x": 1, "y": 1}}));
    story.force("b", json!({"flat": {"x": 2}}));
    assert_eq!(*story.spec(), json!({"flat": {"x": 2, "y": 1}}));
    assert_eq!(story.owned(&applier("a")), json!({"f:flat": {"f:y": {}}}));
    assert_eq!(story.owned(&applier("b")), json!({"f:flat": {"f:x": {}}}));
    story.apply("a", json!({"flat": {"y": 1}}));
    assert_eq!(*story.spec(), json!({"flat": {"x": 2, "y": 1}}), "what was lost is not taken away");
}

#[test]
fn an_update_takes_over_what_it_changes() {
    let mut story = Story::new();
    story.apply("a", json!({"flat": {"x": 1, "y": 1}}));
    story.update("edit", json!({"flat": {"x": 2, "y": 1}, "list": [{"name": "A", "value": 1}]}));
    assert_eq!(story.owned(&applier("a")), json!({"f:flat": {"f:y": {}}}));
    assert_eq!(
        story.owned(&updater("edit")),
        json!({"f:flat": {"f:x": {}}, "f:list": {".": {}, "k:{\"name\":\"A\"}": {".": {}, "f:name": {}, "f:value": {}}}})
    );
    story.update("edit", json!({"flat": {"y": 1}}));
    assert_eq!(story.managed.fields(&updater("edit")), None, "what is gone has no owner");
}

#[test]
fn items_are_told_apart_by_their_keys_and_a_default_counts() {
    let mut story = Story::new();
    story.apply("a", json!({"ports": [{"port": 80, "name": "web"}]}));
    story.apply("b", json!({"ports": [{"port": 80, "protocol": "UDP"}, {"port": 80, "protocol": "TCP"}]}));
    assert_eq!(
        *story.spec(),
        json!({"ports": [{"port": 80, "protocol": "UDP"}, {"port": 80, "protocol": "TCP", "name": "web"}]})
    );
    assert_eq!(
        story.owned(&applier("a")),
        json!({"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}}}})
    );
}

#[test]
fn items_without_a_key_are_one_item() {
    let mut story = Story::new();
    story.apply("a", json!({"list": [{"value": 1}, {"name": "A"}, {"value": 2}]}));
    story.apply("b", json!({"list": [{"name": "B"}]}));
    assert_eq!(*story.spec(), json!({"list": [{"value": 1}, {"name": "A"}, {"value": 2}, {"name": "B"}]}));
    assert_eq!(story.conflicts("b", json!({"list": [{"value": 1}]})), ["a .spec.list[]"]);
    story.apply("a", json!({"list": [{"value": 1}, {"name": "A"}, {"value": 2}]}));
    story.apply("a", json!({"list": [{"name": "A"}, {"value": 3}]}));
    assert_eq!(*story.spec(), json!({"list": [{"name": "A"}, {"value": 3}, {"name": "B"}]}));
    story.apply("a", json!({"list": [{"name": "A"}]}));
    assert_eq!(*story.spec(), json!({"list": [{"name": "A"}, {"name": "B"}]}));
}

#[test]
fn a_list_with_two_items_of_one_key_counts_as_one_value() {
    let twice = json!({"list": [{"name": "A", "value": 1}, {"name": "A", "value": 2}]});
    let mut story = Story::new();
    story.apply("a", twice.clone());
    assert_eq!(story.owned(&applier("a")), json!({"f:list": {}}));
    story.apply("a", twice);
    assert_eq!(story.conflicts("b", json!({"list": [{"name": "B"}]})), ["a .spec.list"]);
    story.apply("a", json!({"list": [{"name": "A", "value": 1}]}));
    story.apply("b", json!({"list": [{"name": "B"}]}));
    assert_eq!(*story.spec(), json!({"list": [{"name": "A", "value": 1}, {"name": "B"}]}));
    // And back: to make it a whole takes all of it from its owners.
    let whole = json!({"list": [{"name": "C"}, {"name": "C"}]});
    assert_eq!(
        story.conflicts("c", whole.clone()),
        ["a .spec.list[name=\"A\"].name", "a .spec.list[name=\"A\"].value", "b .spec.list[name=\"B\"].name"]
    );
    story.force("c", whole.clone());
    assert_eq!(*story.spec(), whole);
    assert_eq!(story.managed.managers().count(), 1);
}

#[test]
fn sets_are_shared_item_by_item() {
    let mut story = Story::new();
    story.apply("a", json!({"set": ["p", "q"]}));
    story.apply("b", json!({"set": ["r", "q"]}));
    assert_eq!(*story.spec(), json!({"set": ["p", "r", "q"]}));
    story.apply("a", json!({"set": []}));
    assert_eq!(*story.spec(), json!({"set": ["r", "q"]}));
    assert_eq!(story.owned(&applier("b")), json!({"f:set": {"v:\"q\"": {}, "v:\"r\"": {}}}));
}

#[test]
fn an_apply_orders_its_own_items() {
    let mut story = Story::new();
    story.apply("a", json!({"list": [{"name": "A"}, {"name": "B"}, {"name": "C"}]}));
    story.apply("b", json!({"list": [{"name": "X"}, {"name": "A"}]}));
    assert_eq!(*story.spec(), json!({"list": [{"name": "X"}, {"name": "A"}, {"name": "B"}, {"name": "C"}]}));
    story.apply("a", json!({"list": [{"name": "C"}, {"name": "B"}, {"name": "A"}]}));
    assert_eq!(*story.spec(), json!({"list": [{"name": "X"}, {"name": "C"}, {"name": "B"}, {"name": "A"}]}));
}

#[test]
fn values_of_the_wrong_make_are_put_in_for_others_to_judge() {
    for (before, spec, after) in [
        (json!({"flat": {"x": 1}}), json!({"flat": 7}), json!({"flat": 7})),
        (json!({"flat": 7}), json!({"flat": {"x": 1}}), json!({"flat": {"x": 1}})),
        (json!({"list": [{"name": "A"}]}), json!({"list": [7]}), json!({"list": [7]})),
        (json!({"list": {}}), json!({"list": [{"name": {}}]}), json!({"list": [{"name": {}}]})),
        (json!({"set": [null]}), json!({"set": [{}]}), json!({"set": [{}]})),
    ] {
        let mut story = Story::new();
        story.update("edit", before);
        story.force("a", spec.clone());
        assert_eq!(*story.spec(), after);
        story.force("a", spec);
        assert_eq!(*story.spec(), after);
    }
}

#[test]
fn metadata_has_owners_only_where_clients_write() {
    let mut story = Story::new();
    let metadata = json!({"name": "o", "namespace": "n", "uid": "u", "generation": 1, "creationTimestamp": "t",
        "labels": {"a": "1"}, "annotations": {"b": "2"}, "finalizers": ["c/d"],
        "ownerReferences": [{"uid": "x", "name": "y"}, {"name": "z"}]});
    let whole = object(json!({"metadata": metadata, "spec": {}}));
    story.update_object("edit", whole.clone());
    assert_eq!(
        Value::Object(story.managed.fields(&updater("edit")).unwrap().to_json()),
        json!({"f:spec": {}, "f:metadata": {
            "f:labels": {".": {}, "f:a": {}}, "f:annotations": {".": {}, "f:b": {}},
            "f:finalizers": {".": {}, "v:\"c/d\"": {}},
            "f:ownerReferences": {".": {}, "k:{\"uid\":\"x\"}": {".": {}, "f:uid": {}, "f:name": {}}, "k:{}": {}},
        }})
    );
    let config = object(json!({"metadata": {"name": "other", "uid": "v", "labels": {"b": "1"}}}));
    story.try_apply("a", &config, false).unwrap();
    let stored = &story.live.as_ref().unwrap().0["metadata"];
    assert_eq!((&stored["name"], &stored["uid"]), (&json!("o"), &json!("u")));
    assert_eq!(stored["labels"], json!({"a": "1", "b": "1"}));
}

#[test]
fn too_many_updaters_are_put_together_oldest_first() {
    let mut story = Story::new();
    let mut flat = Map::new();
    for n in 0..14 {
        flat.insert(format!("k{n:02}"), json!(1));
        story.update(&format!("u{n:02}"), json!({"open": Value::Object(flat.clone())}));
    }
    story.apply("a", json!({"atomic": [1]}));
    let names: Vec<&str> = story.managed.managers().map(|(manager, _)| manager.name.as_str()).collect();
    let mut expected = vec!["a".to_owned(), "ancient-changes".to_owned()];
    expected.extend((5..14).map(|n| format!("u{n:02}")));
    assert_eq!(names, expected);
    let ancient = story.managed.fields(&updater("ancient-changes")).unwrap();
    for n in 0..5 {
        assert!(ancient.contains(&["f:spec", "f:open", &member(&format!("k{n:02}"))]), "{n}");
    }
    let (_, time) = story.managed.managers().nth(1).unwrap();
    assert_eq!(time, Some(at(5)));
}

#[test]
fn what_was_there_before_managers_were_kept_belongs_to_nobody_in_particular() {
    let mut story = Story { live: Some(with(json!({"flat": {"x": 1}}))), ..Story::new() };
    story.live.as_mut().unwrap().0.insert("status".to_owned(), json!({"phase": "x"}));
    story.managed = Managed::untracked();
    let mut edited = story.live.clone().unwrap();
    edited.0["spec"]["flat"]["y"] = json!(1);
    story.update_object("edit", edited);
    assert_eq!(story.managed, Managed::untracked(), "an update does not begin to keep them");
    assert_eq!(story.conflicts("a", json!({"flat": {"x": 2}})), ["before-first-apply .spec.flat.x"]);
    story.apply("a", json!({"flat": {"x": 1}}));
    let before = Manager { subresource: "status".to_owned(), ..updater("before-first-apply") };
    assert!(story.managed.fields(&before).unwrap().contains(&["f:status", "f:phase"]));
    assert!(!story.managed.fields(&before).unwrap().contains(&["f:spec", "f:flat", "f:x"]));
}

#[test]
fn what_clients_send_of_managers_counts_when_it_can_be_read() {
    let entry = json!({"manager": "x", "operation": "Update", "apiVersion": "t/v1", "fieldsType": "FieldsV1",
        "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:spec": {"f:flat": {".": {}, "f:x": {}}}}});
    let managed = Managed::from_client(Some(&json!([entry]))).unwrap();
    assert_eq!(managed.managers().count(), 1);
    let written: Value = serde_json::from_slice(&managed.to_stored().unwrap()).unwrap();
    assert_eq!(written, json!([entry]));
    for reset in [json!([]), json!([{}])] {
        assert_eq!(Managed::from_client(Some(&reset)), Some(Managed::untracked()));
    }
    for (what, broken) in [
        ("nothing", Value::Null),
        ("no list", json!({})),
        ("an unknown operation", json!([{"operation": "Odd", "fieldsV1": {}}])),
        ("no fields", json!([{"operation": "Update"}])),
        (
            "fields of another form",
            json!([{"operation": "Update", "fieldsType": "FieldsV9", "fieldsV1": {}}]),
        ),
        ("a step of no kind", json!([{"operation": "Update", "fieldsV1": {"spec": {}}}])),
        ("a broken key", json!([{"operation": "Update", "fieldsV1": {"k:{": {}}}])),
        ("a step to a number", json!([{"operation": "Update", "fieldsV1": {"f:a": 1}}])),
        ("a time that is none", json!([{"operation": "Update", "time": "soon", "fieldsV1": {"f:a": {}}}])),
        ("a multi-byte step", json!([{"operation": "Update", "fieldsV1": {"é": {}, "aé": {}}}])),
    ] {
        assert_eq!(Managed::from_client(Some(&broken)), None, "{what}");
        let stored = Managed::from_stored(Some(broken.to_string().as_bytes()));
        assert_eq!(stored.managers().count(), 0, "{what}");
    }
    assert_eq!(Managed::from_stored(Some(b"not json")), Managed::untracked());
    let mixed = json!([entry, {"operation": "Odd"}]);
    assert_eq!(Managed::from_client(Some(&mixed)), None);
    assert_eq!(Managed::from_stored(Some(mixed.to_string().as_bytes())).managers().count(), 1);
    let spelled = json!([{"operation": "Apply", "manager": "x", "fieldsV1": {"f:l": {
        "k:{\"port\": 80, \"a\":\"\\u003c\"}": {}, "v: 1": {}, "i:3": {}}}}]);
    let read = Managed::from_client(Some(&spelled)).unwrap();
    let fields = read.fields(&Manager::new("x", Operation::Apply, "", "")).unwrap();
    assert!(fields.contains(&["f:l", "k:{\"a\":\"<\",\"port\":80}"]), "spelled in our way: {fields:?}");
    assert!(fields.contains(&["f:l", "v:1"]));
}

#[test]
fn only_kubectl_may_take_over_what_its_annotation_says() {
    let written = json!({"apiVersion": "t/v1", "kind": "Sample", "metadata": {"name": "o"},
        "spec": {"flat": {"x": 1, "y": 1}}});
    let mut live = object(written.clone());
    live.set_metadata(
        "annotations",
        json!({"kubectl.kubernetes.io/last-applied-configuration": written.to_string()}),
    );
    let mut story = Story::new();
    story.update_object("kubectl-client-side-apply", live.clone());
    live.0["spec"]["flat"]["y"] = json!(5);
    story.update_object("edit", live);
    let wanted = json!({"flat": {"x": 2, "y": 2}});
    assert_eq!(
        story.clone().conflicts("other", wanted.clone()),
        ["kubectl-client-side-apply .spec.flat.x", "edit .spec.flat.y"]
    );
    assert_eq!(story.conflicts("kubectl", wanted), ["edit .spec.flat.y"]);
    story.apply("kubectl", json!({"flat": {"x": 2}}));
    assert_eq!(*story.spec(), json!({"flat": {"x": 2, "y": 5}}));
    let kept = story.live.as_ref().unwrap().str_at(&[
        "metadata",
        "annotations",
        "kubectl.kubernetes.io/last-applied-configuration",
    ]);
    let kept: Value = serde_json::from_str(kept).unwrap();
    assert_eq!(kept["spec"], json!({"flat": {"x": 2}}), "the annotation is kept up");
}

#[test]
fn the_answer_to_a_conflict_reads_like_kubernetes() {
    let key = Key::namespaced(Kind::Application, "default", "web");
    let mut fields = FieldSet::default();
    fields.insert(&["f:spec", "f:image"]);
    let one = Conflict { manager: updater("kubectl-edit"), time: Some(at(0)), fields: fields.clone() };
    let status = conflict_status(&key, std::slice::from_ref(&one));
    assert_eq!(
        status.message,
        "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using t/v1 at 2023-11-14T22:13:20Z: .spec.image"
    );
    assert_eq!(status.code(), 409);
    assert_eq!(status.details.causes[0].reason, "FieldManagerConflict");
    assert_eq!(status.details.causes[0].field, ".spec.image");
    fields.insert(&["f:spec", "f:env", "k:{\"name\":\"A\"}", "f:value"]);
    let two = Conflict { manager: Manager::new("b", Operation::Apply, "t/v1", "status"), time: None, fields };
    assert_eq!(
        conflict_status(&key, &[one, two]).message,
        "Apply failed with 3 conflicts: conflicts with \"kubectl-edit\" using t/v1 at 2023-11-14T22:13:20Z:\n\
         - .spec.image\nconflicts with \"b\" with subresource \"status\":\n\
         - .spec.env[name=\"A\"].value\n- .spec.image"
    );
}

#[test]
fn times_move_with_what_a_manager_does() {
    let mut story = Story::new();
    story.apply("a", json!({"flat": {"x": 1}}));
    story.apply("b", json!({"flat": {"y": 1}}));
    let time = |story: &Story, name: &str| {
        story.managed.managers().find(|(manager, _)| manager.name == name).and_then(|(_, time)| time)
    };
    story.apply("a", json!({"flat": {"x": 1}}));
    assert_eq!(time(&story, "a"), Some(at(1)));
    story.apply("a", json!({"flat": {"x": 2}}));
    assert_eq!((time(&story, "a"), time(&story, "b")), (Some(at(4)), Some(at(2))));
}

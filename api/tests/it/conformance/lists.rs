//! Lists and their pages.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    ALL_APPS, APPS, METADATA_LIST, NODES, Rows, TABLE, TEAM_APPS, app, encoded, labelled, names, revision,
    stack,
};
use crate::client::Client;

/// a…e in `default`, the vowels labelled; f in `team-a`.
async fn fill(client: &Client) {
    for name in ["d", "b", "a", "e", "c"] {
        let sort = if matches!(name, "a" | "e") { "vowel" } else { "consonant" };
        client.post(APPS, &labelled(name, json!({ "sort": sort }))).await;
    }
    client.post(TEAM_APPS, &app("f")).await;
}

#[tokio::test]
async fn whole_lists() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    for (path, accept) in [
        (APPS.to_owned(), "application/json"),
        (ALL_APPS.to_owned(), "application/json"),
        (NODES.to_owned(), "application/json"),
        (format!("{APPS}?labelSelector=no%3Done"), "application/json"),
        (format!("{APPS}?fieldSelector=metadata.name%3Dno"), "application/json"),
        (APPS.to_owned(), METADATA_LIST),
        (APPS.to_owned(), TABLE),
        ("/apis/horchestra.io/v1/namespaces/nowhere/applications".to_owned(), "application/json"),
    ] {
        let reply = client.get_as(&path, accept).await;
        let list = reply.json();
        rows.same(&format!("{path} as {accept}"), reply.status, 200);
        rows.holds("an empty list carries its revision", revision(&list) > 0, &list);
        let items = if accept == TABLE { &list["rows"] } else { &list["items"] };
        rows.same("and is a list", items, &json!([]));
    }
    fill(&client).await;
    let list = client.get(APPS).await.json();
    rows.same(
        "kind and version",
        (&list["kind"], &list["apiVersion"]),
        (&json!("ApplicationList"), &json!("horchestra.io/v1")),
    );
    rows.same("in the order of names", names(&list).join(""), "abcde".to_owned());
    rows.holds(
        "items say what they are",
        list["items"].as_array().unwrap().iter().all(|it| it["kind"] == "Application"),
        &list,
    );
    let everywhere = client.get(ALL_APPS).await.json();
    rows.same("all namespaces, by namespace and name", names(&everywhere).join(""), "abcdef".to_owned());
    let there: Vec<&Value> = everywhere["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["metadata"]["namespace"] == "default")
        .collect();
    rows.same("which hold the same as each alone", there, list["items"].as_array().unwrap().iter().collect());
    for (query, expected) in [
        ("labelSelector=sort%3Dvowel", "ae"),
        ("labelSelector=sort%3D%3Dvowel", "ae"),
        ("labelSelector=sort!%3Dvowel", "bcd"),
        ("labelSelector=sort+in+(vowel,other)", "ae"),
        ("labelSelector=sort+notin+(vowel)", "bcd"),
        ("labelSelector=sort", "abcde"),
        ("labelSelector=!sort", ""),
        ("labelSelector=sort,sort%3Dvowel", "ae"),
        ("fieldSelector=metadata.name%3Db", "b"),
        ("fieldSelector=metadata.name!%3Db", "acde"),
        ("fieldSelector=metadata.namespace%3Ddefault", "abcde"),
        ("fieldSelector=metadata.namespace%3Dteam-a", ""),
        ("fieldSelector=metadata.name%3Da,metadata.namespace%3Ddefault&labelSelector=sort%3Dvowel", "a"),
        ("limit=0", "abcde"),
        ("pretty=true&x=y", "abcde"),
        ("watch=false", "abcde"),
        ("watch=0", "abcde"),
    ] {
        let list = client.get(&format!("{APPS}?{query}")).await.json();
        rows.same(query, names(&list).join("").as_str(), expected);
    }
    for (query, code, reason) in [
        ("labelSelector=a+in+(", 400, "BadRequest"),
        ("labelSelector=%3Dx", 400, "BadRequest"),
        ("fieldSelector=x", 400, "BadRequest"),
        ("fieldSelector=spec.image%3Dx", 400, "BadRequest"),
        ("limit=x", 400, "BadRequest"),
    ] {
        rows.code(query, &client.get(&format!("{APPS}?{query}")).await, code, reason);
    }
    rows.close();
}

#[tokio::test]
async fn pages() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    fill(&client).await;
    for (accept, table) in [("application/json", false), (METADATA_LIST, false), (TABLE, true)] {
        let mut path = format!("{APPS}?limit=2");
        let mut seen = Vec::new();
        let mut of = None;
        for (number, remaining) in [Some(3), Some(1), None].into_iter().enumerate() {
            let page = client.get_as(&path, accept).await.json();
            rows.same("pages are of one revision", revision(&page), *of.get_or_insert(revision(&page)));
            rows.same("what remains is told", page["metadata"]["remainingItemCount"].as_i64(), remaining);
            let items = page[if table { "rows" } else { "items" }].as_array().unwrap();
            seen.extend(items.iter().map(|it| {
                let object = if table { &it["object"] } else { it };
                object["metadata"]["name"].as_str().unwrap().to_owned()
            }));
            let token = page["metadata"]["continue"].as_str().unwrap_or("");
            rows.same("there is a token while there is more", !token.is_empty(), remaining.is_some());
            path = format!("{APPS}?limit=2&continue={}", encoded(token));
            // What is written in between does not show.
            let note = format!("{accept} {number}");
            client.merge(&format!("{APPS}/e"), &json!({"metadata": {"annotations": {"note": note}}})).await;
        }
        rows.same("nothing twice, nothing missing", seen.join(""), "abcde".to_owned());
    }
    let selected = client.get(&format!("{APPS}?limit=1&labelSelector=sort%3Dvowel")).await.json();
    rows.holds(
        "with a selector there is a token",
        selected["metadata"]["continue"].is_string(),
        &selected["metadata"],
    );
    rows.same("but no count", &selected["metadata"]["remainingItemCount"], &Value::Null);
    let token = encoded(selected["metadata"]["continue"].as_str().unwrap());
    let rest =
        client.get(&format!("{APPS}?limit=1&labelSelector=sort%3Dvowel&continue={token}")).await.json();
    rows.same("and the rest", names(&rest).join(""), "e".to_owned());
    for (row, query, code, reason) in [
        ("a token and a revision", format!("continue={token}&resourceVersion=5"), 400, "BadRequest"),
        ("a token and a match", format!("continue={token}&resourceVersionMatch=Exact"), 422, "Invalid"),
        ("no token", "continue=x".to_owned(), 400, "BadRequest"),
    ] {
        rows.code(row, &client.get(&format!("{APPS}?{query}")).await, code, reason);
    }
    let zero = client.get(&format!("{APPS}?continue={token}&resourceVersion=0")).await;
    rows.same("revision 0 beside a token says nothing", zero.status, 200);
    let foreign = client.get(&format!("{NODES}?continue={token}")).await;
    rows.code("the token of another kind", &foreign, 400, "BadRequest");
    rows.close();
}

#[tokio::test]
async fn a_token_that_is_over_gives_another_one() {
    let service = horchestra_service::ServiceConfig {
        continue_ttl: std::time::Duration::ZERO,
        ..horchestra_service::ServiceConfig::default()
    };
    let stack = crate::stack::Stack::with(crate::stack::Setup { service, ..Default::default() }).await;
    stack.make_namespaces().await;
    let client = stack.master();
    let mut rows = Rows::default();
    fill(&client).await;
    let first = client.get(&format!("{APPS}?limit=2")).await.json();
    let token = encoded(first["metadata"]["continue"].as_str().unwrap());
    client.post(APPS, &app("bb")).await;
    client.post(APPS, &app("cc")).await;
    let over = client.get(&format!("{APPS}?limit=2&continue={token}")).await;
    rows.code("a token that is too old", &over, 410, "Expired");
    let status = over.json();
    let fresh = status["metadata"]["continue"].as_str().unwrap_or("").to_owned();
    rows.holds("comes with a fresh one", !fresh.is_empty(), &status);
    let next = client.get(&format!("{APPS}?limit=2&continue={}", encoded(&fresh))).await;
    rows.same("which goes on", next.status, 200);
    let next = next.json();
    rows.same("behind what was listed, in the current state", names(&next).join(" "), "bb c".to_owned());
    rows.holds("of a later revision", revision(&next) > revision(&first), &next["metadata"]);
    rows.close();
}

#[tokio::test]
async fn many_pages_while_others_write() {
    let (_stack, client) = stack().await;
    let mut rows = Rows::default();
    let creates = (0..400).map(|number| {
        let client = client.clone();
        async move { client.post(APPS, &app(&format!("app-{number:04}"))).await.status }
    });
    let codes: Vec<u16> =
        futures::StreamExt::collect(futures::StreamExt::buffer_unordered(futures::stream::iter(creates), 16))
            .await;
    rows.holds("all are created", codes.iter().all(|code| *code == 201), codes.len());
    let writer = {
        let client = client.clone();
        tokio::spawn(async move {
            for number in 0..400 {
                client.post(APPS, &app(&format!("app-{number:04}-late"))).await;
                if number % 3 == 0 {
                    client.delete(&format!("{APPS}/app-{number:04}")).await;
                }
            }
        })
    };
    let first = client.get(&format!("{APPS}?limit=25")).await.json();
    let whole = client
        .get(&format!("{APPS}?resourceVersion={}&resourceVersionMatch=Exact", revision(&first)))
        .await
        .json();
    let mut page = first.clone();
    let mut seen = names(&page);
    while let Some(token) = page["metadata"]["continue"].as_str() {
        page = client.get(&format!("{APPS}?limit=25&continue={}", encoded(token))).await.json();
        rows.same("each page is of the first one's revision", revision(&page), revision(&first));
        rows.holds("and no longer than asked for", names(&page).len() <= 25, names(&page).len());
        seen.extend(names(&page));
    }
    rows.same("nothing comes twice", seen.iter().collect::<BTreeSet<_>>().len(), seen.len());
    rows.same("all pages are the whole of that revision", seen, names(&whole));
    writer.await.unwrap();
    rows.close();
}

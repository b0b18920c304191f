//! Whatever comes in, the answer is a Status that helps, never a 500, and nothing is stored.

use std::collections::BTreeSet;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::client::{BOTH, Client, Reply};
use crate::stack::{Stack, Who};

const APPS: &str = "/apis/horchestra.io/v1/namespaces/default/applications";

struct Case {
    method: Method,
    path: String,
    content_type: &'static str,
    body: Bytes,
    code: u16,
    reason: &'static str,
    message: &'static str,
}

fn case(
    method: Method,
    path: &str,
    body: impl Into<Bytes>,
    code: u16,
    reason: &'static str,
    message: &'static str,
) -> Case {
    let content_type =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    Case { method, path: path.to_owned(), content_type, body: body.into(), code, reason, message }
}

fn app(change: impl FnOnce(&mut Value)) -> String {
    let mut app = json!({
        "apiVersion": "horchestra.io/v1", "kind": "Application",
        "metadata": {"name": "bad"}, "spec": {"image": "nginx:1"},
    });
    change(&mut app);
    app.to_string()
}

fn post(body: impl Into<Bytes>, code: u16, reason: &'static str, message: &'static str) -> Case {
    case(Method::POST, APPS, body, code, reason, message)
}

fn cases() -> Vec<Case> {
    let item = format!("{APPS}/web");
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    vec![
        // No document at all.
        post("", 400, "BadRequest", "empty"),
        post("{", 400, "BadRequest", ""),
        post("null", 400, "BadRequest", ""),
        post("[]", 400, "BadRequest", ""),
        post("{} trailing", 400, "BadRequest", ""),
        post(app(|_| {}).replace(':', "="), 400, "BadRequest", ""),
        post(&b"{\"metadata\":{\"name\":\"\xff\xfe\"}}"[..], 400, "BadRequest", ""),
        post(format!(r#"{{"metadata":{{"name":"bad"}},"spec":{deep}}}"#), 400, "BadRequest", ""),
        post(vec![b' '; 4 << 20], 413, "RequestEntityTooLarge", "3145728"),
        post(app(|app| app["spec"]["image"] = json!("x".repeat(4 << 20))), 413, "RequestEntityTooLarge", ""),
        case(Method::PATCH, &item, vec![b' '; 4 << 20], 413, "RequestEntityTooLarge", "3145728"),
        case(Method::DELETE, &item, vec![b' '; 4 << 20], 413, "RequestEntityTooLarge", "3145728"),
        // Members.
        post(app(|app| app["spec"]["imgae"] = json!("x")), 400, "BadRequest", "spec.imgae"),
        post(app(|app| app["bogus"] = json!({})), 400, "BadRequest", "bogus"),
        post(
            r#"{"metadata":{"name":"bad"},"spec":{"image":"a","image":"b"}}"#,
            400,
            "BadRequest",
            "spec.image",
        ),
        post(app(|app| app["metadata"]["nameſpace"] = json!("team-a")), 201, "", ""),
        // Types and ranges.
        post(app(|app| app["spec"] = json!(null)), 422, "Invalid", "spec"),
        post(app(|app| app["spec"] = json!([])), 422, "Invalid", "spec"),
        post(app(|app| app["spec"]["image"] = json!(1)), 422, "Invalid", "spec.image"),
        post(app(|app| app["spec"]["image"] = json!("")), 422, "Invalid", "spec.image"),
        post(app(|app| app["metadata"] = json!("x")), 422, "Invalid", "metadata"),
        post(app(|app| app["metadata"]["name"] = json!(1)), 422, "Invalid", "metadata.name"),
        post(app(|app| app["metadata"]["labels"] = json!({"a": 1})), 422, "Invalid", "metadata.labels"),
        post(app(|app| app["spec"]["ports"] = json!([{"port": 70000}])), 422, "Invalid", "spec.ports[0]"),
        post(app(|app| app["spec"]["ports"] = json!([{"port": 1.5}])), 422, "Invalid", "spec.ports[0]"),
        post(
            app(|_| {}).replace(r#""image":"nginx:1""#, r#""image":"a","ports":[{"port":1e400}]"#),
            400,
            "BadRequest",
            "",
        ),
        post(
            app(|_| {})
                .replace(r#""image":"nginx:1""#, r#""image":"a","ports":[{"port":99999999999999999999}]"#),
            422,
            "Invalid",
            "spec.ports[0]",
        ),
        post(
            app(|app| app["spec"]["lifecycle"] = json!({"restartPolicy": "never"})),
            422,
            "Invalid",
            "spec.lifecycle.restartPolicy",
        ),
        post(
            app(|app| app["spec"]["lifecycle"] = json!({"terminationGracePeriodSeconds": -1})),
            422,
            "Invalid",
            "terminationGracePeriodSeconds",
        ),
        // Quantities.
        post(
            app(|app| app["spec"]["resources"] = json!({"requests": {"cpu": "much"}})),
            422,
            "Invalid",
            "spec.resources",
        ),
        // Strings.
        post(app(|app| app["spec"]["image"] = json!("a\u{0}b")), 422, "Invalid", "spec.image"),
        post(app(|app| app["metadata"]["labels"] = json!({"a\u{0}": "b"})), 422, "Invalid", "U+0000"),
        // Names.
        post(app(|app| app["metadata"]["name"] = json!("")), 422, "Invalid", "name"),
        post(app(|app| app["metadata"]["name"] = json!("Foo")), 422, "Invalid", "Foo"),
        post(app(|app| app["metadata"]["name"] = json!("../../etc")), 422, "Invalid", ""),
        post(app(|app| app["metadata"]["name"] = json!("a/b")), 422, "Invalid", ""),
        post(app(|app| app["metadata"]["name"] = json!("app,lowerdir=/")), 422, "Invalid", ""),
        post(app(|app| app["metadata"]["name"] = json!("x".repeat(254))), 422, "Invalid", ""),
        post(app(|app| app["metadata"]["name"] = json!("🦀")), 422, "Invalid", ""),
        // What contradicts the path.
        post(app(|app| app["metadata"]["namespace"] = json!("team-a")), 400, "BadRequest", "namespace"),
        post(app(|app| app["kind"] = json!("Node")), 400, "BadRequest", "Node"),
        post(app(|app| app["apiVersion"] = json!("horchestra.io/v2")), 400, "BadRequest", "horchestra.io/v2"),
        case(Method::PUT, &item, app(|_| {}), 400, "BadRequest", "name"),
        case(
            Method::POST,
            "/apis/horchestra.io/v1/namespaces/nowhere/applications",
            app(|_| {}),
            404,
            "NotFound",
            "namespaces \"nowhere\" not found",
        ),
        case(Method::PUT, &format!("{APPS}/bad"), app(|_| {}), 404, "NotFound", "\"bad\" not found"),
        case(Method::PATCH, &format!("{APPS}/bad"), "{}", 404, "NotFound", "\"bad\" not found"),
        case(Method::DELETE, &format!("{APPS}/bad"), "", 404, "NotFound", "\"bad\" not found"),
        // Patches.
        case(Method::PATCH, &item, "{", 400, "BadRequest", ""),
        case(Method::PATCH, &item, "[]", 400, "BadRequest", ""),
        case(Method::PATCH, &item, r#"{"spec":{"imgae":"x"}}"#, 400, "BadRequest", "spec.imgae"),
        case(Method::PATCH, &item, r#"{"spec":{"image":null}}"#, 422, "Invalid", "spec.image"),
        Case {
            content_type: "application/json-patch+json",
            ..case(Method::PATCH, &item, r#"{"not":"an-array"}"#, 400, "BadRequest", "")
        },
        Case {
            content_type: "application/json-patch+json",
            ..case(
                Method::PATCH,
                &item,
                r#"[{"op":"test","path":"/spec/image","value":"other"}]"#,
                422,
                "Invalid",
                "",
            )
        },
        Case {
            content_type: "application/json-patch+json",
            ..case(Method::PATCH, &item, r#"[{"op":"remove","path":"/spec/nothing"}]"#, 422, "Invalid", "")
        },
        Case {
            content_type: "application/json-patch+json",
            ..case(
                Method::PATCH,
                &item,
                Value::Array(vec![json!({"op": "test", "path": "/kind", "value": "Application"}); 10_001])
                    .to_string(),
                413,
                "RequestEntityTooLarge",
                "",
            )
        },
        Case {
            content_type: "application/strategic-merge-patch+json",
            ..case(
                Method::PATCH,
                &item,
                r#"{"spec":{"image":"x"}}"#,
                415,
                "UnsupportedMediaType",
                "application/merge-patch+json",
            )
        },
        Case {
            content_type: "text/plain",
            ..case(Method::PATCH, &item, "{}", 415, "UnsupportedMediaType", "application/json-patch+json")
        },
        Case {
            content_type: "application/vnd.kubernetes.protobuf",
            ..post("k8s\0", 415, "UnsupportedMediaType", "application/json")
        },
        Case { content_type: "application/yaml", ..post("a: [", 400, "BadRequest", "") },
        // Parameters.
        case(Method::POST, &format!("{APPS}?dryRun=Some"), app(|_| {}), 422, "Invalid", "dryRun"),
        case(
            Method::POST,
            &format!("{APPS}?fieldValidation=Bogus"),
            app(|_| {}),
            422,
            "Invalid",
            "fieldValidation",
        ),
        case(Method::GET, &format!("{APPS}?labelSelector=a%3D%3D%3Db"), "", 400, "BadRequest", ""),
        case(
            Method::GET,
            &format!("{APPS}?fieldSelector=spec.secret%3Dx"),
            "",
            400,
            "BadRequest",
            "spec.secret",
        ),
        case(Method::GET, &format!("{APPS}?limit=many"), "", 400, "BadRequest", "limit"),
        case(Method::GET, &format!("{APPS}?continue=%00junk"), "", 400, "BadRequest", ""),
        case(Method::GET, &format!("{APPS}?resourceVersion=x"), "", 400, "BadRequest", "resource version"),
        case(Method::GET, &format!("{APPS}?watch=1&resourceVersion=x"), "", 400, "BadRequest", ""),
        case(
            Method::GET,
            &format!("{APPS}?watch=1&timeoutSeconds=x"),
            "",
            400,
            "BadRequest",
            "timeoutSeconds",
        ),
        case(
            Method::GET,
            &format!("{APPS}?watch=1&sendInitialEvents=true"),
            "",
            422,
            "Invalid",
            "resourceVersionMatch",
        ),
        case(Method::GET, &format!("{APPS}?sendInitialEvents=true"), "", 422, "Invalid", "sendInitialEvents"),
        case(
            Method::GET,
            &format!("{APPS}?resourceVersionMatch=Exact"),
            "",
            422,
            "Invalid",
            "resourceVersionMatch",
        ),
        case(Method::GET, &format!("{item}?resourceVersion=-1"), "", 400, "BadRequest", "resourceVersion"),
        case(
            Method::GET,
            &format!("{APPS}?resourceVersion=9223372036854775807&timeout=50ms"),
            "",
            504,
            "Timeout",
            "within the allowed time",
        ),
        case(Method::GET, &format!("{APPS}?timeout=invalid"), "", 400, "BadRequest", "timeout"),
        case(
            Method::GET,
            &format!("{APPS}?resourceVersion=9223372036854775807"),
            "",
            504,
            "Timeout",
            "Too large resource version",
        ),
        case(Method::DELETE, &item, "not json", 400, "BadRequest", ""),
        case(Method::DELETE, &item, r#"{"gracePeriodSeconds":-1}"#, 422, "Invalid", "gracePeriodSeconds"),
        case(Method::DELETE, &item, r#"{"preconditions":{"uid":"other"}}"#, 409, "Conflict", ""),
        case(
            Method::DELETE,
            &format!("{item}?propagationPolicy=Never"),
            "",
            422,
            "Invalid",
            "propagationPolicy",
        ),
        // Paths and methods.
        case(
            Method::GET,
            "/apis/horchestra.io/v1%2Fnamespaces%2Fx/namespaces/y/applications/db",
            "",
            400,
            "BadRequest",
            "percent",
        ),
        case(
            Method::GET,
            "/apis/horchestra.io/v1/namespaces/te%61m-a/applications",
            "",
            400,
            "BadRequest",
            "percent",
        ),
        case(
            Method::GET,
            "/apis/horchestra.io/v1/namespaces//applications",
            "",
            404,
            "NotFound",
            "could not find",
        ),
        case(Method::GET, "/apis/horchestra.io/v1/../v1/nodes", "", 404, "NotFound", ""),
        case(Method::GET, "/apis/bogus.io/v1/namespaces/default/applications", "", 404, "NotFound", ""),
        case(Method::GET, "/apis/metrics.k8s.io/v1beta1/namespaces/default/secrets", "", 404, "NotFound", ""),
        case(
            Method::POST,
            "/apis/horchestra.io/v1/applications",
            app(|_| {}),
            405,
            "MethodNotAllowed",
            "POST",
        ),
        case(Method::PUT, APPS, "{}", 405, "MethodNotAllowed", ""),
        case(Method::POST, &item, "{}", 405, "MethodNotAllowed", ""),
        case(Method::POST, "/api/v1/namespaces", "k8s\0", 405, "MethodNotAllowed", ""),
        case(Method::POST, "/api/v1/namespaces/default/pods", "{}", 405, "MethodNotAllowed", ""),
        case(Method::POST, "/api/v1/namespaces/default/secrets", "k8s\0", 404, "NotFound", ""),
        case(Method::POST, "/apis/rbac.authorization.k8s.io/v1/clusterroles", "k8s\0", 404, "NotFound", ""),
        case(Method::OPTIONS, &item, "", 405, "MethodNotAllowed", ""),
        case(Method::GET, "/version/x", "", 404, "NotFound", ""),
    ]
}

async fn send(client: &Client, case: &Case) -> Reply {
    let headers = [("content-type", case.content_type)];
    client.send(case.method.clone(), &case.path, &headers, case.body.clone()).await
}

async fn names(client: &Client) -> BTreeSet<String> {
    client.get(APPS).await.json()["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn bad_requests_get_a_helpful_status_and_store_nothing() {
    let stack = Stack::with_namespaces().await;
    for protocol in BOTH {
        let client = stack.client(Who::Master, protocol);
        let web = app(|app| app["metadata"]["name"] = json!("web"));
        if protocol == BOTH[0] {
            assert_eq!(client.send(Method::POST, APPS, &[], web).await.status, 201);
        }
        let before = client.get(&format!("{APPS}/web")).await.json();
        let mut wrong = Vec::new();
        for case in cases() {
            let reply = send(&client, &case).await;
            let sent = String::from_utf8_lossy(&case.body[..case.body.len().min(120)]).into_owned();
            let told = format!("{} {} {sent:?}: {} {}", case.method, case.path, reply.status, reply.text());
            if case.code < 300 && reply.status == case.code {
                let name = reply.json()["metadata"]["name"].as_str().unwrap().to_owned();
                assert_eq!(client.delete(&format!("{APPS}/{name}")).await.status, 200);
                continue;
            }
            let fits = reply.status == case.code
                && reply.reason() == case.reason
                && reply.message().contains(case.message)
                && (case.code != 405 || reply.header("allow").contains("GET"));
            if !fits {
                wrong.push(format!("wanted {} {} {:?}, {told}", case.code, case.reason, case.message));
            }
        }
        assert!(wrong.is_empty(), "over {protocol:?}: {wrong:#?}");
        assert_eq!(names(&client).await, BTreeSet::from(["web".to_owned()]));
        assert_eq!(client.get(&format!("{APPS}/web")).await.json(), before);
    }
}

#[tokio::test]
async fn quantities_of_any_size_are_judged_at_once() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    for quantity in [
        "1e-100000000",
        "1e100000000",
        "0.000000000000000000000000001",
        "9".repeat(5000).as_str(),
        "1e9999999999999999999",
        "-1",
        "1E",
        "0x10",
        "１",
    ] {
        let body =
            app(|app| app["spec"]["resources"] = json!({"requests": {"cpu": quantity, "memory": quantity}}));
        let reply = client.send(Method::POST, APPS, &[], body).await;
        let shown: String = quantity.chars().take(30).collect();
        assert!(matches!(reply.status, 201 | 422), "{shown}: {} {}", reply.status, reply.text());
        if reply.status == 201 {
            assert_eq!(client.delete(&format!("{APPS}/bad")).await.status, 200);
        } else {
            assert!(reply.message().contains("spec.resources"), "{shown}: {}", reply.message());
        }
    }
}

#[tokio::test]
async fn every_unknown_and_duplicate_field_is_named_or_warned_about() {
    let stack = Stack::with_namespaces().await;
    let client = stack.master();
    let body = r#"{"metadata":{"name":"w"},"spec":{"image":"a","image":"b","one":1,"two":2}}"#;
    let strict = client.send(Method::POST, APPS, &[], body).await;
    assert_eq!((strict.status, strict.reason().as_str()), (400, "BadRequest"));
    let causes = strict.json()["details"]["causes"].clone();
    let fields: BTreeSet<&str> =
        causes.as_array().unwrap().iter().map(|cause| cause["field"].as_str().unwrap()).collect();
    assert_eq!(fields, BTreeSet::from(["spec.image", "spec.one", "spec.two"]));

    let warned = client.send(Method::POST, &format!("{APPS}?fieldValidation=Warn"), &[], body).await;
    assert_eq!(warned.status, 201, "{warned:?}");
    let warnings = warned.headers_of("warning");
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings.iter().all(|warning| warning.starts_with("299 - \"")), "{warnings:?}");
    assert_eq!(warned.json()["spec"]["image"], "b", "the last one wins");
    assert_eq!(warned.json()["spec"]["one"], Value::Null);

    let ignored = client.send(Method::PUT, &format!("{APPS}/w?fieldValidation=Ignore"), &[], body).await;
    assert_eq!((ignored.status, ignored.headers_of("warning").len()), (200, 0));
}

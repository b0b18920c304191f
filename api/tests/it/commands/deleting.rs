//! `delete`.

use super::{Look, Row, row};

const GONE: (Look, &str) = (Look::Of("web", &["/metadata/name"]), "");
const THERE: (Look, &str) = (Look::Of("web", &["/metadata/name"]), "web");
const DELETED: &str = "application.horchestra.io \"web\" deleted";

pub fn rows() -> Vec<Row> {
    let gone = |name, command| row(name, command).prints(DELETED).then(GONE.0, GONE.1);
    // Without its controller a set stays, and what holds it tells how it was deleted.
    let set = |name, command, finalizers| {
        row(name, command)
            .after("create -f {f}/set.yaml")
            .prints("applicationset.horchestra.io \"s\" deleted")
            .then(Look::Printed("get appset s -o jsonpath={.metadata.finalizers}"), finalizers)
    };
    vec![
        gone("by name", "delete app web"),
        gone("by type and name", "delete app/web"),
        gone("by file", "delete -f {f}/web.yaml"),
        gone("by label", "delete app -l tier=front"),
        gone("by field", "delete app --field-selector metadata.name=web"),
        gone("all", "delete app --all"),
        gone("all of the category", "delete all --all"),
        gone("without waiting", "delete app web --wait=false"),
        gone("now", "delete app web --now"),
        gone("with a grace period", "delete app web --grace-period=1"),
        gone("in the background", "delete app web --cascade=background"),
        gone("in the foreground", "delete app web --cascade=foreground"),
        gone("leaving dependents", "delete app web --cascade=orphan"),
        set("as usual", "delete appset s --wait=false", r#"["horchestra.io/child-teardown"]"#),
        set(
            "a set in the background",
            "delete appset s --cascade=background --wait=false",
            r#"["horchestra.io/child-teardown"]"#,
        ),
        set(
            "a set in the foreground",
            "delete appset s --cascade=foreground --wait=false",
            r#"["horchestra.io/child-teardown","foregroundDeletion"]"#,
        ),
        set(
            "a set without its children",
            "delete appset s --cascade=orphan --wait=false",
            r#"["horchestra.io/child-teardown","orphan"]"#,
        ),
        set(
            "a set that others wait for",
            "delete appset s --timeout=1s",
            r#"["horchestra.io/child-teardown"]"#,
        )
        .fails("timed out waiting"),
        row(
            "a node that is not there is not forgotten",
            "create --raw /apis/horchestra.io/v1/nodes/{ns}/forget -f -",
        )
        .stdin("{}")
        .fails("not found")
        .then(THERE.0, THERE.1),
        row("by force", "delete app web --force --grace-period=0")
            .prints("\"web\" force deleted")
            .then(GONE.0, GONE.1),
        row("by a piped document", "delete -f -")
            .stdin(r#"{"apiVersion":"horchestra.io/v1","kind":"Application","metadata":{"name":"web"}}"#)
            .prints(DELETED)
            .then(GONE.0, GONE.1),
        row("show the name", "delete app web -o name")
            .exactly("application.horchestra.io/web\n")
            .then(GONE.0, GONE.1),
        row("several", "delete app a b")
            .after("create -f {f}/two.yaml")
            .prints("\"a\" deleted")
            .prints("\"b\" deleted")
            .then(Look::All("/metadata/name"), "web"),
        row("raw", "delete --raw /apis/horchestra.io/v1/namespaces/{ns}/applications/web")
            .prints("Success")
            .then(GONE.0, GONE.1),
        row(
            "raw collection",
            "delete --raw /apis/horchestra.io/v1/namespaces/{ns}/applications?labelSelector=tier=back",
        )
        .prints("Success")
        .then(THERE.0, THERE.1),
        row("on trial at the server", "delete app web --dry-run=server")
            .prints("\"web\" deleted")
            .prints("(server dry run)")
            .then(THERE.0, THERE.1),
        row("on trial at the client", "delete app web --dry-run=client")
            .prints("\"web\" deleted")
            .prints("(dry run)")
            .then(THERE.0, THERE.1),
        row("what is missing", "delete app ghost").fails("NotFound").then(THERE.0, THERE.1),
        row("what is missing, if it is there", "delete app ghost --ignore-not-found").exactly(""),
        row("by a label that none has", "delete app -l tier=back")
            .prints("No resources found")
            .then(THERE.0, THERE.1),
        row("what is held is waited for", "delete app held --timeout=1s")
            .after("create -f {f}/held.yaml")
            .fails("timed out waiting")
            .prints("\"held\" deleted")
            .then(Look::Of("held", &["/metadata/finalizers/0"]), "example.com/hold"),
        row("what is held, without waiting", "delete app held --wait=false")
            .after("create -f {f}/held.yaml")
            .prints("\"held\" deleted"),
        row("what is held, as a pod", "describe pod held")
            .after("create -f {f}/held.yaml")
            .after("delete app held --wait=false")
            .prints("Terminating (lasts")
            .prints("Termination Grace Period:"),
        row("whoever lets go erases", r#"patch app held --type=merge -p '{"metadata":{"finalizers":null}}'"#)
            .after("create -f {f}/held.yaml")
            .after("delete app held --wait=false")
            .prints("patched")
            .then(Look::Of("held", &["/metadata/name"]), ""),
        row("a namespace that holds something", "delete ns {ns}")
            .fails("Forbidden")
            .complains("it still holds application web")
            .then(THERE.0, THERE.1),
        row("an empty namespace", "delete ns {ns}")
            .in_an_empty_namespace()
            .prints("deleted")
            .then(Look::Printed("get ns {ns} --ignore-not-found"), ""),
    ]
}

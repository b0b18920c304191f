//! What goes on until it is ended: `get -w` and `events -w`; and `events` as such.

use super::{Row, read, row};

const IMAGE: &str = r#"{"spec":{"image":"nginx:2"}}"#;
/// The same, and something new every time: who watches one object is told of it as it is first, and kubectl does not
/// print that, whatever has changed since it printed the object.
const IMAGE_AND_MORE: &str = r#"{"metadata":{"labels":{"touched":"x{n}"}},"spec":{"image":"nginx:2"}}"#;
/// Something new every time.
const TOUCH: &str = r#"{"metadata":{"labels":{"touched":"x{n}"}}}"#;

pub fn rows() -> Vec<Row> {
    let mut rows = get();
    rows.extend(events());
    rows
}

fn get() -> Vec<Row> {
    vec![
        row("watch", "get app -w").shows("nginx:1").shows_change(IMAGE, "nginx:2").hides("ADDED"),
        row("watch one", "get app web -w").shows("nginx:1").shows_change(IMAGE_AND_MORE, "nginx:2"),
        row("watch events", "get app -w --output-watch-events")
            .shows("EVENT")
            .shows("ADDED      web")
            .shows_change(IMAGE, "MODIFIED   web")
            .shows_deletion("DELETED    web"),
        row("watch events of one", "get app/web -w --output-watch-events")
            .shows("ADDED      web")
            .shows_change(IMAGE_AND_MORE, "MODIFIED   web")
            .shows_deletion("DELETED    web"),
        row("watch by label", "get app -l tier=front -w --output-watch-events")
            .shows("ADDED      web")
            .shows_change(r#"{"metadata":{"labels":{"tier":"back"}}}"#, "DELETED    web"),
        row("watch by field", "get app --field-selector=status.phase=Running -w --output-watch-events")
            .with_status(r#"{"phase":"Running"}"#)
            .shows("ADDED      web")
            .shows_change(TOUCH, "MODIFIED   web")
            .shows_deletion("DELETED    web"),
        row("only what changes", "get app --watch-only --output-watch-events")
            .shows_change(TOUCH, "MODIFIED   web")
            .hides("ADDED"),
        row("watch wide", "get app -w -o wide").shows("NODE").shows_change(IMAGE, "nginx:2"),
        row("watch names", "get app -w -o name")
            .shows_change(TOUCH, "application.horchestra.io/web\napplication.horchestra.io/web\n"),
        row("watch a member", "get app -w -o 'jsonpath={.spec.image} '")
            .shows("nginx:1 ")
            .shows_change(IMAGE, "nginx:1 nginx:2 "),
        row("watch as json", "get app -w -o json --output-watch-events")
            .shows("{\"type\":\"ADDED\"")
            .shows_change(IMAGE, "{\"type\":\"MODIFIED\""),
        row("watch with labels", "get app -w --show-labels")
            .shows("tier=front")
            .shows_change(r#"{"metadata":{"labels":{"tier":"back"}}}"#, "tier=back"),
        row("watch pods", "get pods -w --output-watch-events")
            .shows("ADDED      web")
            .shows_change(TOUCH, "MODIFIED   web"),
    ]
}

fn events() -> Vec<Row> {
    vec![
        read("events", "events")
            .prints("LAST SEEN")
            .prints("Application/web")
            .prints("this is Started")
            .prints("this is Failed"),
        read("events about one", "events --for=app/web").prints("this is Started"),
        read("events about one with its group", "events --for=applications.horchestra.io/web")
            .since_version(28)
            .prints("this is Started"),
        read("events about another", "events --for=app/db").hides("this is").complains("No events found"),
        read("events about what is missing", "events --for=app/ghost").complains("No events found"),
        read("events of a type", "events --types=Warning").prints("this is Failed").hides("this is Started"),
        read("events of both types", "events --types=Normal,Warning")
            .prints("this is Failed")
            .prints("this is Started"),
        read("events of a type that is none", "events --types=Odd").fails("--types"),
        read("events everywhere", "events -A").prints("NAMESPACE").prints("shop"),
        read("events as json", "events -o json").prints("\"reason\": \"Started\""),
        read("events without headers", "events --no-headers").hides("LAST SEEN").prints("this is Failed"),
        row("watch events of the namespace", "events -w").shows_event("Early").shows_event("Late"),
        row("watch events about one", "events --for=app/web -w").shows_event("Early").shows_event("Late"),
        row("watch events by getting them", "get events -w").shows_event("Early").shows_event("Late"),
    ]
}

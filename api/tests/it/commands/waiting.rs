//! `wait` and `logs`.

use super::{Row, read, row};

const RUNNING: &str = r#"{"phase":"Running","conditions":[
    {"type":"Ready","status":"True","reason":"Running","message":"","lastTransitionTime":"2024-01-01T00:00:00Z"},
    {"type":"Frozen","status":"False","reason":"No","message":"","lastTransitionTime":"2024-01-01T00:00:00Z"}]}"#;

pub fn rows() -> Vec<Row> {
    let mut rows = wait();
    rows.extend(logs());
    rows
}

fn wait() -> Vec<Row> {
    let met = |name, command| {
        row(name, command).with_status(RUNNING).exactly("application.horchestra.io/web condition met\n")
    };
    vec![
        met("a value", "wait app/web --for=jsonpath={.status.phase}=Running --timeout=20s"),
        met("a value in braces", "wait app web --for=jsonpath='{.status.phase}'=Running --timeout=20s"),
        met("a condition", "wait app/web --for=condition=Ready --timeout=20s"),
        met("a condition that is false", "wait app/web --for=condition=Frozen=False --timeout=20s"),
        met("by label", "wait app -l tier=front --for=condition=Ready --timeout=20s"),
        met("all", "wait app --all --for=condition=Ready --timeout=20s"),
        met("by file", "wait -f {f}/web.yaml --for=condition=Ready --timeout=20s"),
        met("that it exists", "wait app/web --for=create --timeout=20s").since_version(31),
        row("a value that does not come", "wait app/web --for=jsonpath={.status.phase}=Running --timeout=1s")
            .fails("timed out waiting for the condition"),
        row("a condition that does not come", "wait app/web --for=condition=Ready --timeout=1s")
            .fails("timed out waiting"),
        row("not at all", "wait app/web --for=condition=Ready --timeout=0").fails("condition not met"),
        row("not at all, and it is so", "wait app/web --for=condition=Ready --timeout=0")
            .with_status(RUNNING)
            .prints("condition met"),
        row("that it goes, and it is gone", "wait app/ghost --for=delete --timeout=20s").code(0),
        row("that it goes, and it stays", "wait app/web --for=delete --timeout=1s")
            .fails("timed out waiting"),
        row("of what is missing", "wait app/ghost --for=condition=Ready --timeout=20s").fails("NotFound"),
        row("that it comes, and it does not", "wait app/ghost --for=create --timeout=1s")
            .since_version(31)
            .fails("timed out"),
    ]
}

fn logs() -> Vec<Row> {
    let both = |name, command| read(name, command).exactly("first\nsecond\n");
    vec![
        both("logs", "logs web"),
        both("logs of a pod", "logs pod/web"),
        both("logs of the container", "logs web -c web"),
        both("logs of all containers", "logs web --all-containers"),
        both("the last lines", "logs web --tail=2"),
        both("logs by label", "logs -l tier=front"),
        both("follow until there is enough", "logs -f web --limit-bytes=13"),
        read("not one line", "logs web --tail=0").exactly(""),
        read("some bytes", "logs web --limit-bytes=5").exactly("first"),
        read("with a prefix", "logs web --prefix").prints("[pod/web/web] first"),
        read("of another container", "logs web -c other").fails("other"),
        // Nodes send neither times nor what was before the last start; silence about that would be a lie.
        read("since a while", "logs web --since=1h").fails("sinceSeconds"),
        read("since a moment", "logs web --since-time=2024-01-01T00:00:00Z").fails("sinceTime"),
        read("with times", "logs web --timestamps").fails("timestamps"),
        read("of the one before", "logs web --previous").fails("previous"),
        read("of what is missing", "logs ghost").fails("pods \"ghost\" not found"),
        read("of what is not placed", "logs db").fails("not placed"),
        read("by a label that none has", "logs -l tier=none").complains("No resources found"),
    ]
}

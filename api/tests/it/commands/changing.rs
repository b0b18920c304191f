//! `edit`, `label`, `annotate` and `patch`.

use super::{Look, Row, row};

const IMAGE: Look = Look::Of("web", &["/spec/image"]);
const LABELS: Look = Look::Of("web", &["/metadata/labels"]);
const NOTE: Look = Look::Of("web", &["/metadata/annotations/note"]);

pub fn rows() -> Vec<Row> {
    let mut rows = edit();
    rows.extend(label());
    rows.extend(annotate());
    rows.extend(patch());
    rows
}

fn edit() -> Vec<Row> {
    vec![
        row("edit", "edit app web")
            .editor("sed -i s/nginx:1/nginx:9/")
            .exactly("application.horchestra.io/web edited\n")
            .then(IMAGE, "nginx:9"),
        row("edit nothing", "edit app web").complains("Edit cancelled, no changes made."),
        row("edit as json", "edit app web -o json")
            .editor("sed -i s/nginx:1/nginx:9/")
            .prints("nginx:9")
            .then(IMAGE, "nginx:9"),
        row("edit a file's object", "edit -f {f}/web.yaml")
            .editor("sed -i s/nginx:1/nginx:9/")
            .prints("edited")
            .then(IMAGE, "nginx:9"),
        row("edit and keep what was sent", "edit app web --save-config")
            .editor("sed -i s/nginx:1/nginx:9/")
            .prints("edited"),
        row("edit into something wrong", "edit app web")
            .editor("sed -i 's/image: nginx:1/image: \"\"/'")
            .fails("is invalid")
            .then(IMAGE, "nginx:1"),
        row("edit the status", "edit app web --subresource=status")
            .with_status(r#"{"phase":"Running"}"#)
            .editor("sed -i 's/phase: Running/phase: Failed/'")
            .prints("edited")
            .then(Look::Of("web", &["/status/phase"]), "Failed"),
        row("edit what is missing", "edit app ghost").fails("NotFound"),
    ]
}

fn label() -> Vec<Row> {
    vec![
        row("label", "label app web a=b")
            .exactly("application.horchestra.io/web labeled\n")
            .then(LABELS, r#"{"a":"b","tier":"front"}"#),
        row("label again", "label app web tier=front").prints("not labeled"),
        row("label over", "label app web tier=back")
            .fails("already has a value")
            .then(LABELS, r#"{"tier":"front"}"#),
        row("label over, meaning it", "label app web tier=back --overwrite")
            .prints("labeled")
            .then(LABELS, r#"{"tier":"back"}"#),
        row("unlabel", "label app web tier-")
            .exactly("application.horchestra.io/web unlabeled\n")
            .then(LABELS, ""),
        row("unlabel what it does not have", "label app web nosuch-").prints("not labeled"),
        row("label by label", "label app -l tier=front a=b")
            .prints("labeled")
            .then(LABELS, r#"{"a":"b","tier":"front"}"#),
        row("label all", "label app --all a=b").prints("labeled").then(LABELS, r#"{"a":"b","tier":"front"}"#),
        row("label a file's object", "label -f {f}/web.yaml a=b").prints("labeled"),
        row("list labels", "label app web --list").prints("tier=front"),
        row("label on trial", "label app web a=b --dry-run=server")
            .prints("labeled (server dry run)")
            .then(LABELS, r#"{"tier":"front"}"#),
        row("label an old version", "label app web a=b --resource-version=1")
            .fails("Conflict")
            .then(LABELS, r#"{"tier":"front"}"#),
        row("label with a value that is none", "label app web a=-b-").fails(""),
        row("label what is missing", "label app ghost a=b").fails("NotFound"),
    ]
}

fn annotate() -> Vec<Row> {
    vec![
        row("annotate", "annotate app web 'note=any text, with = and 🦀'")
            .prints("annotate")
            .then(NOTE, "any text, with = and 🦀"),
        row("annotate over", "annotate app web note=b --overwrite")
            .after("annotate app web note=a")
            .prints("annotate")
            .then(NOTE, "b"),
        row("remove an annotation", "annotate app web note-")
            .after("annotate app web note=a")
            .prints("annotate")
            .then(NOTE, ""),
        row("annotate by label", "annotate app -l tier=front note=a").prints("annotate").then(NOTE, "a"),
        row("annotate all", "annotate app --all note=a").prints("annotate").then(NOTE, "a"),
        row("list annotations", "annotate app web --list").after("annotate app web note=a").prints("note=a"),
        row("annotate on trial", "annotate app web note=a --dry-run=server")
            .prints("annotate")
            .then(NOTE, ""),
        row("annotate an old version", "annotate app web note=a --resource-version=1")
            .fails("Conflict")
            .then(NOTE, ""),
    ]
}

fn patch() -> Vec<Row> {
    vec![
        row("merge", r#"patch app web --type=merge -p '{"spec":{"image":"x:2"}}'"#)
            .exactly("application.horchestra.io/web patched\n").then(IMAGE, "x:2"),
        row("merge yaml", "patch app web --type=merge -p 'spec: {image: y:2}'").prints("patched").then(IMAGE, "y:2"),
        row("merge nothing", "patch app web --type=merge -p {}").prints("patched (no change)"),
        row("merge a file", "patch app web --type=merge --patch-file={f}/patch.yaml").prints("patched").then(IMAGE, "nginx:7"),
        row("merge into a file's object", r#"patch -f {f}/web.yaml --type=merge -p '{"spec":{"image":"x:2"}}'"#).then(IMAGE, "x:2"),
        row("merge on trial", r#"patch app web --type=merge -p '{"spec":{"image":"x:2"}}' --dry-run=server"#).prints("patched")
            .then(IMAGE, "nginx:1"),
        row("merge an unknown member", r#"patch app web --type=merge -p '{"spec":{"imgae":"x:2"}}'"#).fails("spec.imgae"),
        row("merge something wrong", r#"patch app web --type=merge -p '{"spec":{"image":""}}'"#).fails("spec.image"),
        row("merge an old version", r#"patch app web --type=merge -p '{"metadata":{"resourceVersion":"1"},"spec":{"image":"x"}}'"#)
            .fails("Conflict").then(IMAGE, "nginx:1"),
        row("merge and show", r#"patch app web --type=merge -p '{"spec":{"image":"x:2"}}' -o jsonpath={.spec.image}"#).exactly("x:2"),
        row("operations", r#"patch app web --type=json -p '[{"op":"replace","path":"/spec/image","value":"z:2"}]'"#)
            .prints("patched").then(IMAGE, "z:2"),
        row("operations with a test that fails", r#"patch app web --type=json -p '[{"op":"test","path":"/spec/image","value":"no"},{"op":"replace","path":"/spec/image","value":"z"}]'"#)
            .fails("").then(IMAGE, "nginx:1"),
        row("operations on what is missing", r#"patch app web --type=json -p '[{"op":"remove","path":"/spec/nosuch"}]'"#).fails(""),
        row("a strategic patch", r#"patch app web -p '{"spec":{"image":"x"}}'"#).fails("application/merge-patch+json").then(IMAGE, "nginx:1"),
        row("patch the status", r#"patch app web --subresource=status --type=merge -p '{"status":{"phase":"Running"},"spec":{"image":"no"}}'"#)
            .prints("patched").then(Look::Of("web", &["/status/phase", "/spec/image"]), "Runningnginx:1"),
        row("patch what is missing", "patch app ghost --type=merge -p {}").fails("NotFound"),
    ]
}

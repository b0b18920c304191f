//! Rules of the workspace as a whole, kept by walking `cargo metadata`: which package may depend on which,
//! where the big libraries may be used, which licences may come in, and how long a file may get.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};

static METADATA: LazyLock<Metadata> = LazyLock::new(|| {
    let host = Command::new("rustc").arg("-vV").output().expect("rustc runs");
    let host = String::from_utf8(host.stdout).expect("rustc speaks UTF-8");
    let host = host.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc names its host");
    MetadataCommand::new()
        .manifest_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        // Only what is built here: nothing has to be downloaded for other platforms.
        .other_options(["--filter-platform".to_owned(), host.to_owned()])
        .exec()
        .expect("cargo metadata runs")
});

fn packages() -> Vec<&'static Package> {
    METADATA.workspace_packages()
}

/// The library dependencies of a package (dev-dependencies only where `tests` is set).
fn dependencies(package: &Package, tests: bool) -> BTreeSet<&str> {
    package
        .dependencies
        .iter()
        .filter(|dependency| tests || dependency.kind != DependencyKind::Development)
        .map(|dependency| dependency.name.as_str())
        .collect()
}

/// Each of our packages, and which of ours it may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("horchestra-proto", &[]),
    ("horchestra-core", &[]),
    ("horchestra-trace", &[]),
    ("horchestra-runtime", &["horchestra-trace"]),
    ("horchestra-testkit", &[]),
    ("horchestra-store", &["horchestra-core", "horchestra-trace"]),
    ("horchestra-auth", &["horchestra-core"]),
    ("horchestra-service", &["horchestra-core", "horchestra-store", "horchestra-auth", "horchestra-trace"]),
    ("horchestra-api", SERVING),
    ("horchestra-workers", SERVING),
    ("horchestra-nodegate", SERVING),
    ("horchestra-agent", &["horchestra-core", "horchestra-proto", "horchestra-runtime"]),
    // The tool of a developer's machine: it starts databases and measures, so it uses the test kit as well.
    (
        "horchestra-local",
        &[
            "horchestra-core",
            "horchestra-store",
            "horchestra-auth",
            "horchestra-service",
            "horchestra-runtime",
            "horchestra-testkit",
        ],
    ),
];

const SERVING: &[&str] = &[
    "horchestra-core",
    "horchestra-store",
    "horchestra-auth",
    "horchestra-service",
    "horchestra-trace",
    "horchestra-runtime",
    "horchestra-proto",
];

#[test]
fn our_packages_depend_on_each_other_in_one_direction() {
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    for package in packages() {
        let allowed = allowed
            .get(package.name.as_str())
            .unwrap_or_else(|| panic!("{} has no entry in the table of packages", package.name));
        for dependency in dependencies(package, false) {
            if dependency.starts_with("horchestra-") {
                assert!(allowed.contains(&dependency), "{} must not depend on {dependency}", package.name);
            }
        }
    }
}

/// Libraries that shape an architecture, and the packages that may name them. `tests` counts
/// dev-dependencies too.
const CONFINED: &[(&str, &[&str])] = &[
    ("sqlx", &["horchestra-store", "horchestra-testkit", "horchestra-local"]),
    ("axum", &["horchestra-api", "horchestra-runtime"]),
    ("tonic", &["horchestra-proto", "horchestra-nodegate", "horchestra-agent", "horchestra-api"]),
    ("casbin", &["horchestra-auth"]),
    ("opentelemetry", &["horchestra-trace", "horchestra-runtime"]),
    ("opentelemetry_sdk", &["horchestra-runtime"]),
    ("anyhow", ANYHOW),
];

/// Mains, tools and tests.
const ANYHOW: &[&str] = &[
    "horchestra-api",
    "horchestra-workers",
    "horchestra-nodegate",
    "horchestra-agent",
    "horchestra-local",
    "horchestra-testkit",
];

#[test]
fn the_big_libraries_stay_where_they_belong() {
    for (library, homes) in CONFINED {
        for package in packages() {
            if dependencies(package, false).contains(library) {
                assert!(homes.contains(&package.name.as_str()), "{} must not use {library}", package.name);
            }
        }
    }
}

#[test]
fn core_knows_no_io() {
    let core = packages().into_iter().find(|package| package.name == "horchestra-core").expect("core exists");
    for banned in ["tokio", "sqlx", "axum", "hyper", "tonic", "rustls"] {
        assert!(!dependencies(core, true).contains(banned), "core must not use {banned}");
    }
}

/// One copy of each library that types pass through: two of them would not fit each other.
#[test]
fn one_copy_of_the_libraries_whose_types_we_pass_around() {
    let resolve = METADATA.resolve.as_ref().expect("metadata was resolved");
    let used: BTreeSet<&PackageId> = resolve.nodes.iter().map(|node| &node.id).collect();
    for library in
        ["tokio", "tonic", "prost", "axum", "hyper", "http", "rustls", "sqlx", "bytes", "serde_json"]
    {
        let copies = METADATA.packages.iter().filter(|p| p.name == library && used.contains(&p.id)).count();
        assert!(copies <= 1, "{copies} copies of {library}");
    }
}

/// Licences that an Apache-2.0 product can be shipped with.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "MPL-2.0+",
    "OpenSSL",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether each part of an `AND` has an alternative that is acceptable.
fn acceptable(expression: &str) -> bool {
    let bare = |text: &str| text.trim_matches(['(', ')', ' ']).to_owned();
    expression.split(" AND ").all(|part| {
        bare(part)
            .split(" OR ")
            .flat_map(|side| side.split('/'))
            .any(|one| LICENCES.contains(&bare(one).as_str()))
    })
}

#[test]
fn licences_of_everything_that_is_built_are_acceptable() {
    let resolve = METADATA.resolve.as_ref().expect("metadata was resolved");
    let used: BTreeSet<&PackageId> = resolve.nodes.iter().map(|node| &node.id).collect();
    let refused: Vec<String> = METADATA
        .packages
        .iter()
        .filter(|package| used.contains(&package.id))
        .filter(|package| !package.license.as_deref().is_some_and(acceptable))
        .map(|package| format!("{} {}: {:?}", package.name, package.version, package.license))
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(!acceptable("AGPL-3.0"));
    assert!(!acceptable("MIT AND GPL-2.0"));
    assert!(acceptable("(MIT OR GPL-2.0) AND ISC"));
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("folder can be read").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn files_stay_readable_in_one_sitting() {
    for package in packages() {
        let folder = package.manifest_path.parent().expect("a manifest has a folder");
        let mut found = Vec::new();
        for part in ["src", "tests"] {
            let part = folder.join(part);
            if part.exists() {
                sources(part.as_std_path(), &mut found);
            }
        }
        for file in found {
            let lines = fs::read_to_string(&file).expect("a source file is text").lines().count();
            assert!(lines <= 700, "{} has {lines} lines: split it", file.display());
            if file.ends_with("src/main.rs") {
                assert!(lines <= 60, "{} has {lines} lines: a main is thin", file.display());
            }
        }
    }
}

/// Where a task is spawned outside of a tracked set although it is no test; may only get shorter.
const SPAWNING: &[(&str, &str)] = &[
    ("nodegate/agent/src/lib.rs", "waits for a signal as long as the process lives"),
    ("nodegate/agent/src/scripted.rs", "for tests: its handle is kept"),
];

#[test]
fn the_product_spawns_tasks_into_tracked_sets_only() {
    for package in packages() {
        let folder = package.manifest_path.parent().expect("a manifest has a folder").join("src");
        let mut found = Vec::new();
        sources(folder.as_std_path(), &mut found);
        for file in found {
            if SPAWNING.iter().any(|(known, _)| file.ends_with(known)) {
                continue;
            }
            let text = fs::read_to_string(&file).expect("a source file is text");
            let product = text.split("#[cfg(test)]").next().unwrap_or_default();
            for (line, text) in product.lines().enumerate() {
                let code = text.split("//").next().unwrap_or_default();
                assert!(
                    !code.contains("tokio::spawn(") && !code.contains("task::spawn("),
                    "{}:{} spawns a task that nobody waits for: use the runtime's Tasks, or a JoinSet or \
                     TaskTracker of yours",
                    file.display(),
                    line + 1
                );
            }
        }
    }
}

#[test]
fn the_top_level_holds_the_folders_that_were_agreed() {
    let root = METADATA.workspace_root.as_std_path();
    let folders: BTreeSet<String> = fs::read_dir(root)
        .expect("the root can be read")
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.') && name != "target")
        .collect();
    let agreed = ["api", "migrations", "nodegate", "proto", "workers"].map(str::to_owned).into();
    assert_eq!(folders, agreed);
}

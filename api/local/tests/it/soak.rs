//! The storm in short: the tool itself says whether it was weathered.

use horchestra_testkit::TempDir;

use crate::stack::said;

#[test]
fn leaders_are_killed_under_load_and_every_change_is_right() {
    let out = TempDir::new().unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_horchestra-local"))
        .args(["soak", "--rounds", "2", "--nodes", "3", "--out"])
        .arg(out.path())
        .output()
        .expect("the tool can be started");
    assert!(output.status.success(), "{}", said(&output));
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.contains("leaders killed   2 ") && report.contains("violations       0"), "{report}");
}

#[test]
fn gateways_fall_over_and_no_node_is_served_twice_or_told_to_stop_what_it_should_not() {
    let out = TempDir::new().unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_horchestra-local"))
        .args(["soak", "gateways", "--rounds", "3", "--nodes", "50", "--longest", "12", "--out"])
        .arg(out.path())
        .output()
        .expect("the tool can be started");
    assert!(output.status.success(), "{}", said(&output));
    let report = String::from_utf8_lossy(&output.stdout);
    // A gateway that stood still while its nodes moved on is among them, and the tool fails where none had moved.
    assert!(report.contains("stood still") && report.contains("violations       0"), "{report}");
    assert!(report.contains("0 by a gateway that did not serve them"), "{report}");
}

#[test]
fn everything_falls_over_and_nothing_is_lost() {
    let out = TempDir::new().unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_horchestra-local"))
        .args(["soak", "everything", "--rounds", "8", "--nodes", "6", "--out"])
        .arg(out.path())
        .output()
        .expect("the tool can be started");
    assert!(output.status.success(), "{}", said(&output));
    let report = String::from_utf8_lossy(&output.stdout);
    // Those that are measured are among the first.
    for measured in
        ["API killed, clients", "leader killed, until", "leader resigned, until", "gateway killed, until"]
    {
        assert!(report.contains(measured), "{measured}: {report}");
    }
    assert!(report.contains("PostgreSQL back, until") && report.contains("violations       0"), "{report}");
}

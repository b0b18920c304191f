//! The supervisor and the unit manager in the moments in which only one of them knows
//! of the other.

use std::process::{Command, ExitStatus};
use std::time::Duration;

use horchestra_agent::desired::RestartPolicy;
use horchestra_agent::units::ledger::{StopRequest, UnitDirectory};
use horchestra_agent::units::process::Processes;
use horchestra_agent::units::simulated::{Simulation, SimulationOptions};
use horchestra_agent::units::{Inputs, UnitError, UnitSpec, Units, Why, shim};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A unit that leaves a file named `ran`, ready to be supervised.
fn prepared(scratch: &TempDir) -> (UnitDirectory, UnitSpec) {
    let spec = UnitSpec {
        uid: Uuid::new_v4(),
        namespace: "shop".into(),
        name: "web".into(),
        argv: ["/bin/sh", "-c", "touch ran"].map(String::from).into(),
        restart: RestartPolicy::Never,
        grace_seconds: 1,
        deadline_seconds: None,
        user: None,
        group: None,
        digest: String::new(),
        runs: 1,
    };
    let directory = UnitDirectory::at(scratch.path().join("units").join(spec.uid.to_string()));
    shim::prepare(&directory, &spec).expect("makes the directories");
    directory.write_environment(&Vec::new()).expect("writes");
    directory.write_spec(&spec).expect("writes");
    (directory, spec)
}

fn supervise(directory: &UnitDirectory) -> ExitStatus {
    let mut command = Command::new(env!("CARGO_BIN_EXE_horchestra-agent"));
    command.arg("run-unit").arg(directory.path()).status().expect("runs")
}

fn units(scratch: &TempDir) -> Units {
    let program = env!("CARGO_BIN_EXE_horchestra-agent").into();
    let path = |name: &str| scratch.path().join(name);
    let processes = Processes::open(path("units"), path("logs"), program).expect("opens");
    Units::new(Some(processes), Simulation::new(SimulationOptions::default()))
}

#[test]
fn nothing_is_started_by_a_supervisor_that_cannot_be_written_down() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (directory, _) = prepared(&scratch);
    // No file can take the place of a directory, not even root's.
    let state = directory.path().join("state.json");
    std::fs::create_dir(&state).expect("creates");
    assert!(!supervise(&directory).success());
    assert!(!directory.work().join("ran").exists());
    assert!(!directory.is_locked());

    std::fs::remove_dir(&state).expect("removes");
    assert!(supervise(&directory).success());
    assert!(directory.work().join("ran").exists(), "it is the state that it failed for");
}

#[test]
fn nothing_is_started_that_was_to_stop_before() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (directory, _) = prepared(&scratch);
    directory.write_stop_request(&StopRequest { grace_seconds: 1, at_unix_nano: 0 }).expect("writes");
    assert!(supervise(&directory).success());
    assert!(!directory.work().join("ran").exists());
    let state = directory.state().expect("a state");
    assert_eq!((state.starts, state.ending.map(|ending| ending.why)), (0, Some(Why::Stopped)));
}

#[tokio::test(start_paused = true)]
async fn a_unit_whose_supervisor_has_written_nothing_is_not_removed() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (directory, spec) = prepared(&scratch);
    let units = units(&scratch);
    let never = CancellationToken::new();
    let supervisor = directory.lock().expect("opens").expect("is free");

    let stopped = units.stop(spec.uid, Duration::from_secs(1), &never).await;
    assert!(matches!(stopped, Err(UnitError::Stuck(uid)) if uid == spec.uid), "{stopped:?}");
    assert!(directory.stop_request().is_some(), "it will read this");
    assert!(directory.spec().is_some());
    // Neither for a workload that is only played …
    let played = units.start(UnitSpec { argv: vec![], ..spec.clone() }, Inputs::default()).await;
    assert!(matches!(played, Err(UnitError::Stuck(_))), "{played:?}");
    // … nor for another run.
    let again = units.start(spec.clone(), Inputs::default()).await;
    assert!(matches!(again, Err(UnitError::NotStarted(_))), "{again:?}");
    assert!(directory.stop_request().is_some());

    drop(supervisor);
    units.stop(spec.uid, Duration::from_secs(1), &never).await.expect("stops");
    assert!(!directory.path().exists());
}

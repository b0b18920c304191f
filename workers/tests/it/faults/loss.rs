//! A standby takes over that had not got everything: loops that know of what was lost let go of it.

use super::crash::{assert_same, undisturbed};
use super::plane::Plane;
use super::process::Process;
use super::story::{NODES, state, tell};

#[tokio::test(start_paused = true)]
async fn loops_go_on_from_what_is_left_when_acknowledged_writes_are_lost() {
    let expected = undisturbed();
    for (lost, expected) in expected.iter().enumerate().take(3) {
        for rounds in [0, 2, 20] {
            let mut plane = Plane::new(&NODES).await;
            let mut processes = [Process::start(&plane).await];
            for chapter in 0..lost {
                tell(&mut plane, chapter).await;
                plane.settle(&mut processes).await;
            }
            let backup = plane.database.backup();
            tell(&mut plane, lost).await;
            for _ in 0..rounds {
                plane.round(&mut processes).await;
            }
            plane.database.restore(&backup);
            // The same process, which remembers what never was, and then one that does not.
            plane.settle(&mut processes).await;
            // Nothing is placed until somebody has looked.
            assert!(plane.store().release_hold(None).await.unwrap(), "the loss was noticed");
            plane.settle(&mut processes).await;
            tell(&mut plane, lost).await;
            plane.settle(&mut processes).await;
            let what = format!("chapter {lost} was lost after {rounds} rounds");
            assert_same(&state(&plane).await, expected, &what);
            let mut another = [processes[0].double(&plane).await];
            plane.round(&mut another).await;
            plane.round(&mut another).await;
            assert!(!plane.has_news().await, "{what}");
        }
    }
}

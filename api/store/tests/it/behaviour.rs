//! What every backend does: functions over a [`World`], and the macro that makes tests of them.

pub mod commits;

/// Makes a test of every function of the suite; `$world` is an async function that makes a [`World`].
macro_rules! suite {
    ($world:path) => {
        $crate::behaviour::suite!(@ $world, commits:
            a_create_is_seen_by_its_maker_and_by_others,
        );
    };
    (@ $world:path, $module:ident: $($name:ident,)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let world = $world().await;
                    $crate::behaviour::$module::$name(&world).await;
                }
            )*
        }
    };
}
pub(crate) use suite;

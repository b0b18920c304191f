//! What is behind the routes.

pub mod alias;
mod catalog;
pub mod discovery;
pub mod doors;
pub mod fleet;
pub mod health;
pub mod logs;
mod options;
pub mod resources;
pub mod reviews;
pub mod tokens;
pub mod usage;
pub mod watch;

use std::sync::Arc;

use horchestra_core::status::Status;

use crate::app::App;
use crate::http::Call;
use crate::http::respond::Answer;
use crate::http::route::Route;

/// Hands a request to its handler.
pub async fn dispatch(app: &Arc<App>, call: &Call) -> Result<Answer, Status> {
    match &call.route {
        // Answered before the chain that leads here.
        Route::Probe { .. } | Route::Issued(_) => Err(Status::no_such_route()),
        Route::Version
        | Route::CoreVersions
        | Route::CoreResources
        | Route::Groups
        | Route::Group(_)
        | Route::Resources { .. }
        | Route::OpenApiV2
        | Route::OpenApiIndex
        | Route::OpenApiDocument(_) => discovery::serve(app.documents(), call),
        Route::Collection { kind, .. } | Route::Item { kind, .. } | Route::ItemStatus { kind, .. } => {
            resources::serve(app, call, *kind).await
        }
        Route::ItemDoor { kind, door, .. } => doors::serve(app, call, *kind, *door).await,
        Route::AliasCollection { alias, .. } | Route::AliasItem { alias, .. } => {
            alias::serve(app, call, *alias).await
        }
        Route::PodLog { .. } => logs::serve(app, call).await,
        Route::NodeLog { .. } => logs::serve_node(app, call).await,
        Route::ApplicationMetrics { .. } => usage::application(app, call).await,
        Route::UsageCollection { resource, .. } | Route::UsageItem { resource, .. } => {
            usage::serve(app, call, resource).await
        }
        Route::Catalog(endpoint) => catalog::serve(app, call, endpoint).await,
        Route::Fleet => fleet::serve(app, call).await,
        Route::Review { review, .. } => reviews::serve(app, call, review).await,
    }
}

//! Discovery, version and OpenAPI: which of the made documents answers.

use horchestra_core::discovery::DiscoveryVersion;
use horchestra_core::status::Status;

use crate::documents::{Documents, Negotiated};
use crate::http::Call;
use crate::http::negotiate::{self, Offer, OpenApiV2, Shape};
use crate::http::respond::{Answer, Tagged};
use crate::http::route::Route;

pub fn serve(documents: &Documents, call: &Call) -> Result<Answer, Status> {
    let plain = |document: &Tagged| {
        negotiate::accept(&call.headers, Offer::JSON)?;
        Ok(document.answer(&call.headers))
    };
    let missing = |what: &str, name: &str| Status::not_found_resource("", what, name);
    match &call.route {
        Route::Version => plain(&documents.version),
        Route::CoreVersions => negotiated(&documents.core, call),
        Route::CoreResources => plain(&documents.core_resources),
        Route::Groups => negotiated(&documents.groups, call),
        Route::Group(group) => plain(documents.group.get(group).ok_or_else(|| missing("apigroups", group))?),
        Route::Resources { group, version } => {
            let name = format!("{group}/{version}");
            plain(documents.resources.get(&name).ok_or_else(|| missing("apiresources", &name))?)
        }
        Route::OpenApiIndex => plain(&documents.openapi_index),
        Route::OpenApiDocument(path) => {
            let name = path.strip_prefix("apis/").unwrap_or(path);
            plain(documents.openapi.get(path).ok_or_else(|| missing("openapi", name))?)
        }
        Route::OpenApiV2 => {
            let document = match negotiate::accept_openapi_v2(&call.headers)? {
                OpenApiV2::Json => &documents.openapi_v2,
                OpenApiV2::Protobuf => &documents.openapi_v2_protobuf,
            };
            Ok(document.answer(&call.headers))
        }
        _ => Err(Status::no_such_route()),
    }
}

fn negotiated(document: &Negotiated, call: &Call) -> Result<Answer, Status> {
    let accepted = negotiate::accept(&call.headers, Offer::DISCOVERY)?;
    let document = match accepted.shape {
        Shape::Discovery(DiscoveryVersion::V2) => &document.v2,
        Shape::Discovery(DiscoveryVersion::V2Beta1) => &document.v2_beta1,
        _ => &document.plain,
    };
    Ok(document.answer(&call.headers))
}

//! Discovery, version and OpenAPI.

use horchestra_core::status::Status;

use crate::documents::Documents;
use crate::http::Call;
use crate::http::negotiate::{self, Offer};
use crate::http::respond::Answer;
use crate::http::route::Route;

pub fn serve(documents: &Documents, call: &Call) -> Result<Answer, Status> {
    match &call.route {
        Route::Version => {
            negotiate::accept(&call.headers, Offer::JSON)?;
            Ok(documents.version.answer(&call.headers))
        }
        _ => Err(Status::no_such_route()),
    }
}

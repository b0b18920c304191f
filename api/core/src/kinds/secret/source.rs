//! Where the values of a Secret are fetched from.

use std::collections::BTreeMap;

use crate::status::Cause;

/// Name of the SecretStore.
pub const STORE_ANNOTATION: &str = "secrets.horchestra.io/store";
/// Entry in the key-value engine.
pub const PATH_ANNOTATION: &str = "secrets.horchestra.io/path";
/// Keys to take, separated by commas; all when blank.
pub const KEYS_ANNOTATION: &str = "secrets.horchestra.io/keys";
/// `<mount>/<role>` whose one credential, which the store rotates, is wanted.
pub const STATIC_ROLE_ANNOTATION: &str = "secrets.horchestra.io/static-role";
/// `<mount>/<role>` of which each consumer gets a credential of its own.
pub const DYNAMIC_ROLE_ANNOTATION: &str = "secrets.horchestra.io/dynamic-role";

const SOURCES: [&str; 3] = [PATH_ANNOTATION, STATIC_ROLE_ANNOTATION, DYNAMIC_ROLE_ANNOTATION];
const FIELD: &str = "metadata.annotations";

/// What a Secret of the vault type asks its store for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The entry at this path.
    Path(String),
    /// The credential at this endpoint.
    StaticRole(String),
    /// A credential from this endpoint.
    DynamicRole(String),
}

impl Source {
    /// The source that annotations name. There is exactly one.
    pub fn of(annotations: &BTreeMap<String, String>) -> Result<Source, Cause> {
        let mut named = SOURCES.into_iter().filter_map(|annotation| {
            let value = annotations.get(annotation).map(|value| value.trim())?;
            (!value.is_empty()).then_some((annotation, value))
        });
        let Some((annotation, value)) = named.next() else {
            let why = format!("Required value: one of {} must say what to fetch", SOURCES.join(", "));
            return Err(Cause::new("FieldValueRequired", FIELD, why));
        };
        if let Some((other, _)) = named.next() {
            let why = format!("Forbidden: {annotation} and {other} exclude each other");
            return Err(Cause::new("FieldValueForbidden", FIELD, why));
        }
        let endpoint = |engine: &str| {
            role_endpoint(value, engine).ok_or_else(|| {
                let why = format!("{annotation} must name a role as <mount>/<role>");
                Cause::invalid(FIELD, &format!("{value:?}"), why)
            })
        };
        match annotation {
            STATIC_ROLE_ANNOTATION => endpoint("static-creds").map(Source::StaticRole),
            DYNAMIC_ROLE_ANNOTATION => endpoint("creds").map(Source::DynamicRole),
            _ => Ok(Source::Path(value.to_owned())),
        }
    }

    /// The annotation that names such a source.
    pub const fn annotation(&self) -> &'static str {
        match self {
            Source::Path(_) => PATH_ANNOTATION,
            Source::StaticRole(_) => STATIC_ROLE_ANNOTATION,
            Source::DynamicRole(_) => DYNAMIC_ROLE_ANNOTATION,
        }
    }
}

/// `<mount>/<engine>/<role>` for a role that is given as `<mount>/<role>`. The mount may have slashes. `None`
/// when it is no such thing, or when a server could read it as something else.
pub fn role_endpoint(role: &str, engine: &str) -> Option<String> {
    let role = role.trim().trim_matches('/');
    let (mount, name) = role.rsplit_once('/')?;
    let plain = role.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
    let confusing = role.contains([' ', '\t', '\r', '\n', '?', '#', '%']);
    (plain && !confusing).then(|| format!("{mount}/{engine}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_of_engines() {
        for (role, endpoint) in [
            ("database/app-rw", "database/static-creds/app-rw"),
            ("/database/app-rw/", "database/static-creds/app-rw"),
            ("  database/app-rw ", "database/static-creds/app-rw"),
            ("db/prod/app-rw", "db/prod/static-creds/app-rw"),
        ] {
            assert_eq!(role_endpoint(role, "static-creds").as_deref(), Some(endpoint), "{role:?}");
        }
        for bad in [
            "",
            "app-rw",
            "database/",
            "/app-rw",
            "database/../secret/x",
            "database/./app-rw",
            "database//app-rw",
            "data base/app",
            "database/app?x=1",
            "database/app#f",
            "database/app\nx",
            "database/%2e%2e/app",
        ] {
            assert_eq!(role_endpoint(bad, "creds"), None, "{bad:?}");
        }
    }

    fn source(annotations: &[(&str, &str)]) -> Result<Source, String> {
        let annotations =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Source::of(&annotations).map_err(|cause| cause.message)
    }

    #[test]
    fn a_secret_has_one_source() {
        assert_eq!(source(&[(PATH_ANNOTATION, " apps/x ")]), Ok(Source::Path("apps/x".into())));
        assert_eq!(
            source(&[(STATIC_ROLE_ANNOTATION, "db/rw"), (PATH_ANNOTATION, " "), (STORE_ANNOTATION, "v")]),
            Ok(Source::StaticRole("db/static-creds/rw".into()))
        );
        assert_eq!(
            source(&[(DYNAMIC_ROLE_ANNOTATION, "db/rw")]),
            Ok(Source::DynamicRole("db/creds/rw".into()))
        );
        let none = source(&[(STORE_ANNOTATION, "v")]).unwrap_err();
        assert!(SOURCES.iter().all(|annotation| none.contains(annotation)), "{none}");
        let two = source(&[(PATH_ANNOTATION, "x"), (STATIC_ROLE_ANNOTATION, "db/rw")]).unwrap_err();
        assert!(two.contains(PATH_ANNOTATION) && two.contains(STATIC_ROLE_ANNOTATION), "{two}");
        assert!(source(&[(DYNAMIC_ROLE_ANNOTATION, "rw")]).unwrap_err().contains("<mount>/<role>"));
    }
}

//! Content negotiation: which form of an answer the client asked for, and which form a body comes in.
//!
//! The entries of `Accept` are tried by their q-value, then in the order of the header; the first one that
//! this route can serve decides. An entry with parameters that we do not know (another `as=`, another
//! version of it) is passed over, never approximated: a client that lists only `v2beta1` must not be handed
//! `v2`. When nothing fits, the answer is 406.

use horchestra_core::discovery::DiscoveryVersion;
use horchestra_core::status::Status;
use horchestra_core::table::MetaVersion;
use http::{HeaderMap, HeaderValue, header};

/// The encoding of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wire {
    Json,
    Yaml,
}

impl Wire {
    pub const fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Wire::Json => "application/json",
            Wire::Yaml => "application/yaml",
        })
    }
}

/// What is in the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// The object, list or document itself.
    Plain,
    Table(MetaVersion),
    /// Metadata only, for one object and for lists alike.
    Metadata(MetaVersion),
    Discovery(DiscoveryVersion),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Accepted {
    pub wire: Wire,
    pub shape: Shape,
}

/// What a route can serve beside plain JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer {
    pub yaml: bool,
    /// Tables and metadata-only forms.
    pub objects: bool,
    pub discovery: bool,
}

impl Offer {
    pub const JSON: Offer = Offer { yaml: false, objects: false, discovery: false };
    /// Documents that are no objects.
    pub const PLAIN: Offer = Offer { yaml: true, objects: false, discovery: false };
    pub const OBJECTS: Offer = Offer { yaml: true, objects: true, discovery: false };
    /// Frames of a watch are JSON lines.
    pub const WATCH: Offer = Offer { yaml: false, objects: true, discovery: false };
    pub const DISCOVERY: Offer = Offer { yaml: false, objects: false, discovery: true };

    fn listed(self) -> &'static str {
        if self.yaml { "application/json, application/yaml" } else { "application/json" }
    }
}

/// One entry of an `Accept` header.
#[derive(Debug)]
struct Entry<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    /// Thousandths.
    quality: u16,
}

impl<'a> Entry<'a> {
    fn parse(text: &'a str) -> Option<Entry<'a>> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().filter(|media| !media.is_empty())?;
        let mut parameters = Vec::new();
        let mut quality = 1000;
        for part in parts {
            let Some((name, value)) = part.split_once('=') else { continue };
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name.eq_ignore_ascii_case("q") {
                quality = value.parse::<f32>().map_or(1000, |q| (q.clamp(0.0, 1.0) * 1000.0) as u16);
            } else {
                parameters.push((name, value));
            }
        }
        Some(Entry { media, parameters, quality })
    }

    fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
    }

    fn is(&self, media: &str) -> bool {
        self.media.eq_ignore_ascii_case(media)
    }

    fn shape(&self, offer: Offer) -> Option<Shape> {
        let version = self.parameter("v");
        let meta = match version {
            None | Some("v1") => Some(MetaVersion::V1),
            Some("v1beta1") => Some(MetaVersion::V1Beta1),
            Some(_) => None,
        };
        match (self.parameter("as"), self.parameter("g")) {
            (None, _) => Some(Shape::Plain),
            (Some("Table"), Some("meta.k8s.io")) if offer.objects => meta.map(Shape::Table),
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("meta.k8s.io"))
                if offer.objects =>
            {
                meta.map(Shape::Metadata)
            }
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io")) if offer.discovery => {
                match version {
                    Some("v2") => Some(Shape::Discovery(DiscoveryVersion::V2)),
                    Some("v2beta1") => Some(Shape::Discovery(DiscoveryVersion::V2Beta1)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn accepted(&self, offer: Offer) -> Option<Accepted> {
        if self.is("*/*") || self.is("application/*") {
            return Some(Accepted { wire: Wire::Json, shape: Shape::Plain });
        }
        let wire = if self.is("application/json") {
            Wire::Json
        } else if offer.yaml && (self.is("application/yaml") || self.is("application/x-yaml")) {
            Wire::Yaml
        } else {
            return None;
        };
        Some(Accepted { wire, shape: self.shape(offer)? })
    }
}

/// The entries of all `Accept` headers, most wanted first; `None` when there is no such header or it is
/// empty, which means anything.
fn entries(headers: &HeaderMap) -> Option<Vec<Entry<'_>>> {
    let mut entries: Vec<Entry<'_>> = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(Entry::parse)
        .collect();
    if entries.is_empty() {
        return if headers.contains_key(header::ACCEPT)
            && headers.get_all(header::ACCEPT).iter().any(|value| !value.as_bytes().trim_ascii().is_empty())
        {
            Some(Vec::new())
        } else {
            None
        };
    }
    entries.retain(|entry| entry.quality > 0);
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.quality));
    Some(entries)
}

/// What the client gets, or 406.
pub fn accept(headers: &HeaderMap, offer: Offer) -> Result<Accepted, Status> {
    let Some(entries) = entries(headers) else {
        return Ok(Accepted { wire: Wire::Json, shape: Shape::Plain });
    };
    entries
        .iter()
        .find_map(|entry| entry.accepted(offer))
        .ok_or_else(|| Status::not_acceptable(offer.listed()))
}

/// The two encodings of the Swagger document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenApiV2 {
    Json,
    Protobuf,
}

/// The type that answers must carry: with a dot where requests have an `@`, which is no token character and
/// breaks the parsers of every client.
pub const OPENAPI_V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const OPENAPI_V2_PROTOBUF_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

pub fn accept_openapi_v2(headers: &HeaderMap) -> Result<OpenApiV2, Status> {
    let Some(entries) = entries(headers) else { return Ok(OpenApiV2::Json) };
    entries
        .iter()
        .find_map(|entry| {
            if entry.is(OPENAPI_V2_PROTOBUF) || entry.is(OPENAPI_V2_PROTOBUF_ASKED) {
                Some(OpenApiV2::Protobuf)
            } else if entry.is("application/json") || entry.is("*/*") || entry.is("application/*") {
                Some(OpenApiV2::Json)
            } else {
                None
            }
        })
        .ok_or_else(|| Status::not_acceptable(&format!("application/json, {OPENAPI_V2_PROTOBUF}")))
}

/// Whether plain text may be sent. Clients of logs ask for JSON (or for anything) and take the text anyway,
/// so only a header that names nothing of ours is refused.
pub fn accept_text(headers: &HeaderMap) -> Result<(), Status> {
    let Some(entries) = entries(headers) else { return Ok(()) };
    let fits = entries.iter().any(|entry| {
        ["*/*", "text/*", "text/plain", "application/*", "application/json", "application/yaml"]
            .iter()
            .any(|media| entry.is(media))
    });
    if fits { Ok(()) } else { Err(Status::not_acceptable("text/plain, application/json")) }
}

/// Whether the client takes gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(Entry::parse)
        .any(|entry| entry.quality > 0 && (entry.is("gzip") || entry.is("*")))
}

/// The media type of a request body without its parameters, lower-case; `None` when there is no header.
pub fn content_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?;
    let text = value.to_str().unwrap_or("?");
    let media = text.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    (!media.is_empty()).then_some(media)
}

/// How the document in a request body is written.
pub fn document_type(headers: &HeaderMap) -> Result<Wire, Status> {
    match content_type(headers).as_deref() {
        None | Some("application/json") => Ok(Wire::Json),
        Some("application/yaml" | "application/x-yaml" | "text/yaml") => Ok(Wire::Yaml),
        Some(other) => Err(Status::unsupported_media_type(format!(
            "the body of the request was in an unknown format ({other}); accepted media types include: \
             application/json, application/yaml"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(accept: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        headers
    }

    #[test]
    fn the_first_form_that_can_be_served_wins() {
        let plain = Accepted { wire: Wire::Json, shape: Shape::Plain };
        let yaml = Accepted { wire: Wire::Yaml, shape: Shape::Plain };
        let table = |version| Accepted { wire: Wire::Json, shape: Shape::Table(version) };
        let cases = [
            ("", Some(plain)),
            ("*/*", Some(plain)),
            ("application/*", Some(plain)),
            ("application/json", Some(plain)),
            ("application/yaml", Some(yaml)),
            ("application/json;q=0.5,application/yaml", Some(yaml)),
            ("application/yaml;q=0,application/json", Some(plain)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Some(table(MetaVersion::V1)),
            ),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", Some(table(MetaVersion::V1Beta1))),
            ("application/json;as=Table;v=v7;g=meta.k8s.io", None),
            ("application/json;as=Table;v=v7;g=meta.k8s.io, application/json", Some(plain)),
            ("application/json;as=Nonsense;v=v1;g=meta.k8s.io", None),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                Some(Accepted { wire: Wire::Json, shape: Shape::Metadata(MetaVersion::V1) }),
            ),
            ("application/xml", None),
            ("application/vnd.kubernetes.protobuf", None),
            ("application/vnd.kubernetes.protobuf, */*", Some(plain)),
            ("application/vnd.kubernetes.protobuf,application/json", Some(plain)),
            ("text/html, application/xhtml+xml, */*; q=0.8", Some(plain)),
            (",", None),
        ];
        for (header, expected) in cases {
            assert_eq!(accept(&headers(header), Offer::OBJECTS).ok(), expected, "{header:?}");
        }
        assert_eq!(accept(&HeaderMap::new(), Offer::OBJECTS), Ok(plain));
    }

    #[test]
    fn aggregated_discovery_comes_only_in_a_version_that_was_asked_for() {
        let entry = |version: &str| {
            format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
        };
        let shape = |header: String| accept(&headers(&header), Offer::DISCOVERY).unwrap().shape;
        assert_eq!(
            shape(format!("{},application/json", entry("v2beta1"))),
            Shape::Discovery(DiscoveryVersion::V2Beta1)
        );
        assert_eq!(
            shape(format!("{},{},application/json", entry("v2"), entry("v2beta1"))),
            Shape::Discovery(DiscoveryVersion::V2)
        );
        assert_eq!(shape(format!("{},application/json", entry("v3"))), Shape::Plain);
        assert!(accept(&headers(&entry("v3")), Offer::DISCOVERY).is_err());
    }

    #[test]
    fn swagger_is_asked_for_with_an_at_sign() {
        for (header, expected) in [
            (OPENAPI_V2_PROTOBUF_ASKED, Some(OpenApiV2::Protobuf)),
            (OPENAPI_V2_PROTOBUF, Some(OpenApiV2::Protobuf)),
            ("application/json", Some(OpenApiV2::Json)),
            ("*/*", Some(OpenApiV2::Json)),
            (
                "application/json;q=0.9,application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
                Some(OpenApiV2::Protobuf),
            ),
            ("application/xml", None),
        ] {
            assert_eq!(accept_openapi_v2(&headers(header)).ok(), expected, "{header}");
        }
    }

    #[test]
    fn bodies_without_a_type_are_json() {
        let typed = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, value.parse().unwrap());
            document_type(&headers).ok()
        };
        assert_eq!(document_type(&HeaderMap::new()), Ok(Wire::Json));
        assert_eq!(typed("application/json; charset=utf-8"), Some(Wire::Json));
        assert_eq!(typed("Application/YAML"), Some(Wire::Yaml));
        assert_eq!(typed("application/vnd.kubernetes.protobuf"), None);
        assert_eq!(typed("text/plain"), None);
    }
}

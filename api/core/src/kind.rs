//! The stored kinds and the address of an object.
//!
//! [`Kind`] is the closed set of kinds that the store can hold; its number is what the database keeps, so a
//! number is never reused. What a kind looks like (schema, columns, selectable fields, …) is its entry in
//! [`crate::registry`].

use std::fmt;

/// A stored kind. The discriminant is the number that the database stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i16)]
pub enum Kind {
    Namespace = 1,
    Node = 2,
    Application = 3,
    ApplicationSet = 4,
    Service = 5,
    PersistentVolume = 6,
    Secret = 7,
    SecretStore = 8,
    Role = 9,
    RoleBinding = 10,
    ClusterRole = 11,
    ClusterRoleBinding = 12,
    CertificateSigningRequest = 13,
    Event = 14,
}

/// The API group of the core kinds.
pub const CORE_GROUP: &str = "horchestra.io";

impl Kind {
    pub const ALL: [Kind; 14] = [
        Kind::Namespace,
        Kind::Node,
        Kind::Application,
        Kind::ApplicationSet,
        Kind::Service,
        Kind::PersistentVolume,
        Kind::Secret,
        Kind::SecretStore,
        Kind::Role,
        Kind::RoleBinding,
        Kind::ClusterRole,
        Kind::ClusterRoleBinding,
        Kind::CertificateSigningRequest,
        Kind::Event,
    ];

    /// The number kept in the database.
    pub const fn number(self) -> i16 {
        self as i16
    }

    /// The kind with this database number, if there is one.
    pub fn from_number(number: i16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The name in `kind:` fields.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Namespace => "Namespace",
            Kind::Node => "Node",
            Kind::Application => "Application",
            Kind::ApplicationSet => "ApplicationSet",
            Kind::Service => "Service",
            Kind::PersistentVolume => "PersistentVolume",
            Kind::Secret => "Secret",
            Kind::SecretStore => "SecretStore",
            Kind::Role => "Role",
            Kind::RoleBinding => "RoleBinding",
            Kind::ClusterRole => "ClusterRole",
            Kind::ClusterRoleBinding => "ClusterRoleBinding",
            Kind::CertificateSigningRequest => "CertificateSigningRequest",
            Kind::Event => "Event",
        }
    }

    /// The name in URLs.
    pub const fn plural(self) -> &'static str {
        match self {
            Kind::Namespace => "namespaces",
            Kind::Node => "nodes",
            Kind::Application => "applications",
            Kind::ApplicationSet => "applicationsets",
            Kind::Service => "services",
            Kind::PersistentVolume => "persistentvolumes",
            Kind::Secret => "secrets",
            Kind::SecretStore => "secretstores",
            Kind::Role => "roles",
            Kind::RoleBinding => "rolebindings",
            Kind::ClusterRole => "clusterroles",
            Kind::ClusterRoleBinding => "clusterrolebindings",
            Kind::CertificateSigningRequest => "certificatesigningrequests",
            Kind::Event => "events",
        }
    }

    pub const fn group(self) -> &'static str {
        match self {
            Kind::Role | Kind::RoleBinding | Kind::ClusterRole | Kind::ClusterRoleBinding => {
                "rbac.horchestra.io"
            }
            Kind::CertificateSigningRequest => "certificates.horchestra.io",
            Kind::SecretStore => "secrets.horchestra.io",
            Kind::Event => "",
            _ => CORE_GROUP,
        }
    }

    pub const fn version(self) -> &'static str {
        "v1"
    }

    /// `group/version` as in `apiVersion:` fields (only the version for the core group of Kubernetes).
    pub const fn api_version(self) -> &'static str {
        match self {
            Kind::Role | Kind::RoleBinding | Kind::ClusterRole | Kind::ClusterRoleBinding => {
                "rbac.horchestra.io/v1"
            }
            Kind::CertificateSigningRequest => "certificates.horchestra.io/v1",
            Kind::SecretStore => "secrets.horchestra.io/v1",
            Kind::Event => "v1",
            _ => "horchestra.io/v1",
        }
    }

    /// Whether objects of this kind live in a namespace.
    pub const fn namespaced(self) -> bool {
        !matches!(
            self,
            Kind::Namespace
                | Kind::Node
                | Kind::ClusterRole
                | Kind::ClusterRoleBinding
                | Kind::CertificateSigningRequest
        )
    }

    /// Whether objects of this kind carry a `status` that is written apart from the rest.
    pub const fn has_status(self) -> bool {
        matches!(
            self,
            Kind::Application | Kind::ApplicationSet | Kind::Node | Kind::CertificateSigningRequest
        )
    }

    /// Whether requests may write the status of objects of this kind. Whoever could write that of a
    /// CertificateSigningRequest could hand out certificates, so only its actions and the signer do.
    pub const fn takes_status_writes(self) -> bool {
        self.has_status() && !matches!(self, Kind::CertificateSigningRequest)
    }

    /// Whether the contents of objects of this kind are sealed before they are stored (see [`crate::sealed`]).
    /// Of such objects the history keeps no bodies.
    pub const fn is_sealed(self) -> bool {
        matches!(self, Kind::Secret)
    }

    /// `plural.group`, the name used in error messages.
    pub fn group_resource(self) -> String {
        if self.group().is_empty() {
            self.plural().to_owned()
        } else {
            format!("{}.{}", self.plural(), self.group())
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Address of a stored object. `namespace` is empty for cluster-scoped kinds. Keys order by kind, then
/// bytewise by namespace and name: the order of every list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn namespaced(kind: Kind, namespace: impl Into<String>, name: impl Into<String>) -> Key {
        Key { kind, namespace: namespace.into(), name: name.into() }
    }

    pub fn cluster(kind: Kind, name: impl Into<String>) -> Key {
        Key { kind, namespace: String::new(), name: name.into() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

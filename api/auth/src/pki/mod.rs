//! Making certificates: the authority, what servers show, what clients prove themselves with.
//!
//! Every key is ECDSA on P-256 in a SEC1 PEM (`EC PRIVATE KEY`), which is the form that existing tools for
//! these files read; every serial is 128 random bits; a certificate is valid from an hour before it was made,
//! for machines whose clocks differ, and never beyond its authority.
//!
//! | certificate | subject | valid | for | names |
//! |---|---|---|---|---|
//! | authority | CN=horchestra-ca | 10 years | signing certificates | |
//! | serving | CN=first host | 1 year | servers | all hosts, always with localhost, 127.0.0.1 and ::1 |
//! | operator | CN=name, O=group | 90 days (admin: 1 year) | clients | |
//! | node | CN=node, O=system:nodes | 90 days | clients | |
//! | controller | CN=horchestra-…, O=system:controllers | 1 year | clients and servers | as serving |
//!
//! Nobody is refused for a certificate that was made elsewhere in another form; this is only what we make.
//! There is no revocation: lifetimes are short, and an authority is withdrawn by taking it out of the file
//! that the listeners read.

mod authority;
mod files;
mod kubeconfig;
mod local;
mod request;
mod subject;

use std::path::PathBuf;

pub(crate) use authority::sec1_pem;
pub use authority::{Authority, HostName, Issued, Lifetime, NewRequest, is_node_name, pem_block};
pub use files::{private_folder, write_file};
pub use kubeconfig::Kubeconfig;
pub use local::{LocalPki, PairFiles, Process};
pub use request::{CertificateRequest, RequestError};

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("{} is not a folder that only its owner can write: {why}", path.display())]
    Folder { path: PathBuf, why: &'static str },
    #[error("{} exists and is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error("cannot {doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{what} is not a usable {form}")]
    Material {
        what: String,
        form: &'static str,
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    #[error("the authority's key in {} does not belong to the certificate in {}", key.display(), certificate.display())]
    WrongKey { certificate: PathBuf, key: PathBuf },
    #[error("of the authority only {} is there: restore the other file, or remove this one to start anew", found.display())]
    HalfAnAuthority { found: PathBuf },
    #[error("the authority in {} expired: remove the folder to make a new one", path.display())]
    ExpiredAuthority { path: PathBuf },
    #[error(
        "the authority in {} is not valid yet, going by this machine's clock ({now}): set the clock, or remove the folder to \
         make a new one", path.display()
    )]
    FutureAuthority { path: PathBuf, now: jiff::Timestamp },
    #[error("the authority in {} has expired: its certificates are worth nothing", path.display())]
    EndedAuthority { path: PathBuf },
    #[error("there is no authority in {}: make one with `horchestra-local pki init`", folder.display())]
    NoAuthority { folder: PathBuf },
    #[error("a certificate must be valid for some time")]
    NoLifetime,
    #[error("{name:?} cannot be the name of a {of}")]
    Name { name: String, of: &'static str },
    #[error("cannot make a certificate for {name}")]
    Sign {
        name: String,
        #[source]
        source: rcgen::Error,
    },
    #[error("the random source or the key generator failed")]
    Random,
}

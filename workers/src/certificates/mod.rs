//! The node-csr loop: certificates for nodes.
//!
//! An agent renews its certificate by way of a CertificateSigningRequest; an operator can have one signed for a new
//! node in the same way. This loop decides what to do about each request ([`policy`]), signs what is good, and
//! deletes what has had its time.
//!
//! * **Who gets what.** The certificate is for the name and the key of the request, in the group `system:nodes`, for
//!   clients, for as long as this process is told. Nothing else that a request asks for is even looked at.
//! * **Without asking anybody** a node gets the next certificate of its own name and nothing else, and only where the
//!   feature gate says so. Everything else waits until an operator approves it, and says why.
//! * **In one change.** Phase, certificate and conditions are written together, fenced by the lease, onto the very
//!   revision that was decided on: an agent never sees `Approved` without a certificate, an operator who denies a
//!   request that is being signed wins or loses as a whole, and who no longer leads writes nothing. A certificate that
//!   was signed and could not be stored is signed anew; it is lost and harmless.
//! * **Failures cost little.** A request that cannot be signed says so once and is tried again more and more rarely. A
//!   signer that cannot be used at all is left alone for a while, whatever waits.
//! * **Who signs** is a port ([`signer`]): the authority's key in a file, or a Vault that is not trusted with what
//!   it returns ([`vault`], [`verify`]). The leader says when its term begins whether it signs at all; where nobody
//!   does, approvals are refused. So all workers of a cluster have to be given the same signer.
//! * **Ages.** A decided request goes an hour after its decision, another one a day after it was made or approved; an
//!   approval that stands for the next request keeps its own as long as it stands. Counting from the decision and not
//!   from the making gives whoever asked for it the time to fetch it.
//!
//! A pass looks at every request, but reads and verifies only those that have changed since the pass before.

pub mod args;
pub mod metrics;
pub mod policy;
pub mod reconcile;
pub mod renewal;
pub mod rotation;
pub mod signer;
pub mod vault;
pub mod verify;
mod work;

//! The Kubernetes-shaped HTTP API.

//! Node sessions: desired state down, status up.

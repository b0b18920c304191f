use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Issued;

/// All that a client needs to reach a control plane, in one file with nothing beside it. kubectl reads it,
/// and so does a node's agent.
#[derive(Clone, Debug)]
pub struct Kubeconfig<'a> {
    /// `https://host:port`
    pub server: &'a str,
    /// The cluster's and the context's name.
    pub cluster: &'a str,
    /// The authority of the server's certificate, PEM.
    pub authority: &'a str,
    /// The name of the user's entry.
    pub user: &'a str,
    pub client: &'a Issued,
}

impl Kubeconfig<'_> {
    /// What the cluster is usually called.
    pub const CLUSTER: &'static str = "horchestra";

    /// The file's text. It holds the client's key: mode 0600.
    pub fn yaml(&self) -> String {
        // A JSON string is a YAML string, whatever is in it.
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let data = |text: &str| STANDARD.encode(text);
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: {cluster}\n  \
               cluster:\n    \
                 server: {server}\n    \
                 certificate-authority-data: {authority}\n\
             users:\n\
             - name: {user}\n  \
               user:\n    \
                 client-certificate-data: {certificate}\n    \
                 client-key-data: {key}\n\
             contexts:\n\
             - name: {cluster}\n  \
               context:\n    \
                 cluster: {cluster}\n    \
                 user: {user}\n\
             current-context: {cluster}\n",
            cluster = quoted(self.cluster),
            server = quoted(self.server),
            user = quoted(self.user),
            authority = data(self.authority),
            certificate = data(&self.client.certificate),
            key = data(&self.client.key),
        )
    }
}

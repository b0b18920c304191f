//! Identity and address from a file in the shape of a kubeconfig.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::controller::Controller;
use crate::identity::{Identity, IdentityError};

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    #[serde(default)]
    current_context: String,
    #[serde(default)]
    contexts: Vec<Named<ContextEntry>>,
    #[serde(default)]
    clusters: Vec<Named<ClusterEntry>>,
    #[serde(default)]
    users: Vec<Named<UserEntry>>,
}

#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user")]
    value: T,
}

#[derive(Deserialize)]
struct ContextEntry {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ClusterEntry {
    server: String,
    certificate_authority_data: Option<String>,
    certificate_authority: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct UserEntry {
    client_certificate_data: Option<String>,
    client_certificate: Option<String>,
    client_key_data: Option<String>,
    client_key: Option<String>,
}

/// Reads the current context of such a file. Paths in it are relative to it.
pub fn load(path: &Path) -> Result<(Identity, Controller), IdentityError> {
    let missing = |what| IdentityError::Config { path: path.to_owned(), what };
    let syntax = |reason: String| IdentityError::Syntax { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path)
        .map_err(|source| IdentityError::Read { path: path.to_owned(), source })?;
    let file: File = serde_saphyr::from_str(&text).map_err(|error| syntax(error.to_string()))?;

    let context = named(&file.contexts, &file.current_context).ok_or_else(|| missing("current context"))?;
    let cluster =
        named(&file.clusters, &context.cluster).ok_or_else(|| missing("cluster for its context"))?;
    let user = named(&file.users, &context.user).ok_or_else(|| missing("user for its context"))?;

    let part = |inline: &Option<String>, named: &Option<String>, what| match (inline, named) {
        (Some(inline), _) => {
            STANDARD.decode(inline.trim()).map_err(|error| syntax(format!("{what}: {error}")))
        }
        (None, Some(file)) => {
            let file = path.parent().unwrap_or(Path::new(".")).join(file);
            std::fs::read(&file).map_err(|source| IdentityError::Read { path: file, source })
        }
        (None, None) => Err(missing(what)),
    };
    let chain = part(&user.client_certificate_data, &user.client_certificate, "client certificate")?;
    let key = part(&user.client_key_data, &user.client_key, "client key")?;
    let ca =
        part(&cluster.certificate_authority_data, &cluster.certificate_authority, "certificate authority")?;
    let controller = Controller::parse(&cluster.server).map_err(|error| syntax(error.to_string()))?;
    Ok((Identity::from_pem(&chain, &key, &ca)?, controller))
}

fn named<'a, T>(list: &'a [Named<T>], name: &str) -> Option<&'a T> {
    list.iter().find(|entry| entry.name == name).map(|entry| &entry.value)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    #[test]
    fn the_current_context_inline_or_from_files() {
        let scratch = tempfile::tempdir().expect("a directory");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "n1");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        let key = key.serialize_pem();
        for (name, text) in [("n1.crt", &certificate), ("n1.key", &key)] {
            std::fs::write(scratch.path().join(name), text).expect("writes");
        }
        let (inline, inline_key) = (STANDARD.encode(&certificate), STANDARD.encode(&key));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\npreferences: {{}}\n\
             contexts:\n- name: other\n  context: {{cluster: none, user: none}}\n\
             - name: here\n  context: {{cluster: a, user: USER}}\n\
             clusters:\n- name: a\n  cluster:\n    server: https://cp.example\n    certificate-authority-data: {inline}\n\
             users:\n- name: inline\n  user: {{client-certificate-data: {inline}, client-key-data: {inline_key}}}\n\
             - name: files\n  user: {{client-certificate: n1.crt, client-key: n1.key}}\n\
             - name: nothing\n  user: {{}}\n"
        );
        let path = scratch.path().join("node.conf");
        let load_as = |user: &str| {
            std::fs::write(&path, text.replace("USER", user)).expect("writes");
            load(&path)
        };
        for user in ["inline", "files"] {
            let (identity, controller) = load_as(user).expect("loads");
            assert_eq!(identity.node_name().expect("a name"), "n1");
            assert_eq!(controller.to_string(), "cp.example:8443");
        }
        assert!(matches!(load_as("nothing"), Err(IdentityError::Config { what: "client certificate", .. })));
        assert!(matches!(load_as("nobody"), Err(IdentityError::Config { .. })));
        std::fs::write(&path, "users: 7").expect("writes");
        assert!(matches!(load(&path), Err(IdentityError::Syntax { .. })));
    }
}

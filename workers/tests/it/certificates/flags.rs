//! The flags of the signer.

use clap::{CommandFactory, Parser};
use horchestra_auth::pki::Authority;
use horchestra_runtime::{Metrics, Tasks};
use horchestra_testkit::TempDir;
use horchestra_workers::args::Args;
use time::Duration;

use super::fake::Ca;

fn parse(line: &str) -> Result<Args, clap::Error> {
    let words = line.split(' ').filter(|word| !word.is_empty());
    Args::try_parse_from(["horchestra-workers", "--database-url=postgres://h/d"].into_iter().chain(words))
}

const VAULT: &str = "--pki-vault=https://vault.example:8200 --pki-vault-role=nodes --pki-vault-ca=CA \
                     --pki-vault-cert=CRT --pki-vault-key=KEY --cluster-ca=CA";

fn without(flag: &str) -> String {
    VAULT.split(' ').filter(|word| !word.starts_with(&format!("{flag}="))).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_belongs_together_is_asked_for() {
    Args::command().debug_assert();
    for line in ["", "--cluster-ca=CA", "--cluster-ca=CA --cluster-ca-key=KEY", "--node-cert-ttl=30d", VAULT]
    {
        if let Err(error) = parse(line) {
            panic!("{line}: {error}");
        }
    }
    for (line, said) in [
        ("--cluster-ca-key=KEY".to_owned(), "--cluster-ca <FILE>"),
        (format!("{VAULT} --cluster-ca-key=KEY"), "cannot be used with"),
        (without("--pki-vault-role"), "--pki-vault-role"),
        (without("--pki-vault-ca"), "--pki-vault-ca"),
        (without("--pki-vault-cert"), "--pki-vault-cert"),
        (without("--pki-vault-key"), "--pki-vault-key"),
        (without("--cluster-ca"), "--cluster-ca"),
        (without("--pki-vault"), "--pki-vault <URL>"),
        ("--pki-vault-self-role=own".to_owned(), "--pki-vault"),
        ("--node-cert-ttl=0s".to_owned(), "valid for some time"),
        ("--node-cert-ttl=soon".to_owned(), "not a duration"),
    ] {
        let Err(error) = parse(&line) else { panic!("{line} is taken") };
        assert!(error.to_string().contains(said), "{line}: {error}");
    }
    let help = Args::command().render_long_help().to_string();
    for part in ["--pki-vault-self-role <ROLE>", "[default: 90d]", "[default: pki_int]", "[default: cert]"] {
        assert!(help.contains(part), "no {part} in {help}");
    }
}

/// What a line comes to: the tasks that run then, or what is wrong.
fn open(line: &str) -> Result<Option<Vec<&'static str>>, String> {
    let tasks = Tasks::new(&Metrics::new("test", "0", None));
    match parse(line).map_err(|error| error.to_string())?.signer.open(&tasks) {
        Ok(signer) => Ok(signer.map(|_| tasks.names())),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            Err(format!("{error}: {cause}"))
        }
    }
}

#[tokio::test]
async fn a_signer_is_there_or_the_process_does_not_start() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        path(name)
    };
    let authority = Authority::generate().unwrap();
    let (ca, key) = (write("ca.crt", &authority.pem().certificate), write("ca.key", &authority.pem().key));
    let (certificate, client_key) = Ca::root("root").client("workers", "vault", Duration::days(1));
    let (client, client_key) = (write("client.crt", &certificate), write("client.key", &client_key));
    let nonsense = write("nonsense", "hello");

    assert_eq!(open(""), Ok(None));
    assert_eq!(open(&format!("--cluster-ca={ca}")), Ok(None), "offline");
    let files = open(&format!("--cluster-ca={ca} --cluster-ca-key={key}"));
    assert_eq!(files, Ok(Some(vec!["signer-files"])));
    let vault = |url: &str, certificate: &str, more: &str| {
        open(&format!(
            "--pki-vault={url} --pki-vault-role=nodes --pki-vault-ca={ca} --pki-vault-cert={certificate} \
             --pki-vault-key={client_key} --cluster-ca={ca} {more}"
        ))
    };
    let url = "https://vault.example:8200";
    assert_eq!(vault(url, &client, ""), Ok(Some(vec!["signer-files"])), "and nobody renews");
    let renewing = vault(url, &client, "--pki-vault-self-role=own");
    assert_eq!(renewing, Ok(Some(vec!["signer-files", "vault-credential"])));
    assert!(vault("https://[::1]:8200/behind/a/prefix/", &client, "--pki-vault-mount=pki/int").is_ok());
    for (what, outcome, said) in [
        (
            "a key that is none",
            open(&format!("--cluster-ca={ca} --cluster-ca-key={nonsense}")),
            "not a usable key",
        ),
        (
            "a file that is not there",
            open(&format!("--cluster-ca={ca} --cluster-ca-key=/nowhere")),
            "cannot read",
        ),
        ("in clear", vault("http://vault.example", &client, ""), "not the address of a Vault"),
        ("no address", vault("vault", &client, ""), "not the address of a Vault"),
        ("a user in it", vault("https://me@vault.example", &client, ""), "not the address of a Vault"),
        ("no certificate", vault(url, &nonsense, ""), "no usable certificate"),
        ("another key's certificate", vault(url, &ca, ""), "cannot be used together"),
        (
            "a mount that leads elsewhere",
            vault(url, &client, "--pki-vault-mount=../sys"),
            "cannot be a mount",
        ),
        ("a method that leads elsewhere", vault(url, &client, "--pki-vault-auth-path=a//b"), "auth method"),
        ("a role that leads elsewhere", vault(url, &client, "--pki-vault-self-role=a/b"), "cannot be a role"),
    ] {
        let error = outcome.expect_err(what);
        assert!(error.contains(said), "{what}: {error}");
    }
}

//! The files: certificates, authorities, keys.

use std::path::Path;
use std::time::{Duration, SystemTime};

use horchestra_auth::KeyRing;
use horchestra_runtime::tls::{CertificateFacts, KeyPairFiles, authority_facts, leads_to, pair_facts};
use jiff::Timestamp;

use super::{CheckArgs, Finding, because};

/// A certificate that ends within this is warned of.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// Every file that was named.
pub(super) fn look(args: &CheckArgs, now: SystemTime) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) {
        let files = KeyPairFiles { certificate: certificate.clone(), key: key.clone() };
        findings.extend(pair("listener", &files, None, &args.host, now));
    }
    if let (Some(certificate), Some(key)) = (&args.peer_cert, &args.peer_key) {
        let files = KeyPairFiles { certificate: certificate.clone(), key: key.clone() };
        findings.extend(pair("own certificate", &files, args.peer_ca.as_deref(), &[], now));
    }
    for (what, path) in [("authorities of clients", &args.tls_ca), ("authorities of peers", &args.peer_ca)] {
        if let Some(path) = path {
            findings.extend(authorities(what, path, now));
        }
    }
    if let Some(path) = &args.secret_keys {
        findings.push(match KeyRing::load(path) {
            Ok(ring) => Finding::good("keys of Secrets", format!("{} seals", ring.sealing_key())),
            Err(error) => Finding::bad(
                "keys of Secrets",
                because(&error),
                "give the file that the other replicas have, readable by this user alone",
            ),
        });
    }
    findings
}

fn pair(
    what: &str,
    files: &KeyPairFiles,
    authorities: Option<&Path>,
    hosts: &[String],
    now: SystemTime,
) -> Vec<Finding> {
    let facts = match pair_facts(files) {
        Ok(facts) => facts,
        Err(error) => {
            let advice = "give a certificate and its own key, both in PEM and readable by this user";
            return vec![Finding::bad(what, because(&error), advice)];
        }
    };
    let mut findings = vec![validity(what, &files.certificate, &facts, now)];
    for host in hosts.iter().filter(|host| !facts.is_for(host)) {
        let found =
            format!("{} is for {}, not for {host}", files.certificate.display(), facts.hosts.join(", "));
        findings.push(Finding::bad(
            what,
            found,
            "issue it anew with every name and address that clients use",
        ));
    }
    if let Some(authorities) = authorities {
        match leads_to(&files.certificate, authorities) {
            Ok(true) => {}
            Ok(false) => findings.push(Finding::bad(
                what,
                format!(
                    "{} was not issued by an authority in {}",
                    files.certificate.display(),
                    authorities.display()
                ),
                "gateways will not believe it: give the authority that issued it, or issue it anew",
            )),
            // The authorities are looked at by themselves.
            Err(_) => {}
        }
    }
    findings
}

fn authorities(what: &str, path: &Path, now: SystemTime) -> Vec<Finding> {
    match authority_facts(path) {
        Ok(all) => all.iter().map(|facts| validity(what, path, facts, now)).collect(),
        Err(error) => {
            vec![Finding::bad(
                what,
                because(&error),
                "give a file with the certificates of the authorities, in PEM",
            )]
        }
    }
}

fn validity(what: &str, path: &Path, facts: &CertificateFacts, now: SystemTime) -> Finding {
    let date = |moment| {
        Timestamp::try_from(moment).map(|moment| moment.strftime("%F").to_string()).unwrap_or_default()
    };
    let named = format!("{} ({})", path.display(), facts.name);
    if now < facts.not_before {
        let found = format!("{named} is good only from {} on", date(facts.not_before));
        return Finding::bad(what, found, "see whether this machine's clock is right");
    }
    let Ok(left) = facts.not_after.duration_since(now) else {
        return Finding::bad(what, format!("{named} ended on {}", date(facts.not_after)), "issue it anew");
    };
    let found = format!("{named} is good until {}", date(facts.not_after));
    if left < SOON {
        return Finding::warning(
            what,
            found,
            "issue it anew before then; the files are read again when they change",
        );
    }
    Finding::good(what, found)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use horchestra_auth::pki::{HostName, LocalPki, Process};
    use horchestra_auth::sealing::RingFile;
    use horchestra_testkit::TempDir;

    use super::super::{Form, Verdict};
    use super::*;

    /// A folder with everything that a replica needs, and another authority's.
    struct Folder {
        _folder: TempDir,
        args: CheckArgs,
        strange: LocalPki,
    }

    fn folder() -> Folder {
        let folder = TempDir::new().unwrap();
        let hosts = [HostName::parse("fleet.example").unwrap()];
        let pki = LocalPki::ensure(&folder.path().join("pki"), &hosts).unwrap();
        let strange = LocalPki::ensure(&folder.path().join("strange"), &hosts).unwrap();
        let keys = folder.path().join("keys");
        RingFile::ensure(&keys).unwrap();
        let (serving, own) = (pki.serving(), pki.controller(Process::Api));
        let line = ["x", "--database-url=postgres://h/d"];
        let crate::cli::Command::Check(mut args) =
            crate::cli::Cli::from_args([line[0], "check", line[1]].map(str::to_owned)).unwrap().command
        else {
            panic!("not check")
        };
        args.tls_cert = Some(serving.certificate);
        args.tls_key = Some(serving.key);
        args.tls_ca = Some(pki.authority());
        args.peer_cert = Some(own.certificate);
        args.peer_key = Some(own.key);
        args.peer_ca = Some(pki.authority());
        args.host = vec!["fleet.example".to_owned()];
        args.secret_keys = Some(keys);
        assert_eq!(args.output, Form::Text);
        Folder { _folder: folder, args, strange }
    }

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn each_file_that_is_wrong_is_found_and_has_its_advice() {
        let now = SystemTime::now();
        let folder = folder();
        let findings = look(&folder.args, now);
        assert!(
            findings.len() >= 5 && findings.iter().all(|finding| finding.verdict == Verdict::Good),
            "{findings:?}"
        );
        type Spoil = fn(&Folder, &mut CheckArgs);
        let cases: &[(Spoil, SystemTime, &str, Verdict)] = &[
            (|_, args| args.tls_cert = Some("/nowhere".into()), now, "listener", Verdict::Bad),
            (|it, args| args.tls_key = Some(it.strange.serving().key), now, "listener", Verdict::Bad),
            (|_, args| args.host.push("other.example".into()), now, "listener", Verdict::Bad),
            (|it, args| args.peer_ca = Some(it.strange.authority()), now, "own certificate", Verdict::Bad),
            (|_, args| args.tls_ca = args.secret_keys.clone(), now, "authorities of clients", Verdict::Bad),
            (|_, args| args.secret_keys = args.tls_ca.clone(), now, "keys of Secrets", Verdict::Bad),
            (|_, _| {}, now + 360 * DAY, "listener", Verdict::Warning),
            (|_, _| {}, now + 370 * DAY, "listener", Verdict::Bad),
            (|_, _| {}, now - 2 * DAY, "listener", Verdict::Bad),
        ];
        for (at, (spoil, when, check, verdict)) in cases.iter().enumerate() {
            let mut args = folder.args.clone();
            spoil(&folder, &mut args);
            let findings = look(&args, *when);
            let wrong = findings.iter().find(|finding| finding.verdict != Verdict::Good);
            let wrong = wrong.unwrap_or_else(|| panic!("case {at}: {findings:?}"));
            assert_eq!((wrong.check.as_str(), wrong.verdict), (*check, *verdict), "case {at}: {findings:?}");
            assert!(!wrong.advice.is_empty());
        }
        // What only others may not read is not ours to read either.
        let keys = folder.args.secret_keys.as_ref().unwrap();
        fs::set_permissions(keys, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(look(&folder.args, now).iter().any(|finding| finding.verdict == Verdict::Bad));
    }
}

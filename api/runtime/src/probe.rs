//! `health`: asks the process beside it whether it is ready, for container engines and scripts.
//!
//! Images of ours hold the program and nothing else that could ask. The question is the one that a balancer would ask,
//! `GET /readyz` on the metrics listener, and a process that does not answer in time is not ready.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser};

use crate::args::MetricsArgs;

/// What binaries without other commands say of this one at the end of their help.
pub const ALSO: &str = "Beside a running process, `health` asks it whether it is ready: exit code 0, or 1 and why not. \
    `health --help` lists its options.";

/// The command line of `health`, for binaries without other commands.
#[derive(Debug, Parser)]
#[command(about = "Ask a running process on this machine whether it is ready")]
struct Alone<const PORT: u16> {
    #[command(flatten)]
    args: HealthArgs<PORT>,
}

/// Runs the command if the first word that the process was started with names it.
pub fn asked<const PORT: u16>(words: impl IntoIterator<Item = String>) -> Option<ExitCode> {
    let mut words = words.into_iter();
    let program = words.next()?;
    (words.next()? == "health").then(|| {
        let words = std::iter::once(format!("{program} health")).chain(words);
        run(&Alone::<PORT>::parse_from(words).args)
    })
}

#[derive(Clone, Debug, Args)]
pub struct HealthArgs<const PORT: u16> {
    #[command(flatten)]
    pub metrics: MetricsArgs<PORT>,

    /// How long to wait for the answer
    #[arg(long, default_value = "3s", value_parser = crate::args::duration, value_name = "DURATION")]
    pub timeout: Duration,
}

/// Asks, and says on standard error what is missing.
#[allow(clippy::print_stderr)] // What it prints is what it is for.
pub fn run<const PORT: u16>(args: &HealthArgs<PORT>) -> ExitCode {
    match ask(args.metrics.metrics_addr, args.timeout) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("not ready: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Longest answer that is read, in bytes.
const LONGEST: u64 = 64 << 10;

fn ask(listener: SocketAddr, timeout: Duration) -> Result<(), String> {
    let address = reachable(listener);
    let answer = (|| {
        let mut stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        // In one piece: pieces of a question can find that whoever answers early has gone.
        let question =
            format!("GET /readyz?verbose HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(question.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(LONGEST).read_to_end(&mut answer)?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    })()
    .map_err(|error| format!("{address} does not answer: {error}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => Ok(()),
        Some(code) => Err(format!("{address} answers {code}\n{}", body.trim_end())),
        None => Err(format!("{address} does not speak HTTP")),
    }
}

/// A listener on every address is asked on the loopback.
fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers one caller.
    fn server(answer: &'static str) -> (SocketAddr, std::thread::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut caller, _) = listener.accept().unwrap();
            // All of it: a connection that is closed with something unread is reset.
            let mut question = Vec::new();
            while !question.ends_with(b"\r\n\r\n") {
                let mut some = [0; 1024];
                let read = caller.read(&mut some).unwrap();
                assert!(read > 0, "the caller left");
                question.extend_from_slice(&some[..read]);
            }
            assert!(question.starts_with(b"GET /readyz?verbose HTTP/1.1\r\n"));
            caller.write_all(answer.as_bytes()).unwrap();
        });
        (address, serving)
    }

    #[test]
    fn only_an_answer_that_says_so_is_ready() {
        for (answer, complaint) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", None),
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n[-]database: away\n", Some("[-]database: away")),
            ("SSH-2.0-OpenSSH\r\n", Some("does not speak HTTP")),
            ("", Some("does not speak HTTP")),
        ] {
            let (address, serving) = server(answer);
            let outcome = ask(address, Duration::from_secs(5));
            serving.join().unwrap();
            match complaint {
                None => assert_eq!(outcome, Ok(())),
                Some(complaint) => assert!(outcome.unwrap_err().contains(complaint), "{answer:?}"),
            }
        }
    }

    #[test]
    fn nobody_there_and_nobody_who_answers() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(ask(free, Duration::from_secs(5)).unwrap_err().contains("does not answer"));
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let error = ask(silent.local_addr().unwrap(), Duration::from_millis(50)).unwrap_err();
        assert!(error.contains("does not answer"), "{error}");
    }

    #[test]
    fn a_listener_on_all_addresses_is_asked_on_the_loopback() {
        for (listener, asked) in [
            ("0.0.0.0:9443", "127.0.0.1:9443"),
            ("[::]:9443", "[::1]:9443"),
            ("127.0.0.2:9443", "127.0.0.2:9443"),
        ] {
            assert_eq!(reachable(listener.parse().unwrap()), asked.parse().unwrap());
        }
    }
}

//! The example `workers`, whose worker is killed while it pays, and an operator with the program
//! `idem`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use idem_testkit::RedisServer;

use crate::program::{built, example};

const OPERATION: &str = "workers.payment";
const KEY: &str = "o-1";
const RECEIPT: &str = "paid, receipt 7";

/// The example, which ends with this.
struct Example(Child);

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the program `idem` on the store, and returns what it prints.
fn operate(url: &str, args: &[&str], input: &str) -> String {
    let program = built().join("idem");
    assert!(
        program.is_file(),
        "{} is missing: build the program of idem-cli",
        program.display()
    );
    let mut child = Command::new(program)
        .args(args)
        .env("IDEM_STORE", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It may have ended without reading.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "idem {}: {}",
        args.join(" "),
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The lease of the example is 2 s.
fn until_it_is_listed_as_abandoned(url: &str) {
    for _ in 0..300 {
        if operate(url, &["list", "--state", "abandoned"], "").contains(OPERATION) {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("the payment is not listed as abandoned");
}

#[tokio::test]
#[ignore = "cargo xtask ci --full"]
async fn an_operator_settles_a_payment_that_was_cut_off_and_the_next_call_replays_that() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    let child = example("workers")
        .args(["--reject", "--redis", &url])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut example = Example(child);
    let mut says = BufReader::new(example.0.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("idem settle") {
        line.clear();
        assert!(
            says.read_line(&mut line).unwrap() > 0,
            "the example ended before its worker was killed"
        );
    }
    until_it_is_listed_as_abandoned(&url);
    operate(&url, &["show", OPERATION, KEY], "");
    let settle = [
        "settle",
        OPERATION,
        KEY,
        "--value",
        "-",
        "--yes",
        "--reason",
        "the bank has it",
    ];
    operate(&url, &settle, &format!("\"{RECEIPT}\""));
    let mut rest = String::new();
    says.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(RECEIPT), "{rest}");
    assert!(example.0.wait().unwrap().success(), "{rest}");
}

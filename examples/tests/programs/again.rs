//! The examples with records in a database. Those that keep them in a file are run twice: the
//! second run executes nothing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};

use crate::program::{example, said_by};

/// A file of records, removed with what SQLite has left beside it. (A crate for this would be built
/// with every example.)
struct Records(PathBuf);

impl Records {
    fn new(name: &str) -> Self {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn url(&self) -> String {
        format!("sqlite://{}/records.db", self.0.display())
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn quickstart_with_a_file_executes_nothing_at_the_second_run() {
    let records = Records::new("quickstart");
    let run = || {
        let said = said_by("quickstart", &["--store", &records.url()]);
        let number = |label: &str| {
            let line = said
                .lines()
                .find_map(|line| line.trim().strip_prefix(label))
                .expect(label);
            line.trim().parse::<u64>().expect(label)
        };
        (
            number("unique events"),
            number("executed"),
            number("replayed"),
            number("refused"),
        )
    };
    let (unique, executed, replayed, refused) = run();
    assert!(
        unique > 0 && replayed + refused > 0 && executed == unique,
        "{unique} {executed} {replayed} {refused}"
    );
    // How many come while another call of their key runs differs from run to run.
    let (again, executed_again, replayed_again, refused_again) = run();
    assert_eq!((again, executed_again), (unique, 0));
    assert_eq!(
        replayed_again + refused_again,
        executed + replayed + refused
    );
}

/// A hundred orders, with all kinds of accidents.
fn ledger_on(url: &str) {
    let said = said_by("ledger", &["--store", url, "--orders", "100"]);
    assert!(
        said.contains("✓ Each order happened once or was declined"),
        "{said}"
    );
}

#[test]
fn ledger_with_a_file_makes_each_transfer_once_in_each_of_two_runs() {
    let records = Records::new("ledger");
    ledger_on(&records.url());
    ledger_on(&records.url());
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn ledger_on_postgres_makes_each_transfer_once() {
    let server = idem_testkit::PostgresServer::start().await.unwrap();
    let url = server.url();
    tokio::task::spawn_blocking(move || ledger_on(&url))
        .await
        .unwrap();
}

#[test]
fn ledger_without_a_url_says_what_one_looks_like() {
    let ended = example("ledger")
        .args(["--store", "postgres"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(
        !ended.status.success() && said.contains("postgres://user:password@host/db"),
        "{said}"
    );
}

#[test]
fn handwritten_shows_two_versions_that_do_the_same() {
    let said = said_by("handwritten", &[]);
    assert!(
        said.contains("4 orders in SQLite") && !said.contains('✗'),
        "{said}"
    );
}

/// The shop. Killed when it is dropped.
struct Shop {
    process: Child,
    _said: BufReader<ChildStdout>,
    address: String,
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Shop {
    fn open(records: &Records) -> Self {
        let mut command = example("form");
        command.args(["--port", "0", "--takes", "0", "--store", &records.url()]);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .expect("it says where it listens")
            .to_owned();
        Self {
            process,
            _said: said,
            address,
        }
    }

    /// The whole answer to a request.
    fn ask(&self, head: &str, cookie: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(
            stream,
            "{head} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncookie: {cookie}\r\n\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = text
        .split_once(start)
        .unwrap_or_else(|| panic!("no `{start}` in {text}"));
    rest.split(end).next().unwrap()
}

fn status(answer: &str) -> &str {
    answer.split_whitespace().nth(1).unwrap_or_default()
}

#[test]
fn a_form_that_is_sent_again_to_a_shop_that_was_started_again_orders_nothing() {
    let records = Records::new("form");
    let shop = Shop::open(&records);
    let page = shop.ask("GET /", "", "");
    let cookie = format!("session={}", between(&page, "session=", ";"));
    let token = between(&page, "name=\"token\" value=\"", "\"");
    let tea = between(&page, "name=\"tea\" value=\"", "\"");
    let form = format!("token={token}&tea={tea}&tins=1&name=Ada");
    let placed = shop.ask("POST /orders", &cookie, &form);
    assert_eq!(status(&placed), "303", "{placed}");
    let order = between(&placed, "location: ", "\r\n").to_owned();
    assert_eq!(
        status(&shop.ask(&format!("GET {order}"), &cookie, "")),
        "200"
    );
    drop(shop);

    let shop = Shop::open(&records);
    let again = shop.ask("POST /orders", &cookie, &form);
    assert_eq!(
        (status(&again), between(&again, "location: ", "\r\n")),
        ("303", &*order),
        "{again}"
    );
    // Orders are in memory: had this one been placed again, it would be in this shop's book.
    assert_eq!(
        status(&shop.ask(&format!("GET {order}"), &cookie, "")),
        "404"
    );
}

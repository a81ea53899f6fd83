//! A Redis that is killed in the middle of a listing or of a purge, and comes back with its data:
//! nothing is left out without an error.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use idem_testkit::RedisServer;
use serde_json::{Value, json};

use crate::many::{fill, redis};
use crate::support::{command, idem};

const MANY: usize = 20_000;
/// So often a restart may end the program with an error.
const ROUNDS: usize = 10;

/// A server that keeps what it has acknowledged, with many records.
async fn filled() -> RedisServer {
    let server = RedisServer::builder().arg("--appendonly").arg("yes");
    let server = server.start().await.unwrap();
    fill(&redis(&server.url()).await, MANY).await;
    server
}

fn signal(child: &Child, signal: &str) {
    let pid = child.id().to_string();
    let sent = Command::new("kill").args([signal, &pid]).status();
    assert!(sent.unwrap().success(), "{signal}");
}

#[tokio::test]
async fn a_listing_that_goes_on_at_its_cursor_after_a_restart_of_redis_has_all_records() {
    let server = filled().await;
    let url = server.url();
    let mut found = HashSet::new();
    let mut cursor = None::<String>;
    for page in 1.. {
        let mut args = vec!["list", "--json", "--limit", "3000"];
        args.extend(
            cursor
                .iter()
                .flat_map(|cursor| ["--cursor", cursor.as_str()]),
        );
        let listed = idem(&url, &args).with(0).json();
        let records = listed["records"].as_array().unwrap().iter();
        found.extend(records.map(|record| record["key"].as_str().unwrap().to_owned()));
        if page == 3 {
            server.restart().await.unwrap();
        }
        match listed["cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(found.len(), MANY);
}

#[tokio::test]
async fn a_listing_whose_redis_restarts_has_all_records_or_ends_with_an_error() {
    let server = filled().await;
    let mut list = command(&server.url(), &["list", "--limit", "1000000", "--json"]);
    let list = list.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut list = list.spawn().unwrap();
    let mut out = BufReader::new(list.stdout.take().unwrap());
    let mut text = vec![0; 1000];
    // It stands still with the first half of the records, because no more fit into the pipe.
    out.read_exact(&mut text).unwrap();
    server.restart().await.unwrap();
    out.read_to_end(&mut text).unwrap();
    let ended = list.wait_with_output().unwrap();
    let listed = serde_json::from_slice::<Value>(&text);
    if ended.status.success() {
        let records = listed.unwrap()["records"].as_array().unwrap().clone();
        let keys: HashSet<_> = records.iter().map(|record| &record["key"]).collect();
        assert_eq!(keys.len(), MANY);
    } else {
        // Nobody takes what was printed for the whole.
        assert!(!ended.stderr.is_empty() && listed.is_err(), "{ended:?}");
    }
}

#[tokio::test]
async fn a_purge_over_a_restart_of_redis_removes_all_records_or_ends_with_an_error() {
    let server = filled().await;
    let url = server.url();
    for _ in 0..ROUNDS {
        fill(&redis(&url).await, MANY).await;
        let purge = ["purge", "--operation", "forms.order", "--yes"];
        let mut purge = command(&url, &purge);
        let mut purge = purge
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut err = BufReader::new(purge.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("5000 removed") {
            line.clear();
            assert_ne!(err.read_line(&mut line).unwrap(), 0, "it has ended");
        }
        signal(&purge, "-STOP");
        server.restart().await.unwrap();
        signal(&purge, "-CONT");
        err.read_to_string(&mut line).unwrap();
        if !purge.wait().unwrap().success() {
            assert!(line.contains("before the store failed"), "{line}");
            continue;
        }
        let left = idem(&url, &["list", "--json"]).with(0).json();
        assert_eq!(left["records"], json!([]), "{line}");
        return;
    }
    panic!("no purge went on after a restart");
}

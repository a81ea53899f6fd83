//! The temporary directory after the end of a process that had servers.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use idem_testkit::{MariaDbServer, PostgresServer, RedisServer};

use crate::until::until;

/// Not a test of its own: the process that the others start, with a directory of its own. It ends
/// by itself when its input does.
#[tokio::test]
#[ignore = "started by another test"]
async fn a_process_with_servers() {
    let (redis, postgres, mariadb) = tokio::join!(
        RedisServer::start(),
        PostgresServer::start(),
        MariaDbServer::start()
    );
    let _started = (redis.unwrap(), postgres.unwrap(), mariadb.unwrap());
    // Nothing drops these.
    let (redis, postgres, mariadb) = tokio::join!(
        RedisServer::shared(),
        PostgresServer::shared(),
        MariaDbServer::shared()
    );
    let _shared = (redis.unwrap(), postgres.unwrap(), mariadb.unwrap());
    // On a line of its own, after what the harness writes.
    println!("\nstarted");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}

/// The process, and what it still says: without a reader, it could not end well.
fn process_with_servers(temporary: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "leftovers::a_process_with_servers",
            "--ignored",
            "--nocapture",
        ])
        .env("TMPDIR", temporary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(process.stdout.take().unwrap());
    let started = said
        .by_ref()
        .lines()
        .map_while(Result::ok)
        .any(|line| line == "started");
    assert!(started, "the process started no servers");
    (process, said)
}

fn entries(dir: &Path) -> Vec<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect()
}

/// Ends a process that has servers, and expects nothing in its temporary directory.
async fn nothing_is_left_after(end: impl FnOnce(&mut Child)) {
    let temporary = tempfile::tempdir().unwrap();
    // As `/tmp` is: servers of databases do not run as root.
    fs::set_permissions(temporary.path(), Permissions::from_mode(0o1777)).unwrap();
    let (mut process, _said) = process_with_servers(temporary.path());
    let meanwhile = entries(temporary.path());
    assert_eq!(
        meanwhile.len(),
        6,
        "a folder for each server: {meanwhile:?}"
    );
    end(&mut process);
    process.wait().unwrap();
    until("the temporary directory is empty", || {
        entries(temporary.path()).is_empty()
    })
    .await;
}

#[tokio::test]
async fn a_process_that_ends_leaves_nothing_in_the_temporary_directory() {
    nothing_is_left_after(|process| drop(process.stdin.take())).await;
}

#[tokio::test]
async fn a_process_that_is_killed_leaves_nothing_in_the_temporary_directory() {
    nothing_is_left_after(|process| process.kill().unwrap()).await;
}

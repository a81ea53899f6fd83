//! Each exit code, and what stands on the error output.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use idem_core::{Begin, Idempotency};
use idem_testkit::{HeldPort, RedisServer, Reply};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use crate::support::{
    Ended, OPERATION, Started, charge, command, folder, idem, idem_answering, killed_worker,
    runtime,
};

const URL: &str = "redis://user:hunter2@host:6379/0";

async fn sqlite() -> (tempfile::TempDir, String, Idempotency) {
    let dir = folder();
    let url = format!("sqlite://{}/idem.db", dir.path().display());
    let idempotency = runtime(&url).await;
    (dir, url, idempotency)
}

#[tokio::test]
async fn wrong_arguments_end_with_2_and_say_what_is_right() {
    let (_dir, url, _) = sqlite().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "no json").unwrap();
    let path = file.path().to_str().unwrap();
    for (store, args, says) in [
        ("", &["list"][..], "IDEM_STORE"),
        ("", &["list", "--store", ""], "IDEM_STORE"),
        ("ftp://host/", &["list"], "redis://"),
        (&url, &["list", "--state", "lost"], "in_flight"),
        (&url, &["list", "--digest", "12"], "16 hexadecimal"),
        (&url, &["list", "--older-than", "soon"], "--older-than"),
        (&url, &["list", "--limit", "0"], "--limit"),
        (&url, &["list", "--cursor", "nonsense"], "cursor"),
        (&url, &["list", "--operation", "a b"], "operation"),
        (&url, &["list", "--prefix", "idem"], "--table"),
        (&url, &["show", OPERATION], "KEY"),
        (&url, &["show"], "--digest"),
        (&url, &["show", OPERATION, ""], "idem list"),
        (&url, &["settle", OPERATION, "k"], "--value"),
        (
            &url,
            &["settle", OPERATION, "k", "--value", path, "--yes"],
            "JSON",
        ),
        (
            &url,
            &["settle", OPERATION, "k", "--value", "/nowhere", "--yes"],
            "/nowhere",
        ),
        (&url, &["settle", OPERATION, "k", "--value", "-"], "--yes"),
        (&url, &["purge"], "--operation"),
        (
            &url,
            &[
                "purge",
                "--operation",
                "a",
                "--state",
                "done",
                "--older-than",
                "1h",
            ],
            "--older-than",
        ),
        (
            "postgres://user:hunter2@[host",
            &["list"],
            "percent-encoded",
        ),
        ("rediss://user:hunter2@[host/", &["list"], "percent-encoded"),
        ("redis://user:hunter2@host:port/", &["list"], "port"),
        (
            "redis+sentinel://user:hunter2@host",
            &["doctor"],
            "Sentinels",
        ),
        ("redis+cluster://user:hunter2@", &["list"], "host"),
        (&url, &["list", "--table", "a b"], "schema.name"),
        (&url, &["list", "--table", "a.b.c"], "--table"),
        (&url, &["doctor", "--table", ""], "--table"),
        (
            "redis://127.0.0.1:1/",
            &["list", "--prefix", "a{b"],
            "--prefix",
        ),
        (
            "redis://127.0.0.1:1/",
            &["doctor", "--prefix", ""],
            "--prefix",
        ),
    ] {
        let ended = idem(store, args).with(2);
        assert!(
            ended.err.contains(says) && !ended.err.contains("hunter2"),
            "{args:?}: {ended:?}"
        );
    }
}

#[tokio::test]
async fn a_url_in_the_wrong_place_is_shown_without_its_password() {
    let (_dir, url, _) = sqlite().await;
    let with_option = format!("--limit={URL}");
    for (store, args, is_lost) in [
        ("", &["list", URL][..], true),
        ("", &[URL], true),
        ("", &[URL, "list"], true),
        ("", &["list", "redis://app", URL], true),
        (&url, &["list", URL], true),
        (&url, &["list", "postgres://host/db?password=hunter2"], true),
        (&url, &["list", "redis://user:a 'hunter2=@host/"], true),
        (&url, &["list", &with_option], false),
        (&url, &["list", "--state", URL], false),
        (&url, &["list", "--prefix", "a b", "--table", URL], false),
        (&url, &["list", "--store", URL, "--lmit", "3"], false),
    ] {
        let ended = idem(store, args).with(2);
        assert!(
            !ended.err.contains("hunter2") && !ended.out.contains("hunter2"),
            "{args:?}: {ended:?}"
        );
        assert_eq!(
            ended.err.contains("`--store URL`"),
            is_lost,
            "{args:?}: {ended:?}"
        );
    }
}

#[track_caller]
fn says_no_record(ended: &Ended) {
    let said = format!("{}{}", ended.out, ended.err);
    assert!(said.contains("no record"), "{ended:?}");
}

#[tokio::test]
async fn no_such_record_ends_with_3() {
    let (_dir, url, _) = sqlite().await;
    for args in [
        &["show", OPERATION, "nobody"][..],
        &["show", "--digest", "0123456789abcdef"],
        &["forget", OPERATION, "nobody", "--yes"],
        &["release", OPERATION, "nobody", "--yes"],
    ] {
        says_no_record(&idem(&url, args).with(3));
    }
    let settle = &["settle", OPERATION, "nobody", "--value", "-", "--yes"];
    says_no_record(&idem_answering(&url, settle, "1").with(3));
}

#[tokio::test]
async fn a_record_that_is_alive_is_refused_with_4_unless_it_is_forced() {
    let (_dir, url, idempotency) = sqlite().await;
    let Begin::Execute(lease) = idempotency
        .operation(OPERATION)
        .key("k")
        .begin()
        .await
        .unwrap()
    else {
        panic!()
    };
    for args in [
        &["forget", OPERATION, "k", "--yes"][..],
        &["release", OPERATION, "k", "--yes"],
        &[
            "purge",
            "--operation",
            OPERATION,
            "--state",
            "in_flight",
            "--yes",
        ],
    ] {
        let refused = idem(&url, args).with(4);
        assert!(
            refused.err.contains("alive") && refused.err.contains("--force"),
            "{refused:?}"
        );
    }
    idem_answering(
        &url,
        &["settle", OPERATION, "k", "--value", "-", "--yes"],
        "1",
    )
    .with(4);
    // Without a state, what is alive is left.
    let purged = idem(
        &url,
        &["purge", "--operation", OPERATION, "--yes", "--json"],
    )
    .with(0)
    .json();
    assert_eq!(
        (&purged["removed"], &purged["kept"]),
        (&json!(0), &json!(1))
    );
    idem_answering(
        &url,
        &["settle", OPERATION, "k", "--value", "-", "--yes", "--force"],
        "\"forced\"",
    )
    .with(0);
    assert!(lease.commit(&1).await.is_err());
    let outcome = idempotency
        .operation(OPERATION)
        .key("k")
        .run(async || Ok::<_, idem_core::Error>(String::new()));
    assert_eq!(outcome.await.unwrap().into_inner(), "forced");
}

#[tokio::test]
async fn what_is_not_abandoned_and_not_confirmed_is_refused_with_4() {
    let (_dir, url, idempotency) = sqlite().await;
    charge(&idempotency, "done").await.unwrap();
    let refused = idem(&url, &["release", OPERATION, "done", "--yes"]).with(4);
    assert!(refused.err.contains("committed"), "{refused:?}");
    killed_worker(&url, "k").await;
    for answer in ["", "n\n", "no\n"] {
        let asked = idem_answering(&url, &["forget", OPERATION, "k"], answer).with(4);
        assert!(
            asked.err.contains("abandoned, attempt 1") && asked.err.contains("[y/N]"),
            "{asked:?}"
        );
    }
    idem_answering(&url, &["purge", "--operation", OPERATION], "n\n").with(4);
    idem(&url, &["show", OPERATION, "k"]).with(0);
    idem_answering(&url, &["forget", OPERATION, "k"], "y\n").with(0);
    idem(&url, &["show", OPERATION, "k"]).with(3);
}

#[tokio::test]
async fn a_store_that_is_away_ends_with_5_and_shows_no_password() {
    let nobody = HeldPort::hold().unwrap();
    let port = nobody.port();
    for store in [
        format!("redis://user:hunter2@127.0.0.1:{port}/"),
        format!("redis+cluster://user:hunter2@127.0.0.1:{port}"),
        format!("postgres://user:hunter2@127.0.0.1:{port}/db"),
        format!("mysql://user:hunter2@127.0.0.1:{port}/db"),
        "sqlite:///nowhere/idem.db".to_owned(),
    ] {
        for command in ["list", "doctor"] {
            let ended = idem(&store, &[command]).with(5);
            assert!(!ended.err.contains("hunter2"), "{ended:?}");
            assert!(
                ["check the", "see that"]
                    .iter()
                    .any(|what| ended.err.contains(what)),
                "{ended:?}"
            );
            assert!(ended.out.is_empty(), "{ended:?}");
        }
    }
}

#[tokio::test]
async fn a_database_without_the_table_ends_with_5_and_nothing_is_created() {
    let dir = folder();
    let file = dir.path().join("other.db");
    std::fs::write(&file, "").unwrap();
    let url = format!("sqlite://{}", file.display());
    let ended = idem(&url, &["list"]).with(5);
    assert!(ended.err.contains("migrate"), "{ended:?}");
    idem(
        &format!("sqlite://{}/none.db", dir.path().display()),
        &["list"],
    )
    .with(5);
    assert!(!dir.path().join("none.db").exists());
}

#[tokio::test]
async fn help_completions_and_the_manual_end_with_0() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["settle", "--help"],
        &["completions", "bash"],
        &["man"],
    ] {
        let ended = idem("", args).with(0);
        assert!(ended.out.contains("idem"), "{ended:?}");
    }
    assert!(
        idem("", &["completions", "zsh"])
            .with(0)
            .out
            .contains("--older-than")
    );
    assert!(idem("", &["man"]).with(0).out.contains("doctor"));
}

#[tokio::test]
async fn a_closed_pipe_ends_no_change_halfway_and_is_no_failure() {
    let (_dir, url, _) = sqlite().await;
    killed_worker(&url, "k").await;
    let settle = ["settle", OPERATION, "k", "--value", "-", "--yes"];
    let commands = [
        &["list"][..],
        &["list", "--json"],
        &["show", OPERATION, "k"],
        &["stats"],
        &["watch", "--interval", "10ms"],
        &["doctor"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
        &settle,
        &["purge", "--operation", "nothing", "--yes"],
    ];
    for args in commands {
        // Both outputs are closed, as `2>&1 | true` leaves them.
        let pipe = || std::io::pipe().unwrap().1;
        let mut child = tokio::process::Command::from(command(&url, args))
            .stdin(Stdio::piped())
            .stdout(pipe())
            .stderr(pipe())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"\"paid\"").await.ok();
        drop(input);
        let ended = tokio::time::timeout(Duration::from_secs(60), child.wait())
            .await
            .expect("it ends")
            .unwrap();
        // A closed pipe ends `doctor` too before it can count.
        assert_eq!(ended.code(), Some(0), "{args:?}");
    }
    let settled = idem(&url, &["show", OPERATION, "k", "--json"])
        .with(0)
        .json();
    assert_eq!(
        (&settled["state"], &settled["outcome"]),
        (&json!("committed"), &json!("paid"))
    );
}

#[tokio::test]
async fn what_cannot_be_read_is_named_and_left_as_it_is() {
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    let record = "idem:payments.charge:o-1";
    server
        .cli(&["SET", record, "text of another program"])
        .await
        .unwrap();
    for args in [
        &["show", OPERATION, "o-1"][..],
        &["forget", OPERATION, "o-1", "--yes", "--force"],
        &["release", OPERATION, "o-1", "--yes"],
    ] {
        let refused = idem(&url, args).with(5);
        assert!(
            refused.err.contains("not written by idem") && refused.err.contains("own client"),
            "{refused:?}"
        );
    }
    let listed = idem(&url, &["list"]).with(0);
    assert!(
        listed.err.contains("`o-1` of `payments.charge`") && !listed.err.contains("--prefix"),
        "{listed:?}"
    );
    let Reply::Value(found) = server.cli(&["GET", record]).await.unwrap() else {
        panic!()
    };
    assert_eq!(found, b"text of another program");
}

#[tokio::test]
async fn the_person_behind_sudo_is_who_changed_a_record() {
    let (_dir, url, idempotency) = sqlite().await;
    charge(&idempotency, "k").await.unwrap();
    let mut forget = command(&url, &["forget", OPERATION, "k", "--yes", "--json"]);
    let forgotten = forget
        .env("USER", "root")
        .env("SUDO_USER", "joe")
        .output()
        .unwrap();
    let forgotten: serde_json::Value = serde_json::from_slice(&forgotten.stdout).unwrap();
    assert!(
        forgotten["who"].as_str().unwrap().starts_with("joe@"),
        "{forgotten}"
    );
}

#[tokio::test]
async fn a_process_without_a_name_of_its_user_says_which_user_it_is() {
    let (_dir, url, idempotency) = sqlite().await;
    charge(&idempotency, "k").await.unwrap();
    let mut forget = command(&url, &["forget", OPERATION, "k", "--yes", "--json"]);
    for name in ["USER", "LOGNAME", "USERNAME"] {
        forget.env_remove(name);
    }
    let forgotten: serde_json::Value =
        serde_json::from_slice(&forget.output().unwrap().stdout).unwrap();
    let who = forgotten["who"].as_str().unwrap();
    assert!(
        !who.starts_with("unknown@") && who.find('@') > Some(0),
        "{who}"
    );
}

#[tokio::test]
async fn a_question_shows_the_outcome_that_every_duplicate_would_get() {
    let (_dir, url, _) = sqlite().await;
    killed_worker(&url, "k").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(
        file.path(),
        format!("{{\"receipt\": \"{}\"}}", "7".repeat(1000)),
    )
    .unwrap();
    let settle = [
        "settle",
        OPERATION,
        "k",
        "--error",
        "--value",
        file.path().to_str().unwrap(),
    ];
    let asked = idem_answering(&url, &settle, "n\n").with(4);
    assert!(
        asked.err.contains("the error {\"receipt\": \"777") && asked.err.contains("7 ..."),
        "{asked:?}"
    );
    assert!(asked.err.len() < 1000, "{asked:?}");
}

#[tokio::test]
async fn an_empty_listing_says_where_to_look() {
    let (_dir, url, _) = sqlite().await;
    let nothing = idem(&url, &["list", "--state", "abandoned"]).with(0);
    assert!(
        nothing.out.starts_with("OPERATION") && nothing.err.contains("--table"),
        "{nothing:?}"
    );
    let json = idem(&url, &["list", "--json"]).with(0);
    assert!(json.err.is_empty(), "{json:?}");
}

#[tokio::test]
async fn a_mistyped_table_or_prefix_is_named() {
    let (_dir, url, idempotency) = sqlite().await;
    charge(&idempotency, "k").await.unwrap();
    for command in [&["list"][..], &["show", OPERATION, "k"], &["doctor"]] {
        let wrong = idem(&url, &[command, &["--table", "idem_record"]].concat());
        let text = wrong.out.clone() + &wrong.err;
        assert!(
            wrong.code > 0 && text.contains("no table `idem_record`"),
            "{wrong:?}"
        );
        assert!(
            text.contains("`idem_records`") && text.contains("`--table`"),
            "{wrong:?}"
        );
    }
    let server = RedisServer::start().await.unwrap();
    let url = server.url();
    charge(&runtime(&url).await, "k").await.unwrap();
    for command in [
        &["show", OPERATION, "k"][..],
        &["forget", OPERATION, "k", "--yes"],
    ] {
        let wrong = idem(&url, &[command, &["--prefix", "shop"]].concat()).with(3);
        assert!(
            wrong
                .err
                .contains("with the prefix `shop`; check `--prefix`"),
            "{wrong:?}"
        );
    }
    let other = idem(&url, &["show", OPERATION, "other"]).with(3);
    assert!(!other.err.contains("--prefix"), "{other:?}");
}

#[tokio::test]
async fn watch_without_a_pause_is_a_wrong_argument() {
    let (_dir, url, _) = sqlite().await;
    for interval in ["0s", "9ms"] {
        let wrong = idem(&url, &["watch", "--interval", interval]).with(2);
        assert!(wrong.err.contains("at least 10 ms"), "{wrong:?}");
    }
}

#[tokio::test]
async fn watch_counts_again_until_it_is_interrupted() {
    let (_dir, url, idempotency) = sqlite().await;
    let child = Command::new(env!("CARGO_BIN_EXE_idem"))
        .args(["watch", "--json", "--interval", "50ms"])
        .env("IDEM_STORE", &url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Started(child);
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "[]");
    charge(&idempotency, "k").await.unwrap();
    let counted =
        lines.map(|line| serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap());
    let counted = counted
        .take(1000)
        .find(|counted| counted[0]["committed"] == json!(1));
    assert!(counted.is_some());
}

#[tokio::test]
async fn stats_say_how_old_the_oldest_are() {
    let (_dir, url, idempotency) = sqlite().await;
    killed_worker(&url, "k").await;
    let begun = idempotency
        .operation("orders.create")
        .key(&1)
        .begin()
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let stats = idem(&url, &["stats", "--json"]).with(0).json();
    let [orders, payments] = stats.as_array().unwrap().as_slice() else {
        panic!("{stats}")
    };
    assert_eq!(
        (&orders["operation"], &orders["in_flight"]),
        (&json!("orders.create"), &json!(1))
    );
    assert!(
        orders["oldest_in_flight_ms"].as_u64().unwrap() >= 5
            && orders["oldest_abandoned_ms"].is_null()
    );
    assert_eq!(
        (&payments["abandoned"], &payments["committed"]),
        (&json!(1), &json!(0))
    );
    assert!(payments["oldest_abandoned_ms"].as_u64().unwrap() >= 700);
    assert!(
        idem(&url, &["stats"])
            .with(0)
            .out
            .contains("OLDEST ABANDONED")
    );
    drop(begun);
}

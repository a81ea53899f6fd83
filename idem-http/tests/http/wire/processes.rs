//! Two processes with one Redis.

use std::process::Stdio;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use axum::response::IntoResponse as _;
use axum::routing::get;
use idem_core::Idempotency;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::serve;
use crate::support::{Site, layer, patient_store};

/// How long the test waits for what must come. It is long, for machines under load.
const PATIENCE: Duration = Duration::from_secs(60);

/// Names the server to the processes.
const URL: &str = "WIRE_REDIS_URL";

#[tokio::test]
#[ignore = "this is a process of the test below, which starts it"]
async fn service() {
    let store = patient_store(std::env::var(URL).unwrap()).await;
    let site = Site::over(Idempotency::new(store));
    let runs = site.runs.clone();
    site.close();
    let app = site.router_of(
        layer(&site.idempotency).wait(Duration::from_secs(60)),
        |n| format!("run {n} of process {}", std::process::id()).into_response(),
    );
    let app = app.route(
        "/runs",
        get(move || async move { runs.load(SeqCst).to_string() }),
    );
    println!("\naddress {}", serve(app).await);
    // Until the test has sent all that it has.
    let mut line = String::new();
    let mut input = BufReader::new(tokio::io::stdin());
    input.read_line(&mut line).await.unwrap();
    site.open();
    input.read_line(&mut line).await.unwrap();
}

async fn start(url: &str) -> (Child, String) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "wire::processes::service",
            "--ignored",
            "--nocapture",
        ])
        .env(URL, url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    loop {
        let line = tokio::time::timeout(PATIENCE, lines.next_line())
            .await
            .expect("the process says its address");
        let line = line.unwrap().expect("the process has ended");
        if let Some(address) = line.strip_prefix("address ") {
            let address = address.to_owned();
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            return (child, address);
        }
    }
}

#[tokio::test]
async fn a_hundred_duplicates_at_once_over_two_processes_run_one_body() {
    use tokio::io::AsyncWriteExt as _;
    let redis = idem_testkit::RedisServer::start().await.unwrap();
    let mut processes = [start(&redis.url()).await, start(&redis.url()).await];
    let client = super::reqwest_builder().no_proxy().build().unwrap();
    let calls: Vec<_> = (0..100)
        .map(|n| {
            let request = client
                .post(format!("http://{}/charges", processes[n % 2].1))
                .body("10");
            tokio::spawn(
                request
                    .header("x-user", "alice")
                    .header("idempotency-key", "k")
                    .send(),
            )
        })
        .collect();
    let runs = async |address: &str| {
        let asked = client
            .get(format!("http://{address}/runs"))
            .send()
            .await
            .unwrap();
        asked.text().await.unwrap().parse::<usize>().unwrap()
    };
    // One body has begun, in one of them, and waits there.
    let begun = async {
        while runs(&processes[0].1).await + runs(&processes[1].1).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, begun)
        .await
        .expect("a body begins in one of the processes");
    for (process, _) in &mut processes {
        process
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"open\n")
            .await
            .unwrap();
    }
    let mut answers = std::collections::BTreeSet::new();
    for call in calls {
        answers.insert(call.await.unwrap().unwrap().text().await.unwrap());
    }
    assert!(
        answers.len() == 1 && answers.first().unwrap().starts_with("run 1 of "),
        "{answers:?}"
    );
    assert_eq!(runs(&processes[0].1).await + runs(&processes[1].1).await, 1);
}

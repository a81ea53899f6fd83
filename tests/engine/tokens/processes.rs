//! One token, two processes.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use idem::{Duplicate, Error, Idempotency};
use idem_testkit::RedisServer;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::{Res, TTL};
use crate::support::{Bodies, LONG, patient_store};

const EACH: u32 = 50;

/// The answers of fifty submissions at once, and how many bodies ran here.
async fn submissions(
    process: &Idempotency,
    token: &str,
    duplicate: Duplicate,
) -> (Vec<String>, u32) {
    let bodies = Arc::new(Bodies::default());
    let calls: Vec<_> = (0..EACH)
        .map(|_| {
            let call = process
                .operation("t.processes")
                .token(token, "ada")
                .wait(LONG)
                .duplicate(duplicate);
            let bodies = bodies.clone();
            tokio::spawn(async move {
                let body = async || {
                    // Long enough for others to come while it runs; the test does not depend on it.
                    bodies
                        .run(tokio::time::sleep(Duration::from_millis(50)))
                        .await;
                    Res::Ok(format!("order of process {}", std::process::id()))
                };
                match call.run(body).await {
                    Ok(outcome) => outcome.into_inner(),
                    Err(Error::Duplicate { .. }) => "duplicate".to_owned(),
                    Err(error) => error.to_string(),
                }
            })
        })
        .collect();
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.unwrap());
    }
    (answers, bodies.begun())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "this is the second process of the tests beside it, which start it"]
async fn second() {
    let variable = |name: &str| std::env::var(format!("TOKENS_{name}")).unwrap();
    let process = Idempotency::new(patient_store(&variable("URL")).await);
    let duplicate = if variable("DUPLICATE") == "Reject" {
        Duplicate::Reject
    } else {
        Duplicate::Replay
    };
    println!("\nready");
    let mut go = String::new();
    BufReader::new(tokio::io::stdin())
        .read_line(&mut go)
        .await
        .unwrap();
    let (answers, bodies) = submissions(&process, &variable("TOKEN"), duplicate).await;
    for answer in answers {
        println!("answer {answer}");
    }
    println!("bodies {bodies}");
}

/// The answers and the number of bodies of a hundred submissions over this process and another.
async fn hundred(duplicate: Duplicate) -> (Vec<String>, u32) {
    let url = RedisServer::shared().await.unwrap().url();
    let process = Idempotency::new(patient_store(&url).await);
    let token = process
        .operation("t.processes")
        .issue("ada", TTL)
        .await
        .unwrap()
        .to_string();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "tokens::processes::second",
            "--ignored",
            "--nocapture",
        ])
        .env("TOKENS_URL", &url)
        .env("TOKENS_TOKEN", &token)
        .env("TOKENS_DUPLICATE", format!("{duplicate:?}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while lines
        .next_line()
        .await
        .unwrap()
        .expect("it says that it is ready")
        != "ready"
    {}
    drop(child.stdin.take());
    let (mut answers, mut bodies) = submissions(&process, &token, duplicate).await;
    while let Some(line) = lines.next_line().await.unwrap() {
        if let Some(answer) = line.strip_prefix("answer ") {
            answers.push(answer.to_owned());
        } else if let Some(count) = line.strip_prefix("bodies ") {
            bodies += count.parse::<u32>().unwrap();
        }
    }
    (answers, bodies)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p13_a_hundred_submissions_over_two_processes_run_one_body_and_get_one_answer() {
    let (answers, bodies) = hundred(Duplicate::Replay).await;
    assert_eq!((answers.len(), bodies), (100, 1));
    assert!(
        answers[0].starts_with("order of process")
            && answers.iter().all(|answer| *answer == answers[0]),
        "{answers:#?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p13_of_a_hundred_submissions_over_two_processes_all_but_one_are_rejected_as_duplicates() {
    let (answers, bodies) = hundred(Duplicate::Reject).await;
    assert_eq!((answers.len(), bodies), (100, 1));
    assert_eq!(
        answers
            .iter()
            .filter(|answer| *answer == "duplicate")
            .count(),
        99,
        "{answers:#?}"
    );
}

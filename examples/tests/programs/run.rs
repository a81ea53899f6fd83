//! Examples that check themselves: each must end well.

use idem_testkit::RedisServer;

use crate::program::said_by;

#[test]
fn quickstart_over_memory_charges_each_order_once() {
    let said = said_by("quickstart", &[]);
    // The README quotes what does not depend on the machine: all but the last line.
    let readme = include_str!("../../../README.md");
    let (_, quoted) = readme.split_once("```text\n").unwrap();
    let (quoted, _) = quoted.split_once("```").unwrap();
    let (said, _) = said.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(said.trim_end(), quoted.trim_end());
}

#[test]
fn payments_are_made_once() {
    said_by("payments", &[]);
}

#[tokio::test]
async fn quickstart_over_redis_charges_each_order_once() {
    let server = RedisServer::start().await.unwrap();
    let said = said_by("quickstart", &["--redis", &server.url()]);
    assert!(said.contains("records in redis"), "{said}");
}

#[tokio::test]
async fn workers_over_redis_do_each_job_once_although_one_is_killed() {
    let server = RedisServer::start().await.unwrap();
    let said = said_by("workers", &["--redis", &server.url()]);
    assert!(said.contains("✓ every job was done once"), "{said}");
}

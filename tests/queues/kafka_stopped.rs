//! Members of a group that stand still for longer than its session, and go on.

use std::fs;

use crate::kafka_group::Group;
use crate::worker::first_of;

/// Stops one member after the other while bodies run on it, until the other one has its partitions,
/// and if the leases end by then, its messages.
async fn stopped(lease: &'static str, ends_leases: bool) {
    let mut group = Group::start(lease, 0).await;
    for victim in [0, 1] {
        let other = 1 - victim;
        let first = group.published;
        let both = |group: &Group| group.members.iter().all(|of| of.has_done_since(first));
        group.under_load("two members with messages", both).await;
        let waiting = group.waiting().await;
        group.members[victim].worker().stop().await;
        let (held, others): (Vec<u32>, Vec<u32>) = waiting
            .iter()
            .partition(|number| group.members[victim].begun.contains(number));
        assert!(!held.is_empty(), "the member that is stopped runs no body");
        for number in others {
            fs::write(group.gate(number), "").unwrap();
        }

        group.others_have_all(Some(victim)).await;
        if ends_leases {
            let all = |group: &Group| {
                let done = &group.members[other].done;
                held.iter().all(|number| done.contains(number))
            };
            group.under_load("the other member's bodies", all).await;
        }
        let first = group.published;
        group.members[victim].worker().go_on().await;
        if !ends_leases {
            for number in held {
                fs::write(group.gate(number), "").unwrap();
            }
        }
        let goes_on = |group: &Group| {
            let has_done = |number| group.members.iter().any(|of| of.done.contains(number));
            group.members[victim].has_done_since(first) && waiting.iter().all(has_done)
        };
        group.under_load("a member that goes on", goes_on).await;
    }

    group.end().await;
    let all = 0..group.published;
    let done = group.times(|of| &of.done);
    let not_once = all.clone().filter(|number| done.get(number) != Some(&1));
    assert_eq!(first_of(not_once), "", "lost, or handled by two bodies");
    if !ends_leases {
        let begun = group.times(|of| &of.begun);
        let not_once = all.filter(|number| begun.get(number) != Some(&1));
        assert_eq!(first_of(not_once), "", "begun again under its lease");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_kafka_a_member_stopped_for_longer_than_its_session_ends_its_bodies_when_it_goes_on() {
    // A message that the other member has found in flight comes again after the lease.
    stopped("90s", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_kafka_a_member_stopped_for_longer_than_its_leases_ends_none_of_its_bodies() {
    stopped("10s", true).await;
}

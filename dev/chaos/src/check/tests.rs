//! Histories made by hand: a good one, and for each promise some that break it.

mod steps;

use super::*;
use crate::history::{Answer, Event, How, Receipt};

const LEASE: Duration = Duration::from_millis(100);
const MS: u64 = 1_000_000;

/// A history, with times in ms.
#[derive(Default)]
struct Story(Vec<Line>);

impl Story {
    fn at(mut self, ms: u64, by: u64, event: Event) -> Self {
        self.0.push(Line {
            at: ms * MS,
            by,
            event,
        });
        self
    }

    fn call(self, ms: u64, by: u64, call: u64) -> Self {
        self.at(
            ms,
            by,
            Event::Call {
                call,
                key: "k".into(),
                mode: "run".into(),
                wait: 5_000,
            },
        )
    }

    /// The body has the number of its call.
    fn poll(self, ms: u64, by: u64, call: u64, attempt: u64) -> Self {
        let first = !self
            .0
            .iter()
            .any(|line| matches!(line.event, Event::Poll { body, .. } if body == call));
        self.at(
            ms,
            by,
            Event::Poll {
                body: call,
                call,
                key: "k".into(),
                attempt,
                from: ms * MS,
                first,
            },
        )
    }

    /// A closure of the step `charge`.
    fn closure(self, ms: u64, by: u64, call: u64, closure: u64) -> Self {
        let first = !self
            .0
            .iter()
            .any(|line| matches!(line.event, Event::Poll { body, .. } if body == closure));
        self.at(
            ms,
            by,
            Event::Poll {
                body: closure,
                call,
                key: "k/charge".into(),
                attempt: call,
                from: ms * MS,
                first,
            },
        )
    }

    fn recorded(self, ms: u64, by: u64, call: u64, closure: u64) -> Self {
        self.at(
            ms,
            by,
            Event::Recorded {
                step: "k/charge".into(),
                receipt: Receipt {
                    call,
                    body: closure,
                },
            },
        )
    }

    /// Call `to`, whose step has the closure `closure`, is given the value of another.
    fn given(self, ms: u64, by: u64, (to, closure): (u64, u64), (call, body): (u64, u64)) -> Self {
        self.at(
            ms,
            by,
            Event::Given {
                step: "k/charge".into(),
                call: to,
                closure,
                receipt: Receipt { call, body },
            },
        )
    }

    /// Call 1 runs a step, whose closure has the number 11, and fails. What is recorded is not
    /// known.
    fn step() -> Self {
        Self::default()
            .call(1, 1, 1)
            .poll(2, 1, 1, 1)
            .closure(3, 1, 1, 11)
            .end(4, 1, 11, How::Value)
            .given(5, 1, (1, 11), (1, 11))
            .end(6, 1, 1, How::Failed)
    }

    /// The same with a key whose outcomes expire.
    fn short_lived(self) -> Self {
        let renamed = |line| {
            let line = serde_json::to_string(&line)?;
            let line = line.replace("\"k\"", "\"s\"").replace("\"k/", "\"s/");
            serde_json::from_str(&line)
        };
        let lines: serde_json::Result<Vec<Line>> = self.0.into_iter().map(renamed).collect();
        Self(lines.unwrap())
    }

    fn claimed(self, ms: u64, by: u64, owner: u64, attempt: u64) -> Self {
        self.at(
            ms,
            by,
            Event::Claimed {
                key: "k".into(),
                owner,
                attempt,
                sent: ms * MS,
            },
        )
    }

    fn end(self, ms: u64, by: u64, body: u64, how: How) -> Self {
        self.at(ms, by, Event::End { body, how })
    }

    fn decided(self, ms: u64, by: u64, call: u64, decision: &str, attempt: u64) -> Self {
        self.at(
            ms,
            by,
            Event::Decided {
                key: "k".into(),
                decision: decision.into(),
                attempt,
                call: Some(call),
            },
        )
    }

    fn answer(self, ms: u64, by: u64, call: u64, answer: Answer) -> Self {
        self.at(ms, by, Event::Answer { call, answer })
    }

    /// Call 1 of process 1 runs its body and commits.
    fn done() -> Self {
        Self::default()
            .call(1, 1, 1)
            .claimed(2, 1, 1, 1)
            .poll(3, 1, 1, 1)
            .end(5, 1, 1, How::Value)
            .decided(6, 1, 1, "executed", 1)
            .answer(7, 1, 1, value(1, false))
    }

    fn broken(self) -> Vec<&'static str> {
        let complete = self
            .0
            .iter()
            .any(|line| matches!(line.event, Event::Drained { .. }));
        let findings = check(
            &self.0,
            Rules {
                lease: LEASE,
                fails_over: false,
                forgets: false,
            },
            complete,
        );
        findings
            .violations
            .into_iter()
            .map(|violation| violation.promise)
            .collect()
    }
}

fn value(of: u64, replayed: bool) -> Answer {
    Answer::Value {
        receipt: Receipt { call: of, body: of },
        replayed,
    }
}

fn error(name: &str) -> Answer {
    Answer::Error { name: name.into() }
}

#[test]
fn a_replay_and_a_take_over_break_nothing() {
    let story = Story::done()
        .call(8, 2, 2)
        .decided(9, 2, 2, "replayed", 0)
        .answer(10, 2, 2, value(1, true));
    assert_eq!(story.broken(), [""; 0]);
    let story = Story::default()
        .call(1, 1, 1)
        .claimed(2, 1, 1, 1)
        .poll(3, 1, 1, 1)
        .at(4, 0, Event::Killed { process: 1 });
    let story = story
        .call(5, 2, 2)
        .claimed(110, 2, 2, 2)
        .poll(111, 2, 2, 2)
        .end(112, 2, 2, How::Value);
    assert_eq!(story.broken(), [""; 0]);
}

#[test]
fn p1_a_body_that_is_polled_after_another_began() {
    let story = Story::default()
        .claimed(1, 1, 1, 1)
        .poll(2, 1, 1, 1)
        .claimed(110, 2, 2, 2)
        .poll(111, 2, 2, 2);
    assert_eq!(story.poll(112, 1, 1, 1).broken(), ["P1"]);
}

#[test]
fn p1_also_where_many_bodies_lie_between() {
    let story = Story::default()
        .poll(1, 1, 1, 1)
        .poll(200, 2, 2, 2)
        .end(201, 2, 2, How::Failed)
        .poll(202, 3, 3, 3);
    assert_eq!(story.poll(203, 1, 1, 1).broken(), ["P1", "P1"]);
}

#[test]
fn p1_a_poll_that_had_begun_before_was_stopped_inside_of_it() {
    let stopped = Event::Poll {
        body: 1,
        call: 1,
        key: "k".into(),
        attempt: 1,
        from: 109 * MS,
        first: false,
    };
    let story = Story::default()
        .poll(2, 1, 1, 1)
        .poll(111, 2, 2, 2)
        .at(300, 1, stopped);
    assert_eq!(story.broken(), [""; 0]);
}

#[test]
fn p1_a_key_that_is_given_away_before_its_lease_is_over() {
    let story = Story::default().claimed(1, 1, 1, 1).claimed(60, 2, 2, 2);
    assert_eq!(story.broken(), ["P1"]);
    let story = Story::default().claimed(1, 1, 1, 1).at(
        90,
        1,
        Event::Renewed {
            key: "k".into(),
            owner: 1,
            sent: 80 * MS,
        },
    );
    assert_eq!(story.claimed(110, 2, 2, 2).broken(), ["P1"]);
    let story = Story::default().claimed(1, 1, 1, 1).at(
        30,
        1,
        Event::Releasing {
            key: "k".into(),
            owner: 1,
        },
    );
    assert_eq!(story.claimed(31, 2, 2, 2).broken(), [""; 0]);
}

#[test]
fn p2_a_body_after_an_outcome() {
    assert_eq!(Story::done().poll(300, 2, 2, 2).broken(), ["P2"]);
    // The record was forgotten as well, so attempts start at 1 again.
    assert_eq!(Story::done().poll(300, 2, 2, 1).broken(), ["P2", "P3"]);
}

#[test]
fn p2_a_replay_of_nothing_and_an_outcome_that_is_gone() {
    let story = Story::done().call(8, 2, 2).decided(9, 2, 2, "replayed", 0);
    assert_eq!(story.answer(10, 2, 2, value(9, true)).broken(), ["P2"]);
    let story = Story::done()
        .call(8, 2, 2)
        .decided(9, 2, 2, "rejected_already_done", 0);
    assert_eq!(
        story.answer(10, 2, 2, error("AlreadyDone")).broken(),
        ["P2"]
    );
}

#[test]
fn p3_two_outcomes_and_attempts_that_do_not_increase() {
    let story = Story::default()
        .poll(1, 1, 1, 1)
        .end(2, 1, 1, How::Value)
        .poll(200, 2, 2, 2)
        .end(201, 2, 2, How::Value);
    let story = story
        .decided(202, 2, 2, "executed", 2)
        .decided(203, 1, 1, "executed", 1);
    assert_eq!(story.broken(), ["P3"]);
    let story = Story::default()
        .poll(1, 1, 1, 1)
        .end(2, 1, 1, How::Failed)
        .poll(3, 2, 2, 1);
    assert_eq!(story.broken(), ["P3"]);
}

#[test]
fn p4_a_body_while_the_server_is_dead() {
    let dead = |from, to| {
        Story::default()
            .at(from, 0, Event::ServerDown)
            .call(5, 1, 1)
            .poll(6, 1, 1, 1)
            .at(to, 0, Event::ServerUp)
    };
    assert_eq!(dead(4, 9).broken(), ["P4"]);
    // Its claim may have been answered before.
    let story = Story::default()
        .call(3, 1, 1)
        .at(4, 0, Event::ServerDown)
        .poll(6, 1, 1, 1)
        .at(9, 0, Event::ServerUp);
    assert_eq!(story.broken(), [""; 0]);
}

#[test]
fn p5_a_call_that_is_never_answered_and_a_key_that_nobody_gets() {
    let story = Story::done()
        .at(0, 0, Event::Started { process: 1 })
        .call(8, 1, 2)
        .at(900, 1, Event::Drained { left: 1 });
    assert_eq!(story.broken(), ["P5", "P5"]);
    let story = Story::default()
        .call(1, 1, 1)
        .poll(2, 1, 1, 1)
        .call(3, 2, 2)
        .decided(5_003, 2, 2, "rejected_in_flight", 1);
    assert_eq!(
        story.answer(5_004, 2, 2, error("InFlight")).broken(),
        ["P5"]
    );
}

#[test]
fn p5_a_slow_take_over() {
    let story = Story::default()
        .at(0, 0, Event::Started { process: 1 })
        .call(1, 1, 1)
        .poll(2, 1, 1, 1)
        .call(3, 2, 2);
    let story = story
        .at(4, 0, Event::Killed { process: 1 })
        .poll(2_200, 2, 2, 2);
    assert_eq!(story.broken(), ["P5"]);
}

#[test]
fn p5_a_caller_that_died_waits_no_more() {
    let story = Story::default().at(0, 0, Event::Started { process: 1 }).at(
        0,
        0,
        Event::Started { process: 2 },
    );
    let story =
        story
            .call(1, 1, 1)
            .poll(2, 1, 1, 1)
            .call(3, 2, 2)
            .at(4, 0, Event::Killed { process: 2 });
    let story = story
        .at(5, 0, Event::Killed { process: 1 })
        .call(9_000, 3, 3)
        .poll(9_001, 3, 3, 3);
    assert_eq!(story.broken(), [""; 0]);
}

#[test]
fn p5_a_key_that_cannot_be_brought_to_its_end() {
    let last = Event::Call {
        call: 2,
        key: "j".into(),
        mode: "last".into(),
        wait: 5_000,
    };
    let story = Story::done()
        .at(100, 0, Event::Healed)
        .at(101, 1, last)
        .decided(102, 1, 2, "store_failed", 0);
    assert_eq!(
        story
            .answer(103, 1, 2, error("Store"))
            .at(900, 1, Event::Drained { left: 0 })
            .broken(),
        ["P5"]
    );
}

#[test]
fn p6_a_kept_error_that_is_not_kept() {
    let kept = || {
        Story::default()
            .poll(1, 1, 1, 1)
            .end(2, 1, 1, How::Kept)
            .decided(3, 1, 1, "error_kept", 1)
    };
    assert_eq!(kept().poll(4, 2, 2, 2).broken(), ["P6"]);
    let as_value =
        kept()
            .call(4, 2, 2)
            .decided(5, 2, 2, "replayed", 0)
            .answer(6, 2, 2, value(1, true));
    assert_eq!(as_value.broken(), ["P6"]);
}

#[test]
fn p9_a_commit_that_is_turned_into_a_release() {
    let story = Story::default()
        .claimed(1, 1, 1, 1)
        .poll(2, 1, 1, 1)
        .end(3, 1, 1, How::Value)
        .claimed(30, 2, 2, 2);
    assert_eq!(story.broken(), ["P9"]);
}

#[test]
fn p12_an_answer_of_which_nothing_was_reported() {
    let story = Story::done().call(8, 2, 2).answer(10, 2, 2, value(1, true));
    assert_eq!(story.broken(), ["P12"]);
}

#[test]
fn a_process_that_ends_unasked_and_an_error_that_cannot_be() {
    let story = Story::done().at(0, 0, Event::Started { process: 9 }).at(
        900,
        1,
        Event::Drained { left: 0 },
    );
    assert_eq!(story.broken(), ["none"]);
    let story = Story::done()
        .call(8, 2, 2)
        .decided(9, 2, 2, "unreadable", 0)
        .answer(10, 2, 2, error("Codec"));
    assert_eq!(story.broken(), ["none"]);
}

#[test]
fn where_servers_fail_over_what_is_not_promised_is_counted_and_the_rest_is_broken() {
    let counted = |story: Story| {
        let findings = check(
            &story.0,
            Rules {
                lease: LEASE,
                fails_over: true,
                forgets: true,
            },
            false,
        );
        let counts = findings
            .counts
            .into_iter()
            .filter(|(name, _)| name.starts_with("not promised"));
        (
            findings.violations.len(),
            counts.map(|(_, count)| count).collect::<Vec<u64>>(),
        )
    };
    // A renewal was lost, and the key was given away after the lease of the claim.
    let renewed = || {
        let story = Story::default()
            .call(1, 1, 1)
            .claimed(1, 1, 1, 1)
            .poll(2, 1, 1, 1);
        story.at(
            81,
            1,
            Event::Renewed {
                key: "k".into(),
                owner: 1,
                sent: 80 * MS,
            },
        )
    };
    assert_eq!(
        counted(
            renewed()
                .claimed(110, 2, 2, 2)
                .poll(111, 2, 2, 2)
                .poll(112, 1, 1, 1)
        ),
        (0, vec![1, 0])
    );
    // No renewal explains this.
    assert_eq!(counted(renewed().claimed(70, 2, 2, 2)).0, 1);
    // An outcome that only a duplicate had seen.
    let seen = Story::default()
        .poll(1, 1, 1, 1)
        .end(2, 1, 1, How::Value)
        .call(3, 2, 2)
        .decided(4, 2, 2, "replayed", 0);
    let seen = seen
        .answer(5, 2, 2, value(1, true))
        .poll(200, 3, 3, 2)
        .end(201, 3, 3, How::Value);
    assert_eq!(
        counted(seen.decided(202, 3, 3, "executed", 2)),
        (0, vec![0, 1])
    );
    // The value of a step that only a replay had seen, and one that was acknowledged.
    let again = |story: Story| {
        let story = story.poll(8, 2, 2, 2).given(9, 2, (2, 12), (1, 11));
        let story = story.end(10, 2, 2, How::Failed).poll(20, 3, 3, 3);
        counted(story.closure(21, 3, 3, 13)).0
    };
    assert_eq!(again(Story::step()), 0);
    assert_eq!(again(Story::step().recorded(7, 1, 1, 11)), 1);
    // An outcome that was acknowledged.
    assert_eq!(counted(Story::done().poll(300, 2, 2, 2)).0, 1);
}

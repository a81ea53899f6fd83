//! The checks of steps, each with a small history that breaks it.

use super::*;

#[test]
fn that_are_replayed_and_one_that_is_not_recorded_break_nothing() {
    let story = Story::step().call(7, 2, 2).poll(8, 2, 2, 2);
    assert_eq!(story.given(9, 2, (2, 12), (1, 11)).broken(), [""; 0]);
    let story = Story::step().call(7, 2, 2).poll(8, 2, 2, 2);
    let story = story
        .closure(110, 2, 2, 12)
        .end(111, 2, 12, How::Value)
        .recorded(112, 2, 2, 12);
    assert_eq!(story.broken(), [""; 0]);
}

#[test]
fn one_that_is_repeated_after_it_was_recorded() {
    let again = |story: Story| story.poll(20, 3, 3, 3).closure(21, 3, 3, 13).broken();
    assert_eq!(again(Story::step()), [""; 0]);
    assert_eq!(again(Story::step().recorded(7, 1, 1, 11)), ["steps"]);
    let replayed = Story::step().poll(8, 2, 2, 2);
    assert_eq!(
        again(
            replayed
                .given(9, 2, (2, 12), (1, 11))
                .end(10, 2, 2, How::Failed)
        ),
        ["steps"]
    );
    // Its own call tries again.
    let story = Story::step().recorded(7, 1, 1, 11).closure(8, 1, 1, 12);
    assert_eq!(story.broken(), ["steps"]);
    // The answer came later, and the earlier closure was the owner's to the end.
    let story = Story::step().closure(8, 2, 2, 12).recorded(9, 1, 1, 11);
    assert_eq!(story.broken(), ["steps"]);
}

#[test]
fn another_value_than_that_of_the_closure_that_ran() {
    let story = Story::step().poll(8, 2, 2, 2).closure(9, 2, 2, 12);
    assert_eq!(
        story.given(10, 2, (2, 12), (1, 11)).broken(),
        ["steps", "steps"]
    );
    let story = Story::step().poll(8, 2, 2, 2);
    assert_eq!(story.given(9, 2, (2, 12), (1, 14)).broken(), ["steps"]);
}

#[test]
fn two_closures_at_once() {
    let story = Story::default().closure(1, 1, 1, 11).closure(120, 2, 2, 12);
    assert_eq!(story.closure(121, 1, 1, 11).broken(), ["steps"]);
}

#[test]
fn the_value_of_a_run_before() {
    let run = || {
        let story = Story::default().call(1, 1, 1).poll(2, 1, 1, 1);
        let story = story.closure(3, 1, 1, 11).end(4, 1, 11, How::Value);
        story
            .recorded(5, 1, 1, 11)
            .end(6, 1, 1, How::Value)
            .decided(7, 1, 1, "executed", 1)
    };
    let next = |ms| run().call(ms, 2, 2).poll(ms + 1, 2, 2, 1);
    let given = |ms| next(ms).given(ms + 2, 2, (2, 12), (1, 11));
    assert_eq!(given(2_200).short_lived().broken(), ["steps"]);
    // It may have begun before the outcome expired.
    assert_eq!(given(2_000).short_lived().broken(), [""; 0]);
    // A new run does everything again.
    let again = next(2_200).closure(2_202, 2, 2, 12);
    assert_eq!(again.short_lived().broken(), [""; 0]);
    // Without an outcome in between, it is one run.
    let story = Story::step().recorded(7, 1, 1, 11).poll(2_200, 2, 2, 2);
    assert_eq!(
        story.closure(2_201, 2, 2, 12).short_lived().broken(),
        ["steps"]
    );
}

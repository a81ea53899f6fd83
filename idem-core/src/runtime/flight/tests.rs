//! The promises of flights, seen from their calls.

use std::pin::pin;

use futures_util::FutureExt as _;

use super::*;
use crate::encoding::fingerprint::Fingerprint;
use crate::encoding::key::Key;
use crate::error::{StoreError, StoreErrorKind};
use crate::record::{Owner, RecordId};

const HOUR: Duration = Duration::from_secs(3600);

fn id(key: u64) -> RecordId {
    RecordId::new("orders", &Key::encode(&key).unwrap()).unwrap()
}

fn question(key: u64) -> Claim {
    Claim {
        id: id(key),
        owner: Owner::NOBODY,
        lease: Duration::ZERO,
        hold: Duration::ZERO,
        fingerprint: None,
        take_over: true,
        take_over_after: None,
        max_attempts: None,
        must_be_issued: false,
        metadata: None,
    }
}

fn seat(flights: &Arc<Flights>, key: u64) -> FlightSeat {
    flights.join(question(key))
}

fn counts(flights: &Flights) -> Vec<usize> {
    flights
        .shards
        .iter()
        .map(|shard| shard.lock().unwrap().len())
        .collect()
}

#[tokio::test]
async fn a_flight_is_there_until_the_last_of_its_calls_leaves() {
    let flights = Arc::new(Flights::new());
    let mut seats: Vec<_> = (0..3).map(|_| seat(&flights, 1)).collect();
    while !seats.is_empty() {
        assert_eq!(counts(&flights).iter().sum::<usize>(), 1);
        seats.remove(0);
    }
    assert_eq!(
        counts(&flights).iter().sum::<usize>(),
        0,
        "a key that nobody is busy with takes no memory"
    );
    assert!(seat(&flights, 1).is_first());
}

#[tokio::test]
async fn keys_are_spread_over_the_locks() {
    let flights = Arc::new(Flights::new());
    let _seats: Vec<_> = (0..1_000).map(|key| seat(&flights, key)).collect();
    let used = counts(&flights)
        .into_iter()
        .filter(|count| *count > 0)
        .count();
    assert!(used > SHARDS / 2, "{used} of {SHARDS}");
}

#[tokio::test]
async fn calls_share_a_flight_if_they_would_ask_the_store_the_same() {
    let flights = Arc::new(Flights::new());
    let first = seat(&flights, 1);
    assert!(first.is_first() && !seat(&flights, 1).is_first());
    let one = question(1);
    for other in [
        question(2),
        Claim {
            fingerprint: Some(Fingerprint::of(&1).unwrap()),
            ..one.clone()
        },
        Claim {
            take_over: false,
            ..one.clone()
        },
        Claim {
            take_over_after: Some(HOUR),
            ..one.clone()
        },
        Claim {
            max_attempts: Some(1),
            ..one.clone()
        },
        Claim {
            must_be_issued: true,
            ..one.clone()
        },
    ] {
        assert!(flights.join(other.clone()).is_first(), "{other:?}");
    }
}

fn term() -> Arc<Term> {
    Arc::new(Term::first(id(1), HOUR))
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_commit_was_sent_speaks_for_a_moment_and_only_for_calls_that_came_before() {
    let flights = Arc::new(Flights::new());
    let now = clock::now();
    let deadline = Some(clock::after(now, HOUR));
    let mut owner = seat(&flights, 1);
    owner.become_owner(term());
    let mut before = seat(&flights, 1);
    assert_eq!(before.look(deadline).err().unwrap().until, now + HOUR);
    owner.sending_step();
    assert_eq!(before.look(deadline).err().unwrap().until, now + PATIENCE);
    let soon = clock::after(now, PATIENCE / 2);
    assert_eq!(before.look(Some(soon)).err().unwrap().until, soon);
    // Sent again, it speaks no longer.
    tokio::time::advance(PATIENCE / 4).await;
    owner.sending_step();
    assert_eq!(before.look(deadline).err().unwrap().until, now + PATIENCE);
    assert!(matches!(
        before.look(None),
        Ok(Turn::Answer(Rejected::InFlight(_)))
    ));
    let mut after = seat(&flights, 1);
    assert!(matches!(after.look(deadline), Ok(Turn::Ask)));
    drop(after);
    tokio::time::advance(PATIENCE).await;
    assert!(matches!(before.look(deadline), Ok(Turn::Ask)));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_cannot_tell_what_becomes_of_the_record_is_not_waited_for_whatever_it_sends()
{
    for sends in [false, true] {
        for is_recorded in [false, true] {
            let flights = Arc::new(Flights::new());
            let deadline = Some(clock::after(clock::now(), HOUR));
            let mut owner = seat(&flights, 1);
            let lease = term();
            owner.become_owner(lease.clone());
            let mut asks = seat(&flights, 1);
            let mut waits = seat(&flights, 1);
            if is_recorded {
                lease.note_recorded_in_transaction(None);
            } else {
                lease.mark_lost();
            }
            assert!(matches!(asks.look(deadline), Ok(Turn::Ask)));
            let until = waits.look(deadline).err().unwrap().until;
            tokio::time::advance(PATIENCE / 2).await;
            if sends {
                owner.sending_step();
            }
            assert_eq!(waits.look(deadline).err().unwrap().until, until);
            drop(owner);
            assert_eq!(waits.look(deadline).err().unwrap().until, until);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn that_another_call_got_no_answer_ends_a_claim_and_is_no_news_of_that_claim() {
    let flights = Arc::new(Flights::new());
    let slow = seat(&flights, 1);
    let mut other = seat(&flights, 1);
    let asks = slow.while_asking(pending::<()>());
    tokio::time::advance(PATIENCE).await;
    assert!(matches!(other.look(None), Ok(Turn::Ask)));
    let outage = StoreError::new(StoreErrorKind::Timeout, "");
    other.share(Rejected::Store(outage));
    let sent = slow.flight.lock().sent;
    assert!(matches!(asks.await, Err(Rejected::Store(_))));
    assert_eq!(slow.flight.lock().sent, sent);
}

/// The store may have accepted it: dropping it would undo that, and the other answer may be about
/// this very claim.
#[tokio::test(start_paused = true)]
async fn that_the_store_answered_another_call_ends_no_claim() {
    for why in [Rejected::InFlight(Held::new(1, HOUR)), Rejected::Done] {
        let flights = Arc::new(Flights::new());
        let slow = seat(&flights, 1);
        let mut other = seat(&flights, 1);
        let mut asks = pin!(slow.while_asking(tokio::time::sleep(HOUR)));
        assert!(asks.as_mut().now_or_never().is_none());
        tokio::time::advance(PATIENCE).await;
        assert!(matches!(other.look(None), Ok(Turn::Ask)));
        other.share(why);
        assert!(asks.as_mut().now_or_never().is_none());
        assert!(asks.await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_for_an_owner_hears_at_once_that_it_sends_its_commit() {
    let flights = Arc::new(Flights::new());
    let deadline = Some(clock::after(clock::now(), HOUR));
    let mut owner = seat(&flights, 1);
    owner.become_owner(term());
    let mut before = seat(&flights, 1);
    let mut turn = pin!(before.turn(deadline));
    assert!(turn.as_mut().now_or_never().is_none());
    owner.sending_step();
    let began = clock::now();
    // The owner is not polled from here on.
    assert!(matches!(turn.await, (Turn::Ask, true)));
    assert_eq!(clock::now(), began + PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_goes_on_for_an_answer_that_was_asked_for_after_it_came_and_for_no_older_one()
 {
    let flights = Arc::new(Flights::new());
    let deadline = Some(clock::after(clock::now(), HOUR));
    let mut waits = seat(&flights, 1);
    waits.share(Rejected::InFlight(Held::new(1, HOUR)));
    // One that comes later asks first: the answer is older than that call.
    assert!(matches!(seat(&flights, 1).look(deadline), Ok(Turn::Ask)));
    assert!(matches!(
        waits.look(deadline),
        Ok(Turn::Wait(Held { attempt: 1, .. }))
    ));
    assert!(waits.goes_on_waiting());
    for (message, is_new) in [(waits.joined, false), (waits.joined + 1, true)] {
        let why = Rejected::Done;
        waits.flight.lock().answer = Some(Answered { message, why });
        assert_eq!(!waits.goes_on_waiting(), is_new);
    }
}

#[tokio::test(start_paused = true)]
async fn that_the_store_gave_no_answer_is_for_all_that_are_here_and_for_none_that_come_later() {
    use StoreErrorKind::{Refused, Timeout, Unavailable};
    for (kind, is_for_all) in [(Timeout, true), (Unavailable, true), (Refused, false)] {
        let flights = Arc::new(Flights::new());
        let asks = seat(&flights, 1);
        let mut here = seat(&flights, 1);
        asks.share(Rejected::Store(StoreError::new(kind, "")));
        let mut later = seat(&flights, 1);
        assert!(matches!(later.look(None), Ok(Turn::Ask)));
        drop(later);
        assert_eq!(
            matches!(here.look(None), Ok(Turn::Answer(_))),
            is_for_all,
            "{kind:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn that_the_store_gave_no_answer_is_no_news_after_a_later_answer_or_a_long_stop() {
    let outage = || Rejected::Store(StoreError::new(StoreErrorKind::Timeout, ""));
    let deadline = Some(clock::after(clock::now(), HOUR));
    for then in ["it stops", "another owns", "another waits"] {
        let flights = Arc::new(Flights::new());
        let slow = seat(&flights, 1);
        let mut other = seat(&flights, 1);
        let mut waits = seat(&flights, 1);
        tokio::time::advance(PATIENCE).await;
        assert!(matches!(other.look(None), Ok(Turn::Ask)));
        match then {
            "it stops" => tokio::time::advance(NEWS).await,
            "another owns" => other.become_owner(term()),
            _ => other.share(Rejected::InFlight(Held::new(1, HOUR))),
        }
        slow.share(outage());
        let next = waits.look(deadline);
        assert!(!matches!(next, Ok(Turn::Answer(_))), "{then}");
    }
}

#[tokio::test(start_paused = true)]
async fn that_the_store_gave_no_answer_to_an_older_claim_ends_no_later_one() {
    let flights = Arc::new(Flights::new());
    let _first = seat(&flights, 1);
    let mut slow = seat(&flights, 1);
    let mut asks = seat(&flights, 1);
    for asker in [&mut slow, &mut asks] {
        tokio::time::advance(PATIENCE).await;
        assert!(matches!(asker.look(None), Ok(Turn::Ask)));
    }
    let mut asking = pin!(asks.while_asking(pending::<()>()));
    assert!(asking.as_mut().now_or_never().is_none());
    // It was not polled for so long that this is no news.
    tokio::time::advance(NEWS).await;
    slow.share(Rejected::Store(StoreError::new(
        StoreErrorKind::Timeout,
        "",
    )));
    assert!(asking.now_or_never().is_none());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_replaces_none_to_a_later_claim() {
    let flights = Arc::new(Flights::new());
    let slow = seat(&flights, 1);
    let mut asks = seat(&flights, 1);
    let mut here = seat(&flights, 1);
    tokio::time::advance(PATIENCE).await;
    assert!(matches!(asks.look(None), Ok(Turn::Ask)));
    asks.share(Rejected::Done);
    slow.share(Rejected::InFlight(Held::new(1, HOUR)));
    assert!(matches!(here.look(None), Ok(Turn::Answer(Rejected::Done))));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_the_attempt_before_the_one_of_an_owner_of_this_process() {
    let flights = Arc::new(Flights::new());
    let deadline = Some(clock::after(clock::now(), HOUR));
    let mut waits = seat(&flights, 1);
    waits.share(Rejected::InFlight(Held::new(1, HOUR)));
    let mut owner = seat(&flights, 1);
    assert!(matches!(owner.look(None), Ok(Turn::Ask)));
    owner.become_owner(term());
    drop(owner);
    assert!(matches!(waits.look(deadline), Ok(Turn::Ask)));
}

#[tokio::test(start_paused = true)]
async fn a_claim_after_a_long_wait_for_claims_is_sent_again_only_within_a_second_of_its_beginning()
{
    for (does, is_for_claims) in [("asks", true), ("commits", true), ("owns", false)] {
        for waited in [LONG_BEHIND_CLAIMS / 2, LONG_BEHIND_CLAIMS * 2] {
            let flights = Arc::new(Flights::new());
            let began = clock::now();
            let mut other = seat(&flights, 1);
            if does != "asks" {
                other.become_owner(term());
            }
            if does == "commits" {
                other.sending_step();
            }
            // The call that has sent its commit serves only those that came before.
            let mut asks = seat(&flights, 1);
            asks.joined = 0;
            let flight = asks.flight.clone();
            {
                let mut turn = pin!(asks.turn(Some(clock::after(began, HOUR))));
                for _ in 0..2 {
                    // The second time, it is woken for nothing.
                    flight.changed.notify_waiters();
                    assert!(turn.as_mut().now_or_never().is_none(), "{does}");
                    tokio::time::advance(waited / 2).await;
                }
                drop(other);
                assert!(matches!(turn.await, (Turn::Ask, true)), "{does}");
            }
            let is_limited = is_for_claims && waited > LONG_BEHIND_CLAIMS;
            assert_eq!(
                asks.resends_until(clock::now()),
                is_limited.then(|| began + FAILS_SOON),
                "{does}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_call_did_for_the_others_is_taken_over_at_once_when_it_goes_away() {
    let now = clock::now();
    let deadline = Some(clock::after(now, HOUR));
    for does in ["asks", "waits", "owns", "commits"] {
        let flights = Arc::new(Flights::new());
        let mut one = seat(&flights, 1);
        let mut other = seat(&flights, 1);
        match does {
            "waits" => {
                one.share(Rejected::InFlight(Held::new(1, HOUR)));
                assert!(matches!(one.look(deadline), Ok(Turn::Wait(_))));
            }
            "owns" => one.become_owner(term()),
            "commits" => {
                one.become_owner(term());
                one.sending_step();
            }
            _ => {}
        }
        {
            let mut turn = pin!(other.turn(deadline));
            assert!(turn.as_mut().now_or_never().is_none(), "{does}");
            drop(one);
            let (turn, has_waited) = turn.await;
            assert!(has_waited && matches!(turn, Turn::Ask | Turn::Wait(_)));
        }
        assert_eq!(clock::now(), now, "{does}: nothing was waited for");
    }
}
